"""Randomised answers as the model reads them: how often each value of each question was reported.

For subset selection (and randomised response, its case of one reported value) counts are all that a model needs. Where one
value is reported, the likelihood of value b is proportional to 1 + (e^eps - 1) P(b), so counts are sufficient. Where w > 1 are
reported, value b is among them with probability s = q + (p - q) P(b); the product of these binomial likelihoods over b stands
for the law of the reported set, of which each report says so little that the two agree. Time and memory then depend on
questions, not on clients. What one more answer would add, given draws of a model, is estimated here too.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import DataError
from populace.methods.blocks import one_report as survey
from populace.methods.blocks.one_report import WHOLE, View, asked_size, groups_of, is_scale, spikes_of
from populace.privacy.randomizers.subset import SubsetSelection
from populace.tables.schema import Schema
from populace.types import Array, NumpyArray

CLIPPED_AT = 4.0  # standard deviations beyond what honest answers can be
PAIR_MATRIX = (
    4  # entries for each cell, up to which computing all two positions is quicker than computing the cells alone
)
LEAST_LEVERAGE = 0.1  # of a standard deviation, below which a mean counts as zero


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerCounts:
    """Reported values and how often each was reported.

    A *cell* is one value of a group of columns, written as the positions of its values in the layout (`cells[i]`, padded with
    the number of positions); it belongs to reported value `reported[i]` (several do where a question is hashed). Reported
    value b was reported `counts[b]` times in `reports[b]` answers, with probability `p[b]` by who has it and `q[b]` by others;
    `single[b]`: an answer reports one value. Values of such questions that nobody reported are left out.
    """

    positions: int
    epsilon: float
    cells: NumpyArray
    reported: NumpyArray
    counts: NumpyArray
    reports: NumpyArray
    p: NumpyArray
    q: NumpyArray
    single: NumpyArray
    total: int

    def __post_init__(self) -> None:
        if self.total < 1:
            raise DataError("expected at least one answer, got none")

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays a compiled fit takes, padded with values nobody was asked about, so that few lengths are compiled."""
        values = _padding(len(self.counts))
        cells = values if len(self.cells) == len(self.counts) else _padding(len(self.cells))
        first = len(self.counts) if values else 0
        numbers = ((self.counts, 0.0), (self.reports, 0.0), (self.p, 0.5), (self.q, 0.25))
        return (
            jnp.asarray(np.pad(self.cells, ((0, cells), (0, 0)), constant_values=self.positions)),
            jnp.asarray(np.concatenate([self.reported, first + np.arange(cells) % max(values, 1)]).astype(np.int32)),
            *(jnp.asarray(np.pad(np.asarray(x, np.float32), (0, values), constant_values=v)) for x, v in numbers),
            jnp.asarray(np.pad(np.asarray(self.single, bool), (0, values))),
        )


def _padding(length: int) -> int:
    """The entries to add: up to an eighth more, so that lengths come in few sizes."""
    step = max(64, 1 << max(0, length.bit_length() - 4))
    return -length % step + step  # at least one, for padded cells to belong to


def log_likelihoods(probability: Array, arrays: tuple[Array, ...], epsilon: Array) -> Array:
    """The log likelihood of each reported value's counts, given the model's probability of each of these values."""
    _, _, counts, reports, p, q, single = arrays
    probability = jnp.clip(probability, 0.0, 1.0)
    support = q + (p - q) * probability
    binomial = counts * jnp.log(support) + (reports - counts) * jnp.log1p(-support)
    return jnp.where(single, counts * jnp.log1p(jnp.expm1(epsilon) * probability), binomial)


def fisher_informations(probability: Array, arrays: tuple[Array, ...], epsilon: Array) -> Array:
    """The Fisher information of each reported value's counts about its probability."""
    _, _, counts, reports, p, q, single = arrays
    probability = jnp.clip(probability, 0.0, 1.0)
    support = q + (p - q) * probability
    gain = jnp.expm1(epsilon)
    return jnp.where(
        single, counts * (gain / (1 + gain * probability)) ** 2, reports * (p - q) ** 2 / (support * (1 - support))
    )


