"""The first stage: one-way counts of long columns, from which cells are made; in wide tables also of all other columns.

A column with a scale is counted code by code and in groups of codes (`scales`), a long list code by code. Where a table has
more than `MANY_COLUMNS` columns, its other columns are counted too, each with the target: from these follows which pairs of
columns are worth their share of the budget. All records together are counted too, because every share is one of them. A record
adds a public whole number to at most one count of each part.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.census.cells import Coarse, Grouping, codes_as_cells, grouped
from populace.methods.census.counting import one_way_counts, pair_counts
from populace.methods.census.scales import consistent, group_widths, groups_of, in_groups, noise_in_cells
from populace.tables.schema import Schema
from populace.types import Array, NumpyArray

MANY_COLUMNS = 24  # of a table, from which on its pairs do not get the same budget
LONG_WEIGHT, SHORT_WEIGHT = 2, 1  # of the counts of long and of other columns, where both are counted
TOTAL = -1  # in place of a column: all records, one count


@dataclasses.dataclass(frozen=True)
class FirstStage:
    """What is counted first. `target` is the column that stands in every table of the second stage."""

    coarse: Coarse
    target: int | None = None

    @property
    def schema(self) -> Schema:
        return self.coarse.schema

    @functools.cached_property
    def long(self) -> tuple[int, ...]:
        return self.coarse.columns

    @property
    def wide(self) -> bool:
        """Whether there are so many columns that tables of pairs are chosen by what one-way counts say of their worth."""
        return len(self.schema.columns) > MANY_COLUMNS

    @functools.cached_property
    def short(self) -> tuple[int, ...]:
        """The other columns that are counted: none where a table has few."""
        if not self.wide:
            return ()
        return tuple(i for i in range(len(self.schema.columns)) if i not in self.long and i != self.target)

    @property
    def weight(self) -> int:
        """What a record adds to a count of a long column."""
        return LONG_WEIGHT if self.short else 1

    @property
    def outcomes(self) -> int:
        return 1 if self.target is None else self.schema.sizes[self.target]

    @functools.cached_property
    def widths(self) -> dict[int, tuple[int, ...]]:
        """In which groups the codes of each long column are counted."""
        columns = self.schema.columns
        return {i: group_widths(columns[i].levels) if columns[i].is_ordered else (1,) for i in self.long}

    @functools.cached_property
    def parts(self) -> tuple[tuple[int, int, int], ...]:
        """Column, width of its groups (0: with the target), and numbers of each part of the message, in their order; the first
        is of all records. None where nothing is counted first."""
        found = [(TOTAL, 1, 1)] if self.long or self.short else []
        for column in self.long:
            size, levels = self.schema.sizes[column], self.schema.columns[column].levels
            found += [
                (column, width, size if width == 1 else groups_of(levels, width)) for width in self.widths[column]
            ]
        return (*found, *((column, 0, self.outcomes * self.schema.sizes[column]) for column in self.short))

    @property
    def numbers(self) -> int:
        """Numbers of a message."""
        return sum(size for _, _, size in self.parts)

    @property
    def bound(self) -> float:
        """By how much a record changes a message at most, in L2: exactly, if it has a value in every long column, because it
        then adds to one count of each part; "no value" stands in no group."""
        return math.sqrt(sum(self._weight_of(column, width) ** 2 for column, width, _ in self.parts))

    def _weight_of(self, column: int, width: int) -> int:
        """What a record adds to a count of a part."""
        if column == TOTAL:
            return 2 * self.weight
        return self.weight if width else SHORT_WEIGHT

    def counts(self, records: Array, units: Array) -> Array:
        """The message of some records, int32; `units` says how often each counts."""
        codes, pairs = self._counted(records, units)
        found = []
        for column, width, _ in self.parts:
            if column == TOTAL:
                part = units.sum(dtype=np.int32).reshape(1)
            elif not width:
                part = pairs[column].reshape(-1)
            else:
                part = codes[column]
                part = part if width == 1 else in_groups(part[: self.schema.columns[column].levels], width)
            found.append(self._weight_of(column, width) * part)
        numpy = jnp if any(isinstance(one, jax.core.Tracer) for one in found) else np
        message: Array = numpy.concatenate(found).astype(np.int32)
        return message

    def _counted(self, records: Array, units: Array) -> tuple[Mapping[int, Array], Mapping[int, Array]]:
        """How many records have each code of the long columns, and each value of the target and code of the others."""
        sizes = self.schema.sizes
        if isinstance(records, jax.core.Tracer) or isinstance(units, jax.core.Tracer):
            often = jnp.asarray(units, jnp.int32)
            outcome = 0 if self.target is None else records[:, self.target]
            traced = {i: jnp.zeros(sizes[i], jnp.int32).at[records[:, i]].add(often) for i in self.long}
            blank = {i: jnp.zeros((self.outcomes, sizes[i]), jnp.int32) for i in self.short}
            return traced, {i: blank[i].at[outcome, records[:, i]].add(often) for i in self.short}
        records, units = np.asarray(records), np.asarray(units)
        long = dict(
            zip(self.long, one_way_counts(records, self.long, [sizes[i] for i in self.long], units), strict=True)
        )
        if self.target is None:
            wanted = [sizes[i] for i in self.short]
            return long, dict(zip(self.short, one_way_counts(records, self.short, wanted, units), strict=True))
        pairs = [(self.target, i) for i in self.short]
        shapes = [(self.outcomes, sizes[i]) for i in self.short]
        return long, dict(zip(self.short, pair_counts(records, pairs, shapes, None, units), strict=True))

    def records(self, total: NumpyArray, deviation: float) -> tuple[float, float]:
        """How many records there are, from a noisy sum, and the standard deviation of the noise in that."""
        weight = self._weight_of(TOTAL, 1)
        return float(total[0]) / weight, deviation / weight

    def read(self, total: NumpyArray) -> tuple[dict[int, NumpyArray], dict[int, NumpyArray]]:
        """Estimates of the counts of the long columns' codes, and of the others' with the target, from a noisy sum."""
        ends = np.cumsum([size for _, _, size in self.parts])
        values = {
            (column, width): part / self._weight_of(column, width)
            for (column, width, _), part in zip(
                self.parts, np.split(np.asarray(total, np.float64), ends[:-1]), strict=True
            )
        }
        long = {}
        for column, widths in self.widths.items():
            levels, codes = self.schema.columns[column].levels, values[column, 1]
            counts = [codes[:levels], *(values[column, width] for width in widths[1:])]
            long[column] = np.concatenate([consistent(counts, widths), codes[levels:]])
        return long, {column: values[column, 0].reshape(self.outcomes, -1) for column in self.short}

    def cell_counts(
        self, total: NumpyArray, groupings: Sequence[Grouping], deviation: float
    ) -> dict[int, tuple[NumpyArray, NumpyArray]]:
        """Estimates of the counts of the long columns' cells, and the standard deviation of their noise."""
        found = {}
        for column, counts in self.read(total)[0].items():
            size, cell = self.coarse.sizes[column], groupings[column].cell
            noise = np.sqrt(np.maximum(np.bincount(cell, minlength=size), 1))
            if self.schema.columns[column].is_ordered:
                levels = self.schema.columns[column].levels
                codes = np.unique(cell[:levels])  # "no value" has a cell and a count of its own
                noise[codes] = noise_in_cells(levels, cell[:levels], size)[codes]
            found[column] = np.bincount(cell, counts, minlength=size), deviation / self.weight * noise
        return found

    def groupings(self, total: NumpyArray, deviation: float) -> list[Grouping]:
        """The cells of every column, from the noisy sum; `deviation` is the noise of one of its numbers."""
        long, _ = self.read(total)
        return [
            grouped(column, long[number], deviation / self.weight, self.coarse.most)
            if number in long
            else codes_as_cells(column)
            for number, column in enumerate(self.schema.columns)
        ]
