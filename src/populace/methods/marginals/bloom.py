"""Every attribute as a Bloom filter whose bits are flipped (RAPPOR), epsilon split evenly: what LoPub and LoCop collect.

Shared parts: the mechanism, the state, and the estimates of one- and two-way tables from the bits.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.base import Ask, Population, Replies, Shard, check_counts, choose_record
from populace.methods.blocks.composed import ComposedMethod, Composition, Learner
from populace.methods.blocks.frequency_estimation import maximise_likelihood, pair_likelihoods, regress
from populace.methods.blocks.one_report import one_report_release
from populace.methods.blocks.schedules import OneShot
from populace.privacy.events import Event, Pure, Repeated
from populace.privacy.guarantee import check_epsilon
from populace.privacy.randomizers.rappor import Rappor
from populace.privacy.source import Source
from populace.types import Array, ArrayTree, NumpyArray

MOST_REPORTS_FOR_EM = 20_000


@dataclasses.dataclass(frozen=True)
class Filters:
    """One RAPPOR filter per column, each with epsilon/d."""

    sizes: tuple[int, ...]
    epsilon: float
    bits: int
    hashes: int

    @functools.cached_property
    def members(self) -> tuple[Rappor, ...]:
        share = self.epsilon / len(self.sizes)
        return tuple(
            Rappor(size=size, epsilon=share, bits=self.bits, hashes=self.hashes, salt=column % 2**16)
            for column, size in enumerate(self.sizes)
        )

    @property
    def event(self) -> Event:
        one = Pure(self.epsilon / len(self.sizes))
        return Repeated(one, len(self.sizes)) if len(self.sizes) > 1 else one

    def answer(self, shard: Shard, source: Source) -> Array:
        """The flipped filters of all columns of one record: [columns, bits]."""
        which, empty, noise = source.split(3)
        record, any_record = choose_record(shard, which)
        rows = []
        parts = zip(self.members, noise.split(len(self.members)), empty.split(len(self.members)), strict=True)
        for column, (member, coin, even) in enumerate(parts):
            value = jnp.where(any_record, jnp.asarray(record)[column], even.below(member.size))
            rows.append(jnp.asarray(member.apply(value, coin)))
        return jnp.stack(rows)

    @property
    def wire_bytes(self) -> float:
        return float(sum(member.wire_bytes for member in self.members))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Bits:
    """All reports, packed eight bits to a byte: [clients, columns, bytes]; `present` says who answered."""

    packed: Array
    present: Array


@dataclasses.dataclass(frozen=True)
class Estimates:
    """Tables from collected bits. `how` is `lasso` (regression on bit counts) or `em` (likelihood of each report)."""

    filters: Filters
    state: Bits
    how: str

    @functools.cached_property
    def rows(self) -> NumpyArray:
        """[reports, columns, bits] booleans of those who answered."""
        packed = np.asarray(self.state.packed)[np.asarray(self.state.present)]
        return np.unpackbits(packed, axis=-1)[..., : self.filters.bits].astype(bool)

    @functools.cached_property
    def likelihoods(self) -> list[Array]:
        """Per column: probability of each report (of at most so many) under each value."""
        rows = self.rows[:MOST_REPORTS_FOR_EM]
        return [member.likelihoods(rows[:, c]) for c, member in enumerate(self.filters.members)]

    def one_way(self, column: int) -> NumpyArray:
        """The table of one column."""
        return self.one_ways[column]

    @functools.cached_property
    def one_ways(self) -> list[NumpyArray]:
        return [self._one_way(column) for column in range(len(self.filters.sizes))]

    def _one_way(self, column: int) -> NumpyArray:
        member = self.filters.members[column]
        if self.how == "em":
            return maximise_likelihood(self.likelihoods[column], iterations=100)
        shares = member.estimate_bits(self.rows[:, column].sum(axis=0), len(self.rows))
        return regress(member.candidates.T.astype(np.float64), shares)

    def two_way(self, first: int, second: int) -> NumpyArray:
        """The joint table of two columns: by regression on products of centred bits (LoPub, section 4.3), or by EM."""
        a, b = self.filters.members[first], self.filters.members[second]
        if self.how == "em":
            joint = pair_likelihoods(self.likelihoods[first], self.likelihoods[second])
            return maximise_likelihood(joint, iterations=50).reshape(a.size, b.size)
        x = self.rows[:, first].astype(np.float32) - a.flip
        y = self.rows[:, second].astype(np.float32) - b.flip
        products = (x.T @ y) / len(self.rows) / ((1 - 2 * a.flip) * (1 - 2 * b.flip))
        # The same regression in fewer rows: filters of k values span k of the 64 x 64 products of bits, so that each side is
        # replaced by its QR decomposition.
        (left, first_design), (right, second_design) = (np.linalg.qr(m.candidates.T.astype(np.float64)) for m in (a, b))
        observed = left.T @ products @ right
        return regress(np.kron(first_design, second_design), observed.reshape(-1)).reshape(a.size, b.size)


@dataclasses.dataclass(frozen=True)
class BloomLearner(Learner):
    """What LoPub and LoCop share: everything but what the server makes of the tables."""

    population: Population
    filters: Filters
    estimator: str

    def begin(self, key: Array, warm: Any = None) -> Bits:
        del key, warm
        clients, width = self.population.clients, -(-self.filters.bits // 8)
        return Bits(
            packed=jnp.zeros((clients, len(self.filters.sizes), width), jnp.uint8), present=jnp.zeros(clients, bool)
        )

    def answer(self, question: ArrayTree, own: Array, shard: Shard, source: Source) -> Array:
        return self.filters.answer(shard, source)

    def absorb(self, state: Bits, ask: Ask, replies: Replies, source: Source) -> Bits:
        row = jnp.where(replies.present, replies.clients, len(state.present))  # absent ones fall off the end
        packed = jnp.packbits(replies.values.astype(jnp.uint8), axis=-1)
        return Bits(
            packed=jnp.asarray(state.packed).at[row].set(packed, mode="drop"),
            present=jnp.asarray(state.present).at[row].set(True, mode="drop"),
        )

    def estimates(self, state: Bits) -> Estimates:
        return Estimates(self.filters, state, self.estimator)

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        return 1.0, self.filters.wire_bytes

    def predicted_errors(self) -> dict[str, float]:
        deviations = [math.sqrt(member.bit_variance(self.population.clients)) for member in self.filters.members]
        return {"standard deviation of the share of clients that set a bit": min(1.0, float(np.mean(deviations)))}

    def notes(self) -> tuple[str, ...]:
        return ("epsilon is split over all attributes and hashes: a baseline",)


class BloomMethod(ComposedMethod):
    """A method that collects Bloom filters; a subclass says what its server learns from them."""

    epsilon: float
    bits: int
    hashes: int
    clients_per_batch: int
    compiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_counts(clients_per_batch=self.clients_per_batch)
        _ = Filters((2,), self.epsilon, self.bits, self.hashes).members  # refuses impossible filters

    @abc.abstractmethod
    def learner(self, population: Population, filters: Filters) -> BloomLearner:
        """What the server learns."""

    def compose(self, population: Population) -> Composition:
        filters = Filters(population.table_schema.sizes, self.epsilon, self.bits, self.hashes)
        release = one_report_release(
            self.epsilon,
            filters.event,
            mechanism="a Bloom filter with flipped bits for every attribute of a record, epsilon split evenly, clients once",
            derivation=(
                f"each client sends: {filters.event}",
                f"filters of two values differ in at most {2 * self.hashes} bits",
            ),
        )
        schedule = OneShot(clients=population.clients, block=self.clients_per_batch)
        return Composition(schedule, release, self.learner(population, filters))
