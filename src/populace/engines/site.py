"""The site's side of a federation: it answers for the clients it hosts, and decides for itself.

Guarantee: a reply leaves only after its charge, the client's memory and the reply itself are on disk, in one transaction. What
would overspend is refused before records are touched. A question asked again gets the stored reply. Nothing but a well-formed
reply, the public facts, or one word of a closed list ever leaves; what went wrong in words stays in the site's own log.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from populace.engines import wire
from populace.engines.agreement import Agreement, Shapes, shapes_of
from populace.engines.exchange import Keys, make_key
from populace.engines.messages import Facts, RefusedError, Request, make_facts, make_refusal, make_reply, read_request
from populace.engines.wire import Message
from populace.errors import BudgetError, WireError
from populace.privacy.ledger import Budget, SqliteLedger
from populace.privacy.source import Keyed, System
from populace.protocols.base import Ask, Population, Protocol, Shard
from populace.tables.partition import Clients

Array = Any
#: Size of the runs a site takes part in, unless its own file says otherwise.
MOST_CLIENTS, MOST_RECORDS = 10**7, 10**4


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Hosted:
    """The clients a site answers for: their rows, their accounts in the ledger, and the most records one may hold (public)."""

    clients: Clients
    accounts: tuple[str, ...]
    records: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """A site's own state. With `root` its noise comes from that key: reproducible, not private; without, from the system.

    `most_clients` and `most_records` bound the runs it takes part in, so that no request can make it set more memory aside.
    """

    hosted: Hosted
    agreements: Mapping[str, Agreement]
    ledger_path: Path
    budget: Budget
    root: Array | None = None
    log: Callable[[str], None] = lambda _: None
    most_clients: int = MOST_CLIENTS
    most_records: int = MOST_RECORDS

    def reply(self, data: bytes) -> bytes:
        """The answer to one request, whatever it holds; never raises."""
        try:
            request = read_request(data)
            if isinstance(request, Request):
                return self._answer(request)
            self._agreed(request)
            hosted = self.hosted
            return make_facts(Facts(clients=len(hosted.accounts), records=hosted.records, seeded=self.root is not None))
        except RefusedError as no:
            self.log(f"refused ({no.code}): {no}")
            return make_refusal(no.code)
        except WireError as error:
            self.log(f"refused (malformed): {error}")
            return make_refusal("malformed")
        except BudgetError as error:
            self.log(f"refused (budget): {error}")
            return make_refusal("budget")
        except Exception as error:
            self.log(f"failed: {type(error).__name__}: {error}")
            return make_refusal("failed")

    def _agreed(self, terms: Mapping[str, Any]) -> Agreement:
        """The site's own agreement that these terms name; says which part was not agreed to."""
        left = list(self.agreements.values())
        for part in ("version", "method", "schema", "parameters"):
            left = [agreement for agreement in left if agreement.terms[part] == terms.get(part)]
            if not left:
                raise RefusedError(part, f"the request names {part} {terms.get(part)!r}, which is not agreed")  # type: ignore[arg-type]
        return left[0]

    def _answer(self, request: Request) -> bytes:
        agreement = self._agreed(request.terms)
        population = self._population(agreement, request)
        shapes = shapes_of(agreement.protocol, population, request.round)
        batch = self._read_batch(request, population, shapes)
        charge = agreement.protocol.charge(
            Ask(round=request.round, cohort=batch.clients, common=batch.common, own=batch.own), population
        )
        with SqliteLedger(self.ledger_path, self.budget, create=False) as ledger:
            replies, fresh = self._look_up(ledger, request, batch)
            able = [slot for slot in fresh if _can_pay(ledger, batch.accounts[slot], charge)]
            if not replies and not able:
                raise RefusedError(
                    "budget", f"round {request.round} of run {request.run} would overspend every account asked"
                )
            keep = []
            for slot in able:
                memory = self._memory(ledger, agreement, population, request, batch, slot, shapes)
                value, after = self._answer_one(agreement, population, request, batch, slot, memory)
                reply = wire.pack(Message(kind="value", arrays=wire.leaves(value, "value")))
                kept = wire.leaves(after, "memory")
                stored = wire.pack(Message(kind="memory", arrays=kept)) if kept else None
                keep.append((batch.accounts[slot], batch.questions[slot], reply, stored))
                replies[slot] = reply
            ledger.commit_many(keep, charge, run=request.run, round_id=request.round)
        values = [wire.fill(shapes.reply, wire.unpack(reply).arrays, "value") for _, reply in sorted(replies.items())]
        return make_reply(
            agreement, population, run=request.run, round_id=request.round, clients=batch.clients[sorted(replies)],
            values=jax.tree.map(lambda *each: np.stack([np.asarray(one) for one in each]), *values),
        )  # fmt: skip

    def _population(self, agreement: Agreement, request: Request) -> Population:
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

    def _read_batch(self, request: Request, population: Population, shapes: Shapes) -> _Batch:
        arrays = request.message.arrays
        clients, heard = (arrays.get(name) for name in ("clients", "heard"))
        if clients is None or heard is None or clients.ndim != 1 or heard.shape != clients.shape or not len(clients):
            raise WireError("an ask does not say whom it asks")
        if clients.dtype != np.int32 or heard.dtype != np.int32 or len(np.unique(clients)) != len(clients):
            raise WireError("an ask names a client twice, or not by whole numbers")
        local = clients - request.first
        if local.min() < 0 or local.max() >= len(self.hosted.accounts):
            raise RefusedError("population", "the request asks clients that this site does not host")
        common = wire.fill(shapes.common, arrays, "common")
        own = wire.fill(shapes.own, arrays, "own", rows=len(clients))
        if set(arrays) != {"clients", "heard", *wire.leaves(common, "common"), *wire.leaves(own, "own")}:
            raise WireError("an ask holds more arrays than the method sends")
        return _Batch(
            clients=clients, local=local, heard=heard, common=jax.tree.map(jnp.asarray, common), own=own,
            accounts=[self.hosted.accounts[place] for place in local], questions=_digests(request, common, own, clients),
        )  # fmt: skip

    def _look_up(self, ledger: SqliteLedger, request: Request, batch: _Batch) -> tuple[dict[int, bytes], list[int]]:
        """Stored replies by slot, and the slots that have none yet. Refuses what contradicts the ledger."""
        terms = {
            "terms": request.terms,
            "clients": request.clients_in_all,
            "records": request.records,
            "first": request.first,
        }
        replies: dict[int, bytes] = {}
        fresh: list[int] = []
        try:
            ledger.keep_terms(request.run, json.dumps(terms, sort_keys=True))
            for slot, (account, question) in enumerate(zip(batch.accounts, batch.questions, strict=True)):
                reply = ledger.stored(account, run=request.run, round_id=request.round, question=question)
                if reply is not None:
                    replies[slot] = reply
                    continue
                if ledger.entries(account, run=request.run) < batch.heard[slot]:
                    raise RefusedError(
                        "rolled-back", f"account {account!r} has fewer charges in {request.run} than were heard"
                    )
                fresh.append(slot)
        except BudgetError as error:
            raise RefusedError("changed", str(error)) from error
        return replies, fresh

    def _memory(
        self,
        ledger: SqliteLedger,
        agreement: Agreement,
        population: Population,
        request: Request,
        batch: _Batch,
        slot: int,
        shapes: Shapes,
    ) -> Any:
        stored = ledger.memory(batch.accounts[slot], run=request.run)
        if stored is not None:
            return wire.fill(shapes.memory, wire.unpack(stored).arrays, "memory")
        client = int(batch.clients[slot])
        return agreement.protocol.remember(
            population, make_key(None) if self.root is None else Keys(self.root).memory(client)
        )

    def _answer_one(
        self, agreement: Agreement, population: Population, request: Request, batch: _Batch, slot: int, memory: Any
    ) -> tuple[Any, Any]:
        records, mask = self.hosted.clients.gather(batch.local[slot : slot + 1], population.records)
        shard = Shard(records=jax.tree.map(lambda rows: rows[0], records), mask=mask[0], population=population)
        own = jax.tree.map(lambda rows: jnp.asarray(rows[slot]), batch.own)
        if self.root is None:
            return agreement.protocol.answer(batch.common, own, shard, memory, System())
        source = Keyed(Keys(self.root).answer(request.round, int(batch.clients[slot])))
        return _compiled(agreement.protocol)(batch.common, own, shard, memory, source)


