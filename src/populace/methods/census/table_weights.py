"""Which tables of a wide table are worth the budget: weights from noisy one-way counts; post-processing.

Two columns can depend on each other no more than each varies: the squared error that a table of theirs can mend is at most the
product of their impurities (1 minus the sum of squared shares), and usually a small part of it. A table whose part lies below
its own noise is left out, and its budget goes to the others (as a Wiener filter weighs). In a table of 48 columns, half of
which hardly vary, this leaves out half of the pairs and halves the noise of the others.
"""

from __future__ import annotations

import numpy as np

from populace.methods.census.tables import MOST_WEIGHT, WEIGHT_POWER, WEIGHT_UNITS, PairTables
from populace.types import NumpyArray

DEPENDENCE = 0.1  # of the product of two impurities: a usual squared dependence
BUDGET_SHARERS = 0.3  # of all tables, about as many as have most of the budget
SEEN = 2.0  # standard deviations of noise above which a count is taken as it is
LITTLE = 0.0125  # of the records: a value that has no more is not worth tables


def impurity(counts: NumpyArray, deviation: float) -> float:
    """How much a column varies: 1 minus the sum of its squared shares, from noisy counts.

    What noise hides counts as absent where it can be no more than `LITTLE`; else as large as the noise.
    """
    hidden = counts <= SEEN * deviation
    total = np.where(hidden, 0.0, counts).sum()
    if total <= 0:
        return 1.0
    little = SEEN * deviation <= LITTLE * total
    shares = np.where(hidden, 0.0 if little else deviation, counts)
    return float(1 - np.sum((shares / shares.sum()) ** 2))


def chosen_weights(tables: PairTables, impurities: NumpyArray, *, noise: float) -> NumpyArray:
    """The weight of each pair's table, whole numbers whose squares add up to no more than the usual ones do.

    `impurities` are those of all columns; `noise` is the noise of a cell's share if all tables had the same weight.
    """
    cells = tables.table_sizes.astype(np.float64)
    signal = DEPENDENCE * np.array([impurities[first] * impurities[second] for first, second in tables.pairs])
    left = cells * tables.outcomes * BUDGET_SHARERS * noise**2
    usual = cells**WEIGHT_POWER
    wanted = usual * np.sqrt(signal / np.maximum(signal + left, 1e-300))
    if not wanted.any():  # no two columns vary
        wanted = usual
    if tables.room:
        wanted = _within_room(tables, wanted)
    scale = WEIGHT_UNITS / np.sqrt(np.mean(wanted**2))
    while True:
        weights: NumpyArray = np.minimum(np.rint(scale * wanted), MOST_WEIGHT).astype(np.int64)
        if np.sum(weights**2) <= tables.squares:
            return weights
        scale *= 0.995


def _within_room(tables: PairTables, wanted: NumpyArray) -> NumpyArray:
    """The wanted weights of the tables that are wanted most and fit into a message together; the others' are 0."""
    order = np.argsort(-wanted, kind="stable")
    fits = np.cumsum(tables.table_sizes[order]) <= tables.places
    kept = np.zeros(len(wanted))
    kept[order[fits]] = wanted[order[fits]]
    return kept
