"""Servers for the collector's pages: a real study, and a stub that says whatever a test wants it to say."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from collector_for_tests import bearer, make_study, opened, turn
from collector_twin import make_report
from populace.collector.app import PAGES, make_app
from populace.collector.invite import invite
from populace.collector.limits import HEADERS, PAGE_HEADERS
from populace.collector.study import StudyFolder

KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Served:
    """A study that is served from a thread of this process; it can be stopped and started again at the same address."""

    def __init__(self, folder: StudyFolder) -> None:
        self.folder, self.study, self.port = folder, folder.read(), free_port()
        self._server: uvicorn.Server | None = None
        self._files = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        settings = uvicorn.Config(
            make_app(self.folder.path), host="127.0.0.1", port=self.port, log_level="error", access_log=False, ws="none",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        until = time.monotonic() + 30
        while not self._server.started:
            assert time.monotonic() < until, "the server did not start"
            time.sleep(0.02)

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
            self._thread.join(20)
            self._server = None

    def link(self) -> str:
        """A new invitation's link."""
        return self.links(1)[0]

    def links(self, count: int) -> list[str]:
        self._files += 1
        out = self.folder.path.parent / f"links-{self._files}.txt"
        with opened(self.folder) as store:
            invite(self.study, store, count, out, url=self.address)
        return out.read_text().split()

    def answer(self, link: str, codes: Sequence[int]) -> None:
        """Answer as a program, with the code of every column."""
        headers = bearer(link.partition("#")[2])
        question = self.call("v1/question", headers=headers)
        report, nonce = (base64.b64encode(part).decode() for part in (make_report(question, codes), bytes(32)))
        body = {"round": question["round"], "place": question["place"], "report": report, "nonce": nonce}
        self.call("v1/answer", headers=headers | {"content-type": "application/json"}, data=json.dumps(body).encode())

    def call(self, path: str, **parts: Any) -> Any:
        with urllib.request.urlopen(urllib.request.Request(self.address + path, **parts), timeout=30) as reply:  # noqa: S310
            return json.loads(reply.read())

    def answers(self) -> list[tuple[int, bytes]]:
        with opened(self.folder) as store:
            return [reply for at in store.rounds() for reply in store.replies(at.number)]


@contextlib.contextmanager
def served(path: Path, method: str = "poll", **settings: Any) -> Iterator[Served]:
    """A new study, begun and served."""
    place = make_study(path, method, invited=1, **settings)
    turn(place)
    running = Served(place)
    running.start()
    try:
        yield running
    finally:
        running.stop()


Reply = tuple[int, bytes]


class Stub:
    """The pages with the real headers, and an interface that answers what `replies` says; everything posted is kept."""

    def __init__(self) -> None:
        self.replies: dict[str, Callable[[bytes], Reply] | Reply | object] = {}
        self.posted: list[tuple[str, bytes]] = []
        self.files: dict[str, bytes] = {}
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer(b"")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                stub.posted.append((self.path, body))
                self.answer(body)

            def answer(self, body: bytes) -> None:
                status, content, kind = stub.reply(self.path.partition("?")[0], body)
                self.send_response(status)
                headers = HEADERS if self.path.startswith("/v1/") else PAGE_HEADERS
                for name, value in {**headers, "content-type": kind, "content-length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(content)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def reply(self, path: str, body: bytes) -> tuple[int, bytes, str]:
        if path.startswith("/v1/"):
            found = self.replies.get(path, (404, b"{}"))
            found = found(body) if callable(found) else found
            status, content = found if isinstance(found, tuple) else (200, json.dumps(found).encode())
            return status, content, "application/json"
        if path in self.files:
            return 200, self.files[path], KINDS[Path(path).suffix]
        file = PAGES / (path.lstrip("/") or "index.html")
        if not file.is_file():
            return 404, b"", "text/plain"
        return 200, file.read_bytes(), KINDS[file.suffix]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
