"""Correlation matrix distance (CMD): how far apart two tables' linear dependence is, as one number.

    CMD = 1 - tr(A B) / (||A|| ||B||),    A, B the correlation matrices, || || Frobenius (Herdin et al. 2005)

0 for equal matrices up to a factor, 1 for orthogonal ones. Columns enter as their codes: meant for binary and ordinal columns.
"""

from __future__ import annotations

import numpy as np

from populace.evaluation.estimate import Estimate, from_influence
from populace.evaluation.marginals import check_comparable
from populace.tables.table import Table
from populace.types import NumpyArray


def correlation_matrix(codes: NumpyArray) -> NumpyArray:
    """Pearson correlations of columns of codes; a constant column is uncorrelated with all others and 1 with itself."""
    return _correlations(codes)[0]


def _correlations(codes: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """The matrix, and the columns scaled to mean 0 and variance 1 (0 throughout where a column is constant)."""
    centred = np.asarray(codes, np.float64) - np.mean(codes, axis=0)
    scale = np.sqrt((centred**2).mean(axis=0))
    centred /= np.where(scale == 0, 1, scale)
    matrix: NumpyArray = centred.T @ centred / len(codes)
    np.fill_diagonal(matrix, 1.0)
    return matrix, centred


def constant_columns(table: Table) -> list[str]:
    """Columns in which all rows have one value: they have no correlation, and count as uncorrelated."""
    return [name for name, codes in zip(table.schema.names, table.codes.T, strict=True) if (codes == codes[0]).all()]


def correlation_distance(real: Table, synthetic: Table) -> Estimate:
    """CMD with its interval; a row moves a correlation r by z z' - r (z^2 + z'^2) / 2, z and z' its scaled values."""
    check_comparable(real, synthetic)
    (first, z), (second, other) = _correlations(real.codes), _correlations(synthetic.codes)
    influences = [_influence(first, second, z), _influence(second, first, other)]
    return from_influence(_distance(first, second), *influences, rows=[len(real), len(synthetic)], most=1.0)


def distance_to_uncorrelated(real: Table) -> Estimate:
    """CMD between the real rows and independent columns, whose correlations are all zero."""
    first, z = _correlations(real.codes)
    none = np.eye(len(first))
    return from_influence(_distance(first, none), _influence(first, none, z), rows=[len(real)], most=1.0)


def _distance(first: NumpyArray, second: NumpyArray) -> float:
    return max(0.0, float(1 - (first * second).sum() / (np.linalg.norm(first) * np.linalg.norm(second))))


def _influence(own: NumpyArray, other: NumpyArray, z: NumpyArray) -> NumpyArray:
    """What each row adds to the distance through its own table's matrix."""
    size, other_size = np.linalg.norm(own), np.linalg.norm(other)
    gradient = (own * (own * other).sum() / size**2 - other) / (size * other_size)
    np.fill_diagonal(gradient, 0.0)
    return np.asarray(np.einsum("ij,ij->i", z @ gradient, z) - z**2 @ (gradient * own).sum(axis=1))
