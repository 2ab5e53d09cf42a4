"""A person's own device: asks for its question, randomises its record, keeps its ledger, and sends.

The reference client. It trusts the server with nothing that the guarantee rests on: method, probabilities and what an answer
costs are made here, from the study's public facts; randomness comes from the operating system, exactly.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import http.client
import json
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa

from populace.collector.documents import NONCE_BYTES, Sent, answer_from, answer_message
from populace.collector.reports import reports_of
from populace.collector.study import (
    METHODS,
    TOKEN_BYTES,
    check_collectable,
    questions_digest,
    receipt_of,
    study_digest,
    survey_of,
)
from populace.engines import wire
from populace.engines.agreement import Agreement, frozen, shapes_of
from populace.errors import DataError, InputError, PopulaceError, SpecError, WireError
from populace.methods.base import Ask, Population, Protocol, Shard
from populace.methods.registry import make_protocol
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Budget, Charge
from populace.privacy.relation import relation_of
from populace.privacy.source import Source, System
from populace.privacy.sqlite_ledger import SqliteLedger, kept_budget
from populace.tables.reading import read_frame
from populace.tables.schema import Schema, schema_from_dict
from populace.tables.table import make_table
from populace.types import ArrayTree, JsonObject

ACCOUNT = "this device"
WIRE = "application/x-populace"
SECONDS = 30.0
MOST_BYTES = 2**26
MARGIN = 2.0  # seconds before a place is lost in which no report is made any more
AGAIN = (408, 429, 500, 502, 503, 504)


class NotTakenError(PopulaceError):
    """The collector refused for good; the sentence is its own."""


class AwayError(PopulaceError):
    """The collector cannot be reached, or asks to come back; what was kept is sent the next time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Terms:
    """The study as this device made it again from its public facts, and checked it."""

    id: str
    digest: str
    title: str
    protocol: Protocol
    population: Population
    open: bool

    @property
    def guarantee(self) -> Guarantee:
        return self.protocol.guarantee(self.population)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Receipt:
    """Proof that an answer is in: the hash of it and of a nonce that stays here."""

    receipt: str
    fresh: bool
    epsilon: float


