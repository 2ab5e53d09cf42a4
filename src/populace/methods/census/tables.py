"""Which tables a silo counts, and where their cells stand in its message.

Every column is seen in few cells. Without a target the message holds tables of pairs of columns; with one, of pairs and the
target. A record adds a whole number, the weight of the table, to one cell of every table, whatever the cells are: what it
changes in a message does not depend on anybody's data.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.census.counting import pair_counts
from populace.types import Array, ArrayTree, NumpyArray

ROWS_AT_ONCE = 4_096  # one-hot rows multiplied at once
WEIGHT_UNITS = 8  # the weight of an average table: weights are whole numbers
MOST_WEIGHT = 64  # of a table that a server may ask for
MOST_UNITS = 2**24 // ROWS_AT_ONCE  # that a record may count: sums of so many rows are exact floats
WEIGHT_POWER = 1 / 6  # of the number of cells, by which the weights of tables grow


@dataclasses.dataclass(frozen=True)
class PairTables:
    """Tables of pairs of columns, with the target where there is one. `sizes` are the cells of each column.

    Cells of all columns but the target, laid end to end, have *positions*. *Entries* are the cells (position of the first
    column, position of the second) of all pairs, in the order of `cells`. A message lists, for every value of the target, the
    entries of the tables that have a weight, as far as there is room for `room` of them (0: for all).
    """

    sizes: tuple[int, ...]
    target: int | None = None
    room: int = 0

    @property
    def outcomes(self) -> int:
        """Values of the target; 1 without one."""
        return 1 if self.target is None else self.sizes[self.target]

    @functools.cached_property
    def columns(self) -> tuple[int, ...]:
        """The columns that stand in pairs."""
        return tuple(column for column in range(len(self.sizes)) if column != self.target)

    @functools.cached_property
    def offsets(self) -> dict[int, int]:
        """The first position of each column."""
        starts = np.cumsum([0, *(self.sizes[column] for column in self.columns)])
        return {column: int(start) for column, start in zip(self.columns, starts, strict=False)}

    @property
    def positions(self) -> int:
        return sum(self.sizes[column] for column in self.columns)

    @functools.cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs; a single column is paired with itself."""
        if len(self.columns) == 1:
            return ((self.columns[0], self.columns[0]),)
        return tuple(itertools.combinations(self.columns, 2))

    @functools.cached_property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The cells of each pair's table, for one value of the target."""
        return tuple((self.sizes[first], self.sizes[second]) for first, second in self.pairs)

    @functools.cached_property
    def table_sizes(self) -> NumpyArray:
        """The number of cells of each pair's table, for one value of the target."""
        return np.array([first * second for first, second in self.shapes], np.int64)

    @functools.cached_property
    def entries(self) -> int:
        """Cells of all pairs, for one value of the target."""
        return int(self.table_sizes.sum())

    @property
    def places(self) -> int:
        """Entries of a message, for one value of the target."""
        return min(self.entries, self.room) if self.room else self.entries

    @property
    def numbers(self) -> int:
        """Numbers in a message."""
        return self.outcomes * self.places

    @functools.cached_property
    def weights(self) -> NumpyArray:
        """How many units a record adds to each pair's table where all are counted: tables of many cells have more to say and
        get a little more."""
        cells = self.table_sizes.astype(np.float64) ** WEIGHT_POWER
        weights: NumpyArray = np.maximum(1, np.rint(WEIGHT_UNITS * cells / np.sqrt(np.mean(cells**2)))).astype(np.int64)
        return weights

    @functools.cached_property
    def squares(self) -> int:
        """The sum of the squares of all weights, which other weights may not exceed."""
        return int(np.sum(self.weights**2))

    @property
    def bound(self) -> float:
        """By how much a record changes a message at most, in L2, whatever weights a server asks for."""
        return math.sqrt(self.squares)

    def permitted(self, asked: Array) -> Array:
        """The weights that a silo counts with: those asked for, where they keep to the bound, else the usual ones.

        Squares are added one after the other: a sum that would pass 32 bits is above the bound before it does.
        """
        numpy = jnp if isinstance(asked, jax.core.Tracer) else np
        weights = numpy.asarray(asked, numpy.int32)
        kept = numpy.clip(weights, 0, MOST_WEIGHT)
        fits = (kept == weights).all() & (numpy.cumsum(kept * kept) <= self.squares).all()
        found: Array = numpy.where(fits, kept, numpy.asarray(self.weights, numpy.int32))
        return found

    @functools.cached_property
    def cells(self) -> tuple[NumpyArray, NumpyArray]:
        """The two positions of every entry."""
        grids = [
            np.indices(shape).reshape(2, -1) + np.array([[self.offsets[first]], [self.offsets[second]]])
            for (first, second), shape in zip(self.pairs, self.shapes, strict=True)
        ]
        both = np.concatenate(grids, axis=1).astype(np.int32)
        return both[0], both[1]

    @functools.cached_property
    def pair_of_entry(self) -> NumpyArray:
        """The number of the pair that each entry belongs to."""
        return np.repeat(np.arange(len(self.pairs)), self.table_sizes)

    def layout(self, weights: Array) -> Array:
        """The entries that a message lists, in their order: those of tables with a weight, and then others, which are 0."""
        numpy = jnp if isinstance(weights, jax.core.Tracer) else np
        absent = numpy.asarray(weights)[self.pair_of_entry] == 0
        entries: Array = numpy.argsort(absent, stable=True)[: self.places]
        return entries

    def counts(
        self, codes: Array, units: Array, cells: Sequence[NumpyArray] | None = None, weights: Array | None = None
    ) -> Array:
        """[outcomes, places] of some records, in units of the weights, int32. `units` says how often each record counts.

        Codes are cells already, or `cells` says the cell of each code of each column. Weights are the usual ones unless given.
        """
        if any(isinstance(one, jax.core.Tracer) for one in (codes, units, weights)):
            total = self._multiplied(jnp.asarray(codes), jnp.asarray(units))
            if weights is None:
                return total[:, : self.places] * jnp.asarray(self.weights[self.pair_of_entry], jnp.int32)[: self.places]
            kept = self.layout(weights)
            return total[:, kept] * jnp.asarray(weights)[self.pair_of_entry][kept]
        given = self.weights if weights is None else np.asarray(weights)
        chosen = np.flatnonzero(given)
        tables = pair_counts(
            np.asarray(codes), [self.pairs[i] for i in chosen], [self.shapes[i] for i in chosen], self.target,
            np.asarray(units), outcomes=self.outcomes, cells=cells,
        )  # fmt: skip
        weighed = [given[i] * table.reshape(self.outcomes, -1) for i, table in zip(chosen, tables, strict=True)]
        found = np.zeros((self.outcomes, self.places), np.int32)
        if weighed:
            listed = np.concatenate(weighed, axis=1)[:, : self.places]
            found[:, : listed.shape[1]] = listed
        return found

    def _multiplied(self, codes: Array, units: Array) -> Array:
        """[outcomes, entries] without weights, by products of one-hot rows, which can be traced and mapped; exact, because
        every sum is below 2^24 a step."""
        at_once = max(1, min(ROWS_AT_ONCE, len(codes)))
        rows = -(-len(codes) // at_once) * at_once
        codes = jnp.pad(codes, ((0, rows - len(codes)), (0, 0)))
        units = jnp.pad(jnp.asarray(units, jnp.float32), (0, rows - len(units)))
        column_of = np.repeat(np.array(self.columns), [self.sizes[column] for column in self.columns])
        value_of = np.concatenate([np.arange(self.sizes[column]) for column in self.columns])

        def step(total: ArrayTree, some: ArrayTree) -> tuple[ArrayTree, None]:
            block, often = some
            hot = (block[:, column_of] == value_of).astype(jnp.float32)
            outcome = jnp.zeros(len(block), jnp.int32) if self.target is None else block[:, self.target]
            chosen = jnp.where(outcome[:, None] == jnp.arange(self.outcomes), often[:, None], 0.0)
            product = jnp.einsum("ny,na,nb->yab", chosen, hot, hot, precision=jax.lax.Precision.HIGHEST)
            added: Array = total + jnp.rint(product).astype(jnp.int32)
            return added, None

        zero = jnp.zeros((self.outcomes, self.positions, self.positions), jnp.int32)
        blocks = codes.reshape(-1, at_once, codes.shape[1]), units.reshape(-1, at_once)
        total, _ = jax.lax.scan(step, zero, blocks)
        first, second = self.cells
        counted: Array = total[:, first, second]
        return counted
