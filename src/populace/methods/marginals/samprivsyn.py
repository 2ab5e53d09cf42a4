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

from populace.methods.base import Ask, Facts, Memory, Plan, Population, Replies, Shard, choose_record
from populace.methods.blocks import one_report as survey
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
from populace.methods.blocks.one_report import CountState
from populace.methods.blocks.records_generator import Records, build_rows
from populace.methods.marginals.graphical_model import TreeGenerator, pool_singles
from populace.methods.marginals.shrinkage import (
    Questions,
    allocate_reports,
    fit_consistent_model,
    fit_shrunk_model,
    read_tables,
)
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.randomizers.grr import GrrPanel
from populace.privacy.source import Source
from populace.tables.schema import Schema
from populace.types import Array, ArrayTree, NumpyArray

MOST_ROWS = 60_000
LEAST_SHARE = 0.02  # of an even choice, under mutual information: no pair is ever written off
LASSO_STEPS_WHILE_ASKING = 200


@functools.lru_cache(maxsize=32)
def survey_for(schema: Schema, epsilon: float, singles: bool) -> survey.Survey:
    """One question per pair, d(d - 1)/2 of them (the paper's text has d(d - 2)/2), then one per column where wanted."""
    columns = range(len(schema.columns))
    pairs = tuple(itertools.combinations(columns, 2))
    return survey.Survey(schema, pairs + tuple((c,) for c in columns if singles or not pairs), epsilon)


