"""The HTTP interface of a study. Workers keep nothing: whatever one of them knows is in the store or follows from the study.

GET  /v1/study       what is asked, on which terms, and what is guaranteed
POST /v1/invitation  an invitation to an open study
GET  /v1/question    a place in the present round, and its question
POST /v1/answer      a randomised report, for a receipt
GET  /v1/progress    for the organiser: counts and estimates, never a row
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import json
import logging
import math
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from populace.collector import openapi
from populace.collector.batches import AWAY, Batches
from populace.collector.coordinator import SERVING
from populace.collector.documents import QuestionPages, answer_from, question_message, study_document
from populace.collector.limits import Guard, Message, Rate, Receive, Refused, Scope, Send, read_body, refusal
from populace.collector.progress import LEAST_ERROR, progress_document
from populace.collector.rounds import Questions, read_questions, study_reports
from populace.collector.store import Answer, Kept, Mint, Place, Refusal, Result, Store, StoreError, Take, Wait
from populace.collector.stores import patient_store
from populace.collector.study import (
    TOKEN_BYTES,
    StudyFolder,
    invitation_hash,
    receipt_of,
    same_token,
)
from populace.errors import DataError, WireError

WIRE = "application/x-populace"
JSON = "application/json"
PER_SECOND = 10_000.0
MINTED_PER_SECOND = 200.0
FOLDER = "POPULACE_STUDY"
RATE = "POPULACE_RATE"
WORKERS = "POPULACE_WORKERS"
MOST_ROUND = 2**31 - 1
PAGES = Path(__file__).with_name("pages")
FAILED = "the server failed; send the same again, nothing is counted twice"

log = logging.getLogger("populace.collector")
Endpoint = Callable[[Request], Awaitable[Response]]


class Service:
    """A study behind its interface; one for each process."""

    def __init__(self, folder: StudyFolder, *, minted_per_second: float = MINTED_PER_SECOND) -> None:
        self.folder, self.study = folder, folder.read()
        self.batches = Batches(self._store, hold=self.study.timing.hold)
        self.minting = Rate(minted_per_second)
        self.reports = study_reports(self.study)
        self.pages = None if self.study.survey is None else QuestionPages(self.study.survey)
        self._rounds: dict[int, Questions] = {}

    def _store(self) -> Store:
        return patient_store(self.folder, self.study)

    @functools.cached_property
    def study_body(self) -> bytes:
        return json.dumps(study_document(self.study), ensure_ascii=False).encode()

    async def questions(self, number: int) -> Questions | None:
        """What a round asks; read once, for it never changes."""
        if number not in self._rounds:
            content = await self.batches.read(lambda store: store.ask(number))
            if content is None:
                return None
            if len(self._rounds) > 8:
                self._rounds.pop(min(self._rounds))
            self._rounds[number] = read_questions(self.study, content)
        return self._rounds[number]

    async def show_study(self, request: Request) -> Response:
        del request
        return Response(self.study_body, media_type=JSON)

    async def show_interface(self, request: Request) -> Response:
        del request
        return _json(openapi.document())

    async def invite(self, request: Request) -> Response:
        """A new invitation, where anybody may answer."""
        await read_body(request)
        if not self.study.open:
            raise Refused(403, "this study is open to those who were invited; use the link you were sent")
        if not self.minting.take():
            raise Refused(429, "too many people are coming at once; try again in a few seconds", retry=5)
        token = secrets.token_bytes(TOKEN_BYTES)
        result = await self.batches.do(Mint(invitation=invitation_hash(token)))
        if isinstance(result, Refusal):
            raise Refused(result.status, result.sentence)
        return _json({"invitation": _text(token)})

    async def ask(self, request: Request) -> Response:
        """A place in the present round with its question, or how long to wait."""
        result = await self.batches.do(Take(invitation=invitation_hash(_token(request))))
        if isinstance(result, Wait):
            answer = {"state": "wait", "retry_after": math.ceil(max(1.0, result.seconds)), "why": result.why}
            return _json(answer)
        place = _granted(result, Place)
        questions = await self.questions(place.round)
        if questions is None:
            raise Refused(503, AWAY, retry=5)
        closes = None if place.closes is None else place.closes + self.study.timing.grace
        slot = int(questions.places[place.place])
        if self.pages is None or WIRE in request.headers.get("accept", ""):
            return Response(question_message(questions, slot, place, closes), media_type=WIRE)
        return Response(self.pages.write(questions, slot, place, closes), media_type=JSON)

    async def answer(self, request: Request) -> Response:
        """Keep a report, exactly once, and give its receipt."""
        invitation = invitation_hash(_token(request))
        body, kind = await read_body(request), request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (JSON, WIRE):
            raise Refused(415, f"expected a body of type {JSON} or {WIRE}")
        try:
            sent = answer_from(body, wire_form=kind == WIRE)
        except WireError as error:
            raise Refused(400, str(error)) from None
        questions = await self.questions(sent.round) if sent.round <= MOST_ROUND else None
        if questions is None or sent.place >= len(questions.places):
            raise Refused(422, "the study has no such round, or no such place in it")
        try:
            self.reports.check(sent.report, int(questions.numbers[questions.places[sent.place]]))
        except DataError as error:
            raise Refused(422, str(error)) from None
        receipt = receipt_of(self.study.id, sent.nonce, sent.round, sent.place, sent.report)
        item = Answer(invitation=invitation, round=sent.round, place=sent.place, report=sent.report, receipt=receipt)
        kept = _granted(await self.batches.do(item), Kept)
        return _json({"receipt": kept.receipt.hex(), "fresh": kept.fresh})

    async def progress(self, request: Request) -> Response:
        """For the organiser: how many answers, and what they say about single columns."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if not given:
            raise Refused(
                401, "this page is the organiser's; send the organiser's token as Authorization: Bearer TOKEN"
            )
        if not same_token(given, self.folder.token()):
            raise Refused(403, "this is not the organiser's token; it stands in organiser.token in the study's folder")
        text = request.query_params.get("error", "0.05")
        try:
            wanted = float(text)
        except ValueError:
            wanted = math.nan
        if not LEAST_ERROR <= wanted < 1:
            raise Refused(
                400, f"expected error, the half-width that is wanted, as a number from {LEAST_ERROR:g} to below 1"
            )
        found = await self.batches.read(lambda store: progress_document(self.study, store, wanted))
        return _json(found)

    async def health(self, request: Request) -> Response:
        """Whether the store answers; for a balancer."""
        del request
        await self.batches.read(lambda store: store.fact("study"))
        return _json({"state": "ready"})


