"""`calm`: marginals of several columns, one per client, with the whole epsilon; made consistent, then of greatest entropy.

Zhang et al. 2018 ("CALM: Consistent Adaptive Local Marginal"). The size of the groups is chosen from n,
epsilon and the domain by the predicted error of a pair; groups cover all pairs as evenly as possible.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from populace.errors import out_of_range
from populace.methods.base import Facts, Population, check_counts
from populace.methods.blocks.clique_tree import TreeGenerator
from populace.methods.blocks.composed import ComposedMethod, Composition
from populace.methods.blocks.frequency_estimation import NoisyTable
from populace.methods.blocks.one_report import (
    Groups,
    Survey,
    SurveyLearner,
    SurveyState,
    expected_distance,
    one_report_release,
    subset_variance,
)
from populace.methods.blocks.schedules import OneShot
from populace.methods.marginals.shrinkage import fit_consistent_model, fit_shrunk_model
from populace.privacy.guarantee import check_epsilon
from populace.types import Array

MOST_CELLS = 20_000
MOST_GROUPS = 2_000


@functools.lru_cache(maxsize=64)
def cover(sizes: tuple[int, ...], width: int) -> Groups:
    """Groups of about `width` columns that together hold every pair, greedily: each takes what covers most pairs left."""
    columns = len(sizes)
    if columns == 1:
        return ((0,),)
    open_pairs = np.triu(np.ones((columns, columns), bool), 1)
    open_pairs |= open_pairs.T
    groups: list[tuple[int, ...]] = []
    while open_pairs.any() and len(groups) < MOST_GROUPS:
        first = int(open_pairs.sum(axis=1).argmax())
        group = [first]
        while len(group) < width:
            gain = open_pairs[group].sum(axis=0).astype(float)
            gain[group] = -1
            room = math.prod(sizes[c] for c in group)
            gain[[room * size > MOST_CELLS and len(group) > 1 for size in sizes]] = -1
            best = int(gain.argmax())
            if gain[best] <= 0:
                break
            group.append(best)
        for a, b in itertools.combinations(group, 2):
            open_pairs[a, b] = open_pairs[b, a] = False
        groups.append(tuple(sorted(group)))
    return tuple(groups)


def pair_error(sizes: tuple[int, ...], width: int, epsilon: float, clients: int) -> float:
    """Predicted total variation distance of a pair's table, mean over pairs, when groups have this size."""
    groups = cover(sizes, width)
    reports = clients / len(groups)
    errors = []
    for group in groups:
        cells = math.prod(sizes[c] for c in group)
        variance = subset_variance(cells, epsilon)
        for a, b in itertools.combinations(group, 2) if len(group) > 1 else ():
            pair = sizes[a] * sizes[b]
            errors.append(expected_distance(variance * cells / pair, pair, reports))
    return float(np.mean(errors)) if errors else 0.0


@functools.lru_cache(maxsize=64)
def best_width(sizes: tuple[int, ...], epsilon: float, clients: int) -> int:
    """The group size with the least predicted error of a pair."""
    widths = range(2, min(len(sizes), 12) + 1)
    return min(widths, key=lambda width: (round(pair_error(sizes, width, epsilon, clients), 6), width), default=1)


@dataclasses.dataclass(frozen=True)
class CalmLearner(SurveyLearner):
    """Marginals of groups of columns, and the distribution of greatest entropy that agrees with them."""

    estimator: str

    def finish(self, state: SurveyState, key: Array) -> TreeGenerator:
        asked, schema = self.survey, self.survey.schema
        deviations = asked.deviations(state.counts)
        measured = [
            NoisyTable(group, table, float(deviation))
            for group, table, deviation in zip(asked.groups, asked.estimates(state.counts), deviations, strict=True)
            if math.isfinite(deviation)
        ]
        fit = fit_shrunk_model if self.estimator == "shrunk" else fit_consistent_model
        return TreeGenerator(schema=schema, tree=fit(schema.sizes, measured))

    @property
    def _width(self) -> int:
        return max(len(group) for group in self.survey.groups)

    def predicted_errors(self) -> dict[str, float]:
        sizes, epsilon, clients = self.survey.schema.sizes, self.survey.epsilon, self.population.clients
        error = pair_error(sizes, self._width, epsilon, clients) if self._width > 1 else 0.0
        return {"two-way total variation distance, mean over pairs, before consistency": error}

    def notes(self) -> tuple[str, ...]:
        return (f"{len(self.survey.groups)} groups of at most {self._width} columns",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calm(ComposedMethod):
    """Guarantee: epsilon-LDP, pure, for everything a client holds: one report about one group of columns of one record.

    Edge cases: `marginal_size` 0 lets the predicted error choose the group size from public facts; a client without records
    answers as if its cell were drawn evenly. `estimator=consistent` is as published; `shrunk` pulls tables towards
    independence by their noise first.
    """

    epsilon: float
    marginal_size: int = 0
    estimator: Literal["consistent", "shrunk"] = "shrunk"
    clients_per_batch: int = 16_384

    facts: ClassVar[Facts] = Facts(
        name="calm",
        line="consistent multi-way marginals",
        title="marginals of several columns, one per client, made consistent",
        paper="Zhang et al. 2018; baseline of Chen et al. 2023",
        trust=("local",),
        unit="client",
        kinds=("table",),
        traffic="one report per client, one round",
    )
    renamed: ClassVar[Mapping[str, str]] = {
        "batch": "clients_per_batch",
        "width": "marginal_size",
        "estimate": "estimator",
    }
    small: ClassVar[Mapping[str, object]] = {"clients_per_batch": 8}
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The privacy loss of one client, by pure local differential privacy.",
        "marginal_size": "How many columns a marginal has; 0 takes the size with the least predicted error.",
        "estimator": "consistent is as published; shrunk first pulls noisy tables towards independence.",
        "clients_per_batch": "How many clients are asked in one round; the guarantee does not depend on it.",
    }
    compiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_counts(clients_per_batch=self.clients_per_batch)
        if self.marginal_size < 0 or self.marginal_size == 1:
            raise out_of_range("marginal_size", "0 (chosen), or at least 2", self.marginal_size)

    def compose(self, population: Population) -> Composition:
        schema = population.table_schema
        width = self.marginal_size or best_width(schema.sizes, self.epsilon, population.clients)
        survey = Survey(schema, cover(schema.sizes, width), self.epsilon)
        release = one_report_release(
            self.epsilon,
            survey.panel.event,
            mechanism="one subset-selection report about one group of columns of one record, each client once",
            derivation=(
                f"each client sends one report: {survey.panel.event}",
                "the group is drawn by a public coin independent of the data",
            ),
        )
        schedule = OneShot(clients=population.clients, block=self.clients_per_batch)
        return Composition(schedule, release, CalmLearner(survey, population, self.estimator))
