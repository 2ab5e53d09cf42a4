"""`independent`: one attribute per client, asked with the whole epsilon; columns are then drawn independently.

The baseline nobody may lose to. Each client is asked about one column, by a public coin that does not look at its data, and
answers by subset selection. The server estimates one-way tables and projects them on the simplex.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from populace.methods.base import Facts, Population, check_counts
from populace.methods.baselines.marginals import Marginals
from populace.methods.blocks.composed import ComposedMethod, Composition
from populace.methods.blocks.frequency_estimation import project_to_simplex
from populace.methods.blocks.one_report import (
    Survey,
    SurveyLearner,
    SurveyState,
    expected_distance,
    one_report_release,
)
from populace.methods.blocks.schedules import OneShot
from populace.privacy.guarantee import check_epsilon
from populace.types import Array


class IndependentLearner(SurveyLearner):
    """One-way tables, projected on the simplex."""

    def finish(self, state: SurveyState, key: Array) -> Marginals:
        estimates = self.survey.estimates(state.counts)
        tables = tuple(project_to_simplex(estimate) for estimate in estimates)
        return Marginals(schema=self.survey.schema, tables=tables)

    def predicted_errors(self) -> dict[str, float]:
        reports = self.population.clients / len(self.survey.groups)
        cells = zip(self.survey.cell_variances(), self.survey.panel.sizes, strict=True)
        distances = [expected_distance(variance, size, reports) for variance, size in cells]
        return {"one-way total variation distance, mean over columns": float(np.mean(distances))}

    def notes(self) -> tuple[str, ...]:
        return ("dependence between columns is not modelled: two-way tables are products of one-way tables",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Independent(ComposedMethod):
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

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_counts(clients_per_batch=self.clients_per_batch)

    def compose(self, population: Population) -> Composition:
        schema = population.table_schema
        survey = Survey(schema, tuple((column,) for column in range(len(schema.columns))), self.epsilon)
        release = one_report_release(
            self.epsilon,
            survey.panel.event,
            mechanism="one subset-selection report about one column of one record, each client once",
            derivation=(
                f"each client sends one report: {survey.panel.event}",
                "the column is drawn by a public coin independent of the data",
            ),
        )
        schedule = OneShot(clients=population.clients, block=self.clients_per_batch)
        return Composition(schedule, release, IndependentLearner(survey, population))
