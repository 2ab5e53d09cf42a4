"""`census`: every silo counts the tables of all pairs of columns, with noise; one mixture of products is fitted to their sum.

Stage 0, where columns have more codes than cells (numbers on a fine grid, long lists): one-way tables of their codes, of which
cells are made. Stage 1: the table of every pair of columns, with the target where there is one. Counts are whole numbers and
add up, so that it does not matter which silo holds what; each silo adds noise (`silo`), or the server once (`central`).
Everything after the sums is post-processing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError, out_of_range
from populace.methods.base import (
    NUMBER,
    Ask,
    Facts,
    Population,
    Replies,
    Shard,
    check_counts,
    check_not_negative,
    check_shares,
)
from populace.methods.blocks.composed import ComposedMethod, Composition, Learner, Wording
from populace.methods.blocks.latent_class import LatentClass
from populace.methods.blocks.schedules import Stages
from populace.methods.blocks.sum_settings import check_sum_settings, sum_assumptions, sum_sites
from populace.methods.census.cells import Coarse, grouped, present_cells, unseen
from populace.methods.census.counting import one_way_counts
from populace.methods.census.fit import Observed, Settings, fit_mixture
from populace.methods.census.persons import MOST_ROWS, Contribution, contribution_of
from populace.methods.census.release import Shares, StagedRelease, shared_out
from populace.methods.census.tables import PairTables
from populace.privacy.accounting import resolved_delta
from populace.privacy.events import Gaussian
from populace.privacy.gaussian import MOST_TOTAL, GaussianSum
from populace.privacy.guarantee import Unit
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.source import Source
from populace.tables.schema import Schema
from populace.tables.universal import TWO_VALUES, is_open, released, trimmed_schema
from populace.types import Array, ArrayTree, NumpyArray

MOST_OUTCOMES = 8  # values of a target up to which it stands in every table
LEAST = 1e-12  # probability of a cell that is there
AT_ONCE = 2**24  # numbers of a block's replies
COUNTED_ON_HOST = 2**12  # records of a silo from which on they are counted by NumPy, not by compiled products


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sums:
    """What the silos sent, added up, 64 bits wide, and how many messages each stage had: nothing that has no noise."""

    one_way: Array
    pairs: Array
    messages: Array


@dataclasses.dataclass(frozen=True)
class CensusLearner(Learner):
    """Counting at the silo, cells and mixture at the server."""

    schema: Schema
    coarse: Coarse
    tables: PairTables
    schedule: Stages
    release: StagedRelease
    settings: Settings
    contribution: Contribution

    def begin(self, key: Array, warm: Any = None) -> Sums:
        del key, warm
        return Sums(
            one_way=np.zeros(self.coarse.numbers, np.int64),
            pairs=np.zeros((self.tables.outcomes, self.tables.entries), np.int64),
            messages=np.zeros(self.schedule.stages, np.int32),
        )  # fmt: skip

    def _is_first(self, number: int) -> bool:
        """Whether an exchange is about codes of long columns."""
        return bool(self.coarse.columns) and self.schedule.stage(number)[0] == 0

    def question(self, state: Sums, number: Array) -> dict[str, Array]:
        if self._is_first(int(number)):
            return {"codes": jnp.int32(0)}
        return {"cells": jnp.asarray(self._cells_and_shares(state)[0], jnp.int32)}

    def example(self, number: int) -> dict[str, Array]:
        return (
            {"codes": jnp.int32(0)}
            if self._is_first(number)
            else {"cells": jnp.zeros(sum(self.schema.sizes), jnp.int32)}
        )

    def answer(self, question: ArrayTree, own: ArrayTree, shard: Shard, source: Source) -> Array:
        units, source = self.contribution.units(shard, source)
        if "codes" in question:
            return self.release.at_client(0, self._one_way(shard.records, units), source)
        cells = question["cells"]
        if _traced(shard.records, units, cells):
            counts = self.tables.counts(self._as_cells(shard.records, cells), units)
        else:
            counts = self.tables.counts(shard.records, units, self._cells_of_codes(cells))
        return self.release.at_client(self.schedule.stages - 1, counts, source)

    def _one_way(self, records: Array, units: Array) -> Array:
        """How many records have each code of the long columns, each as often as it counts."""
        sizes = [self.schema.sizes[column] for column in self.coarse.columns]
        if _traced(records, units):
            pairs = zip(self.coarse.columns, sizes, strict=True)
            often = jnp.asarray(units, jnp.int32)
            return jnp.concatenate(
                [jnp.zeros(size, jnp.int32).at[records[:, column]].add(often) for column, size in pairs]
            )
        counts = one_way_counts(np.asarray(records), self.coarse.columns, sizes, np.asarray(units))
        return np.concatenate(counts).astype(np.int32)

    def _as_cells(self, records: Array, cells: Array) -> Array:
        """Records by their cells, as `_cells_of_codes` says them; can be traced."""
        numpy = jnp if _traced(records, cells) else np
        places = numpy.asarray(records) + np.cumsum([0, *self.schema.sizes[:-1]])
        last = np.array(self.coarse.sizes) - 1
        found: Array = numpy.clip(numpy.asarray(cells)[places], 0, last)
        return found

    def _cells_of_codes(self, cells: Array) -> list[NumpyArray]:
        """The cell of each code, by column; a cell that a column does not have counts as its last, whatever a server says."""
        by_column = np.split(np.asarray(cells), np.cumsum(self.schema.sizes[:-1]))
        return [np.clip(each, 0, size - 1) for each, size in zip(by_column, self.coarse.sizes, strict=True)]

    def absorb(self, state: Sums, ask: Ask, replies: Replies, source: Source) -> Sums:
        number = int(ask.round)
        stage, block = self.schedule.stage(number)
        total, answered = self.release.total(replies)
        if block == 0:
            total = self.release.at_server(stage, total, source)
        messages = np.array(state.messages)
        messages[stage] += answered
        state = dataclasses.replace(state, messages=messages)
        if not self._is_first(number):
            return dataclasses.replace(state, pairs=np.asarray(state.pairs) + total)
        return dataclasses.replace(state, one_way=np.asarray(state.one_way) + total)

    def _cells_and_shares(self, state: Sums) -> tuple[NumpyArray, NumpyArray]:
        """The cell of every code of every column, and each code's share of its cell."""
        cells, shares = _codes_as_cells(self.schema), np.ones(sum(self.schema.sizes))
        starts = np.cumsum([0, *self.schema.sizes])
        if self.coarse.columns:
            deviation = self.release.deviation(0, int(state.messages[0]))
            for column, start in self.coarse.starts().items():
                size = self.schema.sizes[column]
                counts = np.asarray(state.one_way)[start : start + size]
                where = slice(starts[column], starts[column + 1])
                cells[where], shares[where] = grouped(self.schema.columns[column], counts, deviation)
        return cells, shares

    def _doubtful(self, state: Sums) -> NumpyArray:
        """Codes of open columns that perhaps nobody has: what no list names, "no value", and where one-way tables are empty."""
        found, starts, deviation = [], self.coarse.starts(), 0.0
        if starts:
            deviation = self.release.deviation(0, int(state.messages[0]))
        for number, column in enumerate(self.schema.columns):
            doubtful = np.zeros(column.size, bool)
            if is_open(column) and number in starts:
                counts = np.asarray(state.one_way)[starts[number] :][: column.size]
                doubtful = unseen(column, counts, deviation)
            elif is_open(column) or column.source == TWO_VALUES:
                doubtful[column.levels :] = True
            if column.domain == "released" and column.other:
                doubtful[column.categories.index(column.other)] = True
            found.append(doubtful)
        return np.concatenate(found)

    def observed(self, state: Sums) -> Observed:
        """The noisy shares of records (of persons, where each counts as one) in every cell, and their noise."""
        weights = self.contribution.whole * self.tables.weights[self.tables.pair_of_entry]
        counts = np.asarray(state.pairs, np.float64) / weights
        tables = np.bincount(self.tables.pair_of_entry, counts.sum(axis=0), minlength=len(self.tables.pairs))
        cells = np.bincount(self.tables.pair_of_entry)
        precision = self.tables.weights**2 / cells  # of a table's total
        records = max(1.0, float(np.average(tables, weights=precision)))
        deviation = self.release.deviation(self.schedule.stages - 1, int(state.messages[-1]))
        return Observed(counts / records, deviation / weights / records)

    def finish(self, state: Sums, key: Array) -> LatentClass:
        cells, shares = self._cells_and_shares(state)
        observed = self.observed(state)
        mixture = fit_mixture(self.tables, observed, self.settings, key)
        column = np.repeat(np.arange(len(self.schema.sizes)), self.schema.sizes)
        places = np.cumsum([0, *self.coarse.sizes])[column] + cells
        shares = shares * (np.concatenate(present_cells(self.tables, observed))[places] | ~self._doubtful(state))

        def at_codes(tables: NumpyArray) -> NumpyArray:
            fine = (tables[..., places] + LEAST) * shares
            totals = np.add.reduceat(fine, np.cumsum([0, *self.schema.sizes[:-1]]), axis=-1)
            return np.asarray(fine / totals[..., column], np.float32)

        members, components = mixture.weights.shape
        tables, draws = at_codes(mixture.tables), at_codes(mixture.draw_tables)
        schema, kept = trimmed_schema(
            self.schema, np.asarray((tables > 0).any(axis=(0, 1)) | (draws > 0).any(axis=(0, 1)))
        )
        return LatentClass(
            schema=schema, weights=mixture.weights.reshape(-1) / members,
            tables=kept(tables).reshape(members * components, -1), draws=(mixture.draw_weights, kept(draws)),
        )  # fmt: skip

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        codes, cells = (
            (0.0, NUMBER * self.coarse.numbers),
            (NUMBER * sum(self.schema.sizes), NUMBER * self.tables.numbers),
        )
        if ask is not None:
            return codes if self._is_first(int(ask.round)) else cells
        if not self.coarse.columns:
            return cells
        return (codes[0] + cells[0]) / 2, (codes[1] + cells[1]) / 2

    def notes(self) -> tuple[str, ...]:
        stage = self.schedule.stages - 1
        weight = self.contribution.whole * float(np.mean(self.tables.weights))
        noise = self.release.deviation(stage, self.schedule.clients) / weight
        kind = "pairs of columns" if self.tables.target is None else "pairs of columns with the target"
        return (
            f"{len(self.tables.pairs):,} tables of {kind}, {self.tables.numbers:,} cells in one message; noise on a count of "
            f"the sum {noise:,.1f}",
            *(
                (f"cells of {len(self.coarse.columns)} columns follow from one-way tables of their codes",)
                if self.coarse.columns
                else ()
            ),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Census(ComposedMethod):
    """Guarantee: (epsilon, delta)-DP for one record zeroed out: `silo`, each silo's messages by themselves; `secure-sum`,
    the opened sums, for the server with as many silos as may collude; or `central`, the sums of all messages, for whoever does
    not see the messages. A record adds a public weight to one cell of every table,
    whatever cells a server asks for, so that the L2 sensitivity of a message is exact. With `unit="person"` the same holds for
    one person with all their rows at a silo, zeroed out: rows count in whole units, of which a person has a fixed number
    (`census.persons` has the rules and the proof), and the model is of persons, each of whom counts once.

    Edge cases: a silo without records sends noise (`silo`) or zeros. A silo that misses a stage is missing from that stage's
    sums alone. A target of more than `MOST_OUTCOMES` cells stands in pairs like any other column.
    """

    epsilon: float
    delta: float = 0.0
    trust: Literal["silo", "secure-sum", "central"] = "silo"
    colluders: int = 0
    dropouts: int = 0
    target: str | None = ""
    domain_share: float = 0.1
    lists_share: float = 0.0
    unit: Literal["record", "person"] = "record"
    rows_per_person: int = 0
    components: int = 40
    members: int = 8
    fit_steps: int = 1_000
    prior_precision: float = 0.0
    message_megabytes: float = 50.0

    facts: ClassVar[Facts] = Facts(
        name="census",
        line="noisy tables of all pairs, by silos",
        title="noisy tables of all pairs of columns in one message per silo; a mixture of products at the server",
        paper="populace",
        trust=("silo", "secure-sum", "central"),
        unit="record",
        kinds=("table",),
        traffic="one or two messages of at most 50 MB per silo",
        persons=True,
    )
    small: ClassVar[Mapping[str, Any]] = {"components": 3, "members": 2, "fit_steps": 10}
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The privacy budget of one record.",
        "delta": "The probability with which epsilon may fail; 0: from the number of records, by a public rule.",
        "trust": "Who adds the noise: each silo to its own message, all silos in shares to a sum that nobody opens into its "
        "parts (secure-sum), or a trusted server once to the sum (central).",
        "colluders": "Under secure-sum: how many silos may work together with the server.",
        "dropouts": "Under secure-sum: how many silos may be missing from a sum; every one costs noise.",
        "target": "The column that stands in every table: by default the schema's target, none for no target.",
        "domain_share": "The share of the budget for one-way tables of long columns, where there are any.",
        "lists_share": "The share of the budget for lists of categories that silos release first; 0: domains are declared.",
        "unit": "Whom the budget protects: one record, or one person with all their rows at a silo (see --person).",
        "rows_per_person": "Of a person, how many rows count, as one each; 0: all rows, which share the weight of one.",
        "components": "The components of each fitted mixture, for every value of the target.",
        "members": "How many mixtures are fitted from other starts and averaged.",
        "fit_steps": "The steps of each fit.",
        "prior_precision": "How strongly components are pulled towards the one-way tables; 0: by the noise.",
        "message_megabytes": "The most megabytes that a silo sends at once.",
    }
    vectorises: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if self.trust not in self.facts.trust:
            raise SpecError(f"expected trust in {', '.join(self.facts.trust)}, got {self.trust!r}")
        check_sum_settings(self.trust, colluders=self.colluders, dropouts=self.dropouts)
        if self.unit not in ("record", "person"):
            raise SpecError(f"expected unit in record, person, got {self.unit!r}")
        if not 0 <= self.rows_per_person <= MOST_ROWS:
            raise out_of_range("rows_per_person", f"in 0 to {MOST_ROWS}", self.rows_per_person)
        if self.rows_per_person and self.unit == "record":
            raise SpecError("rows_per_person is for persons: name their column with --person, or leave it out")
        check_shares(delta=self.delta)
        check_counts(components=self.components, members=self.members, fit_steps=self.fit_steps)
        if not 0 < self.domain_share < 1:
            raise out_of_range("domain_share", "in (0, 1)", self.domain_share)
        if not 0 <= self.lists_share < 1:
            raise out_of_range("lists_share", "in [0, 1)", self.lists_share)
        check_not_negative(prior_precision=self.prior_precision)
        if not 0 < self.message_megabytes < 2_000:
            raise out_of_range("message_megabytes", "above 0 and below 2,000", self.message_megabytes)

    @property
    def protected_unit(self) -> Unit:
        return self.unit

    def on_host(self, population: Population) -> bool:
        return population.records >= COUNTED_ON_HOST

    def compose(self, population: Population) -> Composition:
        schema = population.table_schema
        coarse = Coarse(schema)
        tables = PairTables(coarse.sizes, self._target(schema, coarse.sizes))
        if NUMBER * tables.numbers > 1e6 * self.message_megabytes:
            raise SpecError(
                f"a message would hold {tables.numbers:,} cells, {NUMBER * tables.numbers / 1e6:,.0f} MB; allow more with "
                "message_megabytes, or leave columns out"
            )
        room = MOST_TOTAL // (population.records * int(tables.weights.max()))
        if not room:
            raise SpecError(f"counts of {population.records:,} records of one silo do not fit into 32 bits")
        contribution = contribution_of(self.unit, rows=self.rows_per_person, room=room)
        delta, chosen_delta = resolved_delta(self.delta, population.clients * population.records)
        stages = 2 if coarse.columns else 1
        budget = shared_out(
            epsilon=self.epsilon, delta=delta, stages=stages, domain_share=self.domain_share, lists_share=self.lists_share,
            listed=len(released(schema)),
        )  # fmt: skip
        multipliers = budget.stages
        sums = (((math.sqrt(len(coarse.columns)), coarse.numbers),) if coarse.columns else ()) + (
            (tables.bound, tables.numbers),
        )
        release = StagedRelease(
            unit=self.unit, trust=self.trust, delta=delta, lists=budget.lists, spare=budget.spare,
            sites=sum_sites(self.trust, population.clients, colluders=self.colluders, dropouts=self.dropouts),
            most=float(population.clients * population.records * contribution.most * int(tables.weights.max())),
            wording=self._wording(coarse, tables, budget, chosen_delta, contribution),
            mechanisms=tuple(
                GaussianSum(bound=contribution.most * bound, noise_multiplier=multiplier, size=size, whole=True)
                for (bound, size), multiplier in zip(sums, multipliers, strict=True)
            ),
            blocks=-(-population.clients // self._block(population, tables)),
        )  # fmt: skip
        schedule = Stages(clients=population.clients, block=self._block(population, tables), stages=stages)
        settings = Settings(
            components=self.components, members=self.members, steps=self.fit_steps, pull=self.prior_precision
        )
        learner = CensusLearner(schema, coarse, tables, schedule, release, settings, contribution)
        return Composition(schedule, release, learner)

    def _block(self, population: Population, tables: PairTables) -> int:
        """Silos whose messages are held in memory together: all of those whose sum is opened."""
        return (
            population.clients
            if self.trust == "secure-sum"
            else min(population.clients, max(1, AT_ONCE // tables.numbers))
        )

    def _target(self, schema: Schema, sizes: tuple[int, ...]) -> int | None:
        name = None if self.target is None else self.target or schema.target
        if name is None or len(sizes) == 1:
            return None
        column = schema.index(name)
        return column if sizes[column] <= MOST_OUTCOMES else None

    def _wording(
        self, coarse: Coarse, tables: PairTables, budget: Shares, chosen_delta: tuple[str, ...], rule: Contribution
    ) -> Wording:
        multipliers, found = budget.stages, any(map(is_open, coarse.schema.columns))
        public = "kinds, precision and how dates, truth values and missing values are written" if found else "kinds"
        at_silo = self.trust == "silo"
        by = "in shares of all silos" if self.trust == "secure-sum" else "at the server"
        who = "each silo's own message" if at_silo else f"the sum of all silos' messages, {by}"
        long = len(coarse.columns)
        first = (
            f"one-way tables of {long} columns: {Gaussian(multipliers[0])}; a record adds 1 to one of "
            f"{coarse.numbers:,} counts for each column, {math.sqrt(long):.6g} in L2{rule.of_persons(math.sqrt(long))}"
        )
        return Wording(
            mechanism=f"noisy counts of the tables of all pairs of columns{rule.counted}; noise on {who}",
            derivation=(
                *budget.in_words(self.unit),
                *((rule.rule,) if rule.rule else ()),
                *((first,) if coarse.columns else ()),
                f"tables of pairs: {Gaussian(multipliers[-1])}; a record adds to one cell of each of {len(tables.pairs):,} "
                f"tables, {tables.bound:.6g} in L2, exactly, whatever the cells are{rule.of_persons(tables.bound)}",
                *(("all composed by privacy loss distributions",) if coarse.columns or budget.lists else ()),
                "counts are whole numbers and noise is rounded to whole numbers; cells, mixture and all sampling are "
                "post-processing",
            ),
            assumptions=(
                f"column names, {public}, the number of silos and the most records of one are public",
                *sum_assumptions(self.trust),
                *rule.assumptions,
                *chosen_delta,
            ),
        )


def _codes_as_cells(schema: Schema) -> NumpyArray:
    """Every code its own cell."""
    return np.concatenate([np.arange(size, dtype=np.int32) for size in schema.sizes])


def _traced(*arrays: Array) -> bool:
    return any(isinstance(array, jax.core.Tracer) for array in arrays)