@functools.lru_cache(maxsize=8)
def _compiled(protocol: Protocol) -> Callable[..., tuple[Any, Any]]:
    """`answer` for a seeded site; exact sampling from the operating system cannot be compiled."""
    return jax.jit(protocol.answer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Batch:
    """One request, checked: which clients, with which accounts and questions."""

    clients: Array
    local: Array
    heard: Array
    common: Any
    own: Any
    accounts: Sequence[str]
    questions: Sequence[str]


def _can_pay(ledger: SqliteLedger, account: str, charge: Any) -> bool:
    try:
        ledger.check(account, charge)
    except BudgetError:
        return False
    return True


def _digests(request: Request, common: Any, own: Any, clients: Array) -> list[str]:
    """What each client is asked, as a hash: the same question again has the same one, any other another."""
    shared = hashlib.sha256(json.dumps([request.run, request.round, request.terms], sort_keys=True).encode())
    for name, array in wire.leaves(common, "common").items():
        shared.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    rows = wire.leaves(own, "own")
    found = []
    for slot, client in enumerate(clients):
        one = shared.copy()
        one.update(str(int(client)).encode())
        for name, array in rows.items():
            one.update(name.encode() + np.ascontiguousarray(array[slot]).tobytes())
        found.append(one.hexdigest())
    return found