def value_probabilities(logs: Array, weights: Array, arrays: tuple[Array, ...], one_hot: Array | None) -> Array:
    """P of each reported value: products over a cell's columns, summed over classes and over the cells reported as one.

    `logs` is log theta, [classes, positions]; `one_hot` has the cells' dense one-hot rows, if they fit in memory and are
    not `in_pairs`. The position after the last stands for no column.
    """
    cells, reported, counts, *_ = arrays
    padded = jnp.concatenate([logs, jnp.zeros((len(logs), 1))], axis=1).T
    if one_hot is not None:
        probabilities = jnp.exp(one_hot @ logs.T) @ weights
    elif in_pairs(cells, logs.shape[1]):
        pairs = jnp.matmul(jnp.exp(padded) * weights, jnp.exp(padded).T, precision=jax.lax.Precision.HIGHEST)
        probabilities = pairs[cells[:, 0], cells[:, 1]]
    else:
        probabilities = jnp.exp(sum(padded[cells[:, i]] for i in range(cells.shape[1]))) @ weights
    if len(counts) < len(cells):
        return jax.ops.segment_sum(probabilities, reported, num_segments=len(counts))
    return probabilities


def in_pairs(cells: Array, positions: int) -> bool:
    """Whether cells have two columns at most and are so many that those of all two positions are computed, in one product."""
    return cells.shape[1] == 2 and (positions + 1) ** 2 <= PAIR_MATRIX * cells.shape[0]


def one_hot_cells(cells: Array, positions: int) -> Array:
    """[cells, positions]: one-hot rows, so that a cell's log probability is a product of matrices."""
    rows = jnp.zeros((cells.shape[0], positions + 1)).at[jnp.arange(cells.shape[0])[:, None], cells].add(1.0)
    return rows[:, :positions]


def layout_of(asked: survey.Survey, target: str | None) -> Layout:
    """What the model needs to know of the schema and of the questions; what values are called does not matter."""
    schema, columns = asked.schema, asked.schema.columns
    numbers: dict[tuple[bool, int, bool], int] = {}
    scales = tuple(i for i, column in enumerate(columns) if is_scale(column) and column.name != target)
    return Layout(
        sizes=schema.sizes,
        shapes=tuple(numbers.setdefault((is_scale(c), c.levels, c.nullable), len(numbers)) for c in columns),
        neighbours=_neighbours(schema),
        scales=tuple((i, _scores(columns[i].levels)) for i in scales),
        target=None if target is None else schema.index(target),
        views=tuple((column, groups_of(columns[column], view)) for column, view in asked.used_views),
    )


def _scores(levels: int) -> tuple[float, ...]:
    """The ranks of the levels, with mean 0 and variance 1."""
    ranks = np.arange(levels, dtype=np.float64)
    return tuple(((ranks - ranks.mean()) / ranks.std()).tolist())


def _neighbours(schema: Schema) -> tuple[tuple[int, int], ...]:
    """Positions of adjacent cells of scales; a single value among intervals, and a null, is nobody's neighbour."""
    pairs: list[tuple[int, int]] = []
    first = 0
    for column in schema.columns:
        if is_scale(column):
            apart = spikes_of(column)
            pairs += [(first + v, first + v + 1) for v in range(column.levels - 1) if not (apart[v] or apart[v + 1])]
        first += column.size
    return tuple(pairs)


