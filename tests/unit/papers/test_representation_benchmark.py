"""`representation-a9a`: the same rows written in two ways are judged alike."""

import numpy as np
import pytest

from populace.papers import poll, representation
from populace.tables.schema import Column, Schema
from populace.tables.table import from_codes, make_table

SCHEMA = Schema(
    columns=tuple(Column(name=f"f{i}", kind="boolean", categories=("0", "1"), dtype="integer") for i in range(5)),
    target="f4",
)


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 2, (900, 1))
    codes = np.concatenate([rng.random((900, 4)) < np.where(kind == 1, 0.8, 0.2), kind], axis=1).astype(np.int32)
    return from_codes(codes, SCHEMA, rng)


def test_both_ways_hold_the_same_rows(table):
    for values in representation.WRITTEN.values():
        frame = representation.written_as(table.codes, SCHEMA.names, values)
        again = make_table(frame, representation.binary_schema(SCHEMA, values))
        np.testing.assert_array_equal(again.codes, table.codes)
        assert again.schema.target == "f4"


@pytest.mark.slow
def test_numbers_and_words_do_alike(table, monkeypatch):
    monkeypatch.setattr(poll, "load", lambda name: table)
    monkeypatch.setattr(poll, "ROWS", 2_000)
    found = [representation.measure({"written": w, "epsilon": 4, "seed": 0}) for w in representation.WRITTEN]
    assert found[0]["avd4"] == pytest.approx(found[1]["avd4"], rel=0.05)
    assert 0 < found[0]["avd4"] < 0.3


def test_the_ratio_is_shown_and_judged():
    cells = representation.cells(False, 1)
    assert len(cells) == 8
    results = [
        {"cell": cell, "avd4": 0.05 if cell["written"] == "0 and 1" else 0.05 + 0.002 * cell["epsilon"]}
        for cell in cells
    ]
    (view,) = representation.views(results)
    assert [row[0] for row in view.rows] == ["1", "2", "4", "8"]
    assert [row[-1] for row in view.rows] == ["yes", "no", "no", "no"]
    assert view.rows[0][3] == "0.962"
    (half,) = representation.views(results[:1])
    assert half.rows == [["1", "0.0500", "-", "-", "-"]]
