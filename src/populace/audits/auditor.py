"""The auditor in the server's place: it asks many simulated clients the same questions, and records their messages.

An engine runs it like any method, so the messages are made by the code that makes them in a run: gathering, `answer`, memory,
and the ledger, which refuses an auditor that asks for more than the method may spend.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from populace.audits.shapes import Records, clients_of, extreme_records, first_of, joined, some_records
from populace.audits.wrapped import Nothing, Wrapped
from populace.engines import debug, simulation
from populace.errors import SpecError
from populace.methods.base import Ask, ImageShape, Population, Protocol, Replies, Shard
from populace.privacy.source import Keyed, Source
from populace.tables.partition import Clients
from populace.types import Array, ArrayTree, NumpyArray

BLOCK = 2_048  # clients with each shard in one run of the engine: one shape, compiled once
MOST_ROUNDS = 8  # of the method, listened to for what it asks
MOST_SCRIPTS = 5
RANDOM_PAIRS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Script:
    """What one client is asked over a run: (round, common, own) of every one it takes part in; `ask` is the first of them.

    The round is the method's own: what a question costs may depend on it.
    """

    name: str
    steps: tuple[tuple[ArrayTree, ArrayTree, ArrayTree], ...]
    ask: Ask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shards:
    """Two clients that must look alike: records as codes [records, columns] or as images, possibly none."""

    name: str
    first: Records
    second: Records

    @property
    def swapped(self) -> Shards:
        return Shards(name=self.name, first=self.second, second=self.first)


class Auditor(Wrapped):
    """Asks every client what the script says; without a script, asks what the method asks, for some rounds.

    Two auditors are equal, for the compiler's sake, when their clients compute the same.
    """

    def __init__(self, method: Protocol, population: Population, script: Script | None) -> None:
        self.method, self.population, self.script = method, population, script
        self.asked: list[Ask] = []
        self.heard: list[Replies] = []

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Auditor):
            return False
        scripted = (self.script is None) == (other.script is None)
        return scripted and (self.method, self.population) == (other.method, other.population)

    def __hash__(self) -> int:
        return hash((self.method, self.population))

    def round_count(self, population: Population) -> int:
        if self.script is None:
            return min(MOST_ROUNDS, self.method.round_count(self.population))
        return len(self.script.steps)

    def begin(self, population: Population, key: Array, warm: ArrayTree = None) -> ArrayTree:
        return 0 if self.script is not None else self.method.begin(self.population, key, warm)

    def ask(self, state: ArrayTree, population: Population, source: Source) -> Ask | None:
        if self.script is None:
            found = self.method.ask(state, self.population, source) if len(self.asked) < MOST_ROUNDS else None
            self.asked += [found] if found is not None else []
            return found
        if state >= self.round_count(population):
            return None
        round_id, common, own = self.script.steps[state]
        cohort = jnp.arange(population.clients, dtype=jnp.int32)
        everybody = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(cohort), *np.shape(leaf))), own)
        return Ask(round=jnp.int32(round_id), cohort=cohort, common=common, own=everybody)

    def answer(
        self, common: ArrayTree, own: ArrayTree, shard: Shard, memory: ArrayTree, source: Source
    ) -> tuple[ArrayTree, ArrayTree]:
        return self.method.answer(common, own, self.agreed(shard), memory, source)

    def together(self, ask: Ask, population: Population) -> bool:
        return self.method.together(ask, self.population)

    def absorb(self, state: ArrayTree, ask: Ask, replies: Replies, source: Source) -> ArrayTree:
        if self.script is None:
            return self.method.absorb(state, ask, replies, source)
        self.heard.append(jax.tree.map(np.asarray, replies))
        return state + 1

    def finish(self, state: ArrayTree, population: Population, key: Array) -> Nothing:
        """Return no generator: the messages are all an audit needs."""
        return Nothing()


def scripts_of(protocol: Protocol, population: Population, *, key: Array) -> list[Script]:
    """What the method asks those it asks most often: a few clients with different questions.

    The clients it learns from meanwhile hold rows drawn evenly from the domain; what it may ask is public anyway.
    """
    if protocol.round_count(population) == 1:
        begin, ask = jax.random.split(key)
        first = protocol.ask(protocol.begin(population, begin), population, Keyed(ask))
        asks = [first] if first is not None else []
    else:
        auditor = Auditor(protocol, population, None)
        held = [some_records(population.schema, population.records, seed=n) for n in range(population.clients)]
        clients = clients_of(population.schema, held, persons=protocol.protected_unit == "person")
        simulation.run(auditor, clients, root=key, compiled=False)
        asks = auditor.asked
    if not asks:
        raise SpecError(f"method {protocol.facts.name!r} asks nobody anything; there is nothing to audit")
    cohorts = [np.asarray(ask.cohort) for ask in asks]
    times = np.bincount(np.concatenate(cohorts)[np.concatenate(cohorts) >= 0], minlength=population.clients)
    most = np.flatnonzero(times == times.max())
    found: dict[bytes, Script] = {}
    for client in most[np.linspace(0, len(most) - 1, min(len(most), 16 * MOST_SCRIPTS)).astype(int)]:
        steps = tuple(
            (
                ask.round,
                ask.common,
                jax.tree.map(functools.partial(_take, int(np.flatnonzero(cohort == client)[0])), ask.own),
            )
            for ask, cohort in zip(asks, cohorts, strict=True)
            if (cohort == client).any()
        )
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves([own for *_, own in steps])]
        mark = b"".join(leaf.tobytes() for leaf in leaves)
        short = " ".join(str(leaf) for leaf in leaves if leaf.size == 1)
        name = f"{len(steps)} time(s)" + (f", question {short}" if short else "")
        first = next(ask for ask, cohort in zip(asks, cohorts, strict=True) if (cohort == client).any())
        found.setdefault(mark, Script(name=name, steps=steps, ask=first))
        if len(found) == MOST_SCRIPTS:
            break
    return list(found.values())


def _take(slot: int, leaf: Array) -> Array:
    row: NumpyArray = np.asarray(leaf)[slot]
    return row


def reply_shape(protocol: Protocol, population: Population, script: Script) -> tuple[int, ...]:
    """The shape of one client's reply over all its rounds; of one array as it is, of several as one long row."""
    records = some_records(population.schema, population.records)
    shard = Shard(
        records=jax.tree.map(lambda leaf: jnp.asarray(leaf, np.int32 if leaf.dtype != np.uint8 else np.uint8), records),
        mask=jnp.ones(population.records, bool),
        population=population,
        persons=jnp.zeros(population.records, jnp.int32) if protocol.protected_unit == "person" else None,
    )

    def replies() -> list[ArrayTree]:
        memory = protocol.remember(population, jax.random.key(0))
        return [
            protocol.answer(common, own, shard, memory, Keyed(jax.random.key(0)))[0] for _, common, own in script.steps
        ]

    leaves = jax.tree.leaves(jax.eval_shape(replies))
    return tuple(leaves[0].shape) if len(leaves) == 1 else (sum(math.prod(leaf.shape) for leaf in leaves),)


