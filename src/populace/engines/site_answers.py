"""The answers of a site's clients: many at once where the method allows, otherwise one client after the other.

Guarantee: the law of a client's answer is the same either way. Alone, a client draws everything from the operating system
(`System`); in a block, one compiled program answers for all, and what protects people (noise, reports, coins, choices) is drawn
by the host, exactly and from the operating system, for the whole block at once (`Keyed` with `exact`); only latents come from a
key, drawn from the operating system for that block and used for no other. A method that draws anything else from the key of its
source (`uses_key`) is never answered in blocks.
Edge cases: a block has a public size; its empty slots hold no records, and their answers are dropped. A seeded site answers one
client after the other, as the simulation with that seed does: reproducible, not private.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from populace.engines import wire
from populace.engines.agreement import Agreement, Shapes, draws_exactly, empty_records
from populace.engines.asked import Batch
from populace.engines.messages import RefusedError, Request
from populace.engines.runtime import Keys, gather_shards, make_key, padded_shard, whole_shard
from populace.engines.wire import Message
from populace.errors import BudgetError
from populace.methods.base import Ask, Population, Protocol
from populace.privacy.account_charges import AccountCharges, RepeatedQuestionError, RunLimitError
from populace.privacy.ledger import Budget, Charge
from populace.privacy.source import Keyed, System
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.types import ArrayTree

if TYPE_CHECKING:
    from populace.engines.site import Site

LEAST_TOGETHER = 32  # clients; fewer are answered for sooner than a program is compiled
MOST_TOGETHER = 2_048
MOST_BYTES = 2**24  # of the records, replies and memories of a block

Packed = tuple[bytes, bytes | None]  # a reply, and what the client keeps at home from now on


def look_up(
    charges: AccountCharges, request: Request, batch: Batch, charge: Charge, limit: Budget
) -> tuple[dict[int, bytes], dict[int, int]]:
    """Stored replies by slot, and for the other slots how many charges their accounts have in this run.

    Refuses what contradicts the ledger, and what the run's own guarantee does not cover.
    """
    replies: dict[int, bytes] = {}
    new_slots: dict[int, int] = {}
    try:
        for slot, (account, question) in enumerate(zip(batch.accounts, batch.questions, strict=True)):
            reply = charges.stored(account, question)
            if reply is not None:
                replies[slot] = reply
                continue
            new_slots[slot] = charges.entries(account)
            if new_slots[slot] < batch.heard[slot]:
                raise RefusedError(
                    "rolled-back", f"account {account!r} has fewer charges in {request.run} than were heard"
                )
    except RepeatedQuestionError as error:
        raise RefusedError("repeated", str(error)) from error
    except BudgetError as error:
        raise RefusedError("changed", str(error)) from error
    try:
        for slot in new_slots:
            charges.check_run(batch.accounts[slot], charge, limit=limit)
    except RunLimitError as error:
        raise RefusedError("guarantee", str(error)) from error
    return replies, new_slots


def answer_slots(
    site: Site,
    ledger: SqliteLedger,
    agreement: Agreement,
    population: Population,
    request: Request,
    batch: Batch,
    slots: Sequence[int],
    shapes: Shapes,
) -> list[Packed]:
    """Reply and memory of the clients in these slots, as the ledger keeps them; nothing is charged or kept here."""
    protocol = agreement.protocol
    size = 0 if site.root is not None else block_size(protocol, population, batch, shapes, len(slots), request.round)
    if not size:
        return [_packed_one(site, ledger, agreement, population, request, batch, slot, shapes) for slot in slots]
    packed: list[Packed] = []
    for start in range(0, len(slots), size):
        part = list(slots[start : start + size])
        packed += _packed_block(site, ledger, protocol, population, request, batch, part, shapes)
    return packed


def block_size(
    protocol: Protocol, population: Population, batch: Batch, shapes: Shapes, count: int, round_id: int
) -> int:
    """How many of `count` clients are answered for at once, by public facts; 0 where each is answered for alone."""
    if count < LEAST_TOGETHER or protocol.on_host(population):
        return 0
    each = sum(_bytes(part) for part in (empty_records(population), shapes.reply, shapes.memory))
    size = min(MOST_TOGETHER, 1 << (MOST_BYTES // each).bit_length() >> 1)
    cohort = np.zeros(size, np.int32)
    own = jax.tree.map(lambda rows: np.zeros((size, *rows.shape[1:]), rows.dtype), batch.own)
    ask = Ask(round=round_id, cohort=cohort, common=batch.common, own=own)
    if size < LEAST_TOGETHER or not protocol.together(ask, population):
        return 0
    return size if draws_exactly(protocol, population, shapes) else 0


def _bytes(tree: ArrayTree) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _packed_block(
    site: Site,
    ledger: SqliteLedger,
    protocol: Protocol,
    population: Population,
    request: Request,
    batch: Batch,
    slots: list[int],
    shapes: Shapes,
) -> list[Packed]:
    """Replies and memories of some clients from one compiled program, for a power of two of them."""
    count = len(slots)
    size = max(LEAST_TOGETHER, 1 << (count - 1).bit_length())
    places = np.concatenate([batch.places[slots], np.full(size - count, -1, batch.places.dtype)])
    shards = gather_shards(site.hosted.clients, places, population)
    own = jax.tree.map(lambda rows: np.resize(rows[slots], (size, *rows.shape[1:])), batch.own)
    held = _memories(ledger, protocol, population, request, [batch.accounts[slot] for slot in slots], shapes, size)
    sources = Keyed(jax.random.split(make_key(None), size), exact=True)
    values, after = _for_block(protocol)(batch.common, own, shards, held, sources)
    replies, kept = (
        {name: rows[:count] for name, rows in wire.leaves(tree, prefix).items()}
        for tree, prefix in ((values, "value"), (after, "memory"))
    )
    sent = wire.pack_rows("value", replies, rows=count)
    return list(zip(sent, wire.pack_rows("memory", kept, rows=count) if kept else [None] * count, strict=True))


def _memories(
    ledger: SqliteLedger,
    protocol: Protocol,
    population: Population,
    request: Request,
    accounts: Sequence[str],
    shapes: Shapes,
    size: int,
) -> ArrayTree:
    """What the clients of a block have kept at home in this run, or begin with, stacked."""
    if not jax.tree.leaves(shapes.memory):
        return shapes.memory
    keys = jax.random.split(make_key(None), size)
    begun = jax.vmap(lambda key: protocol.remember(population, key))(keys)
    stored = ledger.memories(accounts, run=request.run)
    rows = [row for row, account in enumerate(accounts) if account in stored]
    if not rows:
        return begun
    filled = wire.fill_rows(shapes.memory, [stored[accounts[row]] for row in rows], "memory")
    return jax.tree.map(lambda all_, kept: jnp.asarray(all_).at[np.asarray(rows)].set(kept), begun, filled)


@functools.lru_cache(maxsize=8)
def _for_block(protocol: Protocol) -> Callable[..., tuple[ArrayTree, ArrayTree]]:
    """`answer` for all clients of a block at once."""
    return jax.jit(jax.vmap(protocol.answer, in_axes=(None, 0, 0, 0, 0)))


def _packed_one(
    site: Site,
    ledger: SqliteLedger,
    agreement: Agreement,
    population: Population,
    request: Request,
    batch: Batch,
    slot: int,
    shapes: Shapes,
) -> Packed:
    memory = memory_of(site, ledger, agreement, population, request, batch, slot, shapes)
    value, after = answer_one(site, agreement, population, request, batch, slot, memory)
    return wire.pack(Message(kind="value", arrays=wire.leaves(value, "value"))), pack_memory(after)


def pack_memory(memory: ArrayTree) -> bytes | None:
    """What a client keeps at home, as its ledger's file holds it; None for nothing."""
    kept = wire.leaves(memory, "memory")
    return wire.pack(Message(kind="memory", arrays=kept)) if kept else None


