"""`krr`: every client reports every attribute by randomised response with epsilon/d each.

The oldest baseline. Each report is a whole, mostly random record; the joint table is estimated over the
combinations reported most often, because the channel over all of them would fit no memory (Chen et al. 2023, section 5.1).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import out_of_range
from populace.methods.base import Ask, Facts, Memory, Plan, Population, Replies, Shard, choose_record
from populace.methods.blocks import one_report as survey
from populace.methods.blocks.frequency_estimation import regress
from populace.methods.blocks.records_generator import Records
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.randomizers.grr import GrrPanel
from populace.privacy.source import Source
from populace.tables.schema import Schema
from populace.types import Array, ArrayTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    round: Array
    reports: Array


@functools.lru_cache(maxsize=32)
def panel_for(schema: Schema, epsilon: float) -> GrrPanel:
    return GrrPanel(sizes=schema.sizes, epsilon=epsilon / len(schema.sizes))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Krr(survey.OneShot):
    """Guarantee: epsilon-LDP, pure, for everything a client holds: d reports of epsilon/d about one record.

    Edge cases: a client without records answers as if all its values were drawn evenly. `combinations` bounds the joint table.
    """

    epsilon: float
    clients_per_batch: int = 16_384
    combinations: int = 1_000

    facts: ClassVar[Facts] = Facts(
        name="krr",
        line="every column by randomised response",
        title="every attribute by randomised response, epsilon split evenly",
        paper="baseline of Chen et al. 2023 (kRR: Kairouz et al. 2014)",
        trust=("local",),
        unit="client",
        kinds=("table",),
        traffic="one randomised record per client, one round",
    )
    renamed: ClassVar[Mapping[str, str]] = {"batch": "clients_per_batch"}
    small: ClassVar[Mapping[str, object]] = {"clients_per_batch": 8}
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The privacy loss of one client, by pure local differential privacy.",
        "clients_per_batch": "How many clients are asked in one round; the guarantee does not depend on it.",
        "combinations": "The joint table is estimated over so many records, those reported most often.",
    }
    compiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.combinations < 1:
            raise out_of_range("combinations", "at least 1", self.combinations)

    def begin(self, population: Population, key: Array, warm: object = None) -> State:
        columns = len(population.table_schema.columns)
        return State(round=jnp.int32(0), reports=jnp.full((population.clients, columns), -1, jnp.int32))

    def own_questions(self, state: State, population: Population, slots: Array) -> Array:
        return jnp.zeros_like(slots)

    def charge(self, ask: Ask, population: Population) -> Charge:
        schema = population.table_schema
        return Charge(event=panel_for(schema, self.epsilon).event(len(schema.columns)), unit="client")

    def answer(
        self, common: ArrayTree, own: Array, shard: Shard, memory: Memory, source: Source
    ) -> tuple[Array, Memory]:
        panel = panel_for(shard.table_schema, self.epsilon)
        which, empty, noise = source.split(3)
        record, any_record = choose_record(shard, which)
        uniform = jnp.stack(
            [part.below(size) for part, size in zip(empty.split(len(panel.sizes)), panel.sizes, strict=True)]
        )
        values = jnp.where(any_record, jnp.asarray(record), uniform)
        return jnp.asarray(panel.apply(values, jnp.arange(len(panel.sizes)), noise)), memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        row = jnp.where(replies.present, replies.clients, len(state.reports))  # absent ones fall off the end
        reports = jnp.asarray(state.reports).at[row].set(replies.values, mode="drop")
        return dataclasses.replace(state, round=state.round + 1, reports=reports)

    def finish(self, state: State, population: Population, key: Array) -> Records:
        schema = population.table_schema
        reports = np.asarray(state.reports)
        rows, counts = np.unique(reports[reports[:, 0] >= 0], axis=0, return_counts=True)
        kept = np.argsort(-counts, kind="stable")[: self.combinations]
        rows, counts = rows[kept], counts[kept]
        channel = np.ones((len(rows), len(rows)))
        for column, member in enumerate(panel_for(schema, self.epsilon).members):
            same = rows[:, column][:, None] == rows[:, column][None, :]
            channel *= np.where(same, member.p, member.q)
        weights = regress(channel / channel.max(), counts / counts.sum())
        return Records(schema=schema, codes=rows, weights=weights)

    def guarantee(self, population: Population) -> Guarantee:
        return survey.one_report_guarantee(
            self.epsilon,
            population,
            mechanism="randomised response on every attribute of one record, epsilon split evenly, each client once",
            derivation=(f"each client sends: {self.charge(None, population).event}",),  # type: ignore[arg-type]
        )

    def plan(self, population: Population) -> Plan:
        schema = population.table_schema
        distances = [
            survey.expected_distance(
                float(m.variance(1 / m.size, 1)) if m.size > 1 else 0.0, m.size, population.clients
            )
            for m in panel_for(schema, self.epsilon).members
        ]
        down, up = self.reply_bytes(None, population)  # type: ignore[arg-type]
        return Plan(
            guarantee=self.guarantee(population),
            rounds=1,
            bytes_up=up,
            bytes_down=down,
            errors={
                "one-way total variation distance, mean over columns, by plain inversion": float(np.mean(distances))
            },
            notes=("the joint table is estimated over the most frequent randomised records only: a baseline",),
        )

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return 1.0, float(sum(m.wire_bytes for m in panel_for(population.table_schema, self.epsilon).members))
