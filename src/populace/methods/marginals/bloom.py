"""Every attribute as a Bloom filter whose bits are flipped (RAPPOR), epsilon split evenly: what LoPub and LoCop collect.

Shared parts: the mechanism, the state, and the estimates of one- and two-way tables from the bits.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.base import Ask, Memory, Plan, Population, Replies, Shard, choose_record
from populace.methods.blocks import one_report as survey
from populace.methods.blocks.frequency_estimation import maximise_likelihood, pair_likelihoods, regress
from populace.privacy.events import Event, Pure, Repeated
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.randomizers.rappor import Rappor
from populace.privacy.source import Source
from populace.tables.schema import Column, Schema
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


@functools.lru_cache(maxsize=32)
def filters_for(schema: Schema, epsilon: float, bits: int, hashes: int) -> Filters:
    return Filters(schema.sizes, epsilon, bits, hashes)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Bits:
    """All reports, packed eight bits to a byte: [clients, columns, bytes]; `present` says who answered."""

    round: Array
    packed: Array
    present: Array


def no_bits(clients: int, columns: int, bits: int) -> Bits:
    width = -(-bits // 8)
    return Bits(
        round=jnp.int32(0),
        packed=jnp.zeros((clients, columns, width), jnp.uint8),
        present=jnp.zeros(clients, bool),
    )


def add_bits(state: Bits, clients: Array, present: Array, rows: Array) -> Bits:
    row = jnp.where(present, clients, len(state.present))  # absent ones fall off the end
    packed = jnp.packbits(rows.astype(jnp.uint8), axis=-1)
    return Bits(
        round=state.round + 1,
        packed=jnp.asarray(state.packed).at[row].set(packed, mode="drop"),
        present=jnp.asarray(state.present).at[row].set(True, mode="drop"),
    )


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


class BloomProtocol(survey.OneShot):
    """What LoPub and LoCop share: everything but what the server makes of the tables."""

    epsilon: float
    bits: int
    hashes: int
    estimator: str
    clients_per_batch: int
    compiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        filters_for(_ONE_COLUMN, self.epsilon, self.bits, self.hashes).members[0]

    def filters(self, schema: Schema) -> Filters:
        return filters_for(schema, self.epsilon, self.bits, self.hashes)

    def estimates(self, state: Bits, schema: Schema) -> Estimates:
        return Estimates(self.filters(schema), state, self.estimator)

    def begin(self, population: Population, key: Array, warm: object = None) -> Bits:
        return no_bits(population.clients, len(population.table_schema.columns), self.bits)

    def own_questions(self, state: Bits, population: Population, slots: Array) -> Array:
        return jnp.zeros_like(slots)

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=self.filters(population.table_schema).event, unit="client")

    def answer(
        self, common: ArrayTree, own: Array, shard: Shard, memory: Memory, source: Source
    ) -> tuple[Array, Memory]:
        return self.filters(shard.table_schema).answer(shard, source), memory

    def absorb(self, state: Bits, ask: Ask, replies: Replies, source: Source) -> Bits:
        return add_bits(state, replies.clients, replies.present, replies.values)

    def guarantee(self, population: Population) -> Guarantee:
        return survey.one_report_guarantee(
            self.epsilon,
            population,
            mechanism="a Bloom filter with flipped bits for every attribute of a record, epsilon split evenly, clients once",
            derivation=(
                f"each client sends: {self.filters(population.table_schema).event}",
                f"filters of two values differ in at most {2 * self.hashes} bits",
            ),
        )

    def plan(self, population: Population) -> Plan:
        filters = self.filters(population.table_schema)
        deviation = float(np.mean([math.sqrt(m.bit_variance(population.clients)) for m in filters.members]))
        return Plan(
            guarantee=self.guarantee(population),
            rounds=1,
            bytes_up=filters.wire_bytes,
            bytes_down=1.0,
            errors={"standard deviation of the share of clients that set a bit": min(1.0, deviation)},
            notes=("epsilon is split over all attributes and hashes: a baseline",),
        )

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return 1.0, self.filters(population.table_schema).wire_bytes


_ONE_COLUMN = Schema(columns=(Column(name="any", kind="categorical", categories=("a", "b")),))
