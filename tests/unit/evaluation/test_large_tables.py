"""Evaluation of tables of many rows: what a row costs in memory, and that narrow codes and stored columns change no figure."""

import tracemalloc

import numpy as np
import pytest
from benchmarks.million_rows import make_frame

from populace.evaluation import sets
from populace.evaluation.baselines import SYNTHETIC
from populace.evaluation.evaluate import evaluate_read, evaluate_tables
from populace.evaluation.values import Categories, Numbers, ValueTable, sample_rows, value_tables
from populace.tables.coded import compact
from populace.tables.table import make_table, resolve_schema
from populace.tables.widening import widened

#: Of eight columns in two tables at the peak: 264 measured by NumPy. (Of all twenty 530; with copies of tables 1,713.)
BYTES_PER_ROW = 400
COLUMNS = ("age", "gain", "hours", "weight", "distance", "last_seen", "occupation", "product")
ROWS = 60_000, 120_000


def tables(rows, columns=None):
    """A synthetic table and a real one, of all columns unless given."""
    first, second, small = (make_frame(count, seed=seed) for seed, count in enumerate((rows, rows, 5_000)))
    frames = [frame if columns is None else frame.select(columns) for frame in (first, second)]
    schema = resolve_schema(small if columns is None else small.select(columns), None)
    wide = widened(schema, *frames)
    real, synthetic = (compact(make_table(frame, wide)) for frame in frames)
    return {SYNTHETIC: synthetic}, real


def peak(rows):
    """Bytes allocated at the peak beyond those allocated before."""
    tracemalloc.start()
    try:
        evaluate_read(lambda: tables(rows, COLUMNS))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_row_costs_a_bounded_number_of_bytes(monkeypatch):
    monkeypatch.setattr(sets.os, "cpu_count", lambda: 2)  # threads, each of which works on a set of columns
    few, many = map(peak, ROWS)
    assert (many - few) / (ROWS[1] - ROWS[0]) < BYTES_PER_ROW


def test_compact_tables_have_the_same_figures():
    (synthetic, real) = tables(3_000)
    wide = {name: make_table(table.frame, table.schema) for name, table in synthetic.items()}
    assert real.codes.dtype == np.uint16
    found = evaluate_tables(synthetic, real)[SYNTHETIC].document
    other = evaluate_tables(wide, make_table(real.frame, real.schema))[SYNTHETIC].document
    assert found | {"seconds": 0} == other | {"seconds": 0}


def test_stored_columns_are_the_columns_in_memory():
    (synthetic, real) = tables(2_000)
    chosen = np.random.default_rng(0).permutation(2_000)[:300]
    for stored, table in zip(value_tables([real, synthetic[SYNTHETIC]]), (real, synthetic[SYNTHETIC]), strict=True):
        whole = ValueTable(
            rows=stored.rows,
            numbers=tuple(Numbers(name=c.name, kind=c.kind, values=c.values) for c in stored.numbers),
            categories=tuple(
                Categories(name=c.name, kind=c.kind, labels=c.labels, codes=c.codes) for c in stored.categories
            ),
        )
        for one, other in zip(stored.take(chosen).numbers, whole.take(chosen).numbers, strict=True):
            np.testing.assert_array_equal(one.values, other.values)
        for one, other in zip(stored.take(chosen).categories, whole.take(chosen).categories, strict=True):
            np.testing.assert_array_equal(one.codes, other.codes)
            expected = table.frame.column(one.name).take(chosen).to_pylist()
            assert [one.labels[code] if code >= 0 else None for code in one.codes] == expected


@pytest.mark.parametrize("rows", [100, 3_000, 70_000])
def test_a_small_sample_is_part_of_a_larger_one(rows):
    small, large = sample_rows(rows, 1_000), sample_rows(rows, 2_000)
    assert len(small) == min(rows, 1_000)
    assert np.isin(small, large).all()
