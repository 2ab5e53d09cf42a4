"""What stands beside every figure, so that it can be read: the best and the worst one could honestly expect."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from populace.tables.table import Table
from populace.types import NumpyArray

SYNTHETIC = "synthetic"
REAL = "real"
PRODUCT = "product of the true one-way tables"
SHUFFLED = "real table, columns shuffled"
MAJORITY = "majority class"

ABOUT: dict[str, str] = {
    REAL: "distances: a random half of the real rows against the other half, so what sampling alone costs at half the rows; "
    "prediction: trained on the real rows that were not held out",
    PRODUCT: "every column independent of all others, with exactly the one-way table it has in the real data; what the method "
    "`independent` would give without noise, computed in full and not drawn",
    SHUFFLED: "the real rows with each column shuffled on its own: the same idea, drawn as rows",
    MAJORITY: "always guesses the most frequent class (of a target that is a number: its mean); makes no rows, so it has no "
    "distances",
}
NO_ROWS = "guesses a class; makes no rows to compare"
PRODUCT_FOUND = "by construction: the target is independent of everything else, so its best guess is the majority class"
PRODUCT_MEAN = "by construction: the target is independent of everything else, so its best guess is its mean"

HOLDOUT, MOST_HELD_OUT = 0.3, 50_000


def first_half(rows: int, rng: np.random.Generator) -> NumpyArray:
    """Marks a random half of the rows."""
    marked = np.zeros(rows, bool)
    marked[rng.permutation(rows)[: rows // 2]] = True
    return marked


def hold_out(rows: int, rng: np.random.Generator) -> tuple[NumpyArray, NumpyArray]:
    """The numbers of the rows to test on, and of the rest."""
    order = rng.permutation(rows)
    cut = min(max(1, int(HOLDOUT * rows)), MOST_HELD_OUT)
    return np.sort(order[:cut]), np.sort(order[cut:])


def shuffled(real: Table, rng: np.random.Generator, *, shown: NumpyArray) -> Table:
    """Each column shuffled on its own: the codes of all rows, and the values of those with the numbers `shown`."""
    names = list(real.schema.names)
    codes = np.empty(real.codes.shape[::-1], real.codes.dtype).T
    values = []
    for index, name in enumerate(names):
        order = rng.permutation(len(real))
        codes[:, index] = real.codes[order, index]
        values.append(real.frame.column(name).take(pa.array(order[shown])))
    return dataclasses.replace(real, codes=codes, frame=pa.table(values, names=names))


def shuffled_rows(real: Table, among: NumpyArray, rng: np.random.Generator, rows: int) -> Table:
    """At most so many rows, each column drawn on its own from the rows with the numbers `among`, without replacement."""
    names = list(real.schema.names)
    orders = [among[rng.permutation(len(among))[:rows]] for _ in names]
    codes = np.stack([real.codes[order, index] for index, order in enumerate(orders)], axis=1)
    values = [real.frame.column(name).take(pa.array(order)) for name, order in zip(names, orders, strict=True)]
    return dataclasses.replace(real, codes=codes, frame=pa.table(values, names=names))
