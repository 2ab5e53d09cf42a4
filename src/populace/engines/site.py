"""The site's side of a federation: it answers for the clients it hosts, and decides for itself.

Guarantee: a reply leaves only after its charge, the client's memory and the reply itself are on disk, in one transaction. What
would overspend is refused before records are touched: the site's own limit over all runs, and in each run the guarantee that
was agreed for it. Charges of runs whose guarantees mean different things (neighbours, what the coordinator sees) are never
added: a ledger holds one kind, and the site refuses the other. A ledger older than the file beside it says is not used. A
question asked again in its round gets the stored reply; a round beyond the method's last, and a question that was answered in
another round of the run, get none. Clients are numbered in a secret random order, drawn for each run and kept with the ledger,
so that no number tells a place in the file. Nothing but a well-formed reply, the public facts, or one word of a closed list
ever leaves; what went wrong in words stays in the site's own log.
Edge cases: a seeded site numbers its clients in the order of the file: reproducible, not private. A method that means to ask
the very same in several rounds has the round's number in its question.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from populace.engines import wire
from populace.engines.agreement import Agreement, Shapes, shapes_of
from populace.engines.asked import Asked, Batch, is_permutation, read_ask
from populace.engines.messages import (
    Code,
    Facts,
    Hosts,
    RefusedError,
    Request,
    make_facts,
    make_refusal,
    make_reply,
    read_request,
)
from populace.engines.secure_sum.messages import SecureSumError
from populace.engines.site_answers import answer_slots, look_up
from populace.engines.site_sums import answer_step, opens_sum
from populace.errors import BudgetError, RunError, WireError
from populace.methods.base import Ask, Population, Protocol
from populace.privacy import secure_random
from populace.privacy.account_charges import AccountCharges
from populace.privacy.ledger import Budget, Charge
from populace.privacy.relation import Relation, relation_of
from populace.privacy.sqlite_ledger import (
    Begun,
    OldRunError,
    OvertakenError,
    RolledBackError,
    SqliteLedger,
)
from populace.tables.partition import Clients
from populace.types import Array, JsonObject

#: Size of the runs a site takes part in, unless its own file says otherwise.
MOST_CLIENTS, MOST_RECORDS = 10**7, 10**4
TRIES = 3  # where another process of the site books in between
NUMBERS = np.dtype("<i4")  # of the clients, as the ledger keeps them


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Hosted:
    """The clients a site answers for: their rows, their accounts in the ledger, and the most records one may hold (public).

    `by` says what a client is: some rows of the table, all rows with one value of a column, or the site; public too.
    `records_read` is true where the most records were read from the data, not declared.
    """

    clients: Clients
    accounts: tuple[str, ...]
    records: int
    by: Hosts = "rows"
    records_read: bool = False

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the accounts in their order; a run continues only with those it began with."""
        found = hashlib.sha256()
        for account in self.accounts:
            text = account.encode(errors="surrogatepass")
            found.update(f"{len(text)}:".encode() + text)
        return found.hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """A site's own state. With `root` its noise comes from that key: reproducible, not private; without, from the system.

    `most_clients` and `most_records` bound the runs it takes part in, so that no request can make it set more memory aside.
    `signing_key` signs its steps of secure sums, in which no site that is `revoked` may be.
    """

    hosted: Hosted
    agreements: Mapping[str, Agreement]
    ledger_path: Path
    budget: Budget
    root: Array | None = None
    log: Callable[[str], None] = lambda _: None
    most_clients: int = MOST_CLIENTS
    most_records: int = MOST_RECORDS
    signing_key: bytes | None = None
    revoked: frozenset[str] = frozenset()

    def reply(self, data: bytes) -> bytes:
        """The answer to one request, whatever it holds; never raises."""
        try:
            request = read_request(data)
            if isinstance(request, Request):
                return self._answer(request) if request.step is None else answer_step(self, request, request.step)
            self.agreed(request)
            hosted = self.hosted
            self.log("reported the public facts")
            facts = Facts(
                clients=len(hosted.accounts), records=hosted.records, seeded=self.root is not None, hosts=hosted.by,
                records_read=hosted.records_read,
            )  # fmt: skip
            return make_facts(facts)
        except Exception as error:
            word, sentence = refusal_of(error)
            self.log(sentence)
            return make_refusal(word)

    def agreed(self, terms: JsonObject) -> Agreement:
        """The site's own agreement that these terms name; says which part was not agreed to."""
        left = list(self.agreements.values())
        for part in ("version", "method", "schema", "parameters", "roster"):
            left = [agreement for agreement in left if agreement.terms.get(part) == terms.get(part)]
            if not left:
                raise RefusedError(part, f"the request names {part} {terms.get(part)!r}, which is not agreed")  # type: ignore[arg-type]
        return left[0]

    def _answer(self, request: Request) -> bytes:
        agreement = self.agreed(request.terms)
        population = self.population(agreement, request)
        limit, relation = self.run_limit(agreement.protocol, population, request)
        shapes = shapes_of(agreement.protocol, population, request.round)
        asked = read_ask(request, shapes, hosted=len(self.hosted.accounts))
        charge = agreement.protocol.charge(
            Ask(round=request.round, cohort=asked.clients, common=asked.common, own=asked.own), population
        )
        with SqliteLedger(self.ledger_path, self.budget, create=False) as ledger:
            for _ in range(TRIES):
                try:
                    replies = self._replies(
                        ledger, agreement, population, request, asked, shapes, charge, limit, relation
                    )
                    break
                except OvertakenError as error:
                    self.log(f"looking again: {error}")
            else:
                raise RunError("other processes of this site keep answering the same clients; nothing was released")
            ledger.keep_head()  # also where all replies were stored before: nothing leaves that an old ledger would not know
        slots = sorted(replies)
        values = wire.fill_rows(shapes.reply, [replies[slot] for slot in slots], "value")
        return make_reply(
            agreement, population, run=request.run, round_id=request.round, clients=asked.clients[slots], values=values
        )

    def _replies(
        self,
        ledger: SqliteLedger,
        agreement: Agreement,
        population: Population,
        request: Request,
        asked: Asked,
        shapes: Shapes,
        charge: Charge,
        limit: Budget,
        relation: Relation,
    ) -> dict[int, bytes]:
        """Replies by slot: stored ones, and new ones that are charged before this returns."""
        batch = self.batch(self.begun(ledger, request), request, asked)
        charges = ledger.read(batch.accounts, run=request.run, round_id=request.round, questions=batch.questions)
        replies, new_slots = look_up(charges, request, batch, charge, limit)
        if new_slots:
            ledger.check_relation(relation)
        able = self._able(charges, batch, new_slots, charge)
        if not replies and not able:
            raise RefusedError("budget", f"nobody asked in round {request.round} of run {request.run} may answer")
        packed = answer_slots(self, ledger, agreement, population, request, batch, able, shapes)
        replies |= {slot: reply for slot, (reply, _) in zip(able, packed, strict=True)}
        keep = [(batch.accounts[slot], batch.questions[slot], *each) for slot, each in zip(able, packed, strict=True)]
        ledger.commit_many(
            keep, charge, run=request.run, round_id=request.round, limit=limit, before=[new_slots[slot] for slot in able],
            relation=relation,
        )  # fmt: skip
        return replies

    def run_limit(self, protocol: Protocol, population: Population, request: Request) -> tuple[Budget, Relation]:
        """The most this run may take of one account, and in which sense; refuses rounds the method does not have."""
        rounds, limit, relation = _rounds_and_limit(protocol, population)
        if request.round >= rounds:
            raise RefusedError("round", f"round {request.round} of run {request.run}, which has {rounds} rounds")
        sums = relation.trust == "secure-sum" and opens_sum(protocol, population, request.round)
        if sums != (request.step is not None):
            raise RefusedError("guarantee", "numbers of a secure sum leave under masks, step by step, and no others do")
        if limit.unit == "person" and self.hosted.clients.persons is None:
            raise RefusedError("guarantee", "persons are protected, and the site's file names no person column")
        if protocol.secret_cohorts(population) and self.root is None:
            raise RefusedError(
                "guarantee",
                "the guarantee counts on nobody learning whom a round asks, which requests over a network do not keep secret",
            )
        return limit, relation

    def begun(self, ledger: SqliteLedger, request: Request) -> Begun:
        """What the run was begun with, or what it begins with now: its numbering is kept before anything is answered."""
        terms = {
            "terms": request.terms,
            "clients": request.clients_in_all,
            "records": request.records,
            "first": request.first,
        }
        content, hosted = json.dumps(terms, sort_keys=True), self.hosted
        try:
            kept = ledger.begun(request.run)
        except OldRunError as error:
            raise RefusedError("old-run", str(error)) from error
        if kept is None:
            numbers = b"" if self.root is not None else secure_random.permutation(len(hosted.accounts)).astype(NUMBERS)
            kept = Begun(terms=content, accounts=hosted.digest, numbers=bytes(numbers))
            ledger.begin(request.run, kept)
            return kept
        if kept.terms != content:
            raise RefusedError(
                "changed", f"run {request.run!r} was begun under other terms; they do not change within it"
            )
        if kept.accounts != hosted.digest:
            raise RefusedError(
                "population",
                f"the clients in the data, or their order, are not those run {request.run!r} began with; put the data back "
                "as they were until it is over, or take part in another run",
            )
        if self.root is None and not kept.numbers:
            raise RefusedError(
                "changed",
                f"run {request.run!r} was begun while this site was seeded, with clients in the order of the file",
            )
        return kept

    def population(self, agreement: Agreement, request: Request) -> Population:
        hosted = self.hosted
        if request.clients_in_all > self.most_clients or request.records > self.most_records:
            raise RefusedError(
                "population",
                f"the run has {request.clients_in_all} clients of up to {request.records} records, this site's file allows "
                f"{self.most_clients} of up to {self.most_records}",
            )
        if request.first + len(hosted.accounts) > request.clients_in_all:
            raise RefusedError("population", "the run has fewer clients than would follow from where this site's begin")
        if request.records < hosted.records:
            raise RefusedError(
                "population", f"a client here may hold {hosted.records} records, the run allows {request.records}"
            )
        return agreement.population(clients=request.clients_in_all, records=request.records)

    def batch(self, begun: Begun, request: Request, asked: Asked) -> Batch:
        """The clients that the numbers of a request stand for in its run."""
        places = asked.numbers
        if begun.numbers:
            order = np.frombuffer(begun.numbers, NUMBERS)
            if len(begun.numbers) % NUMBERS.itemsize or not is_permutation(order, len(self.hosted.accounts)):
                raise RunError(f"the numbers of the clients in run {request.run!r} are damaged in the ledger")
            places = order[asked.numbers].astype(np.int64)
        return Batch(
            **{field.name: getattr(asked, field.name) for field in dataclasses.fields(asked)},
            places=places, accounts=[self.hosted.accounts[place] for place in places],
        )  # fmt: skip

    def _able(self, charges: AccountCharges, batch: Batch, slots: Iterable[int], charge: Charge) -> list[int]:
        """The slots whose accounts can pay under the site's limit; the log says how many cannot, and why for one of them."""
        able, unable = [], []
        for slot in slots:
            try:
                charges.check(batch.accounts[slot], charge)
                able.append(slot)
            except BudgetError as error:
                unable.append(error)
        if unable:
            self.log(
                f"left out {len(unable)} of {len(able) + len(unable)} who have not answered; one of them: {unable[0]}"
            )
        return able


@functools.lru_cache(maxsize=64)
def _rounds_and_limit(protocol: Protocol, population: Population) -> tuple[int, Budget, Relation]:
    """The rounds of a run, the most it may take of one account (its guarantee less what samplers may add), in which sense."""
    claim = protocol.guarantee(population)
    limit = Budget(epsilon=claim.epsilon, delta=claim.accounted_delta, unit=claim.unit)
    return protocol.round_count(population), limit, relation_of(claim)


def refusal_of(error: Exception) -> tuple[Code, str]:
    """The one word that leaves, and the sentence for the site's own log."""
    word: Code
    if isinstance(error, RefusedError):
        word = error.code
    elif isinstance(error, WireError):
        word = "malformed"
    elif isinstance(error, SecureSumError):
        word = "sum"
    elif isinstance(error, RolledBackError):
        word = "rolled-back"
    elif isinstance(error, BudgetError):
        word = "budget"
    else:
        return "failed", f"failed: {type(error).__name__}: {error}"
    return word, f"refused ({word}): {error}"
