"""How far the tables of synthetic rows are from those of real rows, one and two columns at a time.

one-way, two-way distance    total variation distance (half the L1 distance) of the tables of a column, of a pair of columns
relative error               mean over the non-empty cells of all two-way tables of |P - P'| / P (SamPrivSyn, eq. 13, as far as
                             it is defined: over d-way tables almost every cell of the denominator is zero)

All are functions of one matrix, the shares of rows in which two values occur together. A row's influence on such a function is
x' D x, x the row in one-hot form and D the derivative by that matrix: the sum of D over the pairs of the row's values.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from populace.errors import DataError
from populace.evaluation.estimate import Estimate, from_influence
from populace.tables.codec import one_hot
from populace.tables.table import Table
from populace.types import NumpyArray

CHUNK = 65_536
COUNTING_COST = 100  # counting a row's pair costs about as much as so many products of one-hot entries
INFLUENCE_ROWS = 20_000  # rows, drawn at random, on which the spread of the influence is measured
INFLUENCE_CHUNK = 2_048  # of these rows, looked at together


def co_occurrence(table: Table) -> NumpyArray:
    """All one- and two-way tables at once: entry (a, b) is the share of rows in which values a and b both occur.

    Values are numbered through all columns, in schema order; the diagonal holds the one-way marginals. Few columns are counted
    pair by pair, many narrow ones by a product of one-hot rows: whichever is cheaper.
    """
    return co_occurrence_of(table.codes, table.schema.sizes) / len(table)


def co_occurrence_of(codes: NumpyArray, sizes: tuple[int, ...]) -> NumpyArray:
    """The same for codes of columns of these sizes, as counts of rows."""
    if len(sizes) * (len(sizes) - 1) / 2 * COUNTING_COST < sum(sizes) ** 2:
        return _counted_pairs(codes, sizes)
    total = np.zeros((sum(sizes), sum(sizes)))
    for start in range(0, len(codes), CHUNK):
        rows = one_hot(codes[start : start + CHUNK], sizes)
        total += rows.T @ rows
    return total


def _counted_pairs(codes: NumpyArray, sizes: tuple[int, ...]) -> NumpyArray:
    parts = blocks(sizes)
    total = np.zeros((sum(sizes), sum(sizes)))
    for i in range(len(sizes)):
        first = codes[:, i].astype(np.int64)
        total[parts[i], parts[i]] = np.diag(np.bincount(first, minlength=sizes[i]))
        for j in range(i):
            cells = first * sizes[j]
            cells += codes[:, j]
            counts = np.bincount(cells, minlength=sizes[i] * sizes[j])
            total[parts[i], parts[j]] = counts.reshape(sizes[i], sizes[j])
            total[parts[j], parts[i]] = total[parts[i], parts[j]].T
    return total


def blocks(sizes: tuple[int, ...]) -> list[slice]:
    bounds = np.cumsum([0, *sizes])
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(bounds)]


def check_comparable(real: Table, synthetic: Table) -> None:
    if real.schema.names != synthetic.schema.names or real.schema.sizes != synthetic.schema.sizes:
        raise DataError(
            "the real and the synthetic table have different columns or domains; read both under one schema"
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """The co-occurrence matrices of two tables, whose functions are the metrics below.

    `rows` and `some` (the codes of rows drawn at random, for intervals) have one entry per table; one only, where the second
    matrix is the product of the first's one-way marginals.
    """

    sizes: tuple[int, ...]
    real: NumpyArray
    synthetic: NumpyArray
    rows: tuple[int, ...]
    some: tuple[NumpyArray, ...]

    @property
    def parts(self) -> list[slice]:
        return blocks(self.sizes)

    def weights(self, *, diagonal: bool) -> NumpyArray:
        """1 in the blocks of one column (`diagonal`) or of two different ones, each pair counted twice; else 0."""
        if diagonal:
            return np.diag(np.ones(len(self.real)))
        other = np.ones_like(self.real)
        for part in self.parts:
            other[part, part] = 0.0
        return other

    def estimate(
        self, value: float, by_real: NumpyArray, by_synthetic: NumpyArray, *, most: float = np.inf
    ) -> Estimate:
        """The interval of a figure with these derivatives."""
        if len(self.rows) == 1:  # a row moves the product too, through the one-way marginals
            through = 2 * (by_synthetic * self.weights(diagonal=False)) @ np.diag(self.real) + np.diag(by_synthetic)
            by_real, by_synthetic = by_real + np.diag(through), by_synthetic[:0]
        influences = [
            _influence(codes, gradient, self.sizes)
            for codes, gradient in zip(self.some, (by_real, by_synthetic), strict=False)
        ]
        return from_influence(value, *influences, rows=self.rows, most=most)

    def distances(self) -> NumpyArray:
        """Total variation distance of every pair's table, symmetric, with the one-way distances on the diagonal."""
        gap = np.abs(self.real - self.synthetic)
        bounds = [part.start for part in self.parts]
        halves = np.add.reduceat(np.add.reduceat(gap, bounds, axis=0), bounds, axis=1) / 2
        return np.asarray((halves + halves.T) / 2)  # the two orders of addition differ in the last digit

    def mean_distance(self, *, ways: int) -> Estimate:
        """The mean distance over all columns (1) or over all pairs of different columns (2)."""
        matrix = self.distances()
        count = len(self.sizes)
        weights = self.weights(diagonal=ways == 1) / (2 * (count if ways == 1 else count * (count - 1)))
        value = float(np.diag(matrix).mean()) if ways == 1 else mean_over_pairs(matrix)
        gradient = self.real - self.synthetic
        np.sign(gradient, out=gradient)
        gradient *= weights
        del weights
        return self.estimate(value, gradient, -gradient, most=1.0)

    def one_way(self) -> list[Estimate]:
        """The distance of each column."""
        found = []
        for index, part in enumerate(self.parts):
            gap = np.diag(self.real)[part] - np.diag(self.synthetic)[part]
            influences = [np.sign(gap)[codes[:, index]] / 2 for codes in self.some]
            found.append(from_influence(np.abs(gap).sum() / 2, *influences, rows=self.rows, most=1.0))
        return found

    def relative_error(self) -> Estimate:
        """Mean of |P - P'| / P over the cells of all two-way tables that occur in the real rows.

        Edge cases: rare cells dominate it (one row more or less in a cell of one row is an error of 1); with one column, of
        its own table.
        """
        used = (self.weights(diagonal=len(self.sizes) == 1) > 0) & (self.real > 0)
        true, guess = np.where(used, self.real, 1.0), np.where(used, self.synthetic, 1.0)
        cells = int(used.sum())
        value = float((np.abs(true - guess) / true)[used].mean())
        sign = np.sign(true - guess)
        del used
        by_real = sign * guess
        del guess
        by_real /= true**2
        by_real /= cells
        np.negative(sign, out=sign)
        sign /= true
        del true
        sign /= cells
        return self.estimate(value, by_real, sign)


