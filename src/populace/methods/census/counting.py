"""Counting records in tables: exact, some rows at a time, and several tables in one pass over them.

Most of the time of counting goes into going through the rows. So columns are counted jointly, as many at once as a table that
stays in the processor's cache has room for, and the tables of all pairs among them are sums of that one: three columns of 24
cells are counted once in place of three times, ten columns of two cells once in place of 45 times. Counts are whole numbers
of 64 bits throughout.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from populace.types import NumpyArray

MOST_JOINT = 2**16  # cells of columns that are counted jointly
CODES_AT_ONCE = 2**22  # of a block of rows, so that a block is worked on in the cache
MOST_ROWS = 2**16  # of a block

Pairs = Sequence[tuple[int, int]]


def pair_counts(
    codes: NumpyArray,
    pairs: Pairs,
    shapes: Pairs,
    target: int | None = None,
    units: NumpyArray | None = None,
    *,
    outcomes: int = 1,
    cells: Sequence[NumpyArray] | None = None,
) -> list[NumpyArray]:
    """For each pair of columns its table [outcomes, first, second], int64: how many rows stand in each cell.

    `codes` are whole numbers of any kind, [rows, columns]; `shapes` are the two columns' cells, `outcomes` those of the
    target, which stands in no pair. `units` counts each row so many times: whole numbers, or truth values. With `cells`, codes
    are numbers of `cells[column]`, which says the cell of each.
    """
    sizes = {
        column: size
        for pair, shape in zip(pairs, shapes, strict=True)
        for column, size in zip(pair, shape, strict=True)
    }
    groups = column_groups(tuple(pairs), tuple(sorted(sizes.items())), MOST_JOINT // outcomes)
    wanted = [*sizes, *(() if target is None else (target,))]
    joint = [np.zeros(outcomes * math.prod(sizes[column] for column in group), np.int64) for group, _ in groups]
    tables_of = None if cells is None else [np.asarray(each, np.int32) for each in cells]
    for block, each in _blocks(codes, wanted, units, tables_of):
        first = None if target is None else block[target]
        for (group, _), total in zip(groups, joint, strict=True):
            total += _counted(_places(block, group, sizes, first), each, len(total))
    tables: list[NumpyArray] = [np.zeros(0, np.int64)] * len(pairs)
    for (group, members), total in zip(groups, joint, strict=True):
        shaped = total.reshape(outcomes, *(sizes[column] for column in group))
        for number in members:
            tables[number] = _pair_of(shaped, group, pairs[number])
    return tables


def one_way_counts(
    codes: NumpyArray, columns: Sequence[int], sizes: Sequence[int], units: NumpyArray | None = None
) -> list[NumpyArray]:
    """For each of these columns, of so many codes each, how many rows have each code, int64."""
    totals = [np.zeros(size, np.int64) for size in sizes]
    for block, each in _blocks(codes, columns, units, None):
        for column, total in zip(columns, totals, strict=True):
            total += _counted(block[column], each, len(total))
    return totals


def _blocks(
    codes: NumpyArray, columns: Sequence[int], units: NumpyArray | None, cells: Sequence[NumpyArray] | None
) -> Iterator[tuple[dict[int, NumpyArray], NumpyArray | None]]:
    """Some rows at a time: their cells by column, and how often each counts; None where each counts once."""
    step = max(1, min(MOST_ROWS, CODES_AT_ONCE // max(1, codes.shape[1])))
    for start in range(0, len(codes), step):
        block, each = codes[start : start + step], None
        if units is not None:
            each = units[start : start + step]
            if each.dtype == bool:
                block, each = block if each.all() else block[each], None
        found = {}
        for column in columns:
            some = block[:, column]
            found[column] = np.ascontiguousarray(some, np.int32) if cells is None else np.take(cells[column], some)
        yield found, each


def _places(
    block: dict[int, NumpyArray], group: tuple[int, ...], sizes: dict[int, int], first: NumpyArray | None
) -> NumpyArray:
    """The place of each row in the joint table of a group, after the target's value where there is one."""
    places = block[group[0]].copy() if first is None else first * np.int32(sizes[group[0]]) + block[group[0]]
    for column in group[1:]:
        places *= np.int32(sizes[column])
        places += block[column]
    return places


def _counted(places: NumpyArray, units: NumpyArray | None, size: int) -> NumpyArray:
    """Rows at each place; sums of whole units are exact below 2^53."""
    if units is None:
        return np.bincount(places, minlength=size)
    return np.rint(np.bincount(places, np.asarray(units, np.float64), size)).astype(np.int64)


def _pair_of(joint: NumpyArray, group: tuple[int, ...], pair: tuple[int, int]) -> NumpyArray:
    """The table of a pair, summed from that of its group; of a column and itself, along the diagonal."""
    others = tuple(axis for axis, column in enumerate(group, 1) if column not in pair)
    table: NumpyArray = joint.sum(axis=others)
    first, second = pair
    if first == second:
        return np.asarray(table[:, :, None] * np.eye(table.shape[1], dtype=np.int64))
    return table if group.index(first) < group.index(second) else table.transpose(0, 2, 1)


@functools.lru_cache(maxsize=32)
def column_groups(
    pairs: tuple[tuple[int, int], ...], sizes: tuple[tuple[int, int], ...], most: int
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Groups of columns that are counted jointly, and the numbers of the pairs that each is for; every pair is in one group.

    A group begins with a pair that no group has yet, and takes the column next that makes most further pairs of its own, as
    long as its table has no more than `most` cells.
    """
    size = dict(sizes)
    missing: dict[frozenset[int], list[int]] = {}
    for number, pair in enumerate(pairs):
        missing.setdefault(frozenset(pair), []).append(number)
    wanted: dict[int, set[int]] = {column: set() for column in size}
    for one in missing:
        for column in one:
            wanted[column] |= one - {column}
    groups = []
    while missing:
        group = _grown(sorted(next(iter(missing))), wanted, size, most)
        members = []
        for one in [frozenset((a, b)) for place, a in enumerate(group) for b in group[place:]]:
            members += missing.pop(one, [])
            for column in one:
                wanted[column] -= one
        groups.append((tuple(group), tuple(members)))
    return tuple(groups)


def _grown(group: list[int], wanted: dict[int, set[int]], size: dict[int, int], most: int) -> list[int]:
    """The group with further columns, each of which makes pairs that are wanted and for which there is room."""
    room = most // math.prod(size[column] for column in group)
    while True:
        gains = {
            column: (len(wanted[column].intersection(group)), -size[column])
            for column in size
            if column not in group and size[column] <= room
        }
        best = max(gains, key=lambda column: gains[column], default=None)
        if best is None or not gains[best][0]:
            return group
        group.append(best)
        room //= size[best]
