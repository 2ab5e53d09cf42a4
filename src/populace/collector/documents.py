"""What travels between a device and the server, as JSON for a page and as messages of `engines.wire` for a program."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import datetime
import json
import time
from typing import Any

import jax
import numpy as np

from populace.border.documents import parse_json
from populace.collector.questions import question_document, schema_document
from populace.collector.rounds import Questions
from populace.collector.store import Place
from populace.collector.study import Study
from populace.collector.words import epsilon_in_words
from populace.engines import wire
from populace.engines.wire import Message
from populace.errors import WireError
from populace.methods.blocks.one_report import Survey
from populace.types import JsonObject
from populace.version import __version__

NONCE_BYTES = 32
MOST_NUMBER = 2**31 - 1
INTERFACE = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sent:
    """An answer as it came: which place, the randomised report, and the nonce that makes its receipt say nothing."""

    round: int
    place: int
    report: bytes
    nonce: bytes


def study_document(study: Study) -> JsonObject:
    """`GET /v1/study`."""
    claim = study.protocol.guarantee(study.population)
    return {
        "interface": INTERFACE,
        "populace": __version__,
        "title": study.title,
        "digest": study.digest,
        "facts": study.facts(),
        "method": {
            "name": study.method,
            "title": study.protocol.facts.title,
            "for_pages": study.survey is not None,
            "questions": 0 if study.survey is None else len(study.survey.groups),
        },
        "epsilon": claim.epsilon,
        "open": study.open,
        "planned_answers": study.clients,
        "columns": schema_document(study.schema),
        "guarantee": [{"label": label, "words": words} for label, words in claim.lines],
        "in_words": epsilon_in_words(claim.epsilon, open_to_all=study.open),
    }


class QuestionPages:
    """`GET /v1/question`, for a page. What does not depend on the place is written once for each question."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self._written: dict[int, bytes] = {}

    def write(self, questions: Questions, slot: int, place: Place, closes: float | None) -> bytes:
        question = int(questions.numbers[slot])
        if question not in self._written:
            document = question_document(self.survey, question)
            self._written[question] = json.dumps(document, ensure_ascii=False).encode()
        head = json.dumps({"state": "ask", **_where(questions, slot, place, closes)}).encode()
        return head[:-1] + b", " + self._written[question][1:]


def question_message(questions: Questions, slot: int, place: Place, closes: float | None) -> bytes:
    """`GET /v1/question`, for a program: the same place, and what the method sends in its own arrays."""
    own = jax.tree.map(lambda rows: np.asarray(rows)[slot], questions.own)
    first = questions.first + slot // (len(questions.cohort) // questions.count)
    fields = {**_where(questions, slot, place, closes), "exchange": first}
    arrays = wire.leaves(questions.common, "common") | wire.leaves(own, "own")
    return wire.pack(Message(kind="question", fields=fields, arrays=arrays))


def _where(questions: Questions, slot: int, place: Place, closes: float | None) -> JsonObject:
    return {
        "round": place.round,
        "place": place.place,
        "client": int(questions.cohort[slot]),
        "seconds_left": max(0, int(min(place.until, place.until if closes is None else closes) - time.time())),
        "held_until": _moment(place.until),
        "round_closes": "" if closes is None else _moment(closes),
    }


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")


def answer_message(sent: Sent) -> bytes:
    """`POST /v1/answer`, from a program."""
    fields = {"round": sent.round, "place": sent.place}
    arrays = {"nonce": np.frombuffer(sent.nonce, np.uint8), "report": np.frombuffer(sent.report, np.uint8)}
    return wire.pack(Message(kind="answer", fields=fields, arrays=arrays))


def answer_from(body: bytes, *, wire_form: bool) -> Sent:
    """An answer from its bytes; raises WireError for anything else."""
    return _from_message(body) if wire_form else _from_json(body)


def _from_message(body: bytes) -> Sent:
    message = wire.unpack(body)
    round_id, place = wire.take_fields(message, {"round": int, "place": int})
    flat = {name: array for name, array in message.arrays.items() if array.dtype == np.uint8 and array.ndim == 1}
    if message.kind != "answer" or set(flat) != {"nonce", "report"} or len(message.arrays) != 2:
        raise WireError("expected an answer: a nonce and a report, as bytes")
    return _checked(round_id, place, flat["report"].tobytes(), flat["nonce"].tobytes())


def _from_json(body: bytes) -> Sent:
    try:
        document: Any = parse_json(body, where="the answer", error=WireError, strict=True)
    except WireError:
        raise WireError("expected an answer as JSON, got something else") from None
    names = {"round", "place", "report", "nonce"}
    if not isinstance(document, dict) or set(document) != names:
        raise WireError(f"expected an answer with {', '.join(sorted(names))}, and nothing else")
    if any(type(document[name]) is not int for name in ("round", "place")):
        raise WireError("expected round and place as whole numbers")
    try:
        report, nonce = (base64.b64decode(document[name], validate=True) for name in ("report", "nonce"))
    except (TypeError, ValueError, binascii.Error):
        raise WireError("expected report and nonce as base64") from None
    return _checked(document["round"], document["place"], report, nonce)


def _checked(round_id: int, place: int, report: bytes, nonce: bytes) -> Sent:
    if not (0 <= round_id <= MOST_NUMBER and 0 <= place <= MOST_NUMBER):
        raise WireError("expected round and place as whole numbers from 0 on")
    if len(nonce) != NONCE_BYTES:
        raise WireError(f"expected a nonce of {NONCE_BYTES} bytes, got {len(nonce)}")
    return Sent(round=round_id, place=place, report=report, nonce=nonce)