def memory_of(
    site: Site,
    ledger: SqliteLedger,
    agreement: Agreement,
    population: Population,
    request: Request,
    batch: Batch,
    slot: int,
    shapes: Shapes,
) -> ArrayTree:
    """What a client has kept at home in this run, or begins with."""
    stored = ledger.memory(batch.accounts[slot], run=request.run)
    if stored is not None:
        return wire.fill(shapes.memory, wire.unpack(stored).arrays, "memory")
    key = make_key(None) if site.root is None else Keys(site.root).memory(int(batch.clients[slot]))
    return agreement.protocol.remember(population, key)


def answer_one(
    site: Site,
    agreement: Agreement,
    population: Population,
    request: Request,
    batch: Batch,
    slot: int,
    memory: ArrayTree,
) -> tuple[ArrayTree, ArrayTree]:
    """Reply and memory of one client, who draws alone."""
    on_host = agreement.protocol.on_host(population)
    shard = (whole_shard if on_host else padded_shard)(site.hosted.clients, int(batch.places[slot]), population)
    own = jax.tree.map(lambda rows: jnp.asarray(rows[slot]), batch.own)
    if site.root is None:
        return agreement.protocol.answer(batch.common, own, shard, memory, System())
    source = Keyed(Keys(site.root).answer(request.round, int(batch.clients[slot])))
    answer = agreement.protocol.answer if on_host else _compiled(agreement.protocol)
    return answer(batch.common, own, shard, memory, source)


@functools.lru_cache(maxsize=8)
def _compiled(protocol: Protocol) -> Callable[..., tuple[ArrayTree, ArrayTree]]:
    """`answer` for one client of a seeded site; what `System` draws cannot be compiled."""
    return jax.jit(protocol.answer)
