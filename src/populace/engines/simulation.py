"""All clients on one machine: padded, masked, vmapped, sharded over the devices there are.

Two paths with the same replies. Round by round: a cohort's records are gathered on the host and answered by one compiled
call. Compiled: where a protocol's cohorts are known ahead, the data sit on the device and many rounds run as one compiled
loop; the ledger is booked for all of them before it starts.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from populace.engines.checkpoint import Checkpoint
from populace.engines.runtime import (
    Keys,
    Outcome,
    Progress,
    Report,
    Traffic,
    check_kind,
    check_persons,
    gather_shards,
    new_ledger,
    placed,
    population_of,
    whole_shard,
)
from populace.engines.sums import add_up
from populace.methods.base import Ask, Population, Protocol, Replies, Shard
from populace.privacy.ledger import Budget, MemoryLedger
from populace.privacy.source import Keyed, System
from populace.tables.images import Images
from populace.tables.partition import Clients
from populace.types import Array, ArrayTree, Doing

MOST_BYTES_ON_DEVICE = 4 * 2**30
MOST_MEMORY_ON_DEVICE = 2 * 2**30  # of what all clients keep at home; more stays with the host
CLIENTS_AT_ONCE = 256  # whose memories are made together on the host
MOST_TRAINING_AT_ONCE = 64  # clients that train networks of their own on an accelerator, whose slopes fill its memory
SLOTS = 8  # a cohort of varying size is filled up to a multiple of this, so that few shapes are compiled
PATIENCE = 10  # a checkpoint that takes long is written when so many times its duration have passed
LONG_CHECKPOINT = 1.0  # seconds
SECONDS_BETWEEN_CHECKPOINTS = 2.0
CHUNK_OF_COHORTS = 64
MOST_ROUNDS_AT_ONCE = 4_096


@placed
def run(
    protocol: Protocol,
    clients: Clients,
    *,
    root: Array,
    checkpoint: Checkpoint | None = None,
    progress: Report | None = None,
    compiled: bool | None = None,
    asked: Budget | None = None,
    exact_noise: bool = False,
    doing: Doing = lambda _: None,
) -> Outcome:
    """Run a protocol on simulated clients, from the checkpoint if there is one.

    `root` is the key everything is drawn from; a resumed run goes on with the key it started from. `compiled` forces or
    forbids the compiled loop; by default it is used where the protocol allows and the data fit. `asked` is the most the user
    allows: a protocol that claims more is refused before it starts. With `exact_noise`, noise, reports and coins are
    drawn on the host, from the operating system, also within compiled code; starting points and latents come from `root`.
    """
    doing("asking clients")
    population = population_of(clients)
    check_kind(protocol, population)
    check_persons(protocol, clients)
    resuming = checkpoint is not None and checkpoint.exists()
    keys = Keys(checkpoint.root() if checkpoint is not None and resuming else root, exact=exact_noise)
    ledger = new_ledger(protocol, population, asked)
    state, memory = protocol.begin(population, keys.begin()), _memories(protocol, population, keys)
    traffic, done = Traffic(), 0
    if checkpoint is not None:
        if resuming:
            state, memory, done, traffic = checkpoint.load(state=state, memory=memory, ledger=ledger)
        else:
            checkpoint.save(root=keys.root, rounds=0, state=state, memory=memory, ledger=ledger, traffic=traffic)
    if compiled is None:
        compiled = protocol.compiles and _bytes(clients) <= MOST_BYTES_ON_DEVICE and not _on_host(memory)
    runner = (_Compiled if compiled else _RoundByRound)(protocol, clients, population, keys, ledger)
    total, chunk = protocol.round_count(population), 1
    saved, cost, kept = time.monotonic(), 0.0, done
    while True:
        began = time.monotonic()
        state, memory, traffic, advanced = runner.advance(
            state, memory, traffic, done, min(chunk, max(total - done, 1))
        )
        if advanced == 0:
            break
        done += advanced
        if progress:
            progress(Progress(done=done, total=max(total, done), clients=ledger.spent()["charges"]))
        took = time.monotonic() - began
        if checkpoint is not None and (cost < LONG_CHECKPOINT or time.monotonic() - saved > PATIENCE * cost):
            saving = time.monotonic()
            checkpoint.save(root=keys.root, rounds=done, state=state, memory=memory, ledger=ledger, traffic=traffic)
            saved, cost, kept = time.monotonic(), time.monotonic() - saving, done
        chunk = _next_chunk(chunk, advanced, took)
    if checkpoint is not None and kept < done:  # so that a generator that was written is made again, not drawn anew
        checkpoint.save(root=keys.root, rounds=done, state=state, memory=memory, ledger=ledger, traffic=traffic)
    doing("fitting")
    generator = protocol.finish(state, population, keys.finish())
    return Outcome(
        generator=generator, guarantee=protocol.guarantee(population), ledger=ledger, traffic=traffic, rounds=done,
        state=state, noise=keys.noise,
    )  # fmt: skip


def _next_chunk(chunk: int, advanced: int, seconds: float) -> int:
    """About `SECONDS_BETWEEN_CHECKPOINTS` a chunk, growing at most eightfold (the first chunk also compiles)."""
    wanted = int(SECONDS_BETWEEN_CHECKPOINTS * advanced / max(seconds, 1e-6))
    return max(1, min(8 * chunk, wanted, MOST_ROUNDS_AT_ONCE))


def _bytes(clients: Clients) -> int:
    data = clients.data
    return int(data.x.nbytes if isinstance(data, Images) else data.codes.nbytes)


def _memories(protocol: Protocol, population: Population, keys: Keys) -> ArrayTree:
    """What every client keeps at home, stacked; nothing for most methods. More than a device should hold stays on the host."""
    one = jax.eval_shape(lambda: protocol.remember(population, keys.memory(0)))
    if not jax.tree.leaves(one):
        return ()
    make: Callable[[Array], ArrayTree] = jax.vmap(lambda client: protocol.remember(population, keys.memory(client)))
    each = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(one))
    numbers = np.arange(population.clients)
    if each * population.clients <= MOST_MEMORY_ON_DEVICE:
        return make(numbers)
    kept = jax.tree.map(lambda leaf: np.empty((population.clients, *leaf.shape), leaf.dtype), one)
    for part in np.array_split(numbers, -(-population.clients // CLIENTS_AT_ONCE)):
        for all_, new in zip(jax.tree.leaves(kept), jax.tree.leaves(make(part)), strict=True):
            all_[part] = np.asarray(new)
    return kept


def _shard(tree: ArrayTree) -> ArrayTree:
    """Spread the leading (client) axis over the devices; what does not divide evenly stays whole."""
    devices = jax.devices()
    if len(devices) == 1 or jax.config.jax_default_device is not None:  # type: ignore[attr-defined]
        return tree
    sharding = NamedSharding(Mesh(np.array(devices), ("clients",)), PartitionSpec("clients"))  # type: ignore[no-untyped-call]

    def spread(leaf: ArrayTree) -> ArrayTree:
        if np.ndim(leaf) == 0 or len(leaf) % len(devices):
            return leaf
        if isinstance(leaf, jax.core.Tracer):
            return jax.lax.with_sharding_constraint(leaf, sharding)  # type: ignore[no-untyped-call]
        return jax.device_put(leaf, sharding)

    return jax.tree.map(spread, tree)


def _pad_cohort(ask: Ask) -> Ask:
    """The cohort with empty slots at the end, so that it divides evenly over the devices."""
    slots = -len(ask.cohort) % len(jax.devices())
    if not slots:
        return ask

    def pad(leaf: Array) -> Array:
        return jnp.concatenate([leaf, jnp.repeat(leaf[:1], slots, axis=0)])

    return Ask(
        round=ask.round,
        cohort=jnp.concatenate([ask.cohort, jnp.full(slots, -1, ask.cohort.dtype)]),
        common=ask.common,
        own=jax.tree.map(pad, ask.own),
    )


def _working_only(protocol: Protocol, ask: Ask) -> Ask:
    """The clients that have anything to compute, and empty slots after them; all, where a method does not tell."""
    work = protocol.working(ask)
    if work is None:
        return ask
    slots = np.flatnonzero(np.asarray(work) & (np.asarray(ask.cohort) >= 0))
    padded = np.concatenate([slots, np.zeros(-len(slots) % SLOTS if len(slots) else SLOTS, slots.dtype)])
    cohort = np.where(np.arange(len(padded)) < len(slots), np.asarray(ask.cohort)[padded], -1)
    return dataclasses.replace(ask, cohort=jnp.asarray(cohort), own=jax.tree.map(lambda leaf: leaf[padded], ask.own))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _answer_held(
    protocol: Protocol, population: Population, keys: Keys, ask: Ask, records: ArrayTree, mask: Array, held: ArrayTree,
    persons: Array | None = None,
) -> tuple[Replies, ArrayTree]:  # fmt: skip
    """Answer for every client of a cohort at once, each with its memory; an empty slot computes and is marked absent."""
    sources = keys.source(jax.vmap(lambda client: keys.answer(ask.round, client))(ask.cohort))
    shards = Shard(records=records, mask=mask, population=population, persons=persons)
    each = (ask.own, shards, held, sources)
    on_processors = jax.default_backend() == "cpu"
    shared = not on_processors and len(jax.devices()) > 1  # each accelerator computes its part of the clients
    if protocol.together(ask, population) or shared:
        values, kept = jax.vmap(protocol.answer, in_axes=(None, 0, 0, 0, 0))(ask.common, *each)
    else:
        at_once = None if on_processors else _training_at_once(len(ask.cohort))
        values, kept = jax.lax.map(lambda one: protocol.answer(ask.common, *one), each, batch_size=at_once)
    return Replies(clients=ask.cohort, present=ask.cohort >= 0, values=values), kept


def _training_at_once(clients: int) -> int:
    """The number of clients trained at once: as many as allowed, a divisor if possible, so that no remainder is compiled."""
    most = min(clients, MOST_TRAINING_AT_ONCE)
    return next((count for count in range(most, most // 2, -1) if clients % count == 0), most)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _answer_cohort(
    protocol: Protocol, population: Population, keys: Keys, ask: Ask, records: ArrayTree, mask: Array, memory: ArrayTree,
    persons: Array | None = None,
) -> tuple[Replies, ArrayTree]:  # fmt: skip
    """Answer for a cohort when all client memories are on the device."""
    held = jax.tree.map(lambda leaf: leaf[jnp.maximum(ask.cohort, 0)], memory)
    replies, kept = _answer_held(protocol, population, keys, ask, records, mask, held, persons)
    place = jnp.where(replies.present, ask.cohort, population.clients)  # empty slots write nowhere
    return replies, jax.tree.map(lambda all_, new: all_.at[place].set(new, mode="drop"), memory, kept)


def _answer_from_host(
    protocol: Protocol, population: Population, keys: Keys, ask: Ask, records: ArrayTree, mask: Array, memory: ArrayTree,
    persons: Array | None = None,
) -> tuple[Replies, ArrayTree]:  # fmt: skip
    """Answer for a cohort when client memories are on the host, updated in place: only the cohort's are moved."""
    cohort = np.asarray(ask.cohort)
    there = cohort >= 0
    held = jax.tree.map(lambda leaf: leaf[np.maximum(cohort, 0)], memory)
    replies, kept = _answer_held(protocol, population, keys, ask, records, mask, held, persons)

    def put(all_: Array, new: Array) -> Array:
        all_[cohort[there]] = np.asarray(new)[there]
        return all_

    return replies, jax.tree.map(put, memory, kept)


