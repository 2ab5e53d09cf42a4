"""Synthetic rows as a generator, and rows built to given one- and two-way marginals.

`build_rows` is SamPrivSyn's generator (Chen et al. 2023, section 4.2), vectorised: a random data set is moved to the one-way
tables; then, pair by pair, values of one column are exchanged between rows so that the pair's table nears its target while no
one-way table, and no pair settled before, changes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax
import numpy as np

from populace.errors import DataError
from populace.methods.blocks.generator import Generator
from populace.tables.schema import Schema
from populace.types import Array, NumpyArray

Pair = tuple[int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records(Generator):
    """Rows of codes (synthetic ones, never a client's) and how likely each is."""

    kind: ClassVar[str] = "records"
    schema: Schema
    codes: Array
    weights: Array

    def __post_init__(self) -> None:
        if np.shape(self.codes) != (len(self.weights), len(self.schema.columns)) or not len(self.weights):
            raise DataError("expected one row of codes per weight, and at least one")
        if np.min(self.weights) < 0 or not np.sum(self.weights) > 0:
            raise DataError("expected weights that are not negative and not all zero")

    def exact_conditions(self, conditions: Mapping[int, int]) -> Mapping[int, int]:
        return conditions

    def sample_codes(self, count: int, key: Array, conditions: Mapping[int, int]) -> Array:
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        kept = np.ones(len(self.weights), bool)
        for column, code in conditions.items():
            kept &= np.asarray(self.codes)[:, column] == code
        if not (np.asarray(self.weights)[kept] > 0).any():
            raise DataError("no synthetic row meets these conditions; ask for something more frequent")
        weights = np.asarray(self.weights, np.float64)[kept]
        cumulative = np.cumsum(weights / weights.sum())
        drawn = np.minimum(np.searchsorted(cumulative, rng.random(count), side="right"), len(weights) - 1)
        return np.asarray(self.codes)[kept][drawn].astype(np.int32)

    def arrays(self) -> dict[str, Array]:
        return {"codes": np.asarray(self.codes, np.int32), "weights": np.asarray(self.weights)}

    @classmethod
    def from_arrays(cls, schema: Schema, arrays: Mapping[str, Array]) -> Records:
        return cls(schema=schema, codes=arrays["codes"], weights=arrays["weights"])


def build_rows(
    sizes: Sequence[int], singles: Sequence[Array], pairs: Mapping[Pair, Array], rows: int, rng: np.random.Generator
) -> NumpyArray:
    """Algorithm 2: rows of codes with these one-way tables, and pair tables as near as exchanges bring them."""
    codes: NumpyArray = np.stack([rng.integers(0, size, rows) for size in sizes], axis=1)
    codes = move_to_marginals(codes, singles, rng)
    settled: dict[int, list[int]] = {column: [] for column in range(len(sizes))}
    for pair in sorted(pairs, key=lambda pair: (pair[1] - pair[0] != 1, pair)):  # (1, 2), (2, 3), ..., then the rest
        group = combinations_of(codes, settled[pair[1]])
        codes = move_to_pair(codes, pair, pairs[pair], rng, within=group)
        settled[pair[0]].append(pair[1])
        settled[pair[1]].append(pair[0])
    return codes


def combinations_of(codes: NumpyArray, columns: Sequence[int]) -> NumpyArray:
    """One number per row for its values in these columns: exchanges within a number leave their tables as they are."""
    group = np.zeros(len(codes), np.int64)
    for column in columns:
        _, group = np.unique(group * (codes[:, column].max() + 1) + codes[:, column], return_inverse=True)
    return group


def move_to_marginals(codes: NumpyArray, tables: Sequence[Array], rng: np.random.Generator) -> NumpyArray:
    """Change as few rows as needed so that every column has its table (section 4.2.1), by largest remainders."""
    codes = np.array(codes)
    for column, table in enumerate(tables):
        wanted = rounded_counts(np.asarray(table), len(codes))
        have = np.bincount(codes[:, column], minlength=len(table))
        surplus = np.maximum(have - wanted, 0)
        order = rng.permutation(len(codes))
        values = codes[order, column]
        freed = order[rank_within(values) < surplus[values]]
        codes[freed, column] = rng.permutation(np.repeat(np.arange(len(table)), np.maximum(wanted - have, 0)))
    return codes


def move_to_pair(
    codes: NumpyArray, pair: Pair, target: Array, rng: np.random.Generator, *, within: NumpyArray
) -> NumpyArray:
    """Exchange values of the second column between rows so that the pair's table nears its target.

    Section 4.2.2 and eq. 12: where cells (a, b) and (a', b') have too many rows and (a, b') and (a', b) too few, rows of the
    first two exchange b and b', as many as the least of the four differences allows; here for all a and a' at once, for one
    b and b' after the other. Rows exchange only with rows of equal `within`. No one-way table changes, and the distance
    to the target never grows.
    """
    first, second = pair
    wanted = rounded_counts(np.asarray(target).ravel(), len(codes)).reshape(np.shape(target))
    codes = np.array(codes)
    a, b = codes[:, first], codes[:, second].copy()
    excess = np.bincount(a * wanted.shape[1] + b, minlength=wanted.size).reshape(wanted.shape) - wanted
    rows_of = {value: rng.permutation(np.flatnonzero((b == value) & (excess[a, b] > 0))) for value in np.unique(b)}
    for one, other in itertools.combinations(sorted(rows_of), 2):
        giving, taking = (
            _movable(rows_of[x], a, np.minimum(excess[:, x], -excess[:, y])) for x, y in ((one, other), (other, one))
        )
        if not (len(giving) and len(taking)):
            continue
        left, right = _match(giving, taking, within)
        b[left], b[right] = other, one
        for rows, value, sign in ((left, one, -1), (left, other, 1), (right, other, -1), (right, one, 1)):
            excess[:, value] += sign * np.bincount(a[rows], minlength=len(excess))
        # A row that moved fills a gap and is never moved again.
        rows_of[one] = np.setdiff1d(rows_of[one], left)
        rows_of[other] = np.setdiff1d(rows_of[other], right)
    codes[:, second] = b
    return codes


def _movable(rows: NumpyArray, first: NumpyArray, room: NumpyArray) -> NumpyArray:
    """These rows, for each value of the first column as many as there is room."""
    rows = rows[room[first[rows]] > 0]
    return rows[rank_within(first[rows]) < room[first[rows]]]


def _match(giving: NumpyArray, taking: NumpyArray, within: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """Rows of the two sides in pairs of equal `within`, as many as there are."""
    most = int(max(len(giving), len(taking)))
    give, take = (within[rows] * most + rank_within(within[rows]) for rows in (giving, taking))
    _, left, right = np.intersect1d(give, take, assume_unique=True, return_indices=True)
    return giving[left], taking[right]


def rank_within(values: NumpyArray) -> NumpyArray:
    """For each entry, how many equal entries stand before it."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    new = np.flatnonzero(np.diff(ranked, prepend=ranked[:1] - 1))
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values)) - np.repeat(new, np.diff(np.append(new, len(values))))
    return rank


def rounded_counts(table: Array, total: int) -> NumpyArray:
    """Whole numbers near table * total that add up to total (largest remainders)."""
    exact = np.asarray(table, np.float64) / np.sum(table) * total
    counts: NumpyArray = np.floor(exact).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: total - counts.sum()]] += 1
    return counts
