"""How far the tables of synthetic rows are from those of real rows: total variation distance, one and two columns at a time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from populace.errors import DataError
from populace.tables.codec import one_hot
from populace.tables.table import Table

Array = np.ndarray[Any, Any]

CHUNK = 65_536


def co_occurrence(table: Table) -> Array:
    """All one- and two-way tables at once: entry (a, b) is the share of rows in which values a and b both occur.

    Values are numbered through all columns, in schema order; the diagonal holds the one-way tables.
    """
    width = sum(table.schema.sizes)
    total = np.zeros((width, width))
    for start in range(0, len(table), CHUNK):
        rows = one_hot(table.codes[start : start + CHUNK], table.schema.sizes)
        total += rows.T @ rows
    return total / len(table)


def blocks(sizes: tuple[int, ...]) -> list[slice]:
    bounds = np.cumsum([0, *sizes])
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(bounds)]


def check_comparable(real: Table, synthetic: Table) -> None:
    if real.schema.names != synthetic.schema.names or real.schema.sizes != synthetic.schema.sizes:
        raise DataError(
            "the real and the synthetic table have different columns or domains; read both under one schema"
        )


def one_way_distances(real: Table, synthetic: Table) -> dict[str, float]:
    """Total variation distance of each column's table."""
    check_comparable(real, synthetic)
    distances = {}
    for index, column in enumerate(real.schema.columns):
        counts = [np.bincount(t.codes[:, index], minlength=column.size) / len(t) for t in (real, synthetic)]
        distances[column.name] = float(np.abs(counts[0] - counts[1]).sum() / 2)
    return distances


def two_way_distances(real: Table, synthetic: Table) -> Array:
    """Total variation distance of every pair's table, as a symmetric matrix with the one-way distances on its diagonal."""
    check_comparable(real, synthetic)
    gap = np.abs(co_occurrence(real) - co_occurrence(synthetic))
    parts = blocks(real.schema.sizes)
    matrix = np.zeros((len(parts), len(parts)))
    for i, a in enumerate(parts):
        for j, b in enumerate(parts[: i + 1]):
            matrix[i, j] = matrix[j, i] = gap[a, b].sum() / 2
    return matrix


def mean_over_pairs(matrix: Array) -> float:
    """The mean of a symmetric matrix over pairs of different columns; 0 for a single column."""
    above = matrix[np.triu_indices(len(matrix), 1)]
    return float(above.mean()) if len(above) else 0.0