def _granted(result: Result, kind: type[Any]) -> Any:
    if isinstance(result, Refusal):
        raise Refused(result.status, result.sentence, retry=5 if result.status == 503 else None)
    if not isinstance(result, kind):
        raise TypeError(f"a store answered with {type(result).__name__}")
    return result


def _token(request: Request) -> bytes:
    """The invitation a request carries: in a header, where no proxy's log has it."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise Refused(
            401, "an invitation is needed, sent as Authorization: Bearer INVITATION; use the link you were sent"
        )
    try:
        token = base64.b64decode(text.strip() + "=" * (-len(text.strip()) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        token = b""
    if len(token) != TOKEN_BYTES:
        raise Refused(401, "this is not written like an invitation; use the whole link you were sent")
    return token


def _text(token: bytes) -> str:
    return base64.urlsafe_b64encode(token).decode().rstrip("=")


def _json(document: object) -> Response:
    return Response(json.dumps(document, ensure_ascii=False).encode(), media_type=JSON)


def _refusal(error: Exception) -> Response:
    """Any error as one sentence; of one that nobody expected, only its kind is logged."""
    if isinstance(error, Refused):
        return refusal(error.status, error.sentence, retry=error.retry)
    if isinstance(error, StoreError):
        return refusal(503, AWAY, retry=5)
    if isinstance(error, ClientDisconnect):
        return refusal(400, "the connection was closed before the request was complete")
    if isinstance(error, HTTPException):
        words = {404: "there is nothing under this address", 405: "this address does not take this method"}
        return refusal(error.status_code, words.get(error.status_code, "this request cannot be answered"))
    log.error("a request failed: %s", type(error).__name__)
    return refusal(500, FAILED)


class Interface:
    """The addresses of a study and what answers under each; all others are pages."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.pages = StaticFiles(directory=PAGES, html=True)
        self.routes: dict[str, tuple[str, Endpoint]] = {
            "/v1/question": ("GET", service.ask),
            "/v1/answer": ("POST", service.answer),
            "/v1/study": ("GET", service.show_study),
            "/v1/invitation": ("POST", service.invite),
            "/v1/progress": ("GET", service.progress),
            "/v1/health": ("GET", service.health),
            "/v1/openapi.json": ("GET", service.show_interface),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            answer = await self._answer(scope, receive, sending)
        except Exception as error:
            if begun:  # of a page: nothing can be said any more
                return
            answer = _refusal(error)
        if answer is not None:
            await answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        method, endpoint = self.routes.get(scope["path"], ("", None))
        if endpoint is None:
            if scope["path"].startswith("/v1/"):
                raise HTTPException(404)
            await self.pages(scope, receive, send)
            return None
        if scope["method"] != method:
            raise HTTPException(405)
        return await endpoint(Request(scope, receive))

    async def _live(self, receive: Receive, send: Send) -> None:
        """From the start of a worker to its end."""
        await receive()
        serving = int(os.environ.get(SERVING, os.getpid()))
        watching = None if serving == os.getpid() else asyncio.create_task(_watch_parent(serving))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if watching is not None:
            watching.cancel()
        self.service.batches.close()
        await send({"type": "lifespan.shutdown.complete"})


def make_app(folder: str | Path, *, per_second: float = PER_SECOND, workers: int = 1) -> Guard:
    """The application of one study, in one of so many workers that share its rates."""
    service = Service(StudyFolder(folder), minted_per_second=MINTED_PER_SECOND / workers)
    return Guard(Interface(service), per_second=per_second / workers)


async def _watch_parent(parent: int) -> None:
    """End this worker if whoever started it is gone: an orphan would keep the port."""
    while True:
        await asyncio.sleep(1.0)
        if os.getppid() != parent:
            os._exit(1)


def application() -> Guard:
    """What a worker process runs; the study's folder comes in its environment."""
    rate, workers = float(os.environ.get(RATE, PER_SECOND)), int(os.environ.get(WORKERS, 1))
    return make_app(os.environ[FOLDER], per_second=rate, workers=workers)
