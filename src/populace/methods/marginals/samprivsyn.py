"""`samprivsyn`: each client answers about one pair of columns, pairs that look dependent more often (Chen et al. 2023).

Clients come in batches. What a client is asked about is drawn by the server from what earlier batches said, never from the
client's own data, so each client has epsilon-LDP by its one answer (sequentially interactive). As published: both values by
randomised response with half the epsilon each, LASSO, and a data set built by swaps. Beside it, and better: one
subset-selection report with the whole epsilon about the pair (or, where pairs would drown, a single column), what is asked
following from predicted error, and a graphical model of tables pulled towards independence.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.base import Ask, Facts, Population, Shard, check_counts, choose_record
from populace.methods.blocks.clique_tree import TreeGenerator
from populace.methods.blocks.composed import ComposedMethod, Composition
from populace.methods.blocks.frequency_estimation import (
    NoisyTable,
    channel,
    invert_pair,
    mean_squares,
    pair_variance,
    project_to_simplex,
    regress,
)
from populace.methods.blocks.generator import Generator
from populace.methods.blocks.one_report import (
    SupportCounts,
    Survey,
    SurveyLearner,
    SurveyState,
    expected_distance,
    mutual_information,
    no_counts,
    one_report_release,
    subset_variance,
)
from populace.methods.blocks.records_generator import Records, build_rows
from populace.methods.blocks.schedules import Cohort, OneShot
from populace.methods.marginals.graphical_model import pool_singles
from populace.methods.marginals.shrinkage import (
    Questions,
    allocate_reports,
    fit_consistent_model,
    fit_shrunk_model,
    read_tables,
)
from populace.privacy.guarantee import check_epsilon
from populace.privacy.randomizers.grr import GrrPanel
from populace.privacy.source import Source
from populace.tables.schema import Schema
from populace.types import Array, ArrayTree, NumpyArray

MOST_ROWS = 60_000
LEAST_SHARE = 0.02  # of an even choice, under mutual information: no pair is ever written off
LASSO_STEPS_WHILE_ASKING = 200


@dataclasses.dataclass(frozen=True)
class SamPrivSynLearner(SurveyLearner):
    """Pairs (and single columns) asked about as answers come in; where it `splits`, each value with half of epsilon."""

    splits: bool
    estimator: str
    selection: str

    @functools.cached_property
    def halves(self) -> GrrPanel:
        """Randomised response on each column with half of epsilon."""
        return GrrPanel(sizes=self.survey.schema.sizes, epsilon=self.survey.epsilon / 2)

    def own_questions(self, state: SurveyState, number: Array, cohort: Cohort) -> Array:
        coin = jax.random.fold_in(state.coin, number)
        shares = jnp.asarray(self.shares(state.counts, int(number)))
        return jax.random.choice(coin, len(shares), cohort.clients.shape, p=shares).astype(jnp.int32)

    def answer(self, question: ArrayTree, own: Array, shard: Shard, source: Source) -> Array:
        asked = self.survey
        if not self.splits:
            return asked.answer(own, shard, source)
        pair = jnp.asarray(np.asarray(asked.groups, np.int32))[own]
        which, empty, noise = source.split(3)
        record, any_record = choose_record(shard, which)
        sizes = jnp.asarray(np.asarray(asked.schema.sizes, np.int32))[pair]
        uniform = jnp.stack([part.below(size) for part, size in zip(empty.split(2), sizes, strict=True)])
        values = self.halves.apply(jnp.where(any_record, jnp.asarray(record)[pair], uniform), pair, noise)
        cell = values[0] * sizes[1] + values[1]
        return jnp.arange(asked.panel.width) == cell

    def shares(self, counts: SupportCounts, number: int) -> NumpyArray:
        """How often each question is asked in batch `number`, from public facts and earlier answers alone.

        The plug-in mutual information of the paper grows with the noise of a pair (by about K/2 times its variance over its
        weight). `predicted-error` asks what lowers the error of all two-way tables most: at a small epsilon mostly single
        columns, later the pairs that depend or may still turn out to.
        """
        groups = self.survey.groups
        even = np.full(len(groups), 1 / len(groups))
        if self.selection == "uniform" or len(groups) == 1:
            return even
        if self.selection == "predicted-error":
            return self._allocate(counts)[0]
        if number == 0:
            return even
        how = "lasso" if self.estimator == "lasso" else "projected"
        tables = self.pair_tables(counts, how, LASSO_STEPS_WHILE_ASKING)
        scores = np.array([mutual_information(table) for table in tables])
        shares = (1 - LEAST_SHARE) * scores / scores.sum() + LEAST_SHARE * even if scores.sum() > 0 else even
        shares = shares / shares.sum()
        return np.asarray(shares)

    def _allocate(self, counts: SupportCounts) -> tuple[NumpyArray, float]:
        """Shares of the least predicted error, and that error."""
        asked = self.survey
        if self.splits:
            variances: NumpyArray = np.array([self._pair_variance(pair) for pair in asked.groups])
        else:
            variances = asked.cell_variances() + 1 / np.asarray(asked.panel.sizes)
        noisy, singles = self.noisy_tables(counts)
        readings = read_tables(noisy, singles, self.cell_variances(counts, singles))
        answers = np.asarray(counts.answers, np.float64)
        left = max(self.population.clients - answers.sum(), 1.0)
        return allocate_reports(Questions(asked.schema.sizes, asked.groups, variances, answers), left, readings)

    def finish(self, state: SurveyState, key: Array) -> Generator:
        schema = self.survey.schema
        noisy, singles = self.noisy_tables(state.counts)
        if self.estimator == "pgm":
            variances = self.cell_variances(state.counts, singles)
            return TreeGenerator(schema=schema, tree=fit_shrunk_model(schema.sizes, noisy, singles, variances))
        if self.estimator == "consistent":
            return TreeGenerator(schema=schema, tree=fit_consistent_model(schema.sizes, noisy))
        return self.build_records(state.counts, key)

    def noisy_tables(self, counts: SupportCounts) -> tuple[list[NoisyTable], list[NoisyTable]]:
        """Unbiased tables of all questions asked, with their deviations, and the best one-way tables they give together."""
        asked = self.survey
        answers = np.asarray(counts.answers, np.float64)
        if not self.splits:
            rows = zip(asked.groups, asked.estimates(counts), asked.deviations(counts), strict=True)
            tables = [NoisyTable(*row[:2], float(row[2])) for row in rows if math.isfinite(row[2])]
            return tables, pool_singles(asked.schema.sizes, tables)
        rows = zip(asked.groups, self.pair_tables(counts, "unbiased"), answers, strict=True)
        tables = [NoisyTable(pair, table, math.sqrt(self._pair_variance(pair) / n)) for pair, table, n in rows if n > 0]
        return tables, self._single_tables(counts)

    def cell_variances(self, counts: SupportCounts, singles: Sequence[NoisyTable]) -> dict[tuple[int, ...], NumpyArray]:
        """Variances of the cells of each pair's table as if its columns were independent, sampling of clients included.

        Frequent cells vary more, and at a large epsilon much more: one deviation for all would take that for dependence.
        """
        asked = self.survey
        variances: dict[tuple[int, ...], NumpyArray] = {}
        alone = [project_to_simplex(single.table) for single in singles]
        halves = zip(alone, self.halves.members, strict=True)
        squares = [mean_squares(weights, half.p, half.q) for weights, half in halves]
        for group, member, answers in zip(asked.groups, asked.panel.members, np.asarray(counts.answers), strict=True):
            if len(group) == 2 and answers > 0 and member.size > 1:
                weights = np.multiply.outer(alone[group[0]], alone[group[1]])
                if self.splits:
                    one = np.multiply.outer(squares[group[0]], squares[group[1]]) - weights**2
                else:
                    one = member.variance(weights, 1) + weights * (1 - weights)
                variances[group] = np.asarray(one / int(answers))
        return variances

    def _pair_variance(self, pair: tuple[int, ...]) -> float:
        """The variance of an average cell from one report of the split oracle, sampling of clients included."""
        members = self.halves.members
        first, second = ((members[c].p, members[c].q, members[c].size) for c in pair)
        return pair_variance(first, second)

    def _single_tables(self, counts: SupportCounts) -> list[NoisyTable]:
        """One-way tables of the split oracle: each value was randomised on its own, whatever it was reported with."""
        tables = []
        reported = [_shares(counts, i, shape, total=True) for i, shape in enumerate(self.survey.shapes)]
        for column, member in enumerate(self.halves.members):
            values: NumpyArray = np.zeros(member.size)
            for pair, table in zip(self.survey.groups, reported, strict=True):
                if column in pair:
                    values += table.sum(axis=1 - pair.index(column))
            reports = max(values.sum(), 1e-9)
            deviation = math.sqrt((float(member.variance(1 / member.size, 1)) + 1 / member.size) / reports)
            known = values.sum() > 0 and member.size > 1
            estimate = member.estimate(values, values.sum())
            tables.append(NoisyTable((column,), estimate, deviation if known else math.inf))
        return tables

    def pair_tables(self, counts: SupportCounts, how: str, steps: int = 2_000) -> list[NumpyArray]:
        """Estimated tables of all pairs: `unbiased`, or as distributions, `projected` or by `lasso`."""
        asked = self.survey
        if self.splits:
            sides = [channel(member.p, member.q, member.size) for member in self.halves.members]
            groups = [tuple(sides[c] for c in group) for group in asked.groups]
        else:
            groups = [(channel(member.p, member.q, member.size),) for member in asked.panel.members]
        tables: list[NumpyArray] = []
        for i, (group, sides_of, shape) in enumerate(zip(asked.groups, groups, asked.shapes, strict=True)):
            if len(group) == 1 and len(asked.groups) > 1:
                continue
            if how == "lasso":
                observed = np.asarray(counts.supports[i, : math.prod(shape)]) / max(int(counts.answers[i]), 1)
                design = functools.reduce(np.kron, sides_of)
                tables.append(regress(design, observed, iterations=steps).reshape(shape))
                continue
            if self.splits:
                table = invert_pair(_shares(counts, i, shape), *sides_of)
            else:
                supports = np.asarray(counts.supports[i, : math.prod(shape)])
                table = asked.panel.members[i].estimate(supports, int(counts.answers[i])).reshape(shape)
            tables.append(table if how == "unbiased" else project_to_simplex(table))
        return tables

    def build_records(self, counts: SupportCounts, key: Array) -> Records:
        """The paper's generator: a random data set moved to the one-way tables, then pair by pair by swaps (algorithm 2)."""
        schema = self.survey.schema
        groups = [group for group in self.survey.groups if len(group) == 2 or len(schema.columns) == 1]
        tables = self.pair_tables(counts, self.estimator)
        singles = one_way_tables(tables, groups, schema)
        pairs = {(g[0], g[1]): table for g, table in zip(groups, tables, strict=True) if len(g) == 2}
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        codes = build_rows(schema.sizes, singles, pairs, min(MOST_ROWS, max(self.population.clients, 1_000)), rng)
        return Records(schema=schema, codes=codes, weights=np.ones(len(codes)))

    @functools.cached_property
    def _planned(self) -> tuple[str, float, float]:
        """What is predicted, how large it is, and the share of the first batch that is asked about a single column."""
        pairs = [group for group in self.survey.groups if len(group) == 2]
        if self.selection == "predicted-error" and pairs:
            shares, error = self._allocate(no_counts(self.survey))
            what = "two-way total variation distance, mean over pairs, if dependence is as likely as not"
            return what, error, 1 - float(shares[: len(pairs)].sum())
        reports = self.population.clients / max(len(pairs), 1)
        error = float(np.mean([self._pair_error(pair, reports) for pair in pairs] or [0.0]))
        return "two-way total variation distance, mean over pairs, before the model", error, 0.0 if pairs else 1.0

    def predicted_errors(self) -> dict[str, float]:
        what, error, _ = self._planned
        return {what: error}

    def notes(self) -> tuple[str, ...]:
        return (
            f"{self._planned[2]:.0%} of the first batch are asked about a single column; later batches as answers come in",
            "the model pools pairs and usually does better than each pair's own table",
        )

    def _pair_error(self, pair: tuple[int, ...], reports: float) -> float:
        cells = math.prod(self.survey.schema.sizes[c] for c in pair)
        if not self.splits:
            return expected_distance(subset_variance(cells, self.survey.epsilon), cells, reports)
        return expected_distance(self._pair_variance(pair) - 1 / cells, cells, reports)

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        """Means over what is asked; without an ask, over how often each question comes before anything is known."""
        down, _ = self.survey.wire_bytes()
        sent = [member.wire_bytes for member in self.survey.panel.members]
        if self.splits:
            sent = [sum(self.halves.members[c].wire_bytes for c in group) for group in self.survey.groups]
        if ask is None:
            return down, float(np.average(sent, weights=self.shares(no_counts(self.survey), 0)))
        questions = np.asarray(ask.own)[np.asarray(ask.cohort) >= 0]
        weights = np.bincount(questions, minlength=len(sent)).astype(float)
        return down, float(np.average(sent, weights=weights))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamPrivSyn(ComposedMethod):
    """Guarantee: epsilon-LDP, pure, for everything a client holds. One report (`joint`), or two of epsilon/2 (`split-krr`).

    Edge cases: a client is asked once, and its ledger refuses a second time; a client without records answers as if its
    values were drawn evenly; with one column there is one question. Only the corrected variant (joint, pgm,
    predicted-error) also asks about single columns, which informs more about one-way tables than a pair does.
    """

    epsilon: float
    oracle: Literal["split-krr", "joint"] = "joint"
    estimator: Literal["lasso", "projected", "consistent", "pgm"] = "pgm"
    selection: Literal["mutual-information", "predicted-error", "uniform"] = "predicted-error"
    clients_per_batch: int = 2_000

    facts: ClassVar[Facts] = Facts(
        name="samprivsyn",
        line="two-way tables, chosen adaptively",
        title="two-way tables of pairs chosen as answers come in",
        paper="Chen et al., Sci. China Inf. Sci. 2023",
        trust=("local",),
        unit="client",
        kinds=("table",),
        traffic="one report of a few bytes per client, one round per batch of clients",
    )
    renamed: ClassVar[Mapping[str, str]] = {
        "batch": "clients_per_batch",
        "estimate": "estimator",
        "choice": "selection",
    }
    small: ClassVar[Mapping[str, object]] = {"clients_per_batch": 8}
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The privacy loss of one client, by pure local differential privacy.",
        "oracle": "How a pair is reported: with the whole epsilon (joint), or each value with half of it (split-krr).",
        "estimator": "How marginals become a generator: pgm is a graphical model of shrunk tables, lasso is as published.",
        "selection": "How the pairs to ask about are chosen: mutual-information is as published.",
        "clients_per_batch": "How many clients are asked before the next questions are chosen from their answers.",
    }

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_counts(clients_per_batch=self.clients_per_batch)

    def learner(self, population: Population) -> SamPrivSynLearner:
        """One question per pair, d(d - 1)/2 of them (the paper's text has d(d - 2)/2), then one per column where wanted."""
        columns = range(len(population.table_schema.columns))
        pairs = tuple(itertools.combinations(columns, 2))
        singles = self.oracle == "joint" and self.selection == "predicted-error" and self.estimator == "pgm"
        groups = pairs + tuple((column,) for column in columns if singles or not pairs)
        survey = Survey(population.table_schema, groups, self.epsilon)
        splits = self.oracle == "split-krr" and len(columns) > 1
        return SamPrivSynLearner(survey, population, splits, self.estimator, self.selection)

    def compose(self, population: Population) -> Composition:
        learner = self.learner(population)
        event = learner.halves.event(2) if learner.splits else learner.survey.panel.event
        report = "two values by randomised response" if learner.splits else "one subset-selection report"
        release = one_report_release(
            self.epsilon,
            event,
            mechanism=f"{report} about the pair of columns (or single column) the client was asked about, each client once",
            derivation=(
                f"each client answers once: {event}",
                "the question is drawn from earlier clients' randomised answers by a public coin, never from the client's data",
            ),
        )
        clients, batch = population.clients, self.clients_per_batch
        batches = tuple(min(batch, clients - first) for first in range(0, clients, batch))
        return Composition(OneShot(clients=clients, block=batch, stages=batches, shuffled=True), release, learner)


def one_way_tables(tables: Sequence[NumpyArray], groups: Sequence[tuple[int, ...]], schema: Schema) -> list[NumpyArray]:
    """Each column's table: what its pairs say, weighted with their mutual information (eq. 11, with the sum it lacks)."""
    information = [mutual_information(table) for table in tables]
    singles = []
    for column, size in enumerate(schema.sizes):
        weights, views = [], []
        for group, table, weight in zip(groups, tables, information, strict=True):
            if column in group:
                axis = tuple(i for i in range(len(group)) if group[i] != column)
                views.append(np.asarray(table).sum(axis=axis))
                weights.append(weight + 1e-6)
        singles.append(np.average(views, axis=0, weights=weights) if views else np.full(size, 1 / size))
    return [project_to_simplex(table) for table in singles]


def _shares(counts: SupportCounts, question: int, shape: tuple[int, ...], *, total: bool = False) -> NumpyArray:
    """Shares (or numbers, `total`) of the randomised pairs of values, as a table."""
    reported: NumpyArray = np.asarray(counts.supports[question, : math.prod(shape)], np.float64).reshape(shape)
    if total:
        return reported
    return reported / reported.sum() if reported.sum() else np.full(shape, 1 / math.prod(shape))