def compare_pairs(real: Table, synthetic: Table, *, of_real: NumpyArray | None = None) -> Pairs:
    """All that two tables' one- and two-way tables say; `of_real`, if it was counted before, saves counting it again."""
    check_comparable(real, synthetic)
    return Pairs(
        sizes=real.schema.sizes, real=co_occurrence(real) if of_real is None else of_real,
        synthetic=co_occurrence(synthetic), rows=(len(real), len(synthetic)), some=(_some(real), _some(synthetic)),
    )  # fmt: skip


def compare_product(real: Table, *, of_real: NumpyArray | None = None) -> Pairs:
    """The real rows against the product of their own one-way marginals, exactly."""
    matrix = co_occurrence(real) if of_real is None else of_real
    product = product_matrix(matrix, real.schema.sizes)
    return Pairs(sizes=real.schema.sizes, real=matrix, synthetic=product, rows=(len(real),), some=(_some(real),))


def _some(table: Table) -> NumpyArray:
    chosen = np.sort(np.random.default_rng(5).permutation(len(table))[:INFLUENCE_ROWS])
    return table.codes[chosen]


def _influence(codes: NumpyArray, gradient: NumpyArray, sizes: tuple[int, ...]) -> NumpyArray:
    """x' D x of each row: a row has one value of each column, so D is looked up at the pairs of these."""
    places = codes + np.cumsum([0, *sizes[:-1]])
    found = np.empty(len(places))
    for start in range(0, len(places), INFLUENCE_CHUNK):
        own = places[start : start + INFLUENCE_CHUNK]
        found[start : start + INFLUENCE_CHUNK] = gradient[own[:, :, None], own[:, None, :]].sum(axis=(1, 2))
    return found


def product_matrix(matrix: NumpyArray, sizes: tuple[int, ...]) -> NumpyArray:
    """The co-occurrence matrix of independent columns with the same one-way marginals."""
    ways = np.diag(matrix)
    found = np.outer(ways, ways)
    for part in blocks(sizes):
        found[part, part] = np.diag(ways[part])
    return found


def association(matrix: NumpyArray, sizes: tuple[int, ...]) -> NumpyArray:
    """Cramer's V of every pair of columns: 0 independent, 1 one follows from the other; 1 on the diagonal.

    Edge cases: 0 for a column in which one value occurs only.
    """
    parts = blocks(sizes)
    ways = np.diag(matrix)
    expected = np.outer(ways, ways)
    squares = np.divide((matrix - expected) ** 2, expected, out=np.zeros_like(matrix), where=expected > 0)
    occurring = [int((ways[part] > 0).sum()) for part in parts]
    found = np.eye(len(sizes))
    for i, a in enumerate(parts):
        for j, b in enumerate(parts[:i]):
            levels = min(occurring[i], occurring[j]) - 1
            found[i, j] = found[j, i] = min(1.0, np.sqrt(squares[a, b].sum() / levels)) if levels else 0.0
    return found


def one_way_distances(real: Table, synthetic: Table) -> dict[str, float]:
    """Total variation distance of each column's table."""
    check_comparable(real, synthetic)
    distances = {}
    for index, column in enumerate(real.schema.columns):
        counts = [np.bincount(t.codes[:, index], minlength=column.size) / len(t) for t in (real, synthetic)]
        distances[column.name] = float(np.abs(counts[0] - counts[1]).sum() / 2)
    return distances


def two_way_distances(real: Table, synthetic: Table) -> NumpyArray:
    """Total variation distance of every pair's table, as a symmetric matrix with the one-way distances on its diagonal."""
    return compare_pairs(real, synthetic).distances()


def relative_error(real: Table, synthetic: Table) -> float:
    return compare_pairs(real, synthetic).relative_error().value


def mean_over_pairs(matrix: NumpyArray) -> float:
    """The mean of a symmetric matrix over pairs of different columns; 0 for a single column."""
    above = matrix[np.triu_indices(len(matrix), 1)]
    return float(above.mean()) if len(above) else 0.0
