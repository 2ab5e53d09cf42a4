"""Which cells hold anybody: a cell whose share is not clearly above the noise of all its tables is taken as empty.

Where domains are open there is room for values that nobody has: categories that no silo lists, "no value", far ends of a scale.
A fit gives each of them a little, and a little at a far end is much in a mean. This is post-processing.
"""

from __future__ import annotations

import numpy as np

from populace.methods.census.fit import Observed
from populace.methods.census.tables import PairTables
from populace.types import NumpyArray

CLEAR = 2.0  # standard deviations of noise


def present_cells(tables: PairTables, observed: Observed) -> list[NumpyArray]:
    """For each column, which of its cells are clearly there; the largest is in any case."""
    sums: list[list[tuple[NumpyArray, float]]] = [[] for _ in tables.sizes]
    start = 0
    for (first, second), shape in zip(tables.pairs, tables.shapes, strict=True):
        end = start + shape[0] * shape[1]
        table = observed.shares[:, start:end].reshape(-1, *shape)
        variance = float(observed.deviations[start]) ** 2
        if first == second:
            sums[first].append((np.einsum("yaa->a", table), variance * len(table)))
        else:
            sums[first].append((table.sum(axis=(0, 2)), variance * len(table) * shape[1]))
            sums[second].append((table.sum(axis=(0, 1)), variance * len(table) * shape[0]))
        if tables.target is not None:
            sums[tables.target].append((table.sum(axis=(1, 2)), variance * shape[0] * shape[1]))
        start = end
    return [_present(parts) for parts in sums]


def _present(parts: list[tuple[NumpyArray, float]]) -> NumpyArray:
    precision = np.array([1 / max(variance, 1e-300) for _, variance in parts])
    mean = np.average([table for table, _ in parts], axis=0, weights=precision)
    there = mean > CLEAR * precision.sum() ** -0.5
    there[np.argmax(mean)] = True
    return np.asarray(there)
