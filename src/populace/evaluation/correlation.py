"""Correlation matrix distance (CMD): how far apart two tables' linear dependence is, as one number.

    CMD = 1 - tr(A B) / (||A|| ||B||),    A, B the correlation matrices, || || Frobenius (Herdin et al. 2005)

0 for equal matrices up to a factor, 1 for orthogonal ones. Columns enter as their codes: meant for binary and ordinal columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from populace.evaluation.marginals import check_comparable
from populace.tables.table import Table

Array = np.ndarray[Any, Any]


def correlation_matrix(codes: Array) -> Array:
    """Pearson correlations of columns of codes; a constant column is uncorrelated with all others and 1 with itself."""
    centred = np.asarray(codes, np.float64) - np.mean(codes, axis=0)
    scale = np.sqrt((centred**2).sum(axis=0))
    constant = scale == 0
    centred /= np.where(constant, 1, scale)
    matrix: Array = centred.T @ centred
    np.fill_diagonal(matrix, 1.0)
    return matrix


def correlation_distance(real: Table, synthetic: Table) -> float:
    check_comparable(real, synthetic)
    first, second = correlation_matrix(real.codes), correlation_matrix(synthetic.codes)
    return float(1 - (first * second).sum() / (np.linalg.norm(first) * np.linalg.norm(second)))
