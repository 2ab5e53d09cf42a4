"""`samprivsyn`: each client answers about one pair of columns, pairs that look dependent more often (Chen et al. 2023).

Clients come in batches. The pair a client is asked about is drawn by the server from what earlier batches said, never from the
client's own data, so each client has epsilon-LDP by its one answer (sequentially interactive). As published: both values by
randomised response with half the epsilon each, LASSO, and a data set built by swaps. Beside it, and better: one
subset-selection report about the pair with the whole epsilon, and a graphical model.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import out_of_range
from populace.models.estimation import NoisyTable, project_to_simplex, regress
from populace.models.generator import Generator
from populace.models.graphical import dependence, fit_graphical_model, pool_singles
from populace.models.records import Records, move_to_marginals, move_to_pair
from populace.models.tree import TreeGenerator
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.randomizers.grr import GrrPanel
from populace.privacy.source import Source
from populace.protocols import survey
from populace.protocols.base import Ask, Facts, Plan, Population, Protocol, Replies, Shard, choose_record
from populace.tables.schema import Schema

Array = Any
MOST_ROWS = 60_000
LEAST_SHARE = 0.02  # of an even choice: no pair is ever written off


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    round: Array
    coin: Array
    counts: survey.SupportCounts


@functools.lru_cache(maxsize=32)
def survey_for(schema: Schema, epsilon: float) -> survey.Survey:
    """One question per pair: d(d - 1)/2 of them (the paper's text has d(d - 2)/2)."""
    columns = range(len(schema.columns))
    pairs = tuple(itertools.combinations(columns, 2)) or ((0,),)
    return survey.Survey(schema, pairs, epsilon)


@functools.lru_cache(maxsize=32)
def halves_for(schema: Schema, epsilon: float) -> GrrPanel:
    return GrrPanel(sizes=schema.sizes, epsilon=epsilon / 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamPrivSyn(Protocol):
    """Guarantee: epsilon-LDP, pure, for everything a client holds. One report (`joint`), or two of epsilon/2 (`split-krr`).

    Edge cases: a client is asked once, and its ledger refuses a second time; a client without records answers as if its
    values were drawn evenly; with one column there is one question.
    """

    epsilon: float
    oracle: Literal["split-krr", "joint"] = "joint"
    estimate: Literal["lasso", "projected", "pgm"] = "pgm"
    choice: Literal["mutual-information", "dependence", "uniform"] = "dependence"
    batch: int = 2_000

    facts: ClassVar[Facts] = Facts(
        name="samprivsyn",
        title="two-way tables of pairs chosen as answers come in",
        paper="Chen et al., Sci. China Inf. Sci. 2023",
        trust=("local",),
        unit="client",
        kinds=("table",),
        traffic="one report of a few bytes per client, one round per batch of clients",
    )

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if self.batch < 1:
            raise out_of_range("batch", "at least 1", self.batch)

    def rounds(self, population: Population) -> int:
        return -(-population.clients // self._cohort(population))

    def _cohort(self, population: Population) -> int:
        return min(self.batch, population.clients)

    def begin(self, population: Population, key: Array, warm: Any = None) -> State:
        asked = survey_for(population.table_schema, self.epsilon)
        return State(round=jnp.int32(0), coin=key, counts=survey.no_counts(asked))

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        if survey.is_over(state.round, self.rounds(population)):
            return None
        size = self._cohort(population)
        coin = jax.random.fold_in(state.coin, state.round)
        shares = jnp.asarray(self.shares(state, population.table_schema))
        own = jax.random.choice(coin, len(shares), (size,), p=shares).astype(jnp.int32)
        return Ask(
            round=state.round, cohort=survey.cohort_of(state.round, size, population.clients), common=(), own=own
        )

    def charge(self, ask: Ask, population: Population) -> Charge:
        schema = population.table_schema
        if self.oracle == "joint" or len(schema.columns) == 1:
            return Charge(event=survey_for(schema, self.epsilon).panel.event, unit="client")
        return Charge(event=halves_for(schema, self.epsilon).event(2), unit="client")

    def answer(self, common: Any, own: Array, shard: Shard, memory: Any, source: Source) -> tuple[Array, Any]:
        asked = survey_for(shard.table_schema, self.epsilon)
        if self.oracle == "joint" or len(asked.groups[0]) == 1:
            return asked.answer(own, shard, source), memory
        panel = halves_for(shard.table_schema, self.epsilon)
        pair = jnp.asarray(np.asarray(asked.groups, np.int32))[own]
        which, empty, noise = source.split(3)
        record, any_record = choose_record(shard, which)
        sizes = jnp.asarray(np.asarray(shard.table_schema.sizes, np.int32))[pair]
        uniform = jnp.stack([part.below(size) for part, size in zip(empty.split(2), sizes, strict=True)])
        told = panel.apply(jnp.where(any_record, jnp.asarray(record)[pair], uniform), pair, noise)
        cell = told[0] * sizes[1] + told[1]
        return jnp.arange(asked.panel.width) == cell, memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        counts = survey.add_replies(state.counts, ask.own, replies)
        return dataclasses.replace(state, round=state.round + 1, counts=counts)

    def shares(self, state: State, schema: Schema) -> Array:
        """How often each pair is asked next, from earlier answers alone: even at first, then by what looks dependent.

        The plug-in mutual information of the paper grows with the noise of a pair; `dependence` takes the noise off
        (research: about K/2 times the variance), so it asks where there is something to learn.
        """
        pairs = len(state.counts.answers)
        even = np.full(pairs, 1 / pairs)
        if self.choice == "uniform" or int(state.round) == 0 or pairs == 1:
            return even
        if self.choice == "mutual-information":
            scores = np.array(
                [survey.mutual_information(project_to_simplex(t)) for t in self.pair_tables(state.counts, schema)]
            )
        else:
            scores = self._dependence(state.counts, schema)
        if not scores.sum() > 0:
            return even
        return (1 - LEAST_SHARE) * scores / scores.sum() + LEAST_SHARE * even

    def _dependence(self, counts: survey.SupportCounts, schema: Schema) -> Array:
        asked = survey_for(schema, self.epsilon)
        tables = dataclasses.replace(self, estimate="pgm").pair_tables(counts, schema)
        deviations = self.deviations(counts, schema)
        noisy = [
            NoisyTable(pair, table, float(deviation) if math.isfinite(deviation) else 1.0)
            for pair, table, deviation in zip(asked.groups, tables, deviations, strict=True)
        ]
        singles = pool_singles(schema.sizes, noisy)
        return np.maximum([dependence(table, singles) for table in noisy], 0.0)

    def finish(self, state: State, population: Population, key: Array) -> Generator:
        schema = population.table_schema
        tables = self.pair_tables(state.counts, schema)
        if self.estimate == "pgm":
            deviations = self.deviations(state.counts, schema)
            asked = survey_for(schema, self.epsilon)
            measured = [
                (pair, table, float(deviation))
                for pair, table, deviation in zip(asked.groups, tables, deviations, strict=True)
                if math.isfinite(deviation)
            ]
            return TreeGenerator(schema=schema, tree=fit_graphical_model(schema.sizes, measured))
        return self.build_records(tables, population, key)

    def pair_tables(self, counts: survey.SupportCounts, schema: Schema) -> list[Array]:
        """Estimated tables of all pairs: unbiased for pgm, distributions otherwise."""
        asked = survey_for(schema, self.epsilon)
        if self.oracle == "joint" or len(asked.groups[0]) == 1:
            unbiased = asked.estimates(counts)
            channels = [_subset_channel(member.p, member.q, member.size) for member in asked.panel.members]
        else:
            panel = halves_for(schema, self.epsilon)
            pairs = [tuple(_krr_channel(panel.members[c].p, panel.sizes[c]) for c in group) for group in asked.groups]
            unbiased = [
                _invert_pair(_shares(counts, i, shape), pair)
                for i, (shape, pair) in enumerate(zip(asked.shapes, pairs, strict=True))
            ]
            channels = [np.kron(*pair) for pair in pairs] if self.estimate == "lasso" else []
        if self.estimate == "pgm":
            return unbiased
        if self.estimate == "projected":
            return [project_to_simplex(table) for table in unbiased]
        supports, answers = np.asarray(counts.supports), np.asarray(counts.answers)
        return [
            regress(channel, supports[i, : len(channel)] / max(answers[i], 1)).reshape(shape)
            for i, (channel, shape) in enumerate(zip(channels, asked.shapes, strict=True))
        ]

    def deviations(self, counts: survey.SupportCounts, schema: Schema) -> Array:
        """Standard deviation of a cell of each unbiased pair table."""
        asked = survey_for(schema, self.epsilon)
        if self.oracle == "joint" or len(asked.groups[0]) == 1:
            return asked.deviations(counts)
        members = halves_for(schema, self.epsilon).members
        answers = np.asarray(counts.answers, np.float64)
        cells = np.array([_split_variance(members[a].p, members[b].p, members[a].size, members[b].size)
                          for a, b in asked.groups])  # fmt: skip
        with np.errstate(divide="ignore"):
            return np.sqrt(cells / answers)

    def build_records(self, tables: list[Array], population: Population, key: Array) -> Records:
        """The paper's generator: a random data set moved to the one-way tables, then pair by pair by swaps (algorithm 2)."""
        schema = population.table_schema
        asked = survey_for(schema, self.epsilon)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        information = np.array([survey.mutual_information(table) for table in tables])
        rows = min(MOST_ROWS, max(population.clients, 1_000))
        codes = np.stack([rng.integers(0, size, rows) for size in schema.sizes], axis=1)
        codes = move_to_marginals(codes, one_way_tables(tables, asked.groups, information, schema), rng)
        settled: dict[int, list[int]] = {column: [] for column in range(len(schema.columns))}
        by_pair = dict(zip(asked.groups, tables, strict=True))
        for pair in _chain_first(asked.groups):
            if len(pair) == 2:
                codes = move_to_pair(codes, pair, by_pair[pair], rng, within=_settled(codes, settled[pair[1]]))
                settled[pair[0]].append(pair[1])
                settled[pair[1]].append(pair[0])
        return Records(schema=schema, codes=codes, weights=np.ones(len(codes)))

    def guarantee(self, population: Population) -> Guarantee:
        told = (
            "one subset-selection report about the pair"
            if self.oracle == "joint"
            else "two values by randomised response"
        )
        return survey.one_report_guarantee(
            self.epsilon,
            population,
            mechanism=f"{told} of columns the client was asked about, each client once",
            derivation=(
                f"each client answers once: {self.charge(None, population).event}",  # type: ignore[arg-type]
                "the pair is drawn from earlier clients' randomised answers and a public coin, never from the client's data",
            ),
        )

    def plan(self, population: Population) -> Plan:
        schema = population.table_schema
        asked = survey_for(schema, self.epsilon)
        even = survey.SupportCounts(
            supports=np.zeros((len(asked.groups), 1)),
            answers=np.full(len(asked.groups), population.clients / len(asked.groups)),
        )
        deviations = self.deviations(even, schema)
        distances = np.minimum(1, 0.5 * np.asarray(asked.panel.sizes) * deviations * math.sqrt(2 / math.pi))
        down, up = self.reply_bytes(None, population)  # type: ignore[arg-type]
        return Plan(
            guarantee=self.guarantee(population),
            rounds=self.rounds(population),
            bytes_up=up,
            bytes_down=down,
            errors={"two-way total variation distance, mean over pairs, before the model": float(np.mean(distances))},
            notes=("the model pools pairs and usually does better than each pair's own table",),
        )

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        asked = survey_for(population.table_schema, self.epsilon)
        down, up = asked.wire_bytes()
        if self.oracle == "joint" or len(asked.groups[0]) == 1:
            return down, up
        members = halves_for(population.table_schema, self.epsilon).members
        return down, float(np.mean([members[a].wire_bytes + members[b].wire_bytes for a, b in asked.groups]))


def one_way_tables(tables: list[Array], pairs: survey.Groups, information: Array, schema: Schema) -> list[Array]:
    """Each column's table: what its pairs say, weighted with their mutual information (eq. 11, with the sum it lacks)."""
    found = []
    for column, size in enumerate(schema.sizes):
        weights, views = [], []
        for pair, table, weight in zip(pairs, tables, information, strict=True):
            if column in pair:
                axis = tuple(i for i in range(len(pair)) if pair[i] != column)
                views.append(np.asarray(table).sum(axis=axis))
                weights.append(weight + 1e-6)
        found.append(np.average(views, axis=0, weights=weights) if views else np.full(size, 1 / size))
    return [project_to_simplex(table) for table in found]


def _chain_first(pairs: survey.Groups) -> list[tuple[int, ...]]:
    """(1, 2), (2, 3), ... and then the rest (section 4.2.2)."""
    return sorted(pairs, key=lambda pair: (pair[-1] - pair[0] != 1, pair))


def _settled(codes: Array, columns: list[int]) -> Array:
    """One number per combination of the columns whose tables with this one must not change any more."""
    group = np.zeros(len(codes), np.int64)
    for column in columns:
        _, group = np.unique(group * (codes[:, column].max() + 1) + codes[:, column], return_inverse=True)
    return group


def _krr_channel(p: float, size: int) -> Array:
    q = (1 - p) / (size - 1) if size > 1 else 0.0
    return np.full((size, size), q) + (p - q) * np.eye(size)


def _subset_channel(p: float, q: float, size: int) -> Array:
    return np.full((size, size), q) + (p - q) * np.eye(size)


def _shares(counts: survey.SupportCounts, question: int, shape: tuple[int, ...]) -> Array:
    """Shares of the randomised pairs of values, as a table."""
    told = np.asarray(counts.supports[question, : math.prod(shape)], np.float64).reshape(shape)
    return told / max(told.sum(), 1.0) if told.sum() else np.full(shape, 1 / math.prod(shape))


def _invert_pair(shares: Array, channels: tuple[Array, ...]) -> Array:
    """Unbiased table of a pair whose values were randomised one by one (eq. 7, by solving, not by inverting)."""
    first, second = channels
    return np.linalg.solve(second, np.linalg.solve(first, shares).T).T


def _split_variance(p_first: float, p_second: float, first: int, second: int) -> float:
    """Variance of a cell of one report's inverted pair, for a cell of average weight, sampling included."""
    total = 1.0
    for p, size in ((p_first, first), (p_second, second)):
        q = (1 - p) / (size - 1) if size > 1 else 0.0
        told = q + (p - q) / size
        total *= (told * (1 - q) ** 2 + (1 - told) * q**2) / (p - q) ** 2
    return total - (1 / (first * second)) ** 2
