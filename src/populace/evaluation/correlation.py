"""Correlation matrix distance (CMD): how far apart two tables' linear dependence is, as one number.

    CMD = 1 - tr(A B) / (||A|| ||B||),    A, B the correlation matrices, || || Frobenius (Herdin et al. 2005)

0 for equal matrices up to a factor, 1 for orthogonal ones. Columns enter as their codes: meant for binary and ordinal columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from populace.evaluation.estimate import Estimate, from_influence
from populace.evaluation.marginals import check_comparable
from populace.tables.table import Table
from populace.types import NumpyArray

CHUNK = 65_536  # rows looked at together: a copy of all of them in double precision would be larger than the table


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Means, standard deviations (1 where a column is constant) and correlations of columns of codes."""

    mean: NumpyArray
    scale: NumpyArray
    matrix: NumpyArray

    def scaled(self, codes: NumpyArray) -> Iterator[NumpyArray]:
        """The columns scaled to mean 0 and variance 1 (0 throughout where a column is constant), some rows at a time."""
        for centred in _centred(codes, self.mean):
            centred /= self.scale
            yield centred


def correlation_matrix(codes: NumpyArray) -> NumpyArray:
    """Pearson correlations of columns of codes; a constant column is uncorrelated with all others and 1 with itself."""
    return moments_of(codes).matrix


def moments_of(codes: NumpyArray) -> Moments:
    columns = codes.shape[1]
    mean = codes.mean(axis=0, dtype=np.float64)
    squares = np.zeros(columns)
    for centred in _centred(codes, mean):
        squares += (centred**2).sum(axis=0)
    deviation = np.sqrt(squares / len(codes))
    scale = np.where(deviation == 0, 1, deviation)
    matrix = np.zeros((columns, columns))
    with threadpool_limits(1):  # of so few columns: several threads wait for each other
        for centred in _centred(codes, mean):
            centred /= scale
            matrix += centred.T @ centred
    matrix /= len(codes)
    np.fill_diagonal(matrix, 1.0)
    return Moments(mean=mean, scale=scale, matrix=matrix)


def _centred(codes: NumpyArray, mean: NumpyArray) -> Iterator[NumpyArray]:
    for start in range(0, len(codes), CHUNK):
        rows = np.array(codes[start : start + CHUNK], np.float64, order="C")
        rows -= mean
        yield rows


def constant_columns(table: Table) -> list[str]:
    """Columns in which all rows have one value: they have no correlation, and count as uncorrelated."""
    return [name for name, codes in zip(table.schema.names, table.codes.T, strict=True) if (codes == codes[0]).all()]


def correlation_distance(
    real: Table, synthetic: Table, *, of_real: Moments | None = None, of_synthetic: Moments | None = None
) -> Estimate:
    """CMD with its interval; a row moves a correlation r by z z' - r (z^2 + z'^2) / 2, z and z' its scaled values.

    Moments that were computed before save computing them again.
    """
    check_comparable(real, synthetic)
    first = moments_of(real.codes) if of_real is None else of_real
    second = moments_of(synthetic.codes) if of_synthetic is None else of_synthetic
    influences = [_influence(first, second.matrix, real.codes), _influence(second, first.matrix, synthetic.codes)]
    return from_influence(
        _distance(first.matrix, second.matrix), *influences, rows=[len(real), len(synthetic)], most=1.0
    )


def distance_to_uncorrelated(real: Table, *, of_real: Moments | None = None) -> Estimate:
    """CMD between the real rows and independent columns, whose correlations are all zero."""
    first = moments_of(real.codes) if of_real is None else of_real
    none = np.eye(len(first.matrix))
    influence = _influence(first, none, real.codes)
    return from_influence(_distance(first.matrix, none), influence, rows=[len(real)], most=1.0)


def _distance(first: NumpyArray, second: NumpyArray) -> float:
    return max(0.0, float(1 - (first * second).sum() / (np.linalg.norm(first) * np.linalg.norm(second))))


def _influence(moments: Moments, other: NumpyArray, codes: NumpyArray) -> NumpyArray:
    """What each row adds to the distance through its own table's matrix."""
    own = moments.matrix
    size, other_size = np.linalg.norm(own), np.linalg.norm(other)
    gradient = (own * (own * other).sum() / size**2 - other) / (size * other_size)
    np.fill_diagonal(gradient, 0.0)
    half = (gradient * own).sum(axis=1)
    with threadpool_limits(1):
        return np.concatenate([np.einsum("ij,ij->i", z @ gradient, z) - z**2 @ half for z in moments.scaled(codes)])
