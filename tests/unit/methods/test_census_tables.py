"""Tables of pairs: what stands where in a message, how it is counted, and by how much one record changes it."""

import itertools
import math

import jax
import numpy as np
import pytest

from populace.methods.census import counting
from populace.methods.census import tables as tables_module
from populace.methods.census.tables import PairTables

SHAPES = [
    PairTables((3, 6, 4, 2), 3),
    PairTables((3, 6, 4, 2), 0),  # the target is the first column
    PairTables((3, 6, 4, 2)),
    PairTables((2, 5), 0),  # one column beside the target: paired with itself
    PairTables((2, 5)),
    PairTables((7,)),
    PairTables((1, 3, 1), 2),  # columns of one value
    PairTables((2,) * 12, 11),
]


def name_of(tables):
    return f"{tables.sizes}-{tables.target}"


@pytest.fixture(params=SHAPES, ids=name_of)
def tables(request):
    return request.param


def some_codes(tables, rows, seed=0):
    return np.random.default_rng(seed).integers(0, tables.sizes, (rows, len(tables.sizes))).astype(np.int32)


def counted_slowly(tables, codes):
    """A loop over records and pairs, from the words of the docstring."""
    columns = [column for column in range(len(tables.sizes)) if column != tables.target]
    pairs = list(itertools.combinations(columns, 2)) if len(columns) > 1 else [(columns[0], columns[0])]
    outcomes = 1 if tables.target is None else tables.sizes[tables.target]
    found = []
    for (first, second), weight in zip(pairs, tables.weights.tolist(), strict=True):
        table = np.zeros((outcomes, tables.sizes[first], tables.sizes[second]), np.int64)
        for row in codes.tolist():
            table[0 if tables.target is None else row[tables.target], row[first], row[second]] += weight
        found.append(table.reshape(outcomes, -1))
    return np.concatenate(found, axis=1)


@pytest.mark.parametrize("rows", [0, 1, 37])
def test_counts_are_those_of_a_slow_loop(tables, rows):
    """By NumPy and traced, with rows that do not count among the others."""
    codes = some_codes(tables, rows + 5)
    mask = np.random.default_rng(1).permutation(np.arange(rows + 5) < rows)
    wanted = counted_slowly(tables, codes[mask])
    plain = tables.counts(codes, mask)
    traced = np.asarray(jax.jit(tables.counts)(codes, mask))
    assert plain.shape == wanted.shape == (tables.outcomes, tables.entries)
    np.testing.assert_array_equal(plain, wanted)
    np.testing.assert_array_equal(traced, wanted)
    assert plain.dtype == traced.dtype == np.int32


@pytest.mark.parametrize("rows_at_once", [1, 7, 64])
def test_counting_in_parts_counts_every_record_once(monkeypatch, rows_at_once):
    tables = SHAPES[0]
    codes, mask = some_codes(tables, 64), np.arange(64) < 61
    wanted = counted_slowly(tables, codes[mask])
    monkeypatch.setattr(tables_module, "ROWS_AT_ONCE", rows_at_once)
    monkeypatch.setattr(counting, "MOST_ROWS", rows_at_once)
    np.testing.assert_array_equal(tables.counts(codes, mask), wanted)
    traced = jax.jit(lambda *given: tables.counts(*given))  # another function for every number of rows at once
    np.testing.assert_array_equal(traced(codes, mask), wanted)


def test_many_records_in_one_cell_are_counted_exactly():
    """All in one place, where products of one-hot rows would be the first to lose a unit."""
    tables = PairTables((2, 3, 2), 2)
    codes = np.tile(np.array([[1, 2, 1]], np.int32), (300_000, 1))
    mask = np.arange(len(codes)) < 299_999
    for counts in (tables.counts(codes, mask), np.asarray(jax.jit(tables.counts)(codes, mask))):
        assert counts.sum() == counts.max() == 299_999 * int(tables.weights[0])


def test_the_two_positions_of_an_entry_say_what_is_counted_there(tables):
    """Every cell of every table has one entry; a record's own cells are the entries at its positions."""
    first, second = tables.cells
    assert len(first) == len(second) == tables.entries == len(tables.pair_of_entry)
    assert len(set(zip(first.tolist(), second.tolist(), strict=True))) == tables.entries
    assert set(first.tolist()) | set(second.tolist()) == set(range(tables.positions))
    for row in some_codes(tables, 5):
        here = {tables.offsets[column] + int(row[column]) for column in tables.columns}
        counts = tables.counts(row[None], np.ones(1, bool))
        outcome = 0 if tables.target is None else int(row[tables.target])
        (hit,) = np.nonzero(counts[outcome])
        assert counts.sum() == counts[outcome].sum()
        assert sorted(tables.pair_of_entry[hit]) == list(range(len(tables.pairs)))
        assert {int(first[entry]) for entry in hit} | {int(second[entry]) for entry in hit} == here


def test_every_record_changes_a_message_by_exactly_the_bound(tables):
    """In whole numbers: the square of the change is the sum of the squared weights, for every record there can be."""
    every = itertools.product(*(range(size) for size in tables.sizes))
    square = int(np.sum(tables.weights**2))
    assert tables.bound == math.sqrt(square)
    for row in itertools.islice(every, 200):
        alone = tables.counts(np.array([row], np.int32), np.ones(1, bool)).astype(np.int64)
        assert int((alone**2).sum()) == square
        assert (alone > 0).sum() == len(tables.pairs)


def test_adding_a_record_adds_just_its_own_counts(tables):
    codes = some_codes(tables, 30, seed=2)
    everything = np.ones(30, bool)
    for left_out in (0, 17, 29):
        rest = everything.copy()
        rest[left_out] = False
        change = tables.counts(codes, everything).astype(np.int64) - tables.counts(codes, rest)
        np.testing.assert_array_equal(change, tables.counts(codes[[left_out]], np.ones(1, bool)))


def test_weights_are_whole_grow_with_the_cells_and_are_counted_in_the_bound():
    tables = PairTables((2, 24, 40, 3), 3)
    assert tables.weights.dtype == np.int64
    assert tables.weights.min() >= 1
    by_cells = dict(zip([a * b for a, b in tables.shapes], tables.weights.tolist(), strict=True))
    assert by_cells[960] > by_cells[48]
    assert tables.bound > math.sqrt(len(tables.pairs))  # a bound that forgot the weights
    same = PairTables((4, 4, 4))
    assert len(set(same.weights.tolist())) == 1


def test_sums_do_not_depend_on_who_holds_what(tables):
    codes = some_codes(tables, 60, seed=3)
    owner = np.random.default_rng(0).integers(0, 4, 60)
    parts = sum(tables.counts(codes[owner == silo], np.ones((owner == silo).sum(), bool)) for silo in range(5))
    np.testing.assert_array_equal(parts, tables.counts(codes, np.ones(60, bool)))
