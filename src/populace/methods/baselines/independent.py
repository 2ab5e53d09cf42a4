"""`independent`: one attribute per client, asked with the whole epsilon; columns are then drawn independently.

The baseline nobody may lose to. Each client is asked about one column, by a public coin that does not look at its data, and
answers by subset selection. The server estimates one-way tables and projects them on the simplex.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from populace.methods.base import Ask, Facts, Memory, Plan, Population, Replies, Shard
from populace.methods.baselines.marginals import Marginals
from populace.methods.blocks import one_report as survey
from populace.methods.blocks.frequency_estimation import project_to_simplex
from populace.methods.blocks.one_report import CountState
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.source import Source
from populace.tables.schema import Schema
from populace.types import Array, ArrayTree


@functools.lru_cache(maxsize=64)
def survey_for(schema: Schema, epsilon: float) -> survey.Survey:
    """One question per column."""
    return survey.Survey(schema, tuple((column,) for column in range(len(schema.columns))), epsilon)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Independent(survey.OneShot):
    """Guarantee: epsilon-LDP, pure, for everything a client holds: it sends one report, about one of its records.

    Edge cases: a client without records answers as if its value were drawn evenly; which column a client was asked about is
    public and independent of its data; the estimate weighs clients, not records.
    """

    epsilon: float
    clients_per_batch: int = 65_536

    facts: ClassVar[Facts] = Facts(
        name="independent",
        line="one-way tables, columns independent",
        title="one-way tables, columns drawn independently",
        paper="baseline (subset selection: Ye and Barg 2018)",
        trust=("local",),
        unit="client",
        kinds=("table",),
        traffic="one report of a few bytes per client, one round",
    )
    renamed: ClassVar[Mapping[str, str]] = {"batch": "clients_per_batch"}
    small: ClassVar[Mapping[str, object]] = {"clients_per_batch": 8}
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The privacy loss of one client, by pure local differential privacy.",
        "clients_per_batch": "How many clients are asked in one round; the guarantee does not depend on it.",
    }
    compiles: ClassVar[bool] = True

    def begin(self, population: Population, key: Array, warm: object = None) -> CountState:
        del warm
        asked = survey_for(population.table_schema, self.epsilon)
        return CountState(round=jnp.int32(0), coin=key, counts=survey.no_counts(asked))

    def own_questions(self, state: CountState, population: Population, slots: Array) -> Array:
        return survey.balanced_questions(state.coin, slots, len(population.table_schema.columns))

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=survey_for(population.table_schema, self.epsilon).panel.event, unit="client")

    def answer(
        self, common: ArrayTree, own: Array, shard: Shard, memory: Memory, source: Source
    ) -> tuple[Array, Memory]:
        return survey_for(shard.table_schema, self.epsilon).answer(own, shard, source), memory

    def absorb(self, state: CountState, ask: Ask, replies: Replies, source: Source) -> CountState:
        return state.with_replies(ask, replies)

    def finish(self, state: CountState, population: Population, key: Array) -> Marginals:
        schema = population.table_schema
        estimates = survey_for(schema, self.epsilon).estimates(state.counts)
        return Marginals(schema=schema, tables=tuple(project_to_simplex(estimate) for estimate in estimates))

    def guarantee(self, population: Population) -> Guarantee:
        event = survey_for(population.table_schema, self.epsilon).panel.event
        return survey.one_report_guarantee(
            self.epsilon,
            population,
            mechanism="one subset-selection report about one column of one record, each client once",
            derivation=(
                f"each client sends one report: {event}",
                "the column is drawn by a public coin independent of the data",
            ),
        )

    def plan(self, population: Population) -> Plan:
        asked = survey_for(population.table_schema, self.epsilon)
        reports = population.clients / len(asked.groups)
        distances = [
            survey.expected_distance(variance, size, reports)
            for variance, size in zip(asked.cell_variances(), asked.panel.sizes, strict=True)
        ]
        down, up = asked.wire_bytes()
        return Plan(
            guarantee=self.guarantee(population),
            rounds=1,
            bytes_up=up,
            bytes_down=down,
            errors={"one-way total variation distance, mean over columns": float(np.mean(distances))},
            notes=("dependence between columns is not modelled: two-way tables are products of one-way tables",),
        )

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return survey_for(population.table_schema, self.epsilon).wire_bytes()
