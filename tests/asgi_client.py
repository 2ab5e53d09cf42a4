"""An application's requests without a server: one event loop in a thread, as a worker has it."""

from __future__ import annotations

import asyncio
import json
import threading


class Reply:
    def __init__(self, status, headers, content):
        self.status_code, self.headers, self.content = status, headers, content

    def json(self):
        return json.loads(self.content)


class AsgiClient:
    """Requests to an application, one after the other, or several at once from several threads."""

    def __init__(self, app):
        self.app = app
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        self._events = self._call(_queues())
        self._life = asyncio.run_coroutine_threadsafe(
            self.app({"type": "lifespan"}, self._events[0].get, self._events[1].put), self.loop
        )
        self._turn("startup")
        return self

    def __exit__(self, *_):
        self._turn("shutdown")
        self._life.result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()

    def _turn(self, name):
        self._call(self._events[0].put({"type": f"lifespan.{name}"}))
        assert self._call(self._events[1].get())["type"] == f"lifespan.{name}.complete"

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def get(self, path, headers=None):
        return self.request("GET", path, headers=headers)

    def post(self, path, *, content=b"", json=None, headers=None):
        headers = dict(headers or {})
        if json is not None:
            content = _dumps(json)
            headers.setdefault("content-type", "application/json")
        return self.request("POST", path, content=content, headers=headers)

    def request(self, method, path, *, content=b"", headers=None, chunks=None):
        return self._call(self._request(method, path, chunks if chunks is not None else [content], headers or {}))

    async def _request(self, method, path, chunks, headers):
        plain, _, query = path.partition("?")
        sent = {name.lower(): value for name, value in headers.items()}
        if method == "POST":
            sent.setdefault("content-length", str(sum(map(len, chunks))))
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": plain, "raw_path": plain.encode("utf-8", "surrogatepass"),
            "query_string": query.encode("latin-1", "replace"),
            "root_path": "", "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent.items()],
            "client": ("192.0.2.7", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        left = [{"type": "http.request", "body": part, "more_body": True} for part in chunks]
        left = [*left, {"type": "http.request", "body": b"", "more_body": False}]
        answer = {"body": b""}

        async def receive():
            return left.pop(0) if left else await asyncio.Event().wait()

        async def send(message):
            if message["type"] == "http.response.start":
                answer["status"], answer["headers"] = message["status"], message["headers"]
            elif message["type"] == "http.response.body":
                answer["body"] += message.get("body", b"")

        await self.app(scope, receive, send)
        found = {name.decode("latin-1"): value.decode("latin-1") for name, value in answer["headers"]}
        return Reply(answer["status"], found, answer["body"])


async def _queues():
    return asyncio.Queue(), asyncio.Queue()


def _dumps(document):
    return json.dumps(document).encode()
