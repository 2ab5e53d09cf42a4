"""A generator that protects nobody, to see what an attack can do at all: it hands out the rows it was given.

Not a method: it is not in the registry, no run can be made with it, and only `populace attack` knows its name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import DataError
from populace.methods.base import Ask, Facts, Plan, Population, Protocol, Replies, Shard, choose_record
from populace.methods.blocks.generator import Generator
from populace.privacy.events import NonPrivate
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.source import Source
from populace.tables.schema import Schema
from populace.types import Array, ArrayTree

REASON = "every record is sent and handed out as it is"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copies(Generator):
    """The rows themselves, shuffled, again and again: every one of them before any twice."""

    kind: ClassVar[str] = "copies"
    schema: Schema
    codes: Array

    def exact_conditions(self, conditions: Mapping[int, int]) -> Mapping[int, int]:
        return conditions

    def sample_codes(self, count: int, key: Array, conditions: Mapping[int, int]) -> Array:
        rows = np.asarray(self.codes)
        for column, code in conditions.items():
            rows = rows[rows[:, column] == code]
        if not len(rows):
            raise DataError("no row meets these conditions; ask for something more frequent")
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        order = np.concatenate([rng.permutation(len(rows)) for _ in range(-(-count // len(rows)))])
        return np.asarray(rows[order[:count]])

    def arrays(self) -> dict[str, Array]:
        return {"codes": np.asarray(self.codes)}

    @classmethod
    def from_arrays(cls, schema: Schema, arrays: Mapping[str, Array]) -> Copies:
        return cls(schema=schema, codes=arrays["codes"])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Received:
    """The rows received so far: codes for each client, -1 before it answered."""

    round: Array
    rows: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memorise(Protocol):
    """Guarantee: none (epsilon = inf). Each client sends one of its records as it is; the generator repeats them.

    Edge cases: a client without records sends the first value of every column.
    """

    facts: ClassVar[Facts] = Facts(
        name="memorise",
        title="hands out the rows it was given: shows what an attack can do",
        paper="calibration of attacks",
        trust=("not-private",),
        unit="client",
        kinds=("table",),
        traffic="one record per client",
    )

    def round_count(self, population: Population) -> int:
        return 1

    def begin(self, population: Population, key: Array, warm: ArrayTree = None) -> Received:
        columns = len(population.table_schema.columns)
        return Received(round=jnp.int32(0), rows=jnp.full((population.clients, columns), -1, jnp.int32))

    def ask(self, state: Received, population: Population, source: Source) -> Ask | None:
        if int(state.round) >= 1:
            return None
        everybody = jnp.arange(population.clients, dtype=jnp.int32)
        return Ask(round=state.round, cohort=everybody, common=(), own=jnp.zeros_like(everybody))

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=NonPrivate(REASON), unit="client")

    def answer(
        self, common: ArrayTree, own: Array, shard: Shard, memory: ArrayTree, source: Source
    ) -> tuple[Array, ArrayTree]:
        record, any_record = choose_record(shard, source)
        return jnp.where(any_record, jnp.asarray(record), 0), memory

    def absorb(self, state: Received, ask: Ask, replies: Replies, source: Source) -> Received:
        slot = jnp.where(replies.present, replies.clients, len(state.rows))
        return Received(round=state.round + 1, rows=jnp.asarray(state.rows).at[slot].set(replies.values, mode="drop"))

    def finish(self, state: Received, population: Population, key: Array) -> Copies:
        """The rows keep the schema's rules already, and must not be drawn again until values inside their bins do."""
        rows = np.asarray(state.rows)
        schema = dataclasses.replace(population.table_schema, forbidden=(), comparisons=())
        return Copies(schema=schema, codes=rows[rows[:, 0] >= 0])

    def guarantee(self, population: Population) -> Guarantee:
        return Guarantee(
            epsilon=math.inf,
            reason=REASON,
            unit="client",
            neighbours="replace",
            trust="not-private",
            mechanism="none: for the calibration of attacks only",
            read_from_data=population.table_schema.read_from_data,
            domain_sources=population.domain_sources,
        )

    def plan(self, population: Population) -> Plan:
        down, up = self.reply_bytes(None, population)  # type: ignore[arg-type]
        return Plan(guarantee=self.guarantee(population), rounds=1, bytes_up=up, bytes_down=down, errors={})

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return 1.0, 4.0 * len(population.table_schema.columns)
