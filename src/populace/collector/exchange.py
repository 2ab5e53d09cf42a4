"""A device's side of HTTP: one address that is trusted with nothing, no redirects, and what its answers mean."""

from __future__ import annotations

import base64
import binascii
import http.client
import math
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from populace.border.documents import parse_json
from populace.collector.study import TOKEN_BYTES
from populace.errors import InputError, PopulaceError, WireError
from populace.types import JsonObject

WIRE = "application/x-populace"
SECONDS = 30.0
MOST_BYTES = 2**26
REFUSALS = (
    400,
    401,
    403,
    409,
    410,
    413,
    415,
    422,
)  # for good, where a sentence comes with them; all else is no study's word
LEAST_PAUSE, USUAL_PAUSE, LONGEST_PAUSE = 1.0, 5.0, 3_600.0
LONGEST_SENTENCE = 300
ELSE = "what answers there is not the study, or something between is in the way"
BAD = (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)


class NotTakenError(PopulaceError):
    """The collector refused for good; the sentence is its own."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows nobody elsewhere: the invitation and the answer are for the address in the link alone."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class AwayError(PopulaceError):
    """The collector cannot be reached, or asks to come back; what was kept is sent the next time."""


class Exchange:
    """Requests to a study's address, and to no other one."""

    def __init__(self, base: str, *, seconds: float) -> None:
        self.base, self.seconds = base, seconds
        self._opener = urllib.request.build_opener(_NoRedirect)

    def call(
        self,
        method: str,
        path: str,
        *,
        token: bytes | None = None,
        body: bytes | None = None,
        accept: str = "application/json",
    ) -> tuple[int, str, bytes]:
        headers = {"accept": accept, "user-agent": "populace"}
        if token is not None:
            headers["authorization"] = f"Bearer {base64.urlsafe_b64encode(token).decode().rstrip('=')}"
        if method == "POST":
            headers["content-type"] = WIRE
        data = (body or b"") if method == "POST" else None
        request = urllib.request.Request(self.base + path, data=data, headers=headers, method=method)  # noqa: S310
        try:
            with self._opener.open(request, timeout=self.seconds) as reply:
                return reply.status, reply.headers.get_content_type(), _whole(reply)
        except urllib.error.HTTPError as error:
            with error:
                if 300 <= error.code < 400:
                    raise AwayError(f"{self.base} sends to another address, which is not followed") from None
                return error.code, error.headers.get_content_type(), _whole(error)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise AwayError(f"{self.base} cannot be reached ({getattr(error, 'reason', error)})") from error


def _whole(reply: Any) -> bytes:
    body: bytes = reply.read(MOST_BYTES + 1)
    if len(body) > MOST_BYTES:
        raise WireError(f"expected at most {MOST_BYTES} bytes from the collector, got more")
    return body


def parse_link(url: str) -> tuple[str, bytes | None]:
    """The address of a study, and the invitation after #, if there is one."""
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.query
    except ValueError:
        good = False
    if not good:
        raise InputError(f"expected the link of an invitation, https://host/#..., got {url.partition('#')[0]!r}")
    base = urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    return base, read_token(parts.fragment) if parts.fragment else None


def read_token(text: str) -> bytes:
    try:
        token = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        token = b""
    if len(token) != TOKEN_BYTES:
        raise InputError("what stands after # in the link is not an invitation; use the whole link you were sent")
    return token


def is_again(status: int) -> bool:
    return status in (408, 429) or status >= 500


def read_object(body: bytes) -> JsonObject:
    """A JSON object; anything else is not from the study, and the same is asked again later."""
    try:
        found = parse_json(body, where="the reply", error=AwayError)
    except AwayError:
        found = None
    if not isinstance(found, dict):
        raise AwayError(ELSE)
    return found


def read_sentence(body: bytes) -> str:
    """The collector's own sentence."""
    said = read_object(body).get("error")
    if not isinstance(said, str):
        raise AwayError(ELSE)
    return said[:LONGEST_SENTENCE]


def read_pause(said: object) -> float:
    """How long to wait, by the collector's word as far as it is one."""
    try:
        seconds = float(said)  # type: ignore[arg-type]
    except BAD:
        return USUAL_PAUSE
    return USUAL_PAUSE if math.isnan(seconds) else min(max(seconds, LEAST_PAUSE), LONGEST_PAUSE)


def read_refusal(status: int, body: bytes) -> PopulaceError:
    """Whether it is for good: only what the study itself says in a sentence, with a status that means it."""
    sentence = read_sentence(body)
    return NotTakenError(sentence) if status in REFUSALS else AwayError(sentence)