@functools.lru_cache(maxsize=32)
def halves_for(schema: Schema, epsilon: float) -> GrrPanel:
    return GrrPanel(sizes=schema.sizes, epsilon=epsilon / 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamPrivSyn(survey.OneShot):
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
    shuffles: ClassVar[bool] = True

    @property
    def asks_singles(self) -> bool:
        """Whether some clients may be asked about a single column."""
        return self.oracle == "joint" and self.selection == "predicted-error" and self.estimator == "pgm"

    def questions(self, schema: Schema) -> survey.Survey:
        """What can be asked, derived alike by both sides."""
        return survey_for(schema, self.epsilon, self.asks_singles)

    def _splits(self, schema: Schema) -> bool:
        return self.oracle == "split-krr" and len(schema.columns) > 1

    def begin(self, population: Population, key: Array, warm: object = None) -> CountState:
        asked = self.questions(population.table_schema)
        return CountState(round=jnp.int32(0), coin=key, counts=survey.no_counts(asked))

    def own_questions(self, state: CountState, population: Population, slots: Array) -> Array:
        coin = jax.random.fold_in(state.coin, state.round)
        shares = jnp.asarray(self.shares(state, population))
        return jax.random.choice(coin, len(shares), slots.shape, p=shares).astype(jnp.int32)

    def charge(self, ask: Ask, population: Population) -> Charge:
        schema = population.table_schema
        if self._splits(schema):
            return Charge(event=halves_for(schema, self.epsilon).event(2), unit="client")
        return Charge(event=self.questions(schema).panel.event, unit="client")

    def answer(
        self, common: ArrayTree, own: Array, shard: Shard, memory: Memory, source: Source
    ) -> tuple[Array, Memory]:
        asked = self.questions(shard.table_schema)
        if not self._splits(shard.table_schema):
            return asked.answer(own, shard, source), memory
        panel = halves_for(shard.table_schema, self.epsilon)
        pair = jnp.asarray(np.asarray(asked.groups, np.int32))[own]
        which, empty, noise = source.split(3)
        record, any_record = choose_record(shard, which)
        sizes = jnp.asarray(np.asarray(shard.table_schema.sizes, np.int32))[pair]
        uniform = jnp.stack([part.below(size) for part, size in zip(empty.split(2), sizes, strict=True)])
        values = panel.apply(jnp.where(any_record, jnp.asarray(record)[pair], uniform), pair, noise)
        cell = values[0] * sizes[1] + values[1]
        return jnp.arange(asked.panel.width) == cell, memory

    def absorb(self, state: CountState, ask: Ask, replies: Replies, source: Source) -> CountState:
        return state.with_replies(ask, replies)

    def shares(self, state: CountState, population: Population) -> NumpyArray:
        """How often each question is asked next, from public facts and earlier answers alone.

        The plug-in mutual information of the paper grows with the noise of a pair (by about K/2 times its variance over its
        weight). `predicted-error` asks what lowers the error of all two-way tables most: at a small epsilon mostly single
        columns, later the pairs that depend or may still turn out to.
        """
        schema = population.table_schema
        groups = self.questions(schema).groups
        even = np.full(len(groups), 1 / len(groups))
        if self.selection == "uniform" or len(groups) == 1:
            return even
        if self.selection == "predicted-error":
            return self._allocate(state.counts, population)[0]
        if int(state.round) == 0:
            return even
        how = "lasso" if self.estimator == "lasso" else "projected"
        tables = self.pair_tables(state.counts, schema, how, LASSO_STEPS_WHILE_ASKING)
        scores = np.array([survey.mutual_information(table) for table in tables])
        shares = (1 - LEAST_SHARE) * scores / scores.sum() + LEAST_SHARE * even if scores.sum() > 0 else even
        shares = shares / shares.sum()
        return np.asarray(shares)

    def _allocate(self, counts: survey.SupportCounts, population: Population) -> tuple[NumpyArray, float]:
        """Shares of the least predicted error, and that error."""
        schema = population.table_schema
        asked = self.questions(schema)
        if self._splits(schema):
            variances: NumpyArray = np.array([self._pair_variance(pair, schema) for pair in asked.groups])
        else:
            variances = asked.cell_variances() + 1 / np.asarray(asked.panel.sizes)
        noisy, singles = self.noisy_tables(counts, schema)
        readings = read_tables(noisy, singles, self.cell_variances(counts, schema, singles))
        answers = np.asarray(counts.answers, np.float64)
        left = max(population.clients - answers.sum(), 1.0)
        return allocate_reports(Questions(schema.sizes, asked.groups, variances, answers), left, readings)

    def finish(self, state: CountState, population: Population, key: Array) -> Generator:
        schema = population.table_schema
        noisy, singles = self.noisy_tables(state.counts, schema)
        if self.estimator == "pgm":
            variances = self.cell_variances(state.counts, schema, singles)
            return TreeGenerator(schema=schema, tree=fit_shrunk_model(schema.sizes, noisy, singles, variances))
        if self.estimator == "consistent":
            return TreeGenerator(schema=schema, tree=fit_consistent_model(schema.sizes, noisy))
        return self.build_records(state.counts, population, key)

    def noisy_tables(self, counts: survey.SupportCounts, schema: Schema) -> tuple[list[NoisyTable], list[NoisyTable]]:
        """Unbiased tables of all questions asked, with their deviations, and the best one-way tables they give together."""
        asked = self.questions(schema)
        answers = np.asarray(counts.answers, np.float64)
        if not self._splits(schema):
            rows = zip(asked.groups, asked.estimates(counts), asked.deviations(counts), strict=True)
            tables = [NoisyTable(*row[:2], float(row[2])) for row in rows if math.isfinite(row[2])]
            return tables, pool_singles(schema.sizes, tables)
        rows = zip(asked.groups, self.pair_tables(counts, schema, "unbiased"), answers, strict=True)
        tables = [
            NoisyTable(pair, table, math.sqrt(self._pair_variance(pair, schema) / n))
            for pair, table, n in rows
            if n > 0
        ]
        return tables, self._single_tables(counts, schema)

    def cell_variances(
        self, counts: survey.SupportCounts, schema: Schema, singles: Sequence[NoisyTable]
    ) -> dict[tuple[int, ...], NumpyArray]:
        """Variances of the cells of each pair's table as if its columns were independent, sampling of clients included.

        Frequent cells vary more, and at a large epsilon much more: one deviation for all would take that for dependence.
        """
        asked = self.questions(schema)
        variances: dict[tuple[int, ...], NumpyArray] = {}
        alone = [project_to_simplex(single.table) for single in singles]
        halves = halves_for(schema, self.epsilon).members
        squares = [mean_squares(weights, half.p, half.q) for weights, half in zip(alone, halves, strict=True)]
        for group, member, answers in zip(asked.groups, asked.panel.members, np.asarray(counts.answers), strict=True):
            if len(group) == 2 and answers > 0 and member.size > 1:
                weights = np.multiply.outer(alone[group[0]], alone[group[1]])
                if self._splits(schema):
                    one = np.multiply.outer(squares[group[0]], squares[group[1]]) - weights**2
                else:
                    one = member.variance(weights, 1) + weights * (1 - weights)
                variances[group] = np.asarray(one / int(answers))
        return variances

    def _pair_variance(self, pair: tuple[int, ...], schema: Schema) -> float:
        """The variance of an average cell from one report of the split oracle, sampling of clients included."""
        members = halves_for(schema, self.epsilon).members
        first, second = ((members[c].p, members[c].q, members[c].size) for c in pair)
        return pair_variance(first, second)

    def _single_tables(self, counts: survey.SupportCounts, schema: Schema) -> list[NoisyTable]:
        """One-way tables of the split oracle: each value was randomised on its own, whatever it was reported with."""
        tables = []
        reported = [_shares(counts, i, shape, total=True) for i, shape in enumerate(self.questions(schema).shapes)]
        for column, member in enumerate(halves_for(schema, self.epsilon).members):
            values: NumpyArray = np.zeros(member.size)
            for pair, table in zip(self.questions(schema).groups, reported, strict=True):
                if column in pair:
                    values += table.sum(axis=1 - pair.index(column))
            reports = max(values.sum(), 1e-9)
            deviation = math.sqrt((float(member.variance(1 / member.size, 1)) + 1 / member.size) / reports)
            known = values.sum() > 0 and member.size > 1
            estimate = member.estimate(values, values.sum())
            tables.append(NoisyTable((column,), estimate, deviation if known else math.inf))
        return tables

    def pair_tables(
        self, counts: survey.SupportCounts, schema: Schema, how: str | None = None, steps: int = 2_000
    ) -> list[NumpyArray]:
        """Estimated tables of all pairs: `unbiased`, or as distributions, `projected` or by `lasso`."""
        asked = self.questions(schema)
        how = how or self.estimator
        if self._splits(schema):
            members = halves_for(schema, self.epsilon).members
            sides = [channel(member.p, member.q, member.size) for member in members]
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
            if self._splits(schema):
                table = invert_pair(_shares(counts, i, shape), *sides_of)
            else:
                supports = np.asarray(counts.supports[i, : math.prod(shape)])
                table = asked.panel.members[i].estimate(supports, int(counts.answers[i])).reshape(shape)
            tables.append(table if how == "unbiased" else project_to_simplex(table))
        return tables

    def build_records(self, counts: survey.SupportCounts, population: Population, key: Array) -> Records:
        """The paper's generator: a random data set moved to the one-way tables, then pair by pair by swaps (algorithm 2)."""
        schema = population.table_schema
        groups = [group for group in self.questions(schema).groups if len(group) == 2 or len(schema.columns) == 1]
        tables = self.pair_tables(counts, schema)
        singles = one_way_tables(tables, groups, schema)
        pairs = {(g[0], g[1]): table for g, table in zip(groups, tables, strict=True) if len(g) == 2}
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        codes = build_rows(schema.sizes, singles, pairs, min(MOST_ROWS, max(population.clients, 1_000)), rng)
        return Records(schema=schema, codes=codes, weights=np.ones(len(codes)))

    def guarantee(self, population: Population) -> Guarantee:
        report = (
            "two values by randomised response"
            if self._splits(population.table_schema)
            else "one subset-selection report"
        )
        return survey.one_report_guarantee(
            self.epsilon,
            population,
            mechanism=f"{report} about the pair of columns (or single column) the client was asked about, each client once",
            derivation=(
                f"each client answers once: {self.charge(None, population).event}",  # type: ignore[arg-type]
                "the question is drawn from earlier clients' randomised answers by a public coin, never from the client's data",
            ),
        )

    def plan(self, population: Population) -> Plan:
        schema = population.table_schema
        asked = self.questions(schema)
        pairs = [group for group in asked.groups if len(group) == 2]
        down, up = self.reply_bytes(None, population)  # type: ignore[arg-type]
        if self.selection == "predicted-error" and pairs:
            shares, error = self._allocate(survey.no_counts(asked), population)
            what = "two-way total variation distance, mean over pairs, if dependence is as likely as not"
            alone = 1 - float(shares[: len(pairs)].sum())
        else:
            reports = population.clients / max(len(pairs), 1)
            error = float(np.mean([self._pair_error(pair, schema, reports) for pair in pairs] or [0.0]))
            what = "two-way total variation distance, mean over pairs, before the model"
            alone = 0.0 if pairs else 1.0
        return Plan(
            guarantee=self.guarantee(population),
            rounds=self.round_count(population),
            bytes_up=up,
            bytes_down=down,
            errors={what: error},
            notes=(
                f"{alone:.0%} of the first batch are asked about a single column; later batches as answers come in",
                "the model pools pairs and usually does better than each pair's own table",
            ),
        )

    def _pair_error(self, pair: tuple[int, ...], schema: Schema, reports: float) -> float:
        cells = math.prod(schema.sizes[c] for c in pair)
        if not self._splits(schema):
            return survey.expected_distance(survey.subset_variance(cells, self.epsilon), cells, reports)
        return survey.expected_distance(self._pair_variance(pair, schema) - 1 / cells, cells, reports)

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        """Means over what is asked; without an ask, over how often each question comes before anything is known."""
        schema = population.table_schema
        asked = self.questions(schema)
        down, _ = asked.wire_bytes()
        if self._splits(schema):
            members = halves_for(schema, self.epsilon).members
            sent = [sum(members[c].wire_bytes for c in group) for group in asked.groups]
        else:
            sent = [member.wire_bytes for member in asked.panel.members]
        if ask is not None:
            questions = np.asarray(ask.own)[np.asarray(ask.cohort) >= 0]
            weights = np.bincount(questions, minlength=len(sent)).astype(float)
        else:
            before = CountState(round=jnp.int32(0), coin=None, counts=survey.no_counts(asked))
            weights = self.shares(before, population)
        return down, float(np.average(sent, weights=weights))


def one_way_tables(tables: Sequence[NumpyArray], groups: Sequence[tuple[int, ...]], schema: Schema) -> list[NumpyArray]:
    """Each column's table: what its pairs say, weighted with their mutual information (eq. 11, with the sum it lacks)."""
    information = [survey.mutual_information(table) for table in tables]
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


def _shares(counts: survey.SupportCounts, question: int, shape: tuple[int, ...], *, total: bool = False) -> NumpyArray:
    """Shares (or numbers, `total`) of the randomised pairs of values, as a table."""
    reported: NumpyArray = np.asarray(counts.supports[question, : math.prod(shape)], np.float64).reshape(shape)
    if total:
        return reported
    return reported / reported.sum() if reported.sum() else np.full(shape, 1 / math.prod(shape))
