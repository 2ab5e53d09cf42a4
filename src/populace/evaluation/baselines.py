"""What stands beside every figure, so that it can be read: the best and the worst one could honestly expect."""

from __future__ import annotations

from typing import Any

import numpy as np

from populace.tables.table import Table, from_codes

Array = np.ndarray[Any, Any]

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
    MAJORITY: "always guesses the most frequent class; makes no rows, so it has no distances",
}
NO_ROWS = "guesses a class; makes no rows to compare"
PRODUCT_FOUND = "by construction: the target is independent of everything else, so its best guess is the majority class"

HOLDOUT, MOST_HELD_OUT = 0.3, 50_000


def halves(real: Table, rng: np.random.Generator) -> tuple[Table, Table]:
    order = rng.permutation(len(real))
    return real.take(np.sort(order[: len(real) // 2])), real.take(np.sort(order[len(real) // 2 :]))


def hold_out(real: Table, rng: np.random.Generator) -> tuple[Table, Table]:
    """Rows to test on, and the rest."""
    order = rng.permutation(len(real))
    cut = min(max(1, int(HOLDOUT * len(real))), MOST_HELD_OUT)
    return real.take(np.sort(order[:cut])), real.take(np.sort(order[cut:]))


def shuffled(real: Table, rng: np.random.Generator, rows: int | None = None) -> Table:
    """Each column shuffled on its own; of `rows` rows at most."""
    kept = slice(None, rows)
    codes = np.stack([rng.permutation(column)[kept] for column in real.codes.T], axis=1)
    return from_codes(codes, real.schema, rng)
