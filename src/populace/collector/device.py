"""A person's own device: asks for its question, randomises its record, keeps its ledger, and sends.

The reference client. It trusts the server with nothing that the guarantee rests on: method, probabilities and what an answer
costs are made here, from the study's public facts; randomness comes from the operating system, exactly.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa

from populace.collector.documents import MOST_NUMBER, NONCE_BYTES, Sent, answer_from, answer_message
from populace.collector.exchange import (
    BAD,
    LONGEST_SENTENCE,
    MOST_BYTES,
    SECONDS,
    WIRE,
    AwayError,
    Exchange,
    NotTakenError,
    is_again,
    parse_link,
    read_object,
    read_pause,
    read_refusal,
    read_sentence,
    read_token,
)
from populace.collector.record import encode_record
from populace.collector.reports import reports_of
from populace.collector.study import (
    METHODS,
    MOST_CLIENTS,
    TOKEN_BYTES,
    check_collectable,
    questions_digest,
    receipt_of,
    study_digest,
    survey_of,
)
from populace.engines import wire
from populace.engines.agreement import Agreement, frozen, shapes_of
from populace.errors import InputError, SpecError, WireError
from populace.methods.base import Ask, Population, Protocol, Shard
from populace.methods.registry import make_protocol
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Budget, Charge
from populace.privacy.relation import relation_of
from populace.privacy.source import Source, System
from populace.privacy.sqlite_ledger import SqliteLedger, kept_budget
from populace.tables.schema import Schema, schema_from_dict
from populace.types import ArrayTree, JsonObject

ACCOUNT = "this device"
MARGIN = 2.0  # seconds before a place is lost in which no report is made any more


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
    """A sign that the server has exactly this answer: the hash of it and of a nonce that the server does not keep."""

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
        self.ledger, self.limit = Path(ledger), limit
        self._source = source or System()
        self._exchange = Exchange(self.base, seconds=seconds)

    def study(self) -> Terms:
        """The study, made again from its public facts; refuses one that does not say what it is."""
        status, _, body = self._exchange.call("GET", "/v1/study")
        if status != 200:
            raise (
                AwayError(read_sentence(body))
                if is_again(status)
                else NotTakenError(f"{self.base} is not a study's address")
            )
        try:
            return read_terms(read_object(body))
        except BAD as error:
            raise WireError(
                f"{self.base} does not describe a study as this version reads it: {error!r}"[:400]
            ) from error

    def answer(self, record: Mapping[str, object] | pa.Table | str | Path, *, patience: float = 0.0) -> Receipt:
        """Answer the study with one record: from the ledger if it holds an answer, else a new one.

        Waits up to `patience` seconds in all for a question or for a collector that is away.
        """
        until = time.monotonic() + patience
        terms = self.study()
        if not self.ledger.exists():
            encode_record(record, _schema(terms))  # a record that cannot be sent leaves no ledger behind
        with self._opened(terms) as ledger:
            kept = ledger.stored(ACCOUNT, run=terms.id, round_id=0, question=terms.digest)
            if kept is None:
                codes = encode_record(record, _schema(terms))
                kept = self._make(terms, ledger, codes, until)
            elif self._token and kept[:TOKEN_BYTES] != self._token:
                raise InputError(
                    f"the ledger {self.ledger} has an answer to this study already, given with another link; a person answers "
                    "once, and this link stays unused: another person needs a ledger of their own"
                )
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
        status, _, body = self._exchange.call("POST", "/v1/invitation")
        if status != 200:
            raise read_refusal(status, body)
        try:
            return read_token(str(read_object(body).get("invitation")))
        except InputError:
            raise WireError(f"{self.base} gave something else than an invitation") from None

    def _question(self, terms: Terms, token: bytes, until: float) -> tuple[JsonObject, ArrayTree, ArrayTree]:
        """The question, checked against the shapes of the method; waits while there is none."""
        while True:
            status, kind, body = self._exchange.call("GET", "/v1/question", token=token, accept=WIRE)
            if status == 200 and kind == WIRE:
                fields, common, own = read_question(terms, body)
                if fields["seconds_left"] > MARGIN:
                    return fields, common, own
                pause, why = 1.0, "the round is about to end"
            elif status == 200:
                waiting = read_object(body)
                pause = read_pause(waiting.get("retry_after"))
                why = str(waiting.get("why", "there is no question yet"))[:LONGEST_SENTENCE]
            elif is_again(status):
                pause, why = 2.0, read_sentence(body)
            else:
                raise read_refusal(status, body)
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
                status, _, said = self._exchange.call("POST", "/v1/answer", token=token, body=body)
                if status == 200:
                    found = read_object(said)
                    if found.get("receipt") != expected:
                        raise WireError(
                            "the collector's receipt is not of this answer; do not trust that it was counted"
                        )
                    return Receipt(receipt=expected, fresh=bool(found.get("fresh")), epsilon=terms.guarantee.epsilon)
                raise read_refusal(status, said)
            except AwayError as error:
                why = str(error)
            if time.monotonic() + pause > until:
                raise AwayError(f"{why}; the answer is kept in {self.ledger}, give the same command again to send it")
            time.sleep(pause)
            pause = min(2 * pause, 30.0)


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
    clients = int(facts["clients"])
    if not 1 <= clients <= MOST_CLIENTS:
        raise SpecError(f"the study plans with {clients} answers, expected 1 to {MOST_CLIENTS}")
    population = agreement.population(clients=clients, records=1)
    check_collectable(agreement.protocol, population)
    if questions_digest(survey_of(agreement.protocol, population)) != facts["questions"]:
        raise SpecError("the study asks other questions than this version of populace would; nothing was answered")
    return Terms(
        id=str(facts["study"]), digest=digest, title=str(facts["title"]), protocol=agreement.protocol,
        population=population, open=bool(facts["open"]),
    )  # fmt: skip


def read_question(terms: Terms, body: bytes) -> tuple[JsonObject, ArrayTree, ArrayTree]:
    """A question of a study, in the shapes of its method; raises WireError for anything else."""
    try:
        return _read_question(terms, body)
    except BAD as error:
        raise WireError(f"the collector's question cannot be read: {type(error).__name__}") from error


def _read_question(terms: Terms, body: bytes) -> tuple[JsonObject, ArrayTree, ArrayTree]:
    message = wire.unpack(body, most_bytes=MOST_BYTES)
    numbers = ("round", "place", "client", "exchange", "seconds_left")
    kinds = {**dict.fromkeys(numbers, int), "held_until": str, "round_closes": str}
    values = wire.take_fields(message, kinds)
    fields: JsonObject = dict(zip(kinds, values, strict=True))
    if not all(0 <= fields[name] <= MOST_NUMBER for name in ("round", "place")):
        raise WireError("expected round and place as whole numbers from 0 on")
    if not 0 <= fields["exchange"] < terms.protocol.round_count(terms.population):
        raise WireError("the method has no such round")
    like = shapes_of(terms.protocol, terms.population, fields["exchange"])
    common = jax.tree.map(jnp.asarray, wire.fill(like.common, message.arrays, "common"))
    own = jax.tree.map(jnp.asarray, wire.fill(like.own, message.arrays, "own"))
    survey = survey_of(terms.protocol, terms.population)
    if survey is not None and not 0 <= int(own) < len(survey.groups):
        raise WireError("the study has no such question")
    return fields, common, own


def _schema(terms: Terms) -> Schema:
    return terms.population.table_schema
