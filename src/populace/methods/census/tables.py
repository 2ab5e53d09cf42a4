"""Which tables a silo counts, and where their cells stand in its message.

Every column is seen in at most `MOST_CELLS` cells. Without a target the message holds the tables of all pairs of columns; with
one, of all pairs and the target. A record adds one to one cell of every table, whatever the cells are: what it changes in a
message does not depend on anybody's data.
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
MOST_UNITS = 2**24 // ROWS_AT_ONCE  # that a record may count: sums of so many rows are exact floats
WEIGHT_POWER = 1 / 6  # of the number of cells, by which the weights of tables grow


@dataclasses.dataclass(frozen=True)
class PairTables:
    """Tables of all pairs of columns, with the target where there is one. `sizes` are the cells of each column.

    Cells of all columns but the target, laid end to end, have *positions*. A message lists, for every value of the target,
    the cells (position of the first column, position of the second) of all pairs, in the order of `cells`.
    """

    sizes: tuple[int, ...]
    target: int | None = None

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

    @property
    def entries(self) -> int:
        """Cells of all pairs, for one value of the target."""
        return sum(first * second for first, second in self.shapes)

    @property
    def numbers(self) -> int:
        """Numbers in a message."""
        return self.outcomes * self.entries

    @functools.cached_property
    def weights(self) -> NumpyArray:
        """How many units a record adds to each pair's table: tables of many cells have more to say and get a little more."""
        cells = np.array([first * second for first, second in self.shapes], np.float64) ** WEIGHT_POWER
        weights: NumpyArray = np.maximum(1, np.rint(WEIGHT_UNITS * cells / np.sqrt(np.mean(cells**2)))).astype(np.int64)
        return weights

    @property
    def bound(self) -> float:
        """By how much a record changes a message at most, in L2: exactly."""
        return math.sqrt(int(np.sum(self.weights**2)))

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
        return np.repeat(np.arange(len(self.pairs)), [first * second for first, second in self.shapes])

    def counts(self, codes: Array, units: Array, cells: Sequence[NumpyArray] | None = None) -> Array:
        """[outcomes, entries] of some records, in units of the weights, int32. `units` says how often each record counts.

        Codes are cells already, or `cells` says the cell of each code of each column.
        """
        if any(isinstance(one, jax.core.Tracer) for one in (codes, units)):
            return self._multiplied(jnp.asarray(codes), jnp.asarray(units))
        tables = pair_counts(
            np.asarray(codes),
            self.pairs,
            self.shapes,
            self.target,
            np.asarray(units),
            outcomes=self.outcomes,
            cells=cells,
        )
        weighed = [
            weight * table.reshape(self.outcomes, -1)
            for weight, table in zip(self.weights.tolist(), tables, strict=True)
        ]
        return np.concatenate(weighed, axis=1).astype(np.int32)

    def _multiplied(self, codes: Array, units: Array) -> Array:
        """By products of one-hot rows, which can be traced and mapped; exact, because every sum is below 2^24 a step."""
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
        return total[:, first, second] * jnp.asarray(self.weights[self.pair_of_entry], jnp.int32)
