"""The marginals that may be measured: all sets of up to two or three columns, laid end to end in one vector of cells."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from populace.types import Array, NumpyArray

Columns = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Workload:
    """The downward closure of all sets of `order` columns; the single columns come first, in their order.

    Sets with more than `most_cells` cells are left out: no model of that size could hold them.
    """

    sizes: tuple[int, ...]
    order: int
    most_cells: int

    @functools.cached_property
    def sets(self) -> tuple[Columns, ...]:
        """The columns of every marginal."""
        columns = range(len(self.sizes))
        sets = [one for order in range(1, self.order + 1) for one in itertools.combinations(columns, order)]
        return tuple(one for one in sets if len(one) == 1 or self._cells(one) <= self.most_cells)

    def _cells(self, columns: Columns) -> int:
        return math.prod(self.sizes[column] for column in columns)

    @functools.cached_property
    def cells(self) -> NumpyArray:
        """[sets]: the cells of every marginal."""
        return np.array([self._cells(one) for one in self.sets], np.int64)

    @functools.cached_property
    def starts(self) -> NumpyArray:
        """[sets + 1]: where each marginal begins in the vector of all, and where the last ends."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.cells)])

    @property
    def total_cells(self) -> int:
        return int(self.starts[-1])

    @property
    def one_way_cells(self) -> int:
        """The cells of the single columns, which come first."""
        return sum(self.sizes)

    @functools.cached_property
    def widest(self) -> int:
        """The cells of the largest marginal."""
        return int(self.cells.max())

    @functools.cached_property
    def orders(self) -> NumpyArray:
        """[sets]: how many columns each has. AIM's weight of a set, the columns it shares with all sets of `order` columns
        added up, is a multiple of it."""
        return np.array([len(one) for one in self.sets], np.int32)

    @functools.cached_property
    def holds(self) -> NumpyArray:
        """[sets, columns]: whether a set has a column."""
        return np.array([[column in one for column in range(len(self.sizes))] for one in self.sets], np.int32)

    @functools.cached_property
    def set_of_cell(self) -> NumpyArray:
        """[total cells]: the set of every cell."""
        return np.repeat(np.arange(len(self.sets), dtype=np.int32), self.cells)

    @functools.cached_property
    def _strides(self) -> NumpyArray:
        """[columns, sets]: by how much a column's code moves a record's cell."""
        strides = np.zeros((len(self.sizes), len(self.sets)), np.int32)
        for number, one in enumerate(self.sets):
            for place, column in enumerate(one):
                strides[column, number] = self._cells(one[place + 1 :])
        return strides

    def counts(self, records: Array, mask: Array) -> Array:
        """[total cells] int32: how many records are in each cell. A record adds one to one cell of every marginal."""
        records = jnp.clip(jnp.asarray(records, jnp.int32), 0, jnp.asarray(self.sizes, jnp.int32) - 1)
        weights = jnp.asarray(mask, jnp.int32)
        places = jnp.asarray(self.starts[:-1], jnp.int32) + records @ jnp.asarray(self._strides)
        return jnp.zeros(self.total_cells, jnp.int32).at[places].add(weights[:, None])

    def sums(self, values: Array) -> Array:
        """[sets]: values of all cells, added up over each marginal."""
        return jax.ops.segment_sum(values, jnp.asarray(self.set_of_cell), len(self.sets), indices_are_sorted=True)

    def table(self, cells: NumpyArray, number: int) -> NumpyArray:
        """The part of a vector of all cells that is one marginal, an axis per column."""
        flat = cells[self.starts[number] : self.starts[number + 1]]
        return flat.reshape([self.sizes[column] for column in self.sets[number]])