def _on_host(memory: ArrayTree) -> bool:
    return any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(memory))


class _RoundByRound:
    """Runs round by round: gather on the host, answer in one compiled call, absorb."""

    def __init__(
        self, protocol: Protocol, clients: Clients, population: Population, keys: Keys, ledger: MemoryLedger
    ) -> None:
        self.protocol, self.clients, self.population, self.keys, self.ledger = (
            protocol,
            clients,
            population,
            keys,
            ledger,
        )

    def advance(
        self, state: ArrayTree, memory: ArrayTree, traffic: Traffic, done: int, rounds: int
    ) -> tuple[ArrayTree, ArrayTree, Traffic, int]:
        for advanced in range(rounds):
            round_id = done + advanced
            ask = self.protocol.ask(state, self.population, self.keys.source(self.keys.ask(round_id)))
            if ask is None:
                return state, memory, traffic, advanced
            members = np.asarray(ask.cohort)
            members = members[members >= 0]
            self.ledger.book(members, self.protocol.charge(ask, self.population), round_id=round_id)
            down, up = self.protocol.reply_bytes(ask, self.population)
            if self.protocol.on_host(self.population):
                asked, replies = ask, self._one_by_one(ask)
            else:
                asked = _pad_cohort(_working_only(self.protocol, ask))
                held: Shard = _shard(gather_shards(self.clients, np.asarray(asked.cohort), self.population))
                answer = _answer_from_host if _on_host(memory) else _answer_cohort
                replies, memory = answer(
                    self.protocol, self.population, self.keys, asked, held.records, held.mask, memory, held.persons
                )
            whole = asked if self.protocol.working(ask) is None else ask  # who is skipped was asked all the same
            replies = self._opened(ask, replies, round_id)
            state = self.protocol.absorb(state, whole, replies, self.keys.source(self.keys.absorb(round_id)))
            traffic = traffic.plus(down, up, int((np.asarray(asked.cohort) >= 0).sum()))
        return state, memory, traffic, rounds

    def _opened(self, ask: Ask, replies: Replies, round_id: int) -> Replies:
        """The replies, or, where a method sees sums alone, the sum of them and of the clients' shares of the noise."""
        shares, keys = self.protocol.sum_shares(ask, self.population), self.keys
        if shares is None:
            return replies
        return add_up(replies, shares, lambda client: System() if keys.exact else Keyed(keys.share(round_id, client)))

    def _one_by_one(self, ask: Ask) -> Replies:
        """Replies of a method that answers on the host: one client after the other, whose records nobody copies."""
        cohort = np.asarray(ask.cohort)
        there = cohort >= 0
        values = []
        for slot in np.flatnonzero(there):
            client = int(cohort[slot])
            source = System() if self.keys.exact else self.keys.source(self.keys.answer(int(ask.round), client))
            shard = whole_shard(self.clients, client, self.population)
            own = jax.tree.map(lambda rows, slot=slot: rows[slot], ask.own)
            values.append(self.protocol.answer(ask.common, own, shard, (), source)[0])
        stacked = jax.tree.map(lambda *each: np.stack([np.asarray(one) for one in each]), *values)
        members = cohort[there]
        return Replies(clients=members, present=np.ones(len(members), bool), values=stacked)