def count_answers(
    asked: survey.Survey, counts: survey.SupportCounts, *, robust: bool = False
) -> tuple[AnswerCounts, AnswerCounts | None]:
    """Counts as the model reads them: those to fit to, and the held-out ones (None where there are none)."""
    questions = len(asked.groups)
    supports, answers = np.asarray(counts.supports, np.int64), np.asarray(counts.answers, np.int64)
    firsts, positions = first_positions(asked)
    widest = max(len(group) for group in asked.groups)
    shared: dict[str, list[NumpyArray]] = {name: [] for name in ("cells", "reported", "p", "q", "single")}
    parts: list[dict[str, list[NumpyArray]]] = [{"counts": [], "reports": []} for _ in range(2)]
    first = 0
    for question, (group, views, shape, member) in enumerate(
        zip(asked.groups, asked.all_views, asked.shapes, asked.panel.members, strict=True)
    ):
        rows = (question, question + questions)
        if not answers[list(rows)].sum() or member.size == 1:
            continue
        reported = supports[list(rows), : member.size]
        single = member.chosen == 1
        kept = np.flatnonzero(reported.sum(axis=0)) if single else np.arange(member.size)
        number_of = np.full(member.size, -1)
        number_of[kept] = np.arange(len(kept))
        buckets = number_of[asked.buckets(question)]
        cells = np.flatnonzero(buckets >= 0)
        where = np.full((len(cells), widest), positions, np.int32)
        starts = [firsts.get((c, view), firsts[c, WHOLE]) for c, view in zip(group, views, strict=True)]
        where[:, : len(group)] = np.stack(np.unravel_index(cells, shape), axis=1) + starts
        shared["cells"].append(where)
        shared["reported"].append(first + buckets[cells])
        for name, value in (("p", member.p), ("q", member.q), ("single", single)):
            shared[name].append(np.full(len(kept), value))
        for part, row in zip(parts, range(2), strict=True):
            number = reported[row, kept]
            reports = answers[rows[row]]
            part["counts"].append(clip_counts(number, int(reports), member) if robust else number)
            part["reports"].append(np.full(len(kept), reports))
        first += len(kept)
    early, late = int(answers[:questions].sum()), int(answers[questions:].sum())
    both = [
        AnswerCounts(positions=positions, epsilon=asked.epsilon, total=total, **_joined(shared), **_joined(part))
        if total
        else None
        for part, total in zip(parts, (early, late), strict=True)
    ]
    fitted, held_out = both if early or not late else (both[1], None)
    if fitted is None:
        raise DataError("expected at least one answer, got none")
    return fitted, held_out


def _joined(parts: Mapping[str, list[NumpyArray]]) -> dict[str, NumpyArray]:
    """Each list of arrays end to end; the numbers of reported values are 32 bits wide."""
    joined = {name: np.concatenate(arrays) if arrays else np.zeros(0) for name, arrays in parts.items()}
    return joined | {name: joined[name].astype(np.int32) for name in ("reported",) if name in joined}


def first_positions(asked: survey.Survey) -> tuple[dict[tuple[int, View], int], int]:
    """Where the values of each column, and the groups of each view, begin in the layout; and the number of positions."""
    columns = asked.schema.columns
    firsts, position = {}, 0
    for column, view in [*((column, WHOLE) for column in range(len(columns))), *asked.used_views]:
        firsts[column, view] = position
        position += asked_size(columns[column], view)
    return firsts, position


def clip_counts(counts: NumpyArray, reports: int, member: SubsetSelection) -> NumpyArray:
    """Counts cut to what honest answers can give: a support between q and p, and chance beyond it."""
    low, high = (
        reports * edge + sign * CLIPPED_AT * math.sqrt(reports * edge * (1 - edge))
        for edge, sign in ((member.q, -1), (member.p, 1))
    )
    return np.clip(counts, max(0, math.floor(low)) if member.chosen > 1 else 0, math.ceil(high))


def forged_shift(forged: int, reports: int, member: SubsetSelection) -> float:
    """How far `forged` answers among `reports` (forged ones included) can move one cell of a question's own estimate, at most.

    A report supports a cell or not; a true one does so in expectation between q and p of the time, so each forged report moves
    the mean support by at most max(p, 1 - q) / reports, and the estimate by that over p - q.
    """
    return forged / reports * max(member.p, 1 - member.q) / (member.p - member.q)


