"""What every engine shares: the population of some clients, the keys of a run, and what a run leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import jax
import numpy as np

from populace.errors import BudgetError, SpecError
from populace.methods.base import ImageShape, Population, Protocol, Shard, on_processor
from populace.methods.blocks.generator import Synthesizer
from populace.privacy.guarantee import Guarantee, Noise
from populace.privacy.ledger import Budget, MemoryLedger
from populace.privacy.noised_steps import SAMPLERS_SHARE
from populace.privacy.source import Keyed
from populace.tables.images import Images
from populace.tables.partition import Clients
from populace.tables.schema import Schema
from populace.types import Array, ArrayTree, NumpyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run."""

    done: int
    total: int
    clients: int


Report = Callable[[Progress], None]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def placed(
    engine: Callable[Concatenate[Protocol, Arguments], Result],
) -> Callable[Concatenate[Protocol, Arguments], Result]:
    """An engine that runs methods which no accelerator helps on the processor."""

    @functools.wraps(engine)
    def run(protocol: Protocol, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        with contextlib.nullcontext() if protocol.accelerates else on_processor():
            return engine(protocol, *arguments, **named)

    return run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes on the wire, over all clients of a run."""

    down: float = 0.0
    up: float = 0.0
    messages: int = 0

    def plus(self, down: float, up: float, messages: int) -> Traffic:
        return Traffic(down=self.down + down * messages, up=self.up + up * messages, messages=self.messages + messages)

    def to_json(self) -> dict[str, float]:
        each = max(self.messages, 1)
        return {
            "bytes_to_clients": self.down,
            "bytes_from_clients": self.up,
            "messages": self.messages,
            "bytes_to_one_client_per_message": self.down / each,
            "bytes_from_one_client_per_message": self.up / each,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a run: the generator, the privacy budget spent, and the traffic.

    `noise` says where noise, reports and coins came from: `exact` from the operating system, `keyed` from the root key.
    """

    generator: Synthesizer
    guarantee: Guarantee
    ledger: MemoryLedger
    traffic: Traffic
    rounds: int
    state: ArrayTree
    noise: Noise = "keyed"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Keys:
    """All keys of a run, from one root. A client's key depends on round and client alone, not on the engine.

    With `exact`, sources made from them draw what protects people from the operating system.
    """

    root: Array
    exact: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def noise(self) -> Noise:
        return "exact" if self.exact else "keyed"

    def source(self, key: Array) -> Keyed:
        return Keyed(key, exact=self.exact)

    def begin(self) -> Array:
        return jax.random.fold_in(self.root, 0)

    def memory(self, client: Array | int) -> Array:
        return jax.random.fold_in(jax.random.fold_in(self.root, 1), client)

    def finish(self) -> Array:
        return jax.random.fold_in(self.root, 2)

    def sample(self) -> Array:
        return jax.random.fold_in(self.root, 3)

    def ask(self, round_id: Array | int) -> Array:
        return jax.random.fold_in(self._round(round_id), 0)

    def absorb(self, round_id: Array | int) -> Array:
        return jax.random.fold_in(self._round(round_id), 1)

    def answer(self, round_id: Array | int, client: Array | int) -> Array:
        return jax.random.fold_in(jax.random.fold_in(self._round(round_id), 2), client)

    def share(self, round_id: Array | int, client: Array | int) -> Array:
        """Of a client's share of the noise in a sum."""
        return jax.random.fold_in(jax.random.fold_in(self._round(round_id), 3), client)

    def _round(self, round_id: Array | int) -> Array:
        return jax.random.fold_in(jax.random.fold_in(self.root, 4), round_id)


def make_key(seed: int | None) -> Array:
    """A JAX key from a seed, or from 64 bits of the operating system's randomness: all a simulation's generator takes."""
    if seed is not None:
        return jax.random.fold_in(jax.random.key(seed & 0xFFFFFFFF), seed >> 32)
    words = np.frombuffer(secrets.token_bytes(8), np.uint32)
    key: Array = jax.random.wrap_key_data(jax.numpy.asarray(words))
    return key


def padded_shard(clients: Clients, client: int, population: Population) -> Shard:
    """One client's records, padded to the most that any may have."""
    one: Shard = jax.tree.map(lambda rows: rows[0], gather_shards(clients, np.array([client]), population))
    return one


def whole_shard(clients: Clients, client: int, population: Population) -> Shard:
    """One client's records as they are kept, for methods that answer on the host: nothing is copied or padded."""
    mask = np.broadcast_to(np.True_, (int(clients.widths[client]),))
    return Shard(
        records=clients.records_of(client), mask=mask, population=population, persons=clients.persons_of(client)
    )


def population_of(clients: Clients) -> Population:
    """The public facts about these clients; the most records of one is read from them where nobody declared it."""
    most = clients.widest if clients.most is None else clients.most
    return Population(schema=shape_of(clients), clients=len(clients), records=max(1, int(most)))


def shape_of(clients: Clients) -> Schema | ImageShape:
    """The schema of a table's clients, or the public shape of images."""
    data = clients.data
    if isinstance(data, Images):
        marked = ("classes",) if data.domain == "read-from-data" else ()
        return ImageShape(shape=tuple(data.shape), classes=data.classes, read_from_data=marked)
    return data.schema


def check_kind(protocol: Protocol, population: Population) -> None:
    """Raise SpecError for a method that does not take this kind of data."""
    if population.kind not in protocol.facts.kinds:
        raise SpecError(
            f"method {protocol.facts.name!r} takes {' and '.join(protocol.facts.kinds)} data, and the data are "
            f"{population.kind}; `populace methods` lists what takes {population.kind}"
        )


def check_persons(protocol: Protocol, clients: Clients) -> None:
    """Raise SpecError where a method that protects persons meets rows that name none, or another method rows that do."""
    protects = protocol.protected_unit == "person"
    if protects and clients.persons is None:
        raise SpecError(
            f"method {protocol.facts.name!r} protects persons here, and nothing says whose each row is; name the column that "
            "does (--person COLUMN, in Python person=)"
        )
    if not protects and clients.persons is not None:
        raise SpecError(
            f"the rows say whose they are, and method {protocol.facts.name!r} protects one {protocol.protected_unit} here; "
            "census with unit=person protects persons with several rows"
        )


def gather_shards(clients: Clients, cohort: NumpyArray, population: Population) -> Shard:
    """What the clients of a cohort hold, stacked, each padded to the population's width."""
    records, mask = clients.gather(cohort, population.records)
    persons = clients.gather_persons(cohort, population.records)
    return Shard(records=records, mask=mask, population=population, persons=persons)


def new_ledger(protocol: Protocol, population: Population, asked: Budget | None = None) -> MemoryLedger:
    """A ledger that allows exactly what the protocol promises, which may not be more than was asked."""
    claim = protocol.guarantee(population)
    most_delta = 0.0 if asked is None else asked.delta * (1 + SAMPLERS_SHARE)
    if asked is not None and (claim.epsilon > asked.epsilon or claim.delta > most_delta or claim.unit != asked.unit):
        samplers = (
            f"; {claim.sampling_delta:.2g} of its delta is how far its noise may be from the law, times e^epsilon: choose a "
            "smaller epsilon"
        ) * (claim.epsilon <= asked.epsilon and claim.accounted_delta <= asked.delta < claim.delta)
        raise BudgetError(
            f"method {protocol.facts.name!r} claims {claim.bound} per {claim.unit}, more than the epsilon {asked.epsilon:g} "
            f"and delta {asked.delta:g} per {asked.unit} that were allowed; nothing was asked of any client{samplers}"
        )
    budget = Budget(epsilon=claim.epsilon, delta=claim.accounted_delta, unit=claim.unit)
    return MemoryLedger(budget, clients=population.clients)
