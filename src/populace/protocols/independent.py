"""`independent`: one attribute per client, asked with the whole epsilon; columns are then drawn independently.

The baseline nobody may lose to. Each client is asked about one column, by a public coin that does not look at its data, and
answers by subset selection. The server estimates one-way tables and projects them on the simplex.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import out_of_range
from populace.models.marginals import Marginals, project_to_simplex
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.randomizers.subset import SubsetPanel
from populace.privacy.source import Source
from populace.protocols.base import (
    Ask,
    Facts,
    Plan,
    Population,
    Protocol,
    Replies,
    Shard,
    choose_record,
)  # fmt: skip
from populace.tables.schema import Schema

Array = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """How often each value was supported, and how many clients answered about each column."""

    round: Array
    coin: Array
    supports: Array
    answers: Array


@functools.lru_cache(maxsize=64)
def panel_for(schema: Schema, epsilon: float) -> SubsetPanel:
    """The mechanism both sides derive from the public schema: one domain per column."""
    return SubsetPanel(sizes=schema.sizes, epsilon=epsilon)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Independent(Protocol):
    """Guarantee: epsilon-LDP, pure, for everything a client holds: it sends one report, about one of its records.

    Edge cases: a client without records answers as if its value were drawn evenly; which column a client was asked about is
    public and independent of its data; the estimate weighs clients, not records.
    """

    epsilon: float
    batch: int = 65_536

    facts: ClassVar[Facts] = Facts(
        name="independent",
        title="one-way tables, columns drawn independently",
        paper="baseline (subset selection: Ye and Barg 2018)",
        trust=("local",),
        unit="client",
        kinds=("table",),
        traffic="one report of a few bytes per client, one round",
    )
    compiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (isinstance(self.epsilon, int | float) and self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise out_of_range("epsilon", "above 0 and finite", self.epsilon)
        if self.batch < 1:
            raise out_of_range("batch", "at least 1", self.batch)

    def rounds(self, population: Population) -> int:
        return -(-population.clients // self._cohort(population))

    def _cohort(self, population: Population) -> int:
        return min(self.batch, population.clients)

    def begin(self, population: Population, key: Array, warm: Any = None) -> Counts:
        del warm
        schema = population.table_schema
        width = max(schema.sizes)
        return Counts(
            round=jnp.int32(0),
            coin=key,
            supports=jnp.zeros((len(schema.columns), width), jnp.int32),
            answers=jnp.zeros(len(schema.columns), jnp.int32),
        )

    def cohorts(self, population: Population, state: Counts, first: int, count: int) -> Array:
        size = self._cohort(population)
        slots = np.arange(first * size, (first + count) * size).reshape(count, size)
        return np.where(slots < population.clients, slots, -1)

    def ask(self, state: Counts, population: Population, source: Source) -> Ask | None:
        del source
        if not isinstance(state.round, jax.core.Tracer) and int(state.round) >= self.rounds(population):
            return None
        size = self._cohort(population)
        slots = state.round * size + jnp.arange(size, dtype=jnp.int32)
        cohort = jnp.where(slots < population.clients, slots, -1)
        # Every column equally often: each block of as many clients as there are columns is asked about all of them, in an
        # order of its own drawn from the public coin.
        columns = len(population.table_schema.columns)
        block, place = slots // columns, slots % columns
        own = jax.vmap(lambda b, p: jax.random.permutation(jax.random.fold_in(state.coin, b), columns)[p])(block, place)
        return Ask(round=state.round, cohort=cohort, common=(), own=own)

    def charge(self, ask: Ask, population: Population) -> Charge:
        del ask
        return Charge(event=panel_for(population.table_schema, self.epsilon).event, unit="client")

    def answer(self, common: Any, own: Array, shard: Shard, memory: Any, source: Source) -> tuple[Array, Any]:
        del common
        schema = shard.schema
        panel = panel_for(schema, self.epsilon)  # type: ignore[arg-type]
        which, empty, noise = source.split(3)
        record, any_record = choose_record(shard, which)
        uniform = empty.below(jnp.asarray(panel.sizes)[own])
        value = jnp.where(any_record, record[own], uniform)
        return panel.apply(value, own, noise), memory

    def absorb(self, state: Counts, ask: Ask, replies: Replies, source: Source) -> Counts:
        del source
        columns = len(state.answers)
        column = jnp.where(replies.present, ask.own, columns)  # absent replies fall off the end
        supports = jax.ops.segment_sum(replies.values.astype(jnp.int32), column, num_segments=columns + 1)[:-1]
        answers = jax.ops.segment_sum(jnp.ones_like(column), column, num_segments=columns + 1)[:-1]
        return dataclasses.replace(
            state, round=state.round + 1, supports=state.supports + supports, answers=state.answers + answers
        )

    def finish(self, state: Counts, population: Population, key: Array) -> Marginals:
        del key
        schema = population.table_schema
        supports, answers = np.asarray(state.supports), np.asarray(state.answers)
        tables = tuple(
            project_to_simplex(member.estimate(supports[i, : member.size], answers[i]))
            for i, member in enumerate(panel_for(schema, self.epsilon).members)
        )
        return Marginals(schema=schema, tables=tables)

    def guarantee(self, population: Population) -> Guarantee:
        panel = panel_for(population.table_schema, self.epsilon)
        return Guarantee(
            epsilon=float(self.epsilon),
            unit="client",
            neighbours="replace",
            trust="local",
            mechanism="one subset-selection report about one column of one record, each client once",
            read_from_data=population.table_schema.read_from_data,
            derivation=(
                f"each client sends one report: {panel.event}",
                "the column is drawn by a public coin independent of the data",
                "a record among several is drawn by the client's private coin",
                "the server's estimate and all sampling are post-processing",
            ),
            assumptions=("the number of clients and who takes part are public", "a person's records sit at one client"),
        )

    def plan(self, population: Population) -> Plan:
        schema = population.table_schema
        members = panel_for(schema, self.epsilon).members
        reports = population.clients / len(members)
        distances = []
        for member in members:
            deviation = (
                math.sqrt(max(float(member.variance(1 / member.size, 1)), 0) + 1 / member.size)
                if member.size > 1
                else 0
            )
            # Half the L1 error; a table cannot be farther than 1 from the truth.
            distances.append(min(1.0, 0.5 * member.size * deviation * math.sqrt(2 / math.pi / max(reports, 1e-9))))
        down, up = self.reply_bytes(None, population)
        return Plan(
            guarantee=self.guarantee(population),
            rounds=1,
            bytes_up=up,
            bytes_down=down,
            errors={"one-way total variation distance, mean over columns": float(np.mean(distances))},
            notes=("dependence between columns is not modelled: two-way tables are products of one-way tables",),
        )

    def reply_bytes(self, ask: Ask | None, population: Population) -> tuple[float, float]:
        schema = population.table_schema
        index = -(-max(1, (len(schema.columns) - 1).bit_length()) // 8)
        members = panel_for(schema, self.epsilon).members
        return float(index), float(np.mean([member.wire_bytes for member in members]))