class _Compiled:
    """Runs many rounds in one compiled loop with the data on the device; the ledger is charged for all of them first."""

    def __init__(
        self, protocol: Protocol, clients: Clients, population: Population, keys: Keys, ledger: MemoryLedger
    ) -> None:
        self.protocol, self.population, self.keys, self.ledger = protocol, population, keys, ledger
        data = clients.data
        rows = {"x": data.x, "y": data.y} if isinstance(data, Images) else data.codes.astype(np.int32, copy=False)
        sorted_rows = jax.tree.map(lambda leaf: leaf[clients.order], rows)
        self._rows = jax.tree.map(jnp.asarray, sorted_rows)
        self._starts = jnp.asarray(clients.starts, jnp.int32)

    def advance(
        self, state: ArrayTree, memory: ArrayTree, traffic: Traffic, done: int, rounds: int
    ) -> tuple[ArrayTree, ArrayTree, Traffic, int]:
        rounds = min(rounds, self.protocol.round_count(self.population) - done)
        if rounds <= 0:
            return state, memory, traffic, 0
        cohorts = np.asarray(self.protocol.cohorts(self.population, state, done, rounds))
        for round_id, cohort in enumerate(cohorts, start=done):
            ask = Ask(round=round_id, cohort=cohort, common=(), own=())
            members = cohort[cohort >= 0]
            self.ledger.book(members, self.protocol.charge(ask, self.population), round_id=round_id)
            traffic = traffic.plus(*self.protocol.reply_bytes(ask, self.population), len(members))
        booked = jnp.asarray(_padded(cohorts, CHUNK_OF_COHORTS))
        state, memory = _many_rounds(
            self.protocol, self.population, self.keys, state, memory, self._rows, self._starts,
            booked, jnp.int32(done), jnp.int32(rounds),
        )  # fmt: skip
        return _wait(state), memory, traffic, rounds