class Device:
    """One person's device and one study.

    Guarantee: at most one report ever leaves for a study, made once and kept in the ledger, with its charge, before it is sent;
    whatever fails, the very same bytes are sent again. A ledger that would overspend refuses before a report is made.
    Edge cases: the limit over all studies is the first one's epsilon, unless `limit` says otherwise; raising it later is the
    owner's act. An answer that comes too late is refused by the collector, and is spent all the same.
    """

    def __init__(
        self,
        url: str,
        *,
        ledger: str | Path,
        limit: float | None = None,
        source: Source | None = None,
        seconds: float = SECONDS,
    ) -> None:
        self.base, self._token = parse_link(url)
        self.ledger, self.limit, self.seconds = Path(ledger), limit, seconds
        self._source = source or System()

    def study(self) -> Terms:
        """The study, made again from its public facts; refuses one that does not say what it is."""
        status, _, body = self._call("GET", "/v1/study")
        if status != 200:
            raise NotTakenError(f"{self.base} is not the address of a study")
        try:
            return read_terms(json.loads(body))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WireError(f"{self.base} does not describe a study as this version reads it: {error!r}") from error

    def answer(self, record: Mapping[str, object] | pa.Table | str | Path, *, patience: float = 0.0) -> Receipt:
        """Answer the study with one record: from the ledger if it holds an answer, else a new one.

        Waits up to `patience` seconds in all for a question or for a collector that is away.
        """
        until = time.monotonic() + patience
        terms = self.study()
        with self._opened(terms) as ledger:
            kept = ledger.stored(ACCOUNT, run=terms.id, round_id=0, question=terms.digest)
            if kept is None:
                codes = encode_record(record, _schema(terms))
                kept = self._make(terms, ledger, codes, until)
        return self._send(terms, kept, until)

    def _opened(self, terms: Terms) -> SqliteLedger:
        claim, kept = terms.guarantee, kept_budget(self.ledger)
        limit = claim.epsilon if self.limit is None else float(self.limit)
        if kept is not None and self.limit is None:
            return SqliteLedger(self.ledger, kept)
        return SqliteLedger(self.ledger, Budget(epsilon=limit, unit="client"), raise_budget=True)

    def _make(self, terms: Terms, ledger: SqliteLedger, codes: Any, until: float) -> bytes:
        """Ask, randomise, charge and keep; returns what is to be sent. Nothing was sent when this returns."""
        claim = terms.guarantee
        ledger.check(ACCOUNT, Charge(event=terms.protocol.spends(terms.population), unit="client"))
        token = self._token or self._invitation(terms)
        fields, common, own = self._question(terms, token, until)
        shard = Shard(records=codes[None, :], mask=np.ones(1, bool), population=terms.population)
        memory = terms.protocol.remember(terms.population, jax.random.key(0))
        reply, _ = terms.protocol.answer(common, own, shard, memory, self._source)
        reports = reports_of(terms.protocol, terms.population, survey_of(terms.protocol, terms.population))
        report = reports.write(reply, int(np.asarray(jax.tree.leaves(own)[0])))
        sent = Sent(round=fields["round"], place=fields["place"], report=report, nonce=secrets.token_bytes(NONCE_BYTES))
        content = token + answer_message(sent)
        asked = Ask(round=int(fields["exchange"]), cohort=np.zeros(1, np.int32), common=common, own=own)
        ledger.commit_many(
            [(ACCOUNT, terms.digest, content, None)], terms.protocol.charge(asked, terms.population), run=terms.id, round_id=0,
            limit=Budget(epsilon=claim.epsilon, unit="client"),
            relation=relation_of(claim),
        )  # fmt: skip
        return content

    def _invitation(self, terms: Terms) -> bytes:
        if not terms.open:
            raise InputError("this study is for those who were invited; give the whole link, with what stands after #")
        status, _, body = self._call("POST", "/v1/invitation")
        if status != 200:
            raise _refusal(status, body)
        return _token(str(json.loads(body)["invitation"]))

    def _question(self, terms: Terms, token: bytes, until: float) -> tuple[JsonObject, ArrayTree, ArrayTree]:
        """The question, checked against the shapes of the method; waits while there is none."""
        while True:
            status, kind, body = self._call("GET", "/v1/question", token=token, accept=WIRE)
            if status == 200 and kind == WIRE:
                fields, common, own = read_question(terms, body)
                if fields["seconds_left"] > MARGIN:
                    return fields, common, own
                pause, why = 1.0, "the round is about to end"
            elif status == 200:
                waiting = json.loads(body)
                pause, why = float(waiting.get("retry_after", 5)), str(waiting.get("why", "there is no question yet"))
            elif status in AGAIN:
                pause, why = 2.0, _sentence(body)
            else:
                raise _refusal(status, body)
            if time.monotonic() + pause > until:
                raise AwayError(f"{why}; give the same command again in {max(1, round(pause))} seconds")
            time.sleep(pause)

    def _send(self, terms: Terms, content: bytes, until: float) -> Receipt:
        token, body = content[:TOKEN_BYTES], content[TOKEN_BYTES:]
        sent = answer_from(body, wire_form=True)
        expected = receipt_of(terms.id, sent.nonce, sent.round, sent.place, sent.report).hex()
        pause = 0.5
        while True:
            try:
                status, _, said = self._call("POST", "/v1/answer", token=token, body=body)
                if status == 200:
                    found = json.loads(said)
                    if found.get("receipt") != expected:
                        raise WireError(
                            "the collector's receipt is not of this answer; do not trust that it was counted"
                        )
                    return Receipt(receipt=expected, fresh=bool(found.get("fresh")), epsilon=terms.guarantee.epsilon)
                if status not in AGAIN:
                    raise _refusal(status, said)
                why = _sentence(said)
            except AwayError as error:
                why = str(error)
            if time.monotonic() + pause > until:
                raise AwayError(f"{why}; the answer is kept in {self.ledger}, give the same command again to send it")
            time.sleep(pause)
            pause = min(2 * pause, 30.0)

    def _call(
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
            with urllib.request.urlopen(request, timeout=self.seconds) as reply:  # noqa: S310
                return reply.status, reply.headers.get_content_type(), _whole(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers.get_content_type(), _whole(error)
        except (OSError, http.client.HTTPException) as error:
            raise AwayError(f"{self.base} cannot be reached ({getattr(error, 'reason', error)})") from error


def _whole(reply: Any) -> bytes:
    body: bytes = reply.read(MOST_BYTES + 1)
    if len(body) > MOST_BYTES:
        raise WireError(f"expected at most {MOST_BYTES} bytes from the collector, got more")
    return body


def parse_link(url: str) -> tuple[str, bytes | None]:
    """The address of a study, and the invitation after #, if there is one."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query:
        raise InputError(f"expected the link of an invitation, https://host/#..., got {url.partition('#')[0]!r}")
    base = urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    return base, _token(parts.fragment) if parts.fragment else None


def _token(text: str) -> bytes:
    try:
        token = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        token = b""
    if len(token) != TOKEN_BYTES:
        raise InputError("what stands after # in the link is not an invitation; use the whole link you were sent")
    return token


def read_terms(document: JsonObject) -> Terms:
    """The study of this document, made here from its facts: names and settings of a method, never code or probabilities."""
    facts = document["facts"]
    digest, terms = str(document["digest"]), facts["terms"]
    if study_digest(facts) != digest:
        raise WireError("the study's digest is not that of its facts")
    method = str(terms["method"])
    if method not in METHODS:
        raise SpecError(f"the study asks by {method!r}, which is no method for single people here")
    schema = schema_from_dict(facts["schema"])
    settings = {str(name): frozen(value) for name, value in terms["parameters"].items()}
    agreement = Agreement(protocol=make_protocol(method, settings), schema=schema)
    if agreement.terms != terms:
        raise SpecError(
            f"the study was made with populace {terms.get('version')}, or its terms and its schema disagree; this is "
            f"{agreement.terms['version']}"
        )
    population = agreement.population(clients=int(facts["clients"]), records=1)
    check_collectable(agreement.protocol, population)
    if questions_digest(survey_of(agreement.protocol, population)) != facts["questions"]:
        raise SpecError("the study asks other questions than this version of populace would; nothing was answered")
    return Terms(
        id=str(facts["study"]), digest=digest, title=str(document.get("title", "")), protocol=agreement.protocol,
        population=population, open=bool(facts["open"]),
    )  # fmt: skip


def read_question(terms: Terms, body: bytes) -> tuple[JsonObject, ArrayTree, ArrayTree]:
    """A question of a study, in the shapes of its method; raises WireError for anything else."""
    message = wire.unpack(body, most_bytes=MOST_BYTES)
    numbers = ("round", "place", "client", "exchange", "seconds_left")
    kinds = {**dict.fromkeys(numbers, int), "held_until": str, "round_closes": str}
    values = wire.take_fields(message, kinds)
    fields: JsonObject = dict(zip(kinds, values, strict=True))
    if not 0 <= fields["exchange"] < terms.protocol.round_count(terms.population):
        raise WireError("the method has no such round")
    like = shapes_of(terms.protocol, terms.population, fields["exchange"])
    common = jax.tree.map(jnp.asarray, wire.fill(like.common, message.arrays, "common"))
    own = jax.tree.map(jnp.asarray, wire.fill(like.own, message.arrays, "own"))
    survey = survey_of(terms.protocol, terms.population)
    if survey is not None and not 0 <= int(own) < len(survey.groups):
        raise WireError("the study has no such question")
    return fields, common, own


def encode_record(record: Mapping[str, object] | pa.Table | str | Path, schema: Schema) -> Any:
    """One record as codes; raises DataError unless it is exactly one and fits the schema."""
    frame = _frame(record)
    if frame.num_rows != 1:
        raise DataError(f"expected one record, got {frame.num_rows}; a device answers for one person")
    return make_table(frame, schema).codes[0].astype(np.int32)


def _frame(record: Mapping[str, object] | pa.Table | str | Path) -> pa.Table:
    if isinstance(record, pa.Table):
        return record
    if isinstance(record, Mapping):
        return pa.table({str(name): [value] for name, value in record.items()})
    path = Path(record)
    if path.suffix != ".json":
        return read_frame(str(path))
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no file {path}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    if not isinstance(document, dict):
        raise DataError(f'expected one record in {path}, as {{"column": value, ...}}')
    try:
        return pa.table({str(name): [value] for name, value in document.items()})
    except (pa.ArrowException, TypeError) as error:
        raise DataError(f"expected one value for each column in {path}: {error}") from error


def _schema(terms: Terms) -> Schema:
    return terms.population.table_schema


def _sentence(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return "the collector gave no reason"


def _refusal(status: int, body: bytes) -> PopulaceError:
    sentence = _sentence(body)
    return AwayError(sentence) if status in AGAIN else NotTakenError(sentence)
