"""Distances of joint tables of several columns at a time, by counting the combinations that occur.

m-way AVD         mean over sets of m columns of the total variation distance (half the L1 distance) of their joint tables:
                  "average variation distance" of the papers
relative error    mean over the non-empty cells of all two-way tables of |P - P'| / P (SamPrivSyn, eq. 13, as far as it is
                  defined: over d-way tables almost every cell of the denominator is zero)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from populace.errors import DataError, out_of_range
from populace.evaluation.marginals import blocks, check_comparable, co_occurrence
from populace.tables.table import Table

Array = np.ndarray[Any, Any]
Sets = Sequence[Sequence[int]]

MOST_DENSE = 2**16  # cells up to which a table is counted in full rather than by sorting
LARGEST_CODE = 2**62


def random_sets(columns: int, width: int, *, count: int = 100, seed: int = 7) -> list[tuple[int, ...]]:
    """`count` sets of `width` columns; with the defaults the fixed sets on which AVD is reported."""
    if not 1 <= width <= columns:
        raise out_of_range("width", f"in [1, {columns}]", width)
    rng = np.random.default_rng(seed)
    return [tuple(int(c) for c in rng.choice(columns, width, replace=False)) for _ in range(count)]


def all_sets(columns: int, width: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(columns), width))


def set_distances(real: Table, synthetic: Table, sets: Sets) -> Array:
    """Total variation distance (half L1) of the joint table of each set of columns.

    Rows are combined into one whole number each. Small tables are counted in full; of large ones only combinations that occur,
    so that memory follows the rows and not the product of the domains.
    """
    check_comparable(real, synthetic)
    columns = [np.ascontiguousarray(np.concatenate([real.codes[:, c], synthetic.codes[:, c]])) for c in _used(sets)]
    place = {c: i for i, c in enumerate(_used(sets))}
    sizes = real.schema.sizes
    found = np.empty(len(sets))
    for number, group in enumerate(sets):
        if len(set(group)) != len(group) or not group:
            raise DataError(f"expected sets of different columns, got {tuple(group)}")
        cells, combined = combine([columns[place[c]] for c in group], [sizes[c] for c in group])
        if cells > MOST_DENSE:
            _, combined = np.unique(combined, return_inverse=True)
            cells = int(combined.max()) + 1
        first = np.bincount(combined[: len(real)], minlength=cells) / len(real)
        second = np.bincount(combined[len(real) :], minlength=cells) / len(synthetic)
        found[number] = np.abs(first - second).sum() / 2
    return found


def combine(columns: Sequence[Array], sizes: Sequence[int]) -> tuple[int, Array]:
    """Codes of several columns as one number per row, and a bound on it; renumbered where it would grow too large."""
    cells = 1
    combined = np.zeros(len(columns[0]), np.int64)
    for column, size in zip(columns, sizes, strict=True):
        if cells * size > LARGEST_CODE:
            _, combined = np.unique(combined, return_inverse=True)
            cells = int(combined.max()) + 1
        combined = combined * size + column
        cells *= size
    return cells, combined


def _used(sets: Sets) -> list[int]:
    return sorted({int(c) for group in sets for c in group})


def average_distance(real: Table, synthetic: Table, width: int) -> float:
    """m-way AVD over the 100 fixed sets."""
    return float(set_distances(real, synthetic, random_sets(len(real.schema.columns), width)).mean())


def relative_error(real: Table, synthetic: Table) -> float:
    """Mean of |P - P'| / P over the cells of all two-way tables that occur in the real rows.

    Edge cases: rare cells dominate it (one row more or less in a cell of one row is an error of 1); with one column, of its
    own table.
    """
    check_comparable(real, synthetic)
    first, second = co_occurrence(real), co_occurrence(synthetic)
    parts = blocks(real.schema.sizes)
    pairs = [(a, b) for a, b in itertools.combinations(parts, 2)] or [(parts[0], parts[0])]
    errors = []
    for a, b in pairs:
        true, guess = first[a, b], second[a, b]
        errors.append((np.abs(true - guess)[true > 0] / true[true > 0]).ravel())
    return float(np.concatenate(errors).mean())
