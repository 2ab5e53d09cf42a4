"""Simulated devices, a served study and a real PostgreSQL, for the benchmark of the collector and for its tests."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from populace.types import JsonObject

SECONDS_TO_START = 120.0
SOURCE = Path(__file__).parents[1] / "src"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Postgres:
    """A PostgreSQL of one's own, in a temporary folder, on a socket in it: no network, no password."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self._user = folder, folder / "data", _user()
        found = postgres_folder()
        if found is None:
            raise FileNotFoundError("no PostgreSQL is installed here (postgres, initdb)")
        self.bin = found

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def create(self) -> None:
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        self._run("initdb", "-D", str(self.data), "-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-sync")

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories='{self.folder}' -c max_connections=100"
        self._run(
            "pg_ctl", "-D", str(self.data), "-w", "-t", "60", "-o", options, "-l", str(self.folder / "log"), "start"
        )

    def kill(self) -> None:
        """kill -9 of the whole database."""
        parent = int((self.data / "postmaster.pid").read_text().split()[0])
        main = psutil.Process(parent)
        everybody = [main, *main.children(recursive=True)]
        for process in everybody:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(everybody, timeout=20)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self._run("pg_ctl", "-D", str(self.data), "-m", "immediate", "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        who = {} if self._user is None else {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        with (self.folder / "setup.log").open("ab") as out:
            subprocess.run(
                [str(self.bin / program), *arguments],
                check=True,
                stdout=out,
                stderr=out,
                cwd=self.folder,
                timeout=120,
                **who,
            )


def _user() -> Any:
    """Whom PostgreSQL runs as: it refuses root."""
    if os.getuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def postgres_folder() -> Path | None:
    """Where PostgreSQL's programs are, or None."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "pg_ctl").exists()), None)


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL that runs while this does."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    database = Postgres(folder)
    try:
        database.create()
        database.start()
        yield database
    finally:
        database.stop()
        shutil.rmtree(folder, ignore_errors=True)


@dataclasses.dataclass
class Served:
    """A served study: its processes are a group of their own."""

    study: Path
    port: int
    workers: int
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, ready: bool = True) -> None:
        paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}
        command = [
            sys.executable, "-c", "from populace.cli.main import run; run()", "collector", "serve", str(self.study),
            "--port", str(self.port), "--workers", str(self.workers), "--rate", "100000",
        ]  # fmt: skip
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
        if ready:
            self.wait()

    def wait(self) -> None:
        until = time.monotonic() + SECONDS_TO_START
        while time.monotonic() < until:
            if self.process is None or self.process.poll() is not None:
                raise RuntimeError(f"the collector ended: {self.log.read_text()[-2000:]}")
            with contextlib.suppress(OSError, urllib.error.URLError, ValueError):
                if self.has_round():
                    return
            time.sleep(0.2)
        raise TimeoutError(f"the collector did not start: {self.log.read_text()[-2000:]}")

    def has_round(self) -> bool:
        return bool(self.progress()["rounds"])

    def progress(self) -> JsonObject:
        token = (self.study / "organiser.token").read_text().strip()
        request = urllib.request.Request(f"{self.url}/v1/progress", headers={"authorization": f"Bearer {token}"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310
            found: JsonObject = json.loads(reply.read())
        return found

    def kill(self) -> None:
        """kill -9 of everything that serves."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.kill()


@contextlib.contextmanager
def serving(study: Path, *, workers: int = 1, log: Path | None = None) -> Iterator[Served]:
    """A study that is served while this runs."""
    served = Served(study=study, port=free_port(), workers=workers, log=log or study.parent / "serve.log")
    try:
        served.start()
        yield served
    finally:
        served.stop()
        served.kill()


class Connection(asyncio.Protocol):
    """One connection that is kept: a request, then its answer, as little as HTTP needs."""

    def __init__(self) -> None:
        self.buffer = b""
        self.waiting: asyncio.Future[tuple[int, bytes]] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(next((line[15:] for line in head.split(b"\r\n") if line[:15].lower() == b"content-length:"), b"0"))
        if len(rest) >= length and self.waiting is not None and not self.waiting.done():
            self.buffer = rest[length:]
            self.waiting.set_result((int(head[9:12]), rest[:length]))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(ConnectionResetError("the server closed the connection"))
        self.transport = None

    async def request(self, data: bytes) -> tuple[int, bytes]:
        if self.transport is None:
            raise ConnectionResetError("not connected")
        self.waiting = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return await asyncio.wait_for(self.waiting, 60)


@dataclasses.dataclass
class Outcome:
    """What simulated devices saw: receipts by invitation, seconds of each request, statuses."""

    receipts: dict[str, str] = dataclasses.field(default_factory=dict)
    ask_seconds: list[float] = dataclasses.field(default_factory=list)
    answer_seconds: list[float] = dataclasses.field(default_factory=list)
    statuses: dict[int, int] = dataclasses.field(default_factory=dict)
    unsure: int = 0
    seconds: float = 0.0

    def note(self, status: int) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1


def random_report(report: JsonObject, draw: random.Random) -> bytes:
    """Some report that the question can have, without a record behind it: as many bytes, and as fast as can be."""
    size, chosen = report["size"], report["chosen"]
    values = sorted(draw.sample(range(size), chosen))
    if report["encoding"] == "bits":
        whole = sum(1 << (8 * report["bytes"] - 1 - value) for value in values)
        return whole.to_bytes(report["bytes"], "big")
    bits = "".join(format(value, f"0{report['index_bits']}b")[::-1] for value in values)
    return int(bits.ljust(8 * report["bytes"], "0"), 2).to_bytes(report["bytes"], "big")


class Devices:
    """Simulated devices: each asks for its question, answers, and sends the same again until it has a receipt."""

    def __init__(self, port: int, *, connections: int = 64, seed: int = 0, patience: float = 120.0) -> None:
        self.port, self.connections, self.patience = port, connections, patience
        self.draw = random.Random(seed)
        self.outcome = Outcome()
        self.kept: dict[str, bytes] = {}

    def run(self, invitations: Sequence[str], during: Callable[[Outcome], None] | None = None) -> Outcome:
        """All of them, over so many connections at a time; `during` is called again and again meanwhile, in a thread."""
        asyncio.run(self._all(list(invitations), during))
        return self.outcome

    async def _all(self, invitations: list[str], during: Callable[[Outcome], None] | None) -> None:
        began = time.perf_counter()
        left = iter(invitations)
        workers = [asyncio.create_task(self._worker(left)) for _ in range(self.connections)]
        beside = None if during is None else asyncio.create_task(asyncio.to_thread(during, self.outcome))
        await asyncio.gather(*workers)
        if beside is not None:
            await beside
        self.outcome.seconds = time.perf_counter() - began

    async def _worker(self, left: Iterator[str]) -> None:
        connection: Connection | None = None
        for invitation in left:
            until = time.perf_counter() + self.patience
            while time.perf_counter() < until:
                try:
                    if connection is None or connection.transport is None:
                        loop = asyncio.get_running_loop()
                        _, connection = await loop.create_connection(Connection, "127.0.0.1", self.port)
                    if await self._device(connection, invitation):
                        break
                except (OSError, TimeoutError):
                    self.outcome.unsure += 1
                    connection = None
                await asyncio.sleep(0.2)
        if connection is not None and connection.transport is not None:
            connection.transport.close()

    async def _device(self, connection: Connection, invitation: str) -> bool:
        """One try of one device; whether it is done."""
        head = f"host: localhost\r\nauthorization: Bearer {invitation}\r\n"
        if invitation not in self.kept:
            began = time.perf_counter()
            status, body = await connection.request(f"GET /v1/question HTTP/1.1\r\n{head}\r\n".encode())
            self.outcome.note(status)
            if status in (403, 409, 410):
                return True
            if status != 200:
                return False
            self.outcome.ask_seconds.append(time.perf_counter() - began)
            asked = json.loads(body)
            if asked["state"] == "wait":
                return False
            self.kept[invitation] = self.answer(asked)
        content = self.kept[invitation]
        began = time.perf_counter()
        status, body = await connection.request(
            f"POST /v1/answer HTTP/1.1\r\n{head}content-type: application/json\r\n"
            f"content-length: {len(content)}\r\n\r\n".encode()
            + content
        )
        self.outcome.note(status)
        if status == 200:
            self.outcome.answer_seconds.append(time.perf_counter() - began)
            self.outcome.receipts[invitation] = json.loads(body)["receipt"]
        return status == 200 or status in (403, 409, 410, 422)

    def answer(self, asked: JsonObject) -> bytes:
        report = base64.b64encode(random_report(asked["report"], self.draw)).decode()
        nonce = base64.b64encode(self.draw.randbytes(32)).decode()
        document = {"round": asked["round"], "place": asked["place"], "report": report, "nonce": nonce}
        return json.dumps(document).encode()


def links(path: Path) -> list[str]:
    """The invitations in a file of links."""
    return [line.partition("#")[2] for line in path.read_text().split()]
