"""What the server takes at most: bytes, requests a second, seconds; and how it says no: one sentence and a status code."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BODY = 16_384  # bytes
SECONDS_FOR_BODY = 10.0
SECONDS_FOR_REQUEST = 60.0
#: What every page carries. Nothing is loaded from elsewhere, nothing is told to anybody else.
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
}
#: What every answer of the interface carries.
HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


OF_PAGES, OF_INTERFACE = _encoded(PAGE_HEADERS), _encoded(HEADERS)


class Refused(Exception):  # noqa: N818
    """A request that is refused."""

    def __init__(self, status: int, sentence: str, *, retry: float | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.retry = status, sentence, retry


def refusal(status: int, sentence: str, *, retry: float | None = None) -> Response:
    """A refusal as it is sent."""
    headers = {} if retry is None else {"retry-after": str(max(1, round(retry)))}
    body = json.dumps({"error": sentence}, ensure_ascii=False).encode()
    return Response(body, status_code=status, media_type="application/json", headers=headers)


async def read_body(request: Request, *, most: int = MOST_BODY) -> bytes:
    """The body, refused as soon as it is too long or too slow."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:
        raise Refused(413, f"expected a body of at most {most} bytes, got {int(declared)}")
    parts, size = [], 0
    try:
        async with asyncio.timeout(SECONDS_FOR_BODY):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise Refused(413, f"expected a body of at most {most} bytes, got more")
                parts.append(part)
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {SECONDS_FOR_BODY:g} seconds") from None
    return b"".join(parts)


class Rate:
    """At most so many requests a second in one process, as a bucket that fills up again; it holds one at least."""

    def __init__(self, per_second: float) -> None:
        self.per_second, self.most = per_second, max(1.0, per_second)
        self._left, self._at = self.most, time.monotonic()

    def take(self) -> bool:
        now = time.monotonic()
        self._left = min(self.most, self._left + (now - self._at) * self.per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Guard:
    """The outermost layer: rate and time of every request, and the headers of every answer."""

    def __init__(self, app: App, *, per_second: float, seconds: float = SECONDS_FOR_REQUEST) -> None:
        self.app, self.rate, self.seconds = app, Rate(per_second), seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = False

        async def sending(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                more = OF_INTERFACE if str(scope.get("path", "")).startswith("/v1/") else OF_PAGES
                message["headers"] = [*message.get("headers", []), *more]
            await send(message)

        if not self.rate.take():
            await refusal(429, "too many requests; try again in a second", retry=1)(scope, receive, sending)
            return
        try:
            async with asyncio.timeout(self.seconds):
                await self.app(scope, receive, sending)
        except TimeoutError:
            if not began:
                await refusal(503, "this took too long; send the same again", retry=5)(scope, receive, sending)
