"""Randomised answers as a model reads them: how often each value of each question was told.

For subset selection (and randomised response, its case of one told value) counts are all a model needs. Where one value is
told, the likelihood of value b is proportional to 1 + (e^eps - 1) P(b), so counts are sufficient. Where w > 1 are told, value b
is among them with probability s = q + (p - q) P(b); the product of these binomial likelihoods over b stands for the law of the
told set, of which each report says so little that the two agree. Time and memory then depend on questions, not on clients.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import DataError
from populace.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """What of the schema a model needs: sizes, which columns have domains of one shape, what is next to what, and the target.

    Values of all columns laid end to end have *places*. `neighbours` are pairs of places next to each other on a scale;
    `scales` are ordered columns with the score of each value, mean 0 and variance 1. `views` are columns seen in groups of
    their values, `(column, group of each value)`: their groups have the places after the values', view by view.
    """

    sizes: tuple[int, ...]
    twins: tuple[int, ...]
    neighbours: tuple[tuple[int, int], ...] = ()
    target: int | None = None
    scales: tuple[tuple[int, tuple[float, ...]], ...] = ()
    views: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def values(self) -> int:
        return sum(self.sizes)

    @property
    def places(self) -> int:
        """Of values and of the views' groups."""
        return self.values + sum(max(groups) + 1 for _, groups in self.views)

    @property
    def offsets(self) -> Array:
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    @property
    def segments(self) -> Array:
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def is_target(self) -> Array:
        return self.segments == (-1 if self.target is None else self.target)

    @property
    def outcomes(self) -> int:
        """Values of the target; 1 without one."""
        return 1 if self.target is None else self.sizes[self.target]

    @functools.cached_property
    def shared(self) -> Array:
        """For every value, the number of the mean its logit is drawn to; columns of one shape share theirs."""
        seen: dict[tuple[int, int], int] = {}
        numbers = []
        for column, size in enumerate(self.sizes):
            numbers += [seen.setdefault((self.twins[column], value), len(seen)) for value in range(size)]
        return np.array(numbers, np.int32)

    @functools.cached_property
    def scores(self) -> Array:
        """[scales, values]: the score of each value on each ordered column's scale, 0 elsewhere."""
        rows = np.zeros((len(self.scales), self.values), np.float32)
        for row, (column, scores) in zip(rows, self.scales, strict=True):
            start = int(self.offsets[column])
            row[start : start + len(scores)] = scores
        return rows

    @functools.cached_property
    def view_places(self) -> tuple[Array, Array]:
        """For every value in every view: its own place, and its group's, counted from the first group of all."""
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
        """Tables [..., values] with the probabilities of the views' groups behind, [..., places]."""
        if not self.views:
            return tables
        own, group = self.view_places
        moved = jnp.moveaxis(jnp.asarray(tables), -1, 0)
        sums = jax.ops.segment_sum(moved[own], group, num_segments=self.places - self.values)
        return jnp.moveaxis(jnp.concatenate([moved, sums]), 0, -1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """Told values and how often.

    A *cell* is one value of a group of columns, written as the places of its values in the layout (`cells[i]`, padded with
    the number of places); it belongs to told value `told[i]` (several do where a question is folded). Told value b was told
    `counts[b]` times in `reports[b]` answers, with probability `p[b]` by who has it and `q[b]` by others; `alone[b]`: an
    answer tells one value. Values told alone that nobody told are left out.
    """

    places: int
    epsilon: float
    cells: Array
    told: Array
    counts: Array
    reports: Array
    p: Array
    q: Array
    alone: Array
    total: int

    def __post_init__(self) -> None:
        if self.total < 1:
            raise DataError("expected at least one answer, got none")

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What a compiled fit takes, padded with values nobody was asked about, so that few lengths are compiled."""
        told = _padding(len(self.counts))
        cells = told if len(self.cells) == len(self.counts) else _padding(len(self.cells))
        place = len(self.counts) if told else 0
        numbers = ((self.counts, 0.0), (self.reports, 0.0), (self.p, 0.5), (self.q, 0.25))
        return (
            jnp.asarray(np.pad(self.cells, ((0, cells), (0, 0)), constant_values=self.places)),
            jnp.asarray(np.concatenate([self.told, place + np.arange(cells) % max(told, 1)]).astype(np.int32)),
            *(jnp.asarray(np.pad(np.asarray(x, np.float32), (0, told), constant_values=v)) for x, v in numbers),
            jnp.asarray(np.pad(np.asarray(self.alone, bool), (0, told))),
        )


def _padding(length: int) -> int:
    """Up to an eighth more, so that lengths come in few sizes."""
    step = max(64, 1 << max(0, length.bit_length() - 4))
    return -length % step + step  # at least one, for padded cells to belong to


def log_likelihoods(chance: Array, arrays: tuple[Array, ...], epsilon: Array) -> Array:
    """Of each told value's counts, given the model's probability of each told value."""
    _, _, counts, reports, p, q, alone = arrays
    chance = jnp.clip(chance, 0.0, 1.0)
    support = q + (p - q) * chance
    many = counts * jnp.log(support) + (reports - counts) * jnp.log1p(-support)
    return jnp.where(alone, counts * jnp.log1p(jnp.expm1(epsilon) * chance), many)


def informations(chance: Array, arrays: tuple[Array, ...], epsilon: Array) -> Array:
    """Fisher information of each told value's counts about its probability."""
    _, _, counts, reports, p, q, alone = arrays
    chance = jnp.clip(chance, 0.0, 1.0)
    support = q + (p - q) * chance
    gain = jnp.expm1(epsilon)
    return jnp.where(
        alone, counts * (gain / (1 + gain * chance)) ** 2, reports * (p - q) ** 2 / (support * (1 - support))
    )


def told_chances(logs: Array, weights: Array, arrays: tuple[Array, ...], reader: Array | None) -> Array:
    """P of each told value: products over a cell's columns, summed over classes and over the cells told as one.

    `logs` is log theta, [classes, places]; `reader` the dense one-hot rows of the cells where they fit in memory.
    """
    cells, told, counts, *_ = arrays
    if reader is not None:
        joint = jnp.exp(reader @ logs.T)
    else:
        padded = jnp.concatenate([logs, jnp.zeros((len(logs), 1))], axis=1).T
        joint = jnp.exp(sum(padded[cells[:, i]] for i in range(cells.shape[1])))
    chances = joint @ weights
    return jax.ops.segment_sum(chances, told, num_segments=len(counts)) if len(counts) < len(cells) else chances


def dense_reader(cells: Array, places: int) -> Array:
    """[cells, places]: one-hot rows, so that a cell's log probability is a product of matrices."""
    rows = jnp.zeros((cells.shape[0], places + 1)).at[jnp.arange(cells.shape[0])[:, None], cells].add(1.0)
    return rows[:, :places]