def worst_shards(population: Population, *, unit: str) -> list[Shards]:
    """Pairs of clients that differ as much as the guarantee's unit allows: in all they hold, in all rows of
    a person (who has all of a client's), or in one record."""
    if unit != "client" or isinstance(population.schema, ImageShape):
        return _worst_records(population, unit=unit)
    sizes = np.asarray(population.table_schema.sizes)
    if sizes.max() < 2:
        raise SpecError("every column has one value; there is nothing to tell, and nothing to audit")
    rng = np.random.default_rng(0)
    ends = [("first and last category of every column", np.zeros_like(sizes), sizes - 1)]
    for number in range(RANDOM_PAIRS):
        first = rng.integers(0, sizes)
        other = (first + 1 + rng.integers(0, np.maximum(sizes - 1, 1))) % sizes
        ends.append((f"records that differ everywhere, draw {number + 1}", first, other))
    copies = population.records
    found = [Shards(name=name, first=np.tile(a, (copies, 1)), second=np.tile(b, (copies, 1))) for name, a, b in ends]
    return [*found, Shards(name="records and none", first=found[0].second, second=found[0].second[:0])]


def _worst_records(population: Population, *, unit: str) -> list[Shards]:
    """Pairs that differ in the presence of one record beside others, or of all records of a client."""
    rest = some_records(population.schema, population.records - 1)
    found = []
    for name, record in extreme_records(population.schema):
        first, second = (
            (joined(rest, record), rest)
            if unit == "record"
            else (joined(*[record] * population.records), first_of(record, 0))
        )
        found.append(Shards(name=f"{name}, there or not", first=first, second=second))
    return found


def hear(
    protocol: Protocol,
    population: Population,
    script: Script,
    shards: Shards,
    count: int,
    *,
    key: Array,
    exact: bool = False,
) -> tuple[Array, Array]:
    """The whole messages of `count` clients with the first shard and `count` with the second: two arrays [count, parts]."""
    block = count if exact else BLOCK
    clients = _clients_with(shards, population, block, persons=protocol.protected_unit == "person")
    found = []
    for number in range(-(-count // block)):
        auditor = Auditor(protocol, population, script)
        root = jax.random.fold_in(key, number)
        if exact:
            debug.run(auditor, clients, root=root, exact=True)
        else:
            simulation.run(auditor, clients, root=root, compiled=False)
        found.append(messages(auditor.heard))
    first, second = (
        np.concatenate([rows[side] for rows in found])[:count] for side in (slice(block), slice(block, None))
    )
    return first, second


def _clients_with(shards: Shards, population: Population, count: int, *, persons: bool) -> Clients:
    """`count` clients with the first shard, then as many with the second."""
    return clients_of(population.schema, [shards.first] * count + [shards.second] * count, persons=persons)


def messages(heard: list[Replies]) -> Array:
    """One row per client: all parts of all its replies, in the order they were sent."""
    parts = [np.asarray(leaf).reshape(len(leaf), -1) for reply in heard for leaf in jax.tree.leaves(reply.values)]
    if all(part.dtype == bool for part in parts):
        return np.concatenate(parts, axis=1)
    kind = np.float64 if any(part.dtype.kind == "f" for part in parts) else np.int64
    return np.concatenate([part.astype(kind) for part in parts], axis=1)
