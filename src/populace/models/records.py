"""A weighted list of rows: what methods leave that build a data set, or estimate a joint table over listed combinations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from populace.errors import DataError
from populace.models.generator import Generator
from populace.tables.schema import Schema

Array = Any


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

    def sample_codes(self, count: int, key: Array, conditions: Mapping[int, int]) -> Array:
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        kept = np.ones(len(self.weights), bool)
        for column, code in conditions.items():
            kept &= np.asarray(self.codes)[:, column] == code
        if not (np.asarray(self.weights)[kept] > 0).any():
            raise DataError("no synthetic row meets these conditions; ask for something more frequent")
        weights = np.asarray(self.weights, np.float64)[kept]
        cumulative = np.cumsum(weights / weights.sum())
        place = np.minimum(np.searchsorted(cumulative, rng.random(count), side="right"), len(weights) - 1)
        return np.asarray(self.codes)[kept][place].astype(np.int32)

    def arrays(self) -> dict[str, Array]:
        return {"codes": np.asarray(self.codes, np.int32), "weights": np.asarray(self.weights)}

    @classmethod
    def from_arrays(cls, schema: Schema, arrays: Mapping[str, Array]) -> Records:
        return cls(schema=schema, codes=arrays["codes"], weights=arrays["weights"])


def move_to_marginals(codes: Array, tables: list[Array], rng: np.random.Generator) -> Array:
    """Change as few rows as needed so that every column has its table (SamPrivSyn, section 4.2.1), largest remainders."""
    codes = np.array(codes)
    for column, table in enumerate(tables):
        wanted = rounded_counts(np.asarray(table), len(codes))
        have = np.bincount(codes[:, column], minlength=len(table))
        surplus = np.maximum(have - wanted, 0)
        order = rng.permutation(len(codes))
        values = codes[order, column]
        rank = _rank_within(values, len(table))
        freed = order[rank < surplus[values]]
        codes[freed, column] = rng.permutation(np.repeat(np.arange(len(table)), np.maximum(wanted - have, 0)))
    return codes


def move_to_pair(
    codes: Array, pair: tuple[int, int], target: Array, rng: np.random.Generator, *, within: Array
) -> Array:
    """Swap values of the second column between rows so that the pair's table nears its target and no one-way table changes.

    SamPrivSyn, section 4.2.2 and eq. 12: for cells (a, b) and (a', b') with too many rows and (a, b'), (a', b) with too few,
    the least of the four differences is exchanged. Rows are exchanged only within groups of equal `within`, which holds
    what earlier pairs settled. Vectorised: each surplus row offers its second value, each lacking cell takes one.
    """
    first, second = pair
    size = target.shape[1]
    wanted = rounded_counts(target.ravel(), len(codes)).reshape(target.shape)
    codes = np.array(codes)
    cells = codes[:, first].astype(np.int64) * size + codes[:, second]
    surplus = np.maximum(np.bincount(cells, minlength=wanted.size) - wanted.ravel(), 0)
    order = rng.permutation(len(codes))
    offered = order[_rank_within(cells[order], wanted.size) < surplus[cells[order]]]
    lacking = np.maximum(wanted.ravel() - np.bincount(cells, minlength=wanted.size), 0).reshape(target.shape)
    offered = offered[np.argsort(within[offered], kind="stable")]
    starts = np.flatnonzero(np.diff(within[offered], prepend=-1))
    for rows in np.split(offered, starts[1:]):
        if len(rows) > 1:
            codes[rows, second] = _redistribute(codes[rows, first], codes[rows, second], lacking, rng)
    return codes


def _redistribute(first: Array, second: Array, lacking: Array, rng: np.random.Generator) -> Array:
    """The same second values over the same rows, given to rows whose first value lacks them where possible.

    `lacking` is used up in place.
    """
    pool = np.bincount(second, minlength=lacking.shape[1])
    given = np.full(len(first), -1)
    for value in rng.permutation(np.unique(first)):
        rows = np.flatnonzero(first == value)
        take = np.minimum(lacking[value], pool)
        over = take.sum() - len(rows)
        if over > 0:
            drop = rng.permutation(np.repeat(np.arange(len(take)), take))[:over]
            take = take - np.bincount(drop, minlength=len(take))
        chosen = np.repeat(np.arange(len(take)), take)
        given[rows[: len(chosen)]] = rng.permutation(chosen)
        pool = pool - take
        lacking[value] -= take
    rest = np.flatnonzero(given < 0)
    given[rest] = rng.permutation(np.repeat(np.arange(len(pool)), pool))
    return given


def _rank_within(values: Array, size: int) -> Array:
    """For each entry, how many equal entries stand before it."""
    order = np.argsort(values, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(values, minlength=size))[:-1]])
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values)) - starts[values[order]]
    return rank


def rounded_counts(table: Array, total: int) -> Array:
    """Whole numbers near table * total that add up to total (largest remainders)."""
    exact = np.asarray(table, np.float64) / np.sum(table) * total
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: total - counts.sum()]] += 1
    return counts