def merge_counts(first: AnswerCounts, second: AnswerCounts) -> AnswerCounts:
    """The counts of answers to the same questions, added."""
    return dataclasses.replace(
        first, counts=first.counts + second.counts, reports=first.reports + second.reports,
        total=first.total + second.total,
    )  # fmt: skip


def question_probabilities(
    asked: survey.Survey, layout: Layout, weights: Array, tables: Array
) -> Iterator[tuple[NumpyArray, SubsetSelection]]:
    """For every question: the probability of each reported value under each draw of a model, [draws, values], and the
    mechanism that reports it."""
    weights = np.asarray(weights, np.float32)
    tables = np.asarray(layout.with_views(np.asarray(tables, np.float32)), np.float32)
    firsts, _ = first_positions(asked)
    for question, (group, views, shape) in enumerate(zip(asked.groups, asked.all_views, asked.shapes, strict=True)):
        joint = weights[:, :, None]
        for column, view, size in zip(group, views, shape, strict=True):
            start = firsts.get((column, view), firsts[column, WHOLE])
            values = tables[:, :, None, start : start + size]
            joint = (joint[..., None] * values).reshape(*joint.shape[:2], -1)
        probability = joint.sum(axis=1)
        member = asked.panel.members[question]
        if asked.is_folded[question]:
            buckets = np.zeros((len(probability), member.size), np.float32)
            np.add.at(buckets.T, asked.buckets(question), probability.T)
            probability = buckets
        yield probability, member


def question_gains(asked: survey.Survey, layout: Layout, weights: Array, tables: Array) -> NumpyArray:
    """How much one answer to each question would add: the variance, over draws of the model, of the probability that each
    value is reported, over the variance of the report."""
    gains = np.zeros(len(asked.groups))
    for question, (probability, member) in enumerate(question_probabilities(asked, layout, weights, tables)):
        if member.size > 1:
            support = member.q + (member.p - member.q) * probability.mean(axis=0)
            variance = probability.var(axis=0) * (member.p - member.q) ** 2
            gains[question] = np.sum(variance / np.maximum(support * (1 - support), 1e-12))
    return gains


def mean_gains(asked: survey.Survey, layout: Layout, weights: NumpyArray, tables: NumpyArray) -> NumpyArray:
    """How much one answer to each question would add about the means of numeric columns, each relative to the mean itself.

    Draws of the model differ in a mean and in the probability that each value is reported; their covariance, over the variance
    of the report, is how much of the mean's variance an answer takes away.
    """
    means = []
    for index, column in enumerate(asked.schema.columns):
        if column.is_scale and column.levels > 1:
            first = int(layout.offsets[index])
            shares = np.einsum("dz,dzv->dv", weights, tables[:, :, first : first + column.levels])
            centres = column.centres()
            drawn = shares @ centres
            deviation = math.sqrt(max(float(shares.mean(axis=0) @ (centres - drawn.mean()) ** 2), 1e-300))
            means.append((drawn - drawn.mean()) / max(abs(float(drawn.mean())), LEAST_LEVERAGE * deviation))
    gains = np.zeros(len(asked.groups))
    if not means:
        return gains
    drawn = np.stack(means, axis=1)
    for question, (probability, member) in enumerate(question_probabilities(asked, layout, weights, tables)):
        if member.size > 1:
            support = member.q + (member.p - member.q) * probability.mean(axis=0)
            covariance = (probability - probability.mean(axis=0)).T @ drawn / len(drawn)
            precision = (member.p - member.q) ** 2 / np.maximum(support * (1 - support), 1e-12)
            gains[question] = float((covariance**2).sum(axis=1) @ precision)
    return gains