def _padded(cohorts: Array, multiple: int) -> Array:
    """Cohorts with empty rounds at the end, so that there are few lengths, and few compilations."""
    return np.concatenate([cohorts, np.full((-len(cohorts) % multiple, cohorts.shape[1]), -1, cohorts.dtype)])


def _wait(tree: ArrayTree) -> ArrayTree:
    return jax.block_until_ready(tree)  # type: ignore[no-untyped-call]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _many_rounds(
    protocol: Protocol,
    population: Population,
    keys: Keys,
    state: ArrayTree,
    memory: ArrayTree,
    rows: ArrayTree,
    starts: Array,
    booked: Array,
    done: Array,
    rounds: Array,
) -> tuple[ArrayTree, ArrayTree]:
    """`rounds` rounds from `done` on, as one compiled loop; compiled once per protocol and population.

    Only who was booked answers: a slot of the cohort asked that differs from the cohort booked is left empty.
    """

    def one(round_id: Array, carry: tuple[ArrayTree, ArrayTree]) -> tuple[ArrayTree, ArrayTree]:
        state, memory = carry
        ask = protocol.ask(state, population, keys.source(keys.ask(round_id)))
        if ask is None:
            raise TypeError("a protocol that compiles must not end early while it is traced")
        paid = jnp.where(ask.cohort == booked[round_id - done], ask.cohort, -1)
        ask = _pad_cohort(dataclasses.replace(ask, cohort=paid))
        records, mask = _shard(_gather(rows, starts, ask.cohort, population.records))
        replies, memory = _answer_cohort(protocol, population, keys, ask, records, mask, memory)
        return protocol.absorb(state, ask, replies, keys.source(keys.absorb(round_id))), memory

    end: tuple[ArrayTree, ArrayTree] = jax.lax.fori_loop(done, done + rounds, one, (state, memory))
    return end


def _gather(rows: ArrayTree, starts: Array, cohort: Array, width: int) -> tuple[ArrayTree, Array]:
    """`Clients.gather` on the device: padded records and their mask."""
    first, last = starts[jnp.maximum(cohort, 0)], starts[jnp.maximum(cohort, 0) + 1]
    place = first[:, None] + jnp.arange(width)
    mask = (place < last[:, None]) & (cohort >= 0)[:, None]

    def take(leaf: Array) -> Array:
        found = leaf[jnp.where(mask, place, 0)]
        return jnp.where(mask.reshape(mask.shape + (1,) * (found.ndim - 2)), found, 0)

    return jax.tree.map(take, rows), mask
