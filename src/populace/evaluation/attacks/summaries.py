"""What an attacker looks at in a synthetic table: its one-way marginals, its correlations, and what it says about a target.

Stadler, Oprisanu and Troncoso 2022 use the first two; counts of rows that agree with the target on some columns follow Houssiau
et al. 2022 and see single rows, which tables and correlations hardly do.
"""

from __future__ import annotations

import numpy as np

from populace.evaluation.correlation import correlation_matrix
from populace.types import NumpyArray

QUERIES = 32  # sets of columns on which agreement with a target is counted
NEAREST = 3  # rows that agree in all but so many columns are counted too
CHUNK = 4_096

#: Name of each summary, and whether it is about one target rather than about the whole table.
SUMMARIES = {"one-way tables": False, "correlations": False, "agreement with the target": True}


def summarise(
    codes: NumpyArray, sizes: tuple[int, ...], targets: NumpyArray, *, seed: int = 0
) -> dict[str, NumpyArray]:
    """All summaries of one synthetic table; the last has one row per target."""
    codes = np.asarray(codes)
    ones = np.concatenate(
        [np.bincount(codes[:, column], minlength=size) / len(codes) for column, size in enumerate(sizes)]
    )
    matrix = correlation_matrix(codes)
    above = matrix[np.triu_indices(len(sizes), 1)]
    return {
        "one-way tables": ones,
        "correlations": above if len(above) else np.zeros(1),
        "agreement with the target": agreement(codes, np.asarray(targets), column_sets(len(sizes), seed)),
    }


def column_sets(columns: int, seed: int = 0) -> NumpyArray:
    """Random sets of at least two columns, as booleans [sets, columns]; the same for every table."""
    rng = np.random.default_rng(seed)
    sets = np.zeros((QUERIES, columns), bool)
    for row in sets:
        row[rng.choice(columns, rng.integers(min(2, columns), columns + 1), replace=False)] = True
    return np.unique(sets, axis=0)


def agreement(codes: NumpyArray, targets: NumpyArray, sets: NumpyArray) -> NumpyArray:
    """Per target: shares of rows that agree with it on each set of columns and in all but 0, 1, 2, .. columns, and the most
    columns any row agrees in."""
    columns = targets.shape[1]
    found = np.zeros((len(targets), len(sets) + NEAREST + 2))
    weights = np.concatenate([sets.T.astype(np.float32), np.ones((columns, 1), np.float32)], axis=1)
    wanted = weights.sum(axis=0)
    for start in range(0, len(codes), CHUNK):
        part = codes[start : start + CHUNK]
        for number, target in enumerate(targets):
            same = (part == target).astype(np.float32) @ weights
            found[number, : len(sets)] += (same[:, :-1] == wanted[:-1]).sum(axis=0)
            agreed = same[:, -1]
            for missing in range(NEAREST + 1):
                found[number, len(sets) + missing] += (agreed >= columns - missing).sum()
            found[number, -1] = max(found[number, -1], agreed.max())
    found[:, :-1] /= len(codes)
    return found


def rarity(codes: NumpyArray, sizes: tuple[int, ...]) -> NumpyArray:
    """How rare each row is: minus the log of its likelihood if columns were independent."""
    codes = np.asarray(codes)
    total = np.zeros(len(codes))
    for column, size in enumerate(sizes):
        shares = np.bincount(codes[:, column], minlength=size) / len(codes)
        total -= np.log(shares[codes[:, column]])
    return total
