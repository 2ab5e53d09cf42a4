"""How columns of values hang together: correlations of numbers, means of numbers by category, Cramer's V of all pairs.

Nothing here knows the schema's cells. Cramer's V needs a table, so numbers get a grid of their own: the quantiles of the real
values, with spikes apart. Rows without a value of either column are left out of a pair's correlation ("pairwise complete").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from populace.evaluation.marginals import association, co_occurrence_of
from populace.evaluation.values import CategoryColumn, ValueTable, sample, spikes
from populace.types import NumpyArray

ROWS = 50_000  # rows, drawn at random and always the same, on which pairs of columns are compared
LEAST_GROUP = 30  # rows of a category below which its mean is left out
INTERVALS = 8  # of a column of numbers in a table of its own
MOST_LEVELS = 20  # levels of a column in such a table, the rest being one
LEAST_SHARE = 0.01  # of the real rows, below which a level is merged with others
LEAST_PAIRS = 10  # rows with both values, below which a correlation is left out


def pearson(columns: Sequence[NumpyArray]) -> NumpyArray:
    """Pearson correlations, each over the rows in which both columns have a value; NaN where there is none."""
    matrix = np.stack(columns, axis=1) if columns else np.zeros((0, 0))
    present = ~np.isnan(matrix)
    middle = np.array(
        [column[mask].mean() if mask.any() else 0.0 for column, mask in zip(columns, present.T, strict=True)]
    )
    scale = np.array(
        [column[mask].std() if mask.any() else 0.0 for column, mask in zip(columns, present.T, strict=True)]
    )
    x = np.where(present, (matrix - middle) / np.where(scale == 0, 1.0, scale), 0.0)
    mask = present.astype(np.float64)
    rows, sums, squares = mask.T @ mask, x.T @ mask, (x**2).T @ mask
    count = np.maximum(rows, 1)
    together = x.T @ x / count - sums * sums.T / count**2
    variance = np.maximum(squares / count - (sums / count) ** 2, 0.0)
    spread = np.sqrt(variance * variance.T)
    fine = (spread > 1e-12) & (rows >= LEAST_PAIRS)
    found = np.where(fine, np.clip(together / np.where(fine, spread, 1.0), -1, 1), np.nan)
    np.fill_diagonal(found, 1.0)
    return found


def spearman(columns: Sequence[NumpyArray]) -> NumpyArray:
    """Pearson correlations of the ranks among the rows in which both columns have a value."""
    present = [~np.isnan(column) for column in columns]
    found = np.eye(len(columns))
    masks: dict[bytes, int] = {}
    kind = [masks.setdefault(np.packbits(mask).tobytes(), len(masks)) for mask in present]
    ranks: dict[tuple[int, int], NumpyArray] = {}

    def ranked(own: int, other: int) -> NumpyArray:
        """Ranks of one column among the rows of another's mask; columns that miss the same rows share them."""
        key = (own, kind[other])
        if key not in ranks:
            both = present[own] & present[other]
            found = np.full(len(both), np.nan)
            found[both] = rankdata(columns[own][both])
            ranks[key] = found
        return ranks[key]

    for i in range(len(columns)):
        for j in range(i):
            found[i, j] = found[j, i] = pearson([ranked(i, j), ranked(j, i)])[0, 1]
    return found


