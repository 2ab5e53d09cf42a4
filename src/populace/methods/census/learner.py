"""What silos count for `census`, and what the server makes of the sums: cells, weights of tables, and the mixture."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.base import NUMBER, Ask, Costs, Replies, Shard
from populace.methods.blocks.composed import Learner
from populace.methods.blocks.latent_class import LatentClass
from populace.methods.blocks.schedules import Stages
from populace.methods.census.cells import Grouping, codes_as_cells, present_cells
from populace.methods.census.costs import predicted_costs
from populace.methods.census.first_stage import SHORT_WEIGHT, FirstStage
from populace.methods.census.fit import (
    SHORTEST_SCALE,
    Grouped,
    Mixture,
    Observed,
    Settings,
    fit_mixture,
    matched,
    smoothing,
)
from populace.methods.census.persons import Contribution
from populace.methods.census.release import StagedRelease
from populace.methods.census.scale_pairs import ScalePairs
from populace.methods.census.table_weights import chosen_weights, impurity
from populace.methods.census.tables import WEIGHT_UNITS, PairTables
from populace.privacy.source import Source
from populace.tables.schema import Schema
from populace.tables.universal import TWO_VALUES, is_open, trimmed_schema
from populace.types import Array, ArrayTree, NumpyArray

LEAST = 1e-12  # probability of a cell that is there


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sums:
    """What the silos sent, added up, 64 bits wide, and how many messages each stage had: nothing that has no noise."""

    one_way: Array
    pairs: Array
    scale_pairs: Array
    messages: Array


@dataclasses.dataclass(frozen=True)
class CensusLearner(Learner):
    """Counting at the silo, cells and mixture at the server."""

    schema: Schema
    first: FirstStage
    tables: PairTables
    scale_pairs: ScalePairs
    schedule: Stages
    release: StagedRelease
    settings: Settings
    contribution: Contribution
    records: int = 0  # the most of a silo

    def begin(self, key: Array, warm: Any = None) -> Sums:
        del key, warm
        return Sums(
            one_way=np.zeros(self.first.numbers, np.int64),
            pairs=np.zeros((self.tables.outcomes, self.tables.places), np.int64),
            scale_pairs=np.zeros(self.scale_pairs.numbers, np.int64),
            messages=np.zeros(self.schedule.stages, np.int32),
        )  # fmt: skip

    def _is_first(self, number: int) -> bool:
        """Whether an exchange is about codes of single columns."""
        return bool(self.first.parts) and self.schedule.stage(number)[0] == 0

    def question(self, state: Sums, number: Array) -> dict[str, Array]:
        if self._is_first(int(number)):
            return {"codes": jnp.int32(0)}
        cells = np.concatenate([one.cell for one in self._groupings(state)])
        weights = {"weights": jnp.asarray(self._weights(state), jnp.int32)} if self.first.wide else {}
        groups = {"groups": jnp.asarray(self._groups(state), jnp.int32)} if self.scale_pairs.columns else {}
        return {"cells": jnp.asarray(cells, jnp.int32), **weights, **groups}

    def example(self, number: int) -> dict[str, Array]:
        if self._is_first(number):
            return {"codes": jnp.int32(0)}
        weights = {"weights": jnp.zeros(len(self.tables.pairs), jnp.int32)} if self.first.wide else {}
        groups = {"groups": jnp.zeros(self.scale_pairs.asked, jnp.int32)} if self.scale_pairs.columns else {}
        return {"cells": jnp.zeros(sum(self.schema.sizes), jnp.int32), **weights, **groups}

    def answer(self, question: ArrayTree, own: ArrayTree, shard: Shard, source: Source) -> Array:
        units, source = self.contribution.units(shard, source)
        if "codes" in question:
            return self.release.at_client(0, self.first.counts(shard.records, units), source)
        cells = question["cells"]
        weights = self.tables.permitted(question["weights"]) if "weights" in question else None
        records, of_codes = shard.records, None
        if any(isinstance(one, jax.core.Tracer) for one in (shard.records, units, *question.values())):
            records = self._as_cells(shard.records, cells)
        else:
            of_codes = self._cells_of_codes(cells)
        counts = self.tables.counts(records, units, of_codes, weights)
        if self.scale_pairs.columns:
            between = self.scale_pairs.counts(records, units, question["groups"], of_codes)
            numpy = np if isinstance(counts, np.ndarray) else jnp
            counts = numpy.concatenate([counts.reshape(-1), between])
        return self.release.at_client(self.schedule.stages - 1, counts, source)

    def _as_cells(self, records: Array, cells: Array) -> Array:
        """Records by their cells, as `_cells_of_codes` says them; can be traced."""
        places = jnp.asarray(records) + np.cumsum([0, *self.schema.sizes[:-1]])
        found: Array = jnp.clip(jnp.asarray(cells)[places], 0, np.array(self.tables.sizes) - 1)
        return found

    def _cells_of_codes(self, cells: Array) -> list[NumpyArray]:
        """The cell of each code, by column; a cell that a column does not have counts as its last, whatever a server says."""
        by_column = np.split(np.asarray(cells), np.cumsum(self.schema.sizes[:-1]))
        return [np.clip(each, 0, size - 1) for each, size in zip(by_column, self.tables.sizes, strict=True)]

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
            pairs, between = np.split(np.asarray(total).reshape(-1), [self.tables.numbers])
            pairs = np.asarray(state.pairs) + pairs.reshape(state.pairs.shape)
            return dataclasses.replace(state, pairs=pairs, scale_pairs=np.asarray(state.scale_pairs) + between)
        return dataclasses.replace(state, one_way=np.asarray(state.one_way) + total)

    def _first_noise(self, state: Sums) -> float:
        """The standard deviation of noise in the sums of the first stage."""
        return self.release.deviation(0, int(state.messages[0]))

    def _groupings(self, state: Sums) -> list[Grouping]:
        """The cells of every column."""
        if not self.first.parts:
            return [codes_as_cells(column) for column in self.schema.columns]
        return self.first.groupings(np.asarray(state.one_way), self._first_noise(state))

    def _groups(self, state: Sums) -> NumpyArray:
        """The group of every cell of the scales."""
        groupings = self._groupings(state)
        long = self.first.read(np.asarray(state.one_way))[0] if self.first.parts else {}
        shares = [np.zeros(size) for size in self.tables.sizes]
        for column, counts in long.items():
            cells = np.bincount(groupings[column].cell, counts, minlength=self.tables.sizes[column])
            shares[column] = cells / max(float(counts.sum()), 1.0)
        return self.scale_pairs.groups(groupings, shares)

    def _weights(self, state: Sums) -> NumpyArray:
        """The weight of each table: the usual one, or what single columns show to be worth it."""
        if not self.first.wide:
            return self.tables.weights
        long, short = self.first.read(np.asarray(state.one_way))
        groupings, noise = self._groupings(state), self._first_noise(state)
        impurities = np.ones(len(self.schema.columns))
        for column, counts in long.items():
            cells = np.bincount(groupings[column].cell, counts, minlength=self.tables.sizes[column])
            impurities[column] = impurity(cells, noise / self.first.weight)
        for column, table in short.items():
            impurities[column] = impurity(table.sum(axis=0), noise / SHORT_WEIGHT)
        records = max(1.0, self.first.records(np.asarray(state.one_way), noise)[0])
        deviation = self.release.deviation(self.schedule.stages - 1, max(int(state.messages[0]), 1))
        return chosen_weights(self.tables, impurities, noise=deviation / WEIGHT_UNITS / records)

    def _doubtful(self, groupings: list[Grouping]) -> NumpyArray:
        """Codes of open columns that perhaps nobody has: what no list names, "no value", and where one-way counts are empty."""
        found = []
        for column, grouping in zip(self.schema.columns, groupings, strict=True):
            doubted = is_open(column) or column.source == TWO_VALUES
            doubtful = grouping.doubtful & doubted
            if column.domain == "released" and column.other:
                doubtful[column.categories.index(column.other)] = True
            found.append(doubtful)
        return np.concatenate(found)

    def observed(self, state: Sums) -> Observed:
        """The noisy shares of records (of persons, where each counts as one) in every cell, and their noise."""
        tables, whole = self.tables, self.contribution.whole
        weights = self._weights(state)
        listed = tables.layout(weights)
        units = whole * weights[tables.pair_of_entry][listed]
        counts = np.zeros((tables.outcomes, tables.entries))
        counts[:, listed] = np.where(units > 0, np.asarray(state.pairs) / np.maximum(units, 1), 0.0)
        inverse = np.zeros(tables.entries)
        inverse[listed] = units / self.release.deviation(self.schedule.stages - 1, int(state.messages[-1]))
        records, first = self._records(state, counts, inverse)
        with np.errstate(divide="ignore"):
            deviations = 1 / inverse / records
        return Observed(
            counts / records,
            deviations,
            *self._single_columns(state, first * whole),
            self._cell_shares(state, weights, first * whole),
            self._grouped(state, records * whole) if self.scale_pairs.columns else None,
        )

    def _grouped(self, state: Sums, records: float) -> Grouped:
        """Noisy shares of the pairs of scales in groups of cells, and their noise."""
        pairs, total = self.scale_pairs, self.scale_pairs.weight * records
        return Grouped(
            pairs.grouped, pairs.membership(self._groups(state)), np.asarray(state.scale_pairs) / total,
            self.release.deviation(self.schedule.stages - 1, int(state.messages[-1])) / total,
        )  # fmt: skip

    def _records(self, state: Sums, counts: NumpyArray, inverse: NumpyArray) -> tuple[float, float]:
        """How many records (persons, where each counts as one) the second and the first stage saw: the totals of all tables,
        and the first stage's own count. If nobody missed either, they saw the same, and are averaged by their precision.
        `inverse` is 1 over the noise of each entry."""
        tables, whole = self.tables, self.contribution.whole
        totals = np.bincount(tables.pair_of_entry, counts.sum(axis=0), minlength=len(tables.pairs))
        precisions = inverse[np.cumsum(tables.table_sizes) - 1] ** 2 / (tables.outcomes * tables.table_sizes)
        second, precision = float(np.average(totals, weights=precisions)), float(precisions.sum())
        if not self.first.parts:
            return max(1.0, second), 1.0
        first, noise = (one / whole for one in self.first.records(np.asarray(state.one_way), self._first_noise(state)))
        if (state.messages == self.schedule.clients).all():
            first = second = (precision * second + noise**-2 * first) / (precision + noise**-2)
        return max(1.0, second), max(1.0, first)

    def _cell_shares(
        self, state: Sums, weights: NumpyArray, records: float
    ) -> dict[int, tuple[NumpyArray, NumpyArray]]:
        """Noisy shares of the cells of long columns, from the first stage, and their noise. Cells of a list were made by the
        rank of these very counts, which favours some: they count only where no table of a list has a weight."""
        if not self.first.long:
            return {}
        paired = {column for pair, weight in zip(self.tables.pairs, weights, strict=True) if weight for column in pair}
        counts = self.first.cell_counts(np.asarray(state.one_way), self._groupings(state), self._first_noise(state))
        return {
            column: (held / records, noise / records)
            for column, (held, noise) in counts.items()
            if self.schema.columns[column].is_ordered or column not in paired
        }

    def _single_columns(self, state: Sums, records: float) -> tuple[NumpyArray, NumpyArray]:
        """Noisy shares of the columns that were counted with the target, and their noise; infinite for all others."""
        shares = np.zeros((self.tables.outcomes, self.tables.positions))
        deviations = np.full(self.tables.positions, np.inf)
        for column, table in (self.first.read(np.asarray(state.one_way))[1] if self.first.short else {}).items():
            where = slice(self.tables.offsets[column], self.tables.offsets[column] + self.tables.sizes[column])
            shares[:, where] = table / records
            deviations[where] = self._first_noise(state) / SHORT_WEIGHT / records
        return shares, deviations

    def _roots(self, groupings: list[Grouping]) -> list[NumpyArray | None]:
        """How the logits of each column in pairs hang together."""
        found: list[NumpyArray | None] = []
        for number in self.tables.columns:
            column, size = self.schema.columns[number], self.tables.sizes[number]
            along = column.is_ordered and size - int(column.nullable) >= SHORTEST_SCALE
            found.append(smoothing(groupings[number].spikes, nullable=column.nullable) if along else None)
        return found

    def finish(self, state: Sums, key: Array) -> LatentClass:
        groupings, observed = self._groupings(state), self.observed(state)
        mixture = fit_mixture(self.tables, observed, self.settings, key, self._roots(groupings))
        return self._at_codes(groupings, observed, mixture)

    def _at_codes(self, groupings: list[Grouping], observed: Observed, mixture: Mixture) -> LatentClass:
        """The generator of codes: cells as the mixture has them, codes inside each as the first stage counted them."""
        column = np.repeat(np.arange(len(self.schema.sizes)), self.schema.sizes)
        cells = np.concatenate([one.cell for one in groupings])
        places = np.cumsum([0, *self.tables.sizes])[column] + cells
        present = np.concatenate(present_cells(self.tables, observed, groupings))[places]
        shares = np.concatenate([one.share for one in groupings]) * (present | ~self._doubtful(groupings))

        def at_codes(tables: NumpyArray) -> NumpyArray:
            fine = (tables[..., places] + LEAST) * shares
            totals = np.add.reduceat(fine, np.cumsum([0, *self.schema.sizes[:-1]]), axis=-1)
            return np.asarray(fine / totals[..., column], np.float32)

        members, components = mixture.weights.shape
        weights = mixture.weights.reshape(-1) / members
        held = np.bincount(places, shares, minlength=sum(self.tables.sizes)) > 0  # cells of which some code is there
        whole = matched(
            self.tables, observed, weights, (mixture.tables.reshape(members * components, -1) + LEAST) * held
        )
        tables, draws = at_codes(whole), at_codes(mixture.draw_tables)
        schema, kept = trimmed_schema(self.schema, np.asarray((tables > 0).any(axis=0) | (draws > 0).any(axis=(0, 1))))
        return LatentClass(
            schema=schema, weights=weights, tables=kept(tables), draws=(mixture.draw_weights, kept(draws)),
        )  # fmt: skip

    @functools.cached_property
    def _bytes(self) -> tuple[tuple[float, float], ...]:
        """Bytes to and from a silo, for each stage."""
        asked = sum(self.schema.sizes) + (len(self.tables.pairs) if self.first.wide else 0) + self.scale_pairs.asked
        first = ((0.0, NUMBER * self.first.numbers),) if self.first.parts else ()
        return (*first, (NUMBER * asked, NUMBER * (self.tables.numbers + self.scale_pairs.numbers)))

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        if ask is not None:
            return self._bytes[self.schedule.stage(int(ask.round))[0]]
        down, up = np.mean(self._bytes, axis=0)
        return float(down), float(up)

    def costs(self) -> Costs:
        return predicted_costs(
            self.tables, self.scale_pairs, self.settings, records=self.records, clients=self.schedule.clients,
            at_once=self.schedule.block,
        )  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        tables, stage = self.tables, self.schedule.stages - 1
        weight = self.contribution.whole * float(np.mean(tables.weights))
        noise = self.release.deviation(stage, self.schedule.clients) / weight
        kind = "pairs of columns" if tables.target is None else "pairs of columns with the target"
        less = "; less on tables that are worth it, and none of the others" if self.first.wide else ""
        long, short = len(self.first.long), len(self.first.short)
        fits = f", of which the message has room for {tables.places:,}" if tables.places < tables.entries else ""
        return (
            f"{len(tables.pairs):,} tables of {kind}, {tables.outcomes * tables.entries:,} cells{fits}; noise on a count of "
            f"the sum {noise:,.1f}{less}",
            *(
                (f"pairs of {len(self.scale_pairs.columns)} scales also in groups, {self.scale_pairs.numbers:,} cells",)
                if self.scale_pairs.columns
                else ()
            ),
            *((f"cells of {long} columns follow from one-way counts of their codes",) if long else ()),
            *(
                (f"which tables are worth the budget follows from one-way counts of {long + short} columns",)
                if self.first.wide
                else ()
            ),
        )
