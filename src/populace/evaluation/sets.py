"""Distances of joint tables of several columns at a time, by counting the combinations that occur.

m-way AVD    mean over sets of m columns of the total variation distance (half the L1 distance) of their joint tables: "average
             variation distance" of the papers

Rows are combined into one whole number each and sorted, so that memory and time follow the rows and not the product of the
domains: a million rows of six columns take some ten milliseconds.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from populace.errors import DataError, out_of_range
from populace.evaluation.estimate import Estimate, from_influence, left_out
from populace.evaluation.marginals import check_comparable
from populace.tables.table import Table
from populace.types import NumpyArray

Sets = Sequence[Sequence[int]]
Tally = tuple[NumpyArray, NumpyArray, NumpyArray]

MOST_DENSE = 2**16  # cells up to which a table is counted in full rather than by sorting
LARGEST_CODE = 2**62
INFLUENCE_ROWS = 20_000  # rows, drawn at random, on which the spread of the influence is measured


def random_sets(columns: int, width: int, *, count: int = 100, seed: int = 7) -> list[tuple[int, ...]]:
    """`count` sets of `width` columns; with the defaults the fixed sets on which AVD is reported."""
    if not 1 <= width <= columns:
        raise out_of_range("width", f"in [1, {columns}]", width)
    rng = np.random.default_rng(seed)
    return [tuple(int(c) for c in rng.choice(columns, width, replace=False)) for _ in range(count)]


def all_sets(columns: int, width: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(columns), width))


class Columns:
    """A table's codes column by column, narrow, and the rows on which influences are measured."""

    def __init__(self, table: Table) -> None:
        sizes = table.schema.sizes
        self.rows = len(table)
        self.parts = [_narrow(table.codes[:, j], size) for j, size in enumerate(sizes)]
        chosen = np.random.default_rng(5).permutation(self.rows)[:INFLUENCE_ROWS]
        self.chosen = np.sort(chosen)

    def tally(self, combined: NumpyArray, cells: int) -> Tally:
        """The combinations that occur, in order; the share of rows in each; the combinations of the chosen rows."""
        chosen = combined[self.chosen]
        codes, counts = count(combined, cells)
        return codes, counts / self.rows, chosen


def _narrow(codes: NumpyArray, size: int) -> NumpyArray:
    """The codes of a column, contiguous, in the narrowest whole numbers; as they are, where they are so already."""
    if codes.flags.c_contiguous and codes.dtype.itemsize <= 2:
        return codes
    return np.ascontiguousarray(codes, _whole(size))


def tallies(tables: Sequence[Columns], group: Sequence[int], sizes: Sequence[int]) -> Iterator[Tally]:
    """The tally of a set of columns in each table, all in one numbering; one after the other, as they are asked for."""
    if len(set(group)) != len(group) or not group:
        raise DataError(f"expected sets of different columns, got {tuple(group)}")
    inside = [sizes[c] for c in group]
    if math.prod(inside) <= LARGEST_CODE:
        for table in tables:
            yield table.tally(combine([table.parts[c] for c in group], inside), math.prod(inside))
        return
    together = combine([np.concatenate([table.parts[c] for table in tables]) for c in group], inside)
    parts = np.split(together, np.cumsum([table.rows for table in tables])[:-1])
    for table, part in zip(tables, parts, strict=True):
        yield table.tally(part, LARGEST_CODE)


def _whole(most: int) -> type[np.signedinteger[Any]]:
    return np.int16 if most < 2**15 else np.int32 if most < 2**31 else np.int64


def combine(columns: Sequence[NumpyArray], sizes: Sequence[int]) -> NumpyArray:
    """Codes of several columns as one number per row; renumbered on the way where it would grow too large."""
    cells = sizes[0]
    combined = columns[0].astype(_whole(min(math.prod(sizes), LARGEST_CODE)))
    for column, size in zip(columns[1:], sizes[1:], strict=True):
        if cells * size > LARGEST_CODE:
            _, combined = np.unique(combined, return_inverse=True)
            cells = int(combined.max()) + 1
        combined *= size
        combined += column
        cells *= size
    return combined


