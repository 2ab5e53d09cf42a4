"""Tables of pairs of scales in a few groups of their cells: what two numbers have to do with each other at large.

A table of 24 by 24 cells and the target holds a thousand counts, each with noise of its own, and a correlation is lost in the
noise of them all. The same two columns in six groups each, without the target, hold 36 counts: what moves slowly along both
scales is seen in them with a fraction of the noise, and the large tables show the rest (as `scales` does along one scale). A
record adds a public whole number to one cell of every such table, whatever the groups are.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.census.cells import Grouping, cut_stretches
from populace.methods.census.counting import pair_counts
from populace.methods.census.tables import WEIGHT_UNITS, PairTables
from populace.tables.schema import Schema
from populace.types import Array, NumpyArray

GROUPS = 6  # of the cells of a scale; "no value" is one more
SHORTEST = 2 * GROUPS  # cells from which on a scale is also seen in groups
LARGE, MOST_LARGE = (
    0.1,
    2,
)  # share of the records from which on a cell that is one value is a group by itself; so many may be
MOST_SHARE = 0.25  # of the budget of all tables


@dataclasses.dataclass(frozen=True)
class ScalePairs:
    """The pairs of scales among the columns of `tables`; none where there are fewer than two scales."""

    schema: Schema
    tables: PairTables

    @functools.cached_property
    def columns(self) -> tuple[int, ...]:
        """The columns with a scale of many cells."""
        found = tuple(
            column for column in self.tables.columns
            if self.schema.columns[column].is_ordered and self._scale_cells(column) >= SHORTEST
        )  # fmt: skip
        return found if len(found) > 1 else ()

    def _scale_cells(self, column: int) -> int:
        """Its cells, "no value" not counted."""
        return self.tables.sizes[column] - int(self.schema.columns[column].nullable)

    @functools.cached_property
    def grouped(self) -> PairTables:
        """The tables of all pairs, in groups."""
        return PairTables(tuple(GROUPS + int(self.schema.columns[column].nullable) for column in self.columns))

    @property
    def numbers(self) -> int:
        """Numbers in a message."""
        return self.grouped.entries if self.columns else 0

    @functools.cached_property
    def weight(self) -> int:
        """What a record adds to one cell of each table: as much as to an average table of `tables`, or less, so that all do
        not take more than `MOST_SHARE` of the budget."""
        room = MOST_SHARE / (1 - MOST_SHARE) * self.tables.squares / len(self.grouped.pairs)
        return max(1, min(WEIGHT_UNITS, int(room**0.5)))

    @property
    def squares(self) -> int:
        """The sum of the squares of the weights."""
        return len(self.grouped.pairs) * self.weight**2 if self.columns else 0

    @property
    def asked(self) -> int:
        """Numbers of a question: the group of every cell."""
        return sum(self.tables.sizes[column] for column in self.columns)

    def groups(self, groupings: Sequence[Grouping], shares: Sequence[NumpyArray]) -> NumpyArray:
        """The group of every cell of the scales, from public cells and noisy shares of the records in each."""
        found = [np.zeros(0, np.int32)]
        for column in self.columns:
            cells, grouping = self._scale_cells(column), groupings[column]
            held = np.bincount(grouping.cell, ~grouping.doubtful, minlength=self.tables.sizes[column])[:cells] > 0
            alone = np.where(grouping.spikes[:cells], shares[column][:cells], 0.0)
            alone[np.argsort(-alone)[MOST_LARGE:]] = 0.0
            groups = cut_stretches(held.astype(np.float64), alone > LARGE, GROUPS)
            found.append(np.append(groups, [GROUPS] * (self.tables.sizes[column] - cells)).astype(np.int32))
        return np.concatenate(found)

    def by_column(self, groups: Array) -> list[Array]:
        """The group of each cell, by column; a group that a column does not have counts as its last, whatever a server says."""
        numpy = jnp if isinstance(groups, jax.core.Tracer) else np
        ends = np.cumsum([self.tables.sizes[column] for column in self.columns])[:-1].tolist()
        parts = numpy.split(numpy.asarray(groups), ends)
        return [numpy.clip(part, 0, size - 1) for part, size in zip(parts, self.grouped.sizes, strict=True)]

    def membership(self, groups: NumpyArray) -> NumpyArray:
        """[positions, positions of the groups]: 1 where a cell belongs to a group."""
        found = np.zeros((self.tables.positions, self.grouped.positions), np.float32)
        for number, (column, group) in enumerate(zip(self.columns, self.by_column(groups), strict=True)):
            rows = self.tables.offsets[column] + np.arange(len(group))
            found[rows, self.grouped.offsets[number] + np.asarray(group)] = 1.0
        return found

    def counts(self, codes: Array, units: Array, groups: Array, cells: Sequence[NumpyArray] | None = None) -> Array:
        """[numbers] of some records, in units of the weight, int32; `units` says how often each record counts. Codes are cells
        already, or `cells` says the cell of each code of each column."""
        of_cells = self.by_column(groups)
        if any(isinstance(one, jax.core.Tracer) for one in (codes, units, groups)):
            inner = jnp.stack(
                [jnp.asarray(group)[codes[:, column]] for column, group in zip(self.columns, of_cells, strict=True)],
                axis=1,
            )
            weights = np.full(len(self.grouped.pairs), self.weight)
            traced: Array = self.grouped.counts(inner, jnp.asarray(units), weights=weights).reshape(-1)
            return traced
        given = np.asarray(codes)
        lookups: list[NumpyArray] = [np.zeros(0, np.int32)] * given.shape[1]
        for column, group in zip(self.columns, of_cells, strict=True):
            of_codes = np.asarray(group)
            lookups[column] = of_codes if cells is None else of_codes[cells[column]]
        pairs = list(itertools.combinations(self.columns, 2))
        counted = pair_counts(given, pairs, self.grouped.shapes, None, np.asarray(units), cells=lookups)
        return np.concatenate([self.weight * table.reshape(-1) for table in counted]).astype(np.int32)
