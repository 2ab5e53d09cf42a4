"""The counting of records: exactly what a slow loop counts, whatever is counted together."""

import itertools

import numpy as np
import pytest

from populace.methods.census import counting
from populace.methods.census.counting import column_groups, one_way_counts, pair_counts

SIZES = (3, 24, 41, 2, 7, 1, 5)


def some_codes(rows, dtype=np.uint8, seed=0):
    return np.random.default_rng(seed).integers(0, SIZES, (rows, len(SIZES))).astype(dtype)


def slowly(codes, pair, target, units):
    outcomes = 1 if target is None else SIZES[target]
    table = np.zeros((outcomes, SIZES[pair[0]], SIZES[pair[1]]), np.int64)
    for row, unit in zip(codes.tolist(), units.tolist(), strict=True):
        table[0 if target is None else row[target], row[pair[0]], row[pair[1]]] += int(unit)
    return table


def tables_of(codes, pairs, target, units=None, **others):
    shapes = [(SIZES[first], SIZES[second]) for first, second in pairs]
    outcomes = 1 if target is None else SIZES[target]
    return pair_counts(codes, pairs, shapes, target, units, outcomes=outcomes, **others)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("target", [None, 0, 4])
@pytest.mark.parametrize("units", ["none", "mask", "whole"])
def test_every_pair_is_counted_as_by_a_slow_loop(dtype, target, units):
    codes, rng = some_codes(211, dtype), np.random.default_rng(3)
    each = {"none": None, "mask": rng.random(211) < 0.7, "whole": rng.integers(0, 9, 211)}[units]
    pairs = list(itertools.combinations([column for column in range(len(SIZES)) if column != target], 2))
    pairs += [(second, first) for first, second in pairs[:3]] + [(1 if target != 1 else 2,) * 2]
    found = tables_of(codes, pairs, target, each)
    for pair, table in zip(pairs, found, strict=True):
        wanted = slowly(codes, pair, target, np.ones(211, int) if each is None else each)
        assert table.dtype == np.int64
        np.testing.assert_array_equal(table, wanted, err_msg=str(pair))


@pytest.mark.parametrize("most", [1, 60, 2**10, 2**20])
@pytest.mark.parametrize("rows", [1, 10, 500])
def test_neither_groups_nor_blocks_change_a_count(monkeypatch, most, rows):
    codes = some_codes(300)
    pairs = list(itertools.combinations(range(1, len(SIZES)), 2))
    wanted = [slowly(codes, pair, 0, np.ones(300)) for pair in pairs]
    monkeypatch.setattr(counting, "MOST_JOINT", most)
    monkeypatch.setattr(counting, "MOST_ROWS", rows)
    for table, slow in zip(tables_of(codes, pairs, 0), wanted, strict=True):
        np.testing.assert_array_equal(table, slow)


def test_codes_are_counted_in_the_cells_that_are_given():
    codes = np.random.default_rng(0).integers(0, 300, (400, 2)).astype(np.uint16)
    cells = [np.arange(300) % 4, np.arange(300) // 100]
    (found,) = pair_counts(codes, [(0, 1)], [(4, 3)], cells=cells)
    (wanted,) = pair_counts(np.stack([cells[0][codes[:, 0]], cells[1][codes[:, 1]]], axis=1), [(0, 1)], [(4, 3)])
    np.testing.assert_array_equal(found, wanted)


def test_one_way_counts_are_those_of_each_column_by_itself():
    codes, units = some_codes(500), np.random.default_rng(1).integers(0, 5, 500)
    for each in (None, units):
        for column, counts in zip((2, 0), one_way_counts(codes, (2, 0), (41, 3), each), strict=True):
            wanted = np.zeros(SIZES[column], np.int64)
            np.add.at(wanted, codes[:, column], 1 if each is None else each)
            np.testing.assert_array_equal(counts, wanted)


def test_no_rows_count_nothing():
    assert tables_of(some_codes(0), [(0, 1)], 3)[0].sum() == 0
    assert one_way_counts(some_codes(0), (1,), (24,))[0].tolist() == [0] * 24


def test_units_far_beyond_32_bits_are_exact():
    codes, units = np.zeros((3, 2), np.uint8), np.array([2**50, 2**50, 1])
    assert pair_counts(codes, [(0, 1)], [(1, 1)], units=units)[0].tolist() == [[[2**51 + 1]]]


@pytest.mark.parametrize(("columns", "size", "most_groups"), [(19, 24, 75), (123, 2, 150), (6, 300, 15)])
def test_every_pair_is_in_one_group_and_groups_are_few(columns, size, most_groups):
    pairs = tuple(itertools.combinations(range(columns), 2))
    groups = column_groups(pairs, tuple((column, size) for column in range(columns)), 2**15)
    assert sorted(number for _, members in groups for number in members) == list(range(len(pairs)))
    assert all(set(pairs[number]) <= set(group) for group, members in groups for number in members)
    assert all(size ** len(group) <= max(2**15, size**2) for group, _ in groups)
    assert len(groups) <= most_groups
