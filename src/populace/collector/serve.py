"""`populace collector serve`: web workers in front of the store, and one process behind it that turns rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from populace.collector.coordinator import SERVING
from populace.collector.stores import study_store
from populace.collector.study import StudyFolder
from populace.errors import InputError, MissingExtra

LOOPBACK = ("127.0.0.1", "::1", "localhost")
MOST_CONNECTIONS = 4_096  # of one worker, at a time
SECONDS_KEPT_ALIVE = 15
SECONDS_TO_FINISH = 20
SECONDS_BEFORE_RESTART = 2.0
PLAIN = (
    "careful: without --tls-cert and --tls-key answers travel in the clear; they are randomised, but who sends them can be "
    "seen, and a page can be changed on the way: use TLS here, or a proxy that has it"
)
log = logging.getLogger("populace.collector")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listening:
    """Where and how to serve."""

    host: str = "127.0.0.1"
    port: int = 8765
    workers: int = 1
    tls_cert: str | None = None
    tls_key: str | None = None
    per_second: float = 10_000.0

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65_535:
            raise InputError(f"expected a port in 1 to 65535, got {self.port}")
        if not 1 <= self.workers <= 64:
            raise InputError(f"expected workers in 1 to 64, got {self.workers}")
        if not self.per_second >= 1:
            raise InputError(f"expected a rate of at least 1 request a second, got {self.per_second!r}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InputError("give --tls-cert and --tls-key together, or neither")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not Path(path).is_file():
                raise InputError(f"no file {path}")

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.tls_cert is None else 'https'}://{host}:{self.port}/"


def serve(folder: StudyFolder, listening: Listening, *, store: str | None, say: Callable[[str], None]) -> None:
    """Serve until interrupted. Everything that can be wrong is found before the port is opened."""
    uvicorn = _uvicorn()
    study = folder.read()
    study_store(folder, study, store).close()
    _check_free(listening)
    if listening.host not in LOOPBACK and listening.tls_cert is None:
        say(PLAIN)
    say(f"{study.title or study.id}: {study.method}, epsilon {study.epsilon:g}, {study.clients:,} answers planned")
    say(f"listening on {listening.address} with {listening.workers} worker{'s' if listening.workers > 1 else ''}")
    token = folder.token() if sys.stdout.isatty() else f"in {folder.token_path}"  # not into a log
    say(f"the organiser's token, for {listening.address}organiser.html: {token}")
    os.environ[SERVING] = str(os.getpid())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # after the web server's own, so that all is tidied up
    os.environ["POPULACE_STUDY"] = str(folder.path.resolve())
    os.environ["POPULACE_RATE"] = str(listening.per_second)
    os.environ["POPULACE_WORKERS"] = str(listening.workers)
    with _coordinating(folder):
        uvicorn.run(
            "populace.collector.app:application", factory=True, host=listening.host, port=listening.port,
            workers=listening.workers, ssl_certfile=listening.tls_cert, ssl_keyfile=listening.tls_key, access_log=False,
            log_config=None, log_level="error", server_header=False, date_header=False, proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS, timeout_keep_alive=SECONDS_KEPT_ALIVE, backlog=2_048,
            timeout_graceful_shutdown=SECONDS_TO_FINISH, h11_max_incomplete_event_size=16_384, ws="none",
        )  # fmt: skip


def _check_free(listening: Listening) -> None:
    """Raise InputError where the address is not one of this machine, or is taken."""
    bound, missing = False, OSError("there is no such address")
    try:
        found = socket.getaddrinfo(listening.host, listening.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            try:
                with socket.socket(family, kind, protocol) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(address)
                    bound = True
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error  # "localhost" may name two, of which a machine has one
        if not bound:
            raise missing
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen on {listening.address}: {why}; name another --host or --port") from error


def _uvicorn() -> Any:
    try:
        import starlette
        import uvicorn
    except ImportError as error:
        raise MissingExtra("the collector needs its web server: pip install 'populace[collector]'") from error
    del starlette
    return uvicorn


@contextlib.contextmanager
def _coordinating(folder: StudyFolder) -> Iterator[None]:
    """A coordinator beside, started again if it ends; another one elsewhere holds the lease, or this one does."""
    stopping = threading.Event()
    command = [sys.executable, "-m", "populace.collector.coordinator", str(folder.path.resolve())]
    running: list[subprocess.Popen[bytes]] = []

    def keep() -> None:
        while not stopping.is_set():
            running[:] = [subprocess.Popen(command)]  # noqa: S603
            while running[0].poll() is None and not stopping.wait(0.5):
                pass
            stopping.wait(SECONDS_BEFORE_RESTART)

    keeper = threading.Thread(target=keep, daemon=True)
    keeper.start()
    try:
        yield
    finally:
        stopping.set()
        keeper.join(5.0)
        for process in running:
            process.terminate()
            try:
                process.wait(SECONDS_TO_FINISH)
            except subprocess.TimeoutExpired:
                process.kill()