def count(combined: NumpyArray, cells: int) -> tuple[NumpyArray, NumpyArray]:
    """The numbers that occur, in order, and how often each does; the array itself may be sorted on the way."""
    if cells <= MOST_DENSE:
        counts = np.bincount(combined, minlength=cells)
        codes = np.flatnonzero(counts)
        return codes.astype(combined.dtype), counts[codes]
    combined.sort()
    first = np.empty(len(combined), bool)
    first[:1] = True
    np.not_equal(combined[1:], combined[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    return combined[starts], np.diff(starts, append=len(combined))


def set_distances(real: Table, synthetic: Table, sets: Sets) -> NumpyArray:
    """Total variation distance (half L1) of the joint table of each set of columns."""
    check_comparable(real, synthetic)
    tables = Columns(real), Columns(synthetic)
    return np.array([_compare(*tallies(tables, group, real.schema.sizes))[0] for group in sets])


def _compare(first: Tally, second: Tally) -> tuple[float, NumpyArray, NumpyArray]:
    """The distance of two tallies, and the influence on it of the chosen rows of each.

    With p and q the shares, the distance is the sum of q - p over the cells with p < q. A row of the first table moves it by
    -1 in those cells, by -1/2 where p = q (one more row there shrinks the gap or opens one); a row of the second likewise.
    """
    codes, p, rows = first
    other, q, other_rows = second
    place, hit = _lookup(codes, other)
    shared, share = place[hit], q[hit]
    value = float(np.maximum(share - p[shared], 0).sum() + q[~hit].sum())
    below = np.zeros(len(p), np.float32)
    below[shared] = _half_steps(share - p[shared])
    above = np.zeros(len(q), np.float32)
    above[hit] = _half_steps(p[shared] - share)
    return value, -below[_lookup(codes, rows)[0]], -above[_lookup(other, other_rows)[0]]


def _half_steps(gap: NumpyArray) -> NumpyArray:
    return np.asarray((np.sign(gap) + 1) / 2, np.float32)


def _lookup(codes: NumpyArray, wanted: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """Where each wanted number stands among the ordered codes, and whether it is there."""
    place = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    return place, codes[place] == wanted


def _product(tally: Tally, sizes: Sequence[int]) -> tuple[float, NumpyArray]:
    """The distance to the product of the set's own one-way marginals, exactly, and the influence of the chosen rows.

    It is the sum of p - q over cells with p > q, all of which occur; q follows from the marginals, which a row moves too.
    """
    codes, p, rows = tally
    if math.prod(sizes) > LARGEST_CODE:
        return math.nan, np.zeros(len(rows))
    values, chosen = _split_codes(codes, sizes), _split_codes(rows, sizes)
    ways = [np.bincount(value, weights=p, minlength=size) for value, size in zip(values, sizes, strict=True)]
    q = np.ones(len(p))
    for way, value in zip(ways, values, strict=True):
        q *= way[value]
    more = p > q
    influence = more[_lookup(codes, rows)[0]].astype(np.float64)
    for way, value, row, size in zip(ways, values, chosen, sizes, strict=True):
        mass = np.bincount(value[more], weights=q[more], minlength=size)
        influence -= (mass / np.maximum(way, 1e-300))[row]
    return float((p - q)[more].sum()), influence


def _split_codes(codes: NumpyArray, sizes: Sequence[int]) -> list[NumpyArray]:
    found = []
    left = codes
    for size in reversed(sizes):
        rest = left // size
        found.append(left - rest * size)
        left = rest
    return found[::-1]


def average_distances(
    real: Table, candidates: Mapping[str, Table], width: int, *, product: str | None = None
) -> dict[str, Estimate]:
    """m-way AVD of every candidate over the 100 fixed sets, with intervals; as `product` that of the true one-way marginals."""
    for table in candidates.values():
        check_comparable(real, table)
    if product is not None and product in candidates:
        raise DataError(f"expected a name for the product that no candidate has, got {product!r}")
    return distances_of(Columns(real), {name: Columns(table) for name, table in candidates.items()},
                        real.schema.sizes, width, product=product)  # fmt: skip


def distances_of(
    first: Columns, others: Mapping[str, Columns], sizes: Sequence[int], width: int, *, product: str | None = None
) -> dict[str, Estimate]:
    """The same of tables whose columns are at hand, for several widths in turn."""
    chosen = Counter(tuple(sorted(group)) for group in random_sets(len(sizes), width))
    total = sum(chosen.values())
    values = dict.fromkeys([*others, *([product] if product else [])], 0.0)
    rows = {name: (first, others[name]) if name in others else (first,) for name in values}
    totals = {name: [np.zeros(len(table.chosen)) for table in of] for name, of in rows.items()}

    def one(item: tuple[tuple[int, ...], int]) -> tuple[float, dict[str, tuple[Any, ...]]]:
        group, times = item
        each = tallies([first, *others.values()], group, sizes)
        tally = next(each)
        found: dict[str, tuple[Any, ...]] = {
            name: _compare(tally, other) for name, other in zip(others, each, strict=True)
        }
        if product is not None:
            found[product] = _product(tally, [sizes[c] for c in group])
        return times / total, found

    for weight, found in _in_threads(one, list(chosen.items())):
        for name, (value, *influences) in found.items():
            values[name] += weight * value
            for kept, influence in zip(totals[name], influences, strict=True):
                kept += weight * influence
    return {name: _bounded(value, totals[name], [table.rows for table in rows[name]]) for name, value in values.items()}


def _bounded(value: float, influences: Sequence[NumpyArray], rows: Sequence[int]) -> Estimate:
    if not math.isfinite(value):
        return left_out("a set of columns has more than 2^62 combinations, too many to factor")
    return from_influence(value, *influences, rows=rows, most=1.0)


def _in_threads(function: Any, items: Sequence[Any]) -> Iterator[Any]:
    """Map a function over items in order, in threads: sorting and arithmetic release the interpreter lock."""
    workers = min(4, os.cpu_count() or 1)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(items), 2 * workers):
            yield from pool.map(function, items[start : start + 2 * workers])


def average_distance(real: Table, synthetic: Table, width: int) -> float:
    """m-way AVD over the 100 fixed sets."""
    return average_distances(real, {"": synthetic}, width)[""].value
