"""What a fit needs to know of the schema: sizes, shapes, neighbours along scales, and columns seen in groups."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from populace.types import Array, NumpyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """What a model needs to know of the schema: sizes, which columns have domains of one shape, neighbours, and the target.

    Values of all columns laid end to end have *positions*. `neighbours` are pairs of positions next to each other on a scale;
    `scales` are ordered columns with the score of each value, mean 0 and variance 1. `views` are columns seen in groups of
    their values, `(column, group of each value)`: their groups have the positions after the values', view by view.
    """

    sizes: tuple[int, ...]
    shapes: tuple[int, ...]
    neighbours: tuple[tuple[int, int], ...] = ()
    target: int | None = None
    scales: tuple[tuple[int, tuple[float, ...]], ...] = ()
    views: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def values(self) -> int:
        return sum(self.sizes)

    @property
    def positions(self) -> int:
        """The number of positions, of values and of the views' groups."""
        return self.values + sum(max(groups) + 1 for _, groups in self.views)

    @property
    def offsets(self) -> NumpyArray:
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    @property
    def segments(self) -> NumpyArray:
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def is_target(self) -> NumpyArray:
        return np.asarray(self.segments == (-1 if self.target is None else self.target))

    @property
    def outcomes(self) -> int:
        """Values of the target; 1 without one."""
        return 1 if self.target is None else self.sizes[self.target]

    @functools.cached_property
    def shared(self) -> NumpyArray:
        """For every value, the number of the mean its logit is drawn to; columns of one shape share theirs."""
        seen: dict[tuple[int, int], int] = {}
        numbers = []
        for column, size in enumerate(self.sizes):
            numbers += [seen.setdefault((self.shapes[column], value), len(seen)) for value in range(size)]
        return np.array(numbers, np.int32)

    @functools.cached_property
    def scores(self) -> NumpyArray:
        """[scales, values]: the score of each value on each ordered column's scale, 0 elsewhere."""
        rows = np.zeros((len(self.scales), self.values), np.float32)
        for row, (column, scores) in zip(rows, self.scales, strict=True):
            start = int(self.offsets[column])
            row[start : start + len(scores)] = scores
        return rows

    @functools.cached_property
    def view_positions(self) -> tuple[Array, Array]:
        """For every value in every view: its own position, and its group's, counted from the first group of all."""
        own: list[int] = []
        group: list[int] = []
        first = 0
        for column, groups in self.views:
            start = int(self.offsets[column])
            own += range(start, start + len(groups))
            group += [first + number for number in groups]
            first += max(groups) + 1
        return np.array(own, np.int32), np.array(group, np.int32)

    def with_views(self, tables: Array) -> Array:
        """Tables [..., values] with the probabilities of the views' groups behind, [..., positions]."""
        if not self.views:
            return tables
        own, group = self.view_positions
        values = jnp.moveaxis(jnp.asarray(tables), -1, 0)
        sums = jax.ops.segment_sum(values[own], group, num_segments=self.positions - self.values)
        return jnp.moveaxis(jnp.concatenate([values, sums]), 0, -1)
