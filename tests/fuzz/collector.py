"""Targets: the collector's application under any request, and a device under any reply."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import random
from pathlib import Path
from typing import Any

from asgi_client import AsgiClient
from builders import small_schema
from collector_for_tests import bearer, make_study, opened, tokens, turn
from collector_twin import make_report
from fuzz.corpus import Corpus
from fuzz.mutate import damaged
from fuzz.target import FindingError, Input, Target, clear
from fuzz.wires import damaged_message
from populace.collector.app import WIRE, make_app
from populace.collector.device import ACCOUNT, Device
from populace.collector.documents import Sent, answer_from, answer_message
from populace.collector.study import receipt_of
from populace.privacy.ledger_file import kept_budget
from populace.privacy.sqlite_ledger import SqliteLedger

PATHS = (
    "/v1/answer", "/v1/question", "/v1/progress", "/v1/progress?error=0.1", "/v1/study", "/v1/invitation", "/v1/health",
    "/v1/openapi.json", "/v1/", "/", "/index.html", "/%00", "/..%2f..%2fetc/passwd", "/v1/progress?error=nan",
    "/v1/progress?error=",
    "/v1/progress?error=" + "9" * 5_000, "//v1/answer", "/v1/answer/", "/\ud800", "/" + "a" * 9_000, "/v1/answer?x=1",
    "/favicon.ico",
)  # fmt: skip
KINDS = (
    "application/json",
    "application/json",
    WIRE,
    WIRE,
    "",
    "text/plain",
    "application/json; charset=utf-7",
    "a/b;" + "x" * 50,
)
VERBS = ("GET", "POST", "PUT", "HEAD", "OPTIONS", "PATCH", "DELETE", "BREW")


@dataclasses.dataclass
class Serving:
    """A study with one answer in it, its application, and valid requests."""

    client: Any
    token: str
    organiser: str
    valid: dict[str, bytes]
    sent: Sent
    place: Any
    answers: int = 0


def _study(corpus: Corpus, name: str, method: str, clients: int = 20) -> Any:
    folder = corpus.folder / "scratch" / name
    clear(folder)
    settings = {"stages": 1} if method == "poll" else {}
    place = make_study(folder, method, clients=clients, settings=settings, schema=small_schema())
    turn(place)
    return place


def _prepare_app(corpus: Corpus) -> Serving:
    place = _study(corpus, "served", "poll")
    client = AsgiClient(make_app(place.path, per_second=1e9)).__enter__()  # until the process ends
    token = tokens(place)[-1]
    question = client.get("/v1/question", headers=bearer(token)).json()
    report = make_report(question, [0, 0, 0, 0])
    sent = Sent(round=question["round"], place=question["place"], report=report, nonce=bytes(32))
    body = {"round": sent.round, "place": sent.place, "report": base64.b64encode(report).decode(),
            "nonce": base64.b64encode(sent.nonce).decode()}  # fmt: skip
    if client.post("/v1/answer", json=body, headers=bearer(token)).status_code != 200:
        raise RuntimeError("a valid answer was not taken")
    valid = {"json": json.dumps(body).encode(), "wire": answer_message(sent)}
    return Serving(client=client, token=token, organiser=place.token(), valid=valid, sent=sent, place=place)


def _draw_app(serving: Serving, rng: random.Random) -> Input:
    path = rng.choice((*PATHS[:1] * 12, *PATHS))
    verb = (
        rng.choice(("POST",) * 4 + VERBS)
        if path.startswith(("/v1/answer", "/v1/inv"))
        else rng.choice(("GET",) * 4 + VERBS)
    )
    form = rng.choice(("json", "wire"))
    data = serving.valid[form]
    if rng.random() < 0.9:
        data = (
            damaged_message(rng, data, [serving.valid["json"]])
            if form == "wire"
            else damaged(rng, data, [], form="json")
        )
    kind = {"json": "application/json", "wire": WIRE}[form] if rng.random() < 0.7 else rng.choice(KINDS)
    token = rng.choice((serving.token,) * 6 + ("A" * 22, "", "!" * 22, "A" * 2_000, "é", "organiser"))
    cut = [rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 0, 1, 3)))]
    more = {"content-length": rng.choice(("-1", "1", "999999999999", "x", ""))} if rng.random() < 0.05 else {}
    accept = rng.choice(("application/json", WIRE, "*/*", "", "\x00"))
    return {
        "verb": verb,
        "path": path,
        "token": token,
        "kind": kind,
        "body": data,
        "cut": sorted(cut),
        "more": more,
        "accept": accept,
    }


def _run_app(serving: Serving, case: Input) -> None:
    """No request breaks the application, or gets an answer into the store that is not the one that is there."""
    token = {"organiser": serving.organiser}.get(case["token"], case["token"])
    edges = [0, *case["cut"], len(case["body"])]
    chunks = [case["body"][low:high] for low, high in itertools.pairwise(edges)]
    headers = {
        "content-type": case["kind"],
        "authorization": f"Bearer {token}",
        "accept": case["accept"],
        **case["more"],
    }
    reply = serving.client.request(case["verb"], case["path"], headers=headers, chunks=chunks)
    if reply.status_code >= 500:
        raise FindingError(f"status {reply.status_code}: {reply.content[:200]!r}")
    good = 200 <= reply.status_code < 300
    if good and case["verb"] == "POST" and case["path"].startswith("/v1/answer"):
        found = answer_from(case["body"], wire_form=case["kind"] == WIRE)
        if found != serving.sent:
            raise FindingError("another answer was taken for a place that has one")
    if not good and case["verb"] != "HEAD" and reply.status_code not in (301, 302, 304, 307):
        said = json.loads(reply.content)
        if set(said) != {"error"} or len(said["error"]) > 600 or "\n" in said["error"]:
            raise FindingError(f"not one sentence: {reply.content[:200]!r}")
    with opened(serving.place) as store:
        answers = store.counts()["answers"]
    if answers != 1:
        raise FindingError(f"{answers} answers are in the store, expected the one")


# Devices


@dataclasses.dataclass
class Person:
    """A device, the replies a study gave to it, and a record."""

    replies: dict[str, tuple[int, str, bytes]]
    token: str
    ledger: Path
    record: dict[str, object]
    study: str


class Scripted:
    """In the place of HTTP: what was told before, with one reply changed."""

    def __init__(self, person: Person, case: Input) -> None:
        self.person, self.case, self.sent = person, case, []

    def call(
        self, method: str, path: str, *, token: Any = None, body: Any = None, accept: str = ""
    ) -> tuple[int, str, bytes]:
        if path == "/v1/answer":
            self.sent.append(body)
        if path == self.case["path"]:
            return self.case["status"], self.case["kind"], self.case["body"]
        if path == "/v1/answer":
            sent = answer_from(body, wire_form=True)
            receipt = receipt_of(self.person.study, sent.nonce, sent.round, sent.place, sent.report).hex()
            return 200, "application/json", json.dumps({"receipt": receipt, "fresh": True}).encode()
        return self.person.replies[path]


def _prepare_device(corpus: Corpus) -> Person:
    place = _study(corpus, "person", "independent")
    client = AsgiClient(make_app(place.path, per_second=1e9)).__enter__()
    token = tokens(place)[0]
    told = {"/v1/study": client.get("/v1/study")}
    told["/v1/question"] = client.get("/v1/question", headers={**bearer(token), "accept": WIRE})
    replies = {
        path: (one.status_code, one.headers["content-type"].partition(";")[0], one.content)
        for path, one in told.items()
    }
    replies["/v1/answer"] = (200, "application/json", b'{"receipt": "' + b"0" * 64 + b'", "fresh": true}')
    replies["/v1/invitation"] = (200, "application/json", json.dumps({"invitation": token}).encode())
    record = {"colour": "red", "size": 2, "weight": 1.5, "sold": True}
    return Person(
        replies=replies,
        token=token,
        ledger=corpus.folder / "scratch" / "person" / "ledger",
        record=record,
        study=place.read().id,
    )


def _draw_device(person: Person, rng: random.Random) -> Input:
    path = rng.choice(("/v1/study", "/v1/study", "/v1/question", "/v1/question", "/v1/answer"))
    status, kind, body = person.replies[path]
    if rng.random() < 0.2:
        status = rng.choice((200, 204, 301, 400, 401, 403, 404, 409, 410, 413, 422, 429, 500, 503, 999, 0))
    if rng.random() < 0.15:
        kind = rng.choice(("application/json", WIRE, "text/html", ""))
    others = [reply[2] for reply in person.replies.values()]
    changed = damaged_message(rng, body, others) if path == "/v1/question" else damaged(rng, body, others, form="json")
    return {"path": path, "status": status, "kind": kind, "body": changed}


def _run_device(person: Person, case: Input) -> None:
    """Whatever the study says: at most one report is made, it is charged once, and a second try sends the same."""
    for left in person.ledger.parent.glob("ledger*"):
        left.unlink()
    sent = []
    for _ in range(2):
        device = Device(f"http://127.0.0.1:1/#{person.token}", ledger=person.ledger)
        device._exchange = scripted = Scripted(person, case)
        try:
            device.answer(person.record)
        finally:
            sent += scripted.sent
            budget = kept_budget(person.ledger)
            if budget is not None:
                with SqliteLedger(person.ledger, budget) as ledger:
                    charges = ledger.entries(ACCOUNT)
                if charges > 1 or (sent and charges != 1) or len(set(sent)) > 1:
                    raise FindingError(f"{charges} charges, {len(set(sent))} reports")
            elif sent:
                raise FindingError("a report left without a ledger")


TARGETS: tuple[Target, ...] = (
    Target(name="collector-app", prepare=_prepare_app, draw=_draw_app, run=_run_app, cost=4.0),
    Target(name="device", prepare=_prepare_device, draw=_draw_device, run=_run_device, cost=25.0),
)