def pearson_influence(own: NumpyArray, other: NumpyArray, columns: Sequence[NumpyArray]) -> NumpyArray:
    """What each row adds to the mean absolute difference of two correlation matrices through its own table."""
    matrix = np.stack(columns, axis=1)
    z = (matrix - np.nanmean(matrix, axis=0)) / np.maximum(np.nanstd(matrix, axis=0), 1e-300)
    present = (~np.isnan(z)).astype(np.float64)
    z = np.where(present > 0, z, 0.0)
    gradient = np.nan_to_num(np.sign(own - other)) / 2
    np.fill_diagonal(gradient, 0.0)
    known = np.isfinite(own - other)
    pairs = max(1, int(known.sum() - len(own)) // 2)
    gradient = gradient / pairs * len(matrix) / np.maximum(present.T @ present, 1)
    half = np.nan_to_num(own) * gradient
    return np.asarray(np.einsum("ij,ij->i", z @ gradient, z) - (z**2 * (present @ half)).sum(axis=1))


def over_pairs(matrix: NumpyArray) -> NumpyArray:
    """The entries above the diagonal that are known."""
    above = matrix[np.triu_indices(len(matrix), 1)]
    return above[np.isfinite(above)]


def worst_pair(matrix: NumpyArray, names: Sequence[str]) -> tuple[str, str] | None:
    """The two columns with the largest entry."""
    size = np.where(np.isfinite(matrix), np.abs(matrix), -1.0)
    size[np.tril_indices(len(size))] = -1.0
    if size.size == 0 or size.max() < 0:
        return None
    i, j = np.unravel_index(int(size.argmax()), size.shape)
    return names[int(i)], names[int(j)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupGap:
    """Means of a column of numbers by the categories of another: how far apart two tables are, over the real SD."""

    number: str
    category: str
    gap: float
    worst: str
    real: float
    synthetic: float
    left_out: int


def group_gaps(real: ValueTable, synthetic: ValueTable) -> list[GroupGap]:
    """One entry per column of numbers and column of categories in which any group has rows enough in both tables."""
    found = []
    for number, other in zip(real.numbers, synthetic.numbers, strict=True):
        sd = float(np.nanstd(number.values)) if np.isfinite(number.values).any() else 0.0
        if sd == 0:
            continue
        for group, other_group in zip(real.categories, synthetic.categories, strict=True):
            gap = _group_gap(number.values, group, other.values, other_group, sd)
            if gap is not None:
                found.append(dataclasses.replace(gap, number=number.name))
    return found


def _group_gap(
    values: NumpyArray, group: CategoryColumn, others: NumpyArray, other_group: CategoryColumn, sd: float
) -> GroupGap | None:
    rows, means = _means(values, group)
    other_rows, other_means = _means(others, other_group)
    enough = (rows >= LEAST_GROUP) & (other_rows >= LEAST_GROUP)
    if enough.sum() < 2:
        return None
    gaps = np.abs(means - other_means) / sd
    worst = int(np.where(enough, gaps, -1.0).argmax())
    return GroupGap(
        number="", category=group.name, gap=float((rows * gaps)[enough].sum() / rows[enough].sum()),
        worst=group.labels[worst], real=float(means[worst]), synthetic=float(other_means[worst]),
        left_out=int(((rows > 0) & ~enough).sum()),
    )  # fmt: skip


def _means(values: NumpyArray, group: CategoryColumn) -> tuple[NumpyArray, NumpyArray]:
    """Rows with a value in each category, and the mean of their values."""
    present = ~np.isnan(values) & (group.codes >= 0)
    codes = group.codes[present]
    rows = np.bincount(codes, minlength=len(group.labels))
    sums = np.bincount(codes, weights=values[present], minlength=len(group.labels))
    return rows, sums / np.maximum(rows, 1)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Levels of each column for tables of pairs, fixed by the real rows: spikes, quantiles, frequent categories, no value.

    Levels of few real rows are one level together: single rows in cells that are hardly ever expected make Cramer's V large.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    points: tuple[
        tuple[NumpyArray, NumpyArray], ...
    ]  # of each column of numbers: its spikes, the borders of its intervals
    merged: tuple[NumpyArray, ...]  # of each column: the level that each of its finer levels belongs to

    def codes(self, table: ValueTable) -> NumpyArray:
        found = _fine_levels(table, self.points)
        return np.stack([into[levels] for into, levels in zip(self.merged, found, strict=True)], axis=1)

    def association(self, table: ValueTable) -> NumpyArray:
        """Cramer's V of every pair of columns."""
        return association(co_occurrence_of(self.codes(table), self.sizes) / table.rows, self.sizes)


def grid_of(real: ValueTable) -> Grid:
    points = []
    for column in real.numbers:
        own = sample(column.values)
        atoms = np.array(spikes(own))
        rest = own.ordered[~np.isin(own.ordered, atoms)]
        borders = np.unique(np.quantile(rest, np.linspace(0, 1, INTERVALS + 1)[1:-1])) if len(rest) else np.zeros(0)
        points.append((atoms, borders))
    names = [column.name for column in real.numbers] + [column.name for column in real.categories]
    fine = [len(atoms) + len(borders) + 2 for atoms, borders in points]
    fine += [len(column.labels) + 1 for column in real.categories]
    merged = tuple(_merged(levels, size) for levels, size in zip(_fine_levels(real, points), fine, strict=True))
    return Grid(
        names=tuple(names), sizes=tuple(int(into.max()) + 1 for into in merged),
        points=tuple(points), merged=merged,
    )  # fmt: skip


def _fine_levels(table: ValueTable, points: Sequence[tuple[NumpyArray, NumpyArray]]) -> list[NumpyArray]:
    found = [_levels(column.values, *points[i]) for i, column in enumerate(table.numbers)]
    for column in table.categories:
        found.append(np.where(column.codes < 0, len(column.labels), column.codes))
    return found


def _merged(levels: NumpyArray, size: int) -> NumpyArray:
    """Frequent levels keep their own; the rest are one, or part of the most frequent where even together they are few."""
    counts = np.bincount(levels, minlength=size)
    order = np.argsort(-counts, kind="stable")
    least = max(LEAST_GROUP, LEAST_SHARE * len(levels))
    frequent = [int(level) for level in order[:MOST_LEVELS] if counts[level] >= least] or [int(order[0])]
    rest = len(levels) - int(counts[frequent].sum())
    into = np.full(size, len(frequent) if rest >= least else 0, np.int32)
    into[frequent] = np.arange(len(frequent))
    return into


def _levels(values: NumpyArray, atoms: NumpyArray, borders: NumpyArray) -> NumpyArray:
    """Spikes first, then intervals, then no value."""
    found = len(atoms) + np.searchsorted(borders, values, "right")
    at = np.minimum(np.searchsorted(atoms, values), max(0, len(atoms) - 1))
    if len(atoms):
        found = np.where(atoms[at] == values, at, found)
    return np.where(np.isnan(values), len(atoms) + len(borders) + 1, found)
