"""Cells of a scale: every code comes back, means are what is drawn, and values outside go to the nearest cell."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from populace.errors import DataError, SchemaError
from populace.tables import codec
from populace.tables.schema import Column

from .strategies import FAST, SCALES, scales

GAIN = Column(
    name="gain", kind="integer", edges=(1, 3_000, 10_000, 41_311), spikes=(0, 99_999), laws=("linear", "log", "log")
)


@st.composite
def scale_columns(draw: st.DrawFn) -> Column:
    kind = draw(st.sampled_from(sorted(SCALES)))
    return Column(name="c", kind=kind, **draw(scales(kind)))


@FAST
@given(scale_columns(), st.integers(0, 2**32))
def test_every_code_comes_back_and_cells_ascend(column: Column, seed: int) -> None:
    codes = np.repeat(np.arange(column.levels), 40)
    drawn = column.scale.draw(codes, np.random.default_rng(seed))
    assert np.array_equal(column.scale.codes(drawn), codes)
    stored = codec.decode_column(codes, column, np.random.default_rng(seed))
    assert np.array_equal(codec.encode_column(stored, column), codes)
    lows = [(cell.low, not cell.spike) for cell in column.cells]
    assert lows == sorted(lows)
    for cell, values in zip(column.cells, drawn.reshape(column.levels, -1), strict=True):
        assert (values >= cell.low).all()
        assert (values <= cell.high).all()
        assert cell.spike == (cell.low == cell.high)


@FAST
@given(scale_columns())
def test_the_nearest_value_lies_in_the_domain(column: Column) -> None:
    rng = np.random.default_rng(0)
    ends = [*column.edges, *column.spikes]
    near = column.scale.draw(rng.integers(0, column.levels, 60), rng)
    tried = np.concatenate(
        [near, rng.uniform(-1, 1, 60) * 2 * max(map(abs, ends)) if max(map(abs, ends)) < 1e300 else near]
    )
    moved = column.scale.nearest(tried)
    assert (column.scale.codes(moved) >= 0).all()
    inside = column.scale.codes(tried) >= 0
    assert np.array_equal(moved[inside], tried[inside])


@pytest.mark.parametrize(
    "column",
    [
        GAIN,
        Column(name="c", kind="integer", edges=(0, 10, 20), spikes=(0, 3, 4, 15), laws=("log", "linear")),
        Column(name="c", kind="decimal", edges=(-5, 0, 40), spikes=(0,), laws=("log", "log"), step=0.01),
        Column(name="c", kind="decimal", edges=(-1e3, 1e3, 1e6), laws=("log", "log")),
        Column(name="c", kind="datetime", edges=(0, 86_400, 10**9), step=3_600),
        Column(name="c", kind="integer", edges=(1, 100_000), laws=("log",)),
    ],
)
def test_centres_are_the_means_of_what_is_drawn(column: Column) -> None:
    rng = np.random.default_rng(3)
    for code, (cell, centre) in enumerate(zip(column.cells, column.centres(), strict=True)):
        drawn = column.scale.draw(np.full(40_000, code), rng)
        assert abs(drawn.mean() - centre) <= 5 * drawn.std() / 200 + 1e-9 * abs(centre), cell


def test_laws_say_how_values_lie() -> None:
    rng = np.random.default_rng(0)
    wide = Column(name="c", kind="integer", edges=(100, 100_000), laws=("log",))
    drawn = wide.scale.draw(np.zeros(50_000, int), rng)
    for low, high in ((100, 1_000), (1_000, 10_000), (10_000, 100_000)):
        assert abs(((drawn >= low) & (drawn < high)).mean() - 1 / 3) < 0.01
    even = Column(name="c", kind="decimal", edges=(0, 1), step=0.05)
    values, counts = np.unique(even.scale.draw(np.zeros(42_000, int), rng), return_counts=True)
    assert values.tolist() == [round(0.05 * k, 2) for k in range(21)]
    assert abs(counts / 2_000 - 1).max() < 0.1


def test_spikes_are_taken_out_of_their_interval() -> None:
    column = Column(name="c", kind="integer", edges=(0, 5, 10), spikes=(3, 5, 10, 99))
    assert column.labels() == ("[0, 5)", "3", "5", "[5, 10]", "10", "99")
    drawn = column.scale.draw(np.repeat([0, 3], 2_000), np.random.default_rng(0))
    assert set(drawn[:2_000].tolist()) == {0, 1, 2, 4}
    assert set(drawn[2_000:].tolist()) == {6, 7, 8, 9}
    assert codec.encode_column(pa.array([0, 3, 5, 6, 10, 99]), column).tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(DataError, match=r"'c' has 11 in row 1 \(and 1 more\), outside its declared cells 0 to 99"):
        codec.encode_column(pa.array([11, 50]), column)


def test_clipped_values_are_counted() -> None:
    column = Column(name="c", kind="integer", edges=(0, 5, 10), spikes=(99,), clip=True)
    made = codec.encode_values(pa.array([-4, 3, 11, 80, 1_000]), column)
    assert made.values.to_pylist() == [0, 3, 10, 99, 99]
    assert made.moved == 4
    listed = Column(name="w", kind="categorical", categories=("a", "rest"), other="rest")
    made = codec.encode_values(pa.array(["a", "z", "b"]), listed)
    assert (made.values.to_pylist(), made.codes.tolist(), made.moved) == (["a", "rest", "rest"], [0, 1, 1], 2)


WRONG = [
    ({"edges": (0, 10), "spikes": (3, 2)}, "expected rising spikes"),
    ({"edges": (0, 10), "spikes": (2.5,)}, "the spike 2.5 is not a multiple of the step 1"),
    ({"edges": (0, 10), "laws": ("cubic",)}, "expected law 'linear' or 'log', or one of them per interval"),
    ({"edges": (0, 10), "laws": ("log", "log")}, "one of them per interval"),
    ({"edges": (0, 10), "step": 0.5}, "expected a step of at least 1, got 0.5"),
    ({"edges": (0, 10), "step": 1.5}, "expected a whole number as step, got 1.5"),
    ({}, "expected at least two edges, got 0"),
    ({"edges": (0.2, 0.4)}, "no multiple of 1 lies between its edges"),
    ({"edges": (0, 1), "other": "x"}, "has edges, not categories"),
    ({"edges": (0, 1), "missing": (3,)}, "expected text, got 3"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_a_wrong_scale_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Column(name="c", kind="integer", **fields)


def test_dates_outside_the_calendar_are_refused() -> None:
    with pytest.raises(SchemaError, match="expected every date in the years 1 to 9999"):
        Column(name="d", kind="date", edges=(0, 4e6))
    with pytest.raises(SchemaError, match="in the day's 24 hours"):
        Column(name="t", kind="time", edges=(0, 86_400))
