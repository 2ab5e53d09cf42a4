"""Universal grids: nothing but kinds and precision is taken from rows, every value has a code, and trimming loses none."""

import dataclasses
import datetime
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from populace.tables import codec
from populace.tables.schema import Column, Schema, schema_from_dict
from populace.tables.table import make_table
from populace.tables.universal import KNOWN_CODES, SOURCE, is_open, open_schema, opened, released, trimmed, with_lists

ROWS = 400
MOST_CODES = 1_500


def frame(shift: int = 0) -> pa.Table:
    """Columns of every kind; `shift` moves all values and changes all categories, and keeps kinds and precision."""
    rng = np.random.default_rng(shift)
    days = [datetime.date(1980 + shift, 1, 1) + datetime.timedelta(days=int(d)) for d in rng.integers(0, 9_000, ROWS)]
    return pa.table({
        "age": rng.integers(17 + shift, 90 + 2 * shift, ROWS),
        "debt": pa.array(rng.integers(-90_000, 10**6, ROWS) + shift),
        "price": np.round(rng.exponential(80.0 + shift, ROWS), 2),
        "measure": rng.normal(shift, 10.0**-shift, ROWS),
        "visits": pa.array([None if i % 9 == 0 else int(v) for i, v in enumerate(rng.integers(0, 9 + shift, ROWS))]),
        "born": pa.array(days),
        "seen": pa.array([datetime.datetime(2020, 1, 1 + shift, d.day % 24, 5) for d in days]),
        "at": pa.array([datetime.time(d.day % 24, 15) for d in days]),
        "smokes": pa.array(["yes" if v else "no" for v in rng.integers(0, 2, ROWS)]),
        "ward": pa.array([f"ward {v}" for v in rng.integers(shift, 6 + shift, ROWS)]),
        "admission_type": pa.array(rng.integers(1, 6 + shift, ROWS)),
    })  # fmt: skip


def test_the_schema_tells_kinds_and_precision_alone():
    schema = open_schema(frame(), target="ward")
    assert schema.to_dict() == open_schema(frame(3), target="ward").to_dict()
    assert not schema.read_from_data
    assert [column.name for column in released(schema)] == ["ward", "admission_type"]
    assert all(column.nullable for column in schema.columns)
    assert all(column.size <= MOST_CODES for column in schema.columns)
    assert schema_from_dict(schema.to_dict()).digest == schema.digest
    assert {said for said, _ in schema.domain_sources} == {
        f"declared by: {SOURCE}", "declared by: its kind, which has two values",
        "found in lists with noise, each silo's own, within the bound",
    }  # fmt: skip


def test_a_domain_read_from_rows_would_be_seen():
    first, second = (Schema(columns=(Column(name="a", kind="integer", edges=(0.0, end), domain="read-from-data"),))
                     for end in (10.0, 20.0))  # fmt: skip
    assert first.to_dict() != second.to_dict()
    assert opened(first).to_dict() == opened(second).to_dict()


def test_declared_columns_stay_as_they_are():
    declared = Column(name="a", kind="integer", edges=(0.0, 10.0), source="the ward")
    public = Column(name="b", kind="categorical", categories=("x", "y"), domain="public-data", source="census")
    schema = Schema(columns=(declared, public))
    assert opened(schema) == schema
    assert not any(map(is_open, schema.columns))


def test_a_target_of_few_numbers_is_a_list():
    rows = pa.table({"stage": np.arange(ROWS) % 4, "age": np.arange(ROWS) % 70})
    assert [column.kind for column in open_schema(rows).columns] == ["integer", "integer"]
    assert [column.name for column in released(open_schema(rows, target="stage"))] == ["stage"]


def test_every_value_has_a_code_and_comes_back_with_its_kind_and_precision():
    rows = frame()
    schema = open_schema(rows)
    table = make_table(rows, schema)
    again = codec.decode(table.codes, schema, np.random.default_rng(0))
    for column in schema.columns:
        assert again.column(column.name).type == table.frame.column(column.name).type
    price = again.column("price").to_numpy()
    assert np.allclose(price, np.round(price, 2))
    assert np.abs(price / rows.column("price").to_numpy() - 1)[rows.column("price").to_numpy() > 2].max() < 0.06
    assert again.column("age").to_pylist() == rows.column("age").to_pylist()
    assert (codec.encode(again, schema) == table.codes).all()
    assert table.clipped == {"ward": ROWS}  # small whole numbers have their codes without any list
    assert again.column("admission_type").to_pylist() == rows.column("admission_type").to_pylist()


def test_encoding_is_quick():
    rng = np.random.default_rng(0)
    rows = pa.table({"a": rng.integers(0, 10**7, 100_000), "b": np.round(rng.normal(0, 1e3, 100_000), 2)})
    schema = open_schema(rows)
    began = time.monotonic()
    make_table(rows, schema)
    assert time.monotonic() - began < 2  # a tenth of that on an idle machine


@pytest.mark.parametrize("step", [0.0, 0.01, 1.0])
@given(numbers=st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=20))
@settings(max_examples=30, deadline=None)
def test_the_grid_takes_every_number(step, numbers):
    column = opened(
        Schema(columns=(Column(name="a", kind="decimal", edges=(0.0, 1.0), step=step, domain="read-from-data"),))
    ).columns[0]
    assert codec.encode_column(pa.array(numbers), column).min() >= 0


def test_lists_of_silos_are_joined_and_the_rest_has_a_category():
    rows = frame()
    schema = open_schema(rows)
    lists = [{"ward": {"ward 1": 50, "ward 0": 70}, "admission_type": {"2": 9, "700": 8, "-3": 9}},
             {"ward": {"ward 3": 60, "ward 1": 3}}]  # fmt: skip
    found = with_lists(schema, lists)
    assert found.column("ward").categories == ("ward 0", "ward 1", "ward 3", "(other)")
    small = tuple(map(str, range(KNOWN_CODES)))
    assert found.column("admission_type").categories == ("-3", *small, "700", "-4")
    assert found.column("admission_type").other == "-4"
    assert with_lists(schema, []).column("admission_type").categories == (*small, "-1")
    table = make_table(rows, found)
    listed = sum(ward in ("ward 0", "ward 1", "ward 3") for ward in rows.column("ward").to_pylist())
    assert table.clipped["ward"] == ROWS - listed
    assert with_lists(schema, []).column("ward").categories == ("(other)",)


def test_a_long_list_keeps_its_most_frequent_values():
    schema = open_schema(frame())
    found = with_lists(schema, [{"ward": {f"w{i}": i for i in range(3_000)}}]).column("ward")
    assert found.levels == 1_001
    assert {"w2999", "w2000"} <= set(found.categories)
    assert "w1999" not in found.categories


@pytest.mark.parametrize("name", ["age", "debt", "price", "measure", "visits", "born", "seen", "at"])
def test_trimming_keeps_what_is_used_and_covers_what_lies_between(name):
    rows = frame()
    column = open_schema(rows).column(name)
    codes = codec.encode_column(rows.column(name), column)
    kept = np.bincount(codes, minlength=column.size) > 0
    new, renamed = trimmed(column, kept)
    drawn = codec.decode_column(codes, column, np.random.default_rng(1))
    assert (codec.encode_column(drawn, new) == renamed[codes]).all()
    assert codec.encode_values(rows.column(name), new).moved == 0
    assert len(np.unique(renamed[kept])) == kept.sum()
    assert new.size <= 2 * kept.sum() + 3
    assert new.nullable == kept[-1]
    assert schema_from_dict(Schema(columns=(new,)).to_dict()).columns[0] == new
    assert codec.encode_column(drawn, dataclasses.replace(new, clip=False)).min() >= 0


@given(seed=st.integers(0, 10**6), share=st.floats(0.002, 0.9), step=st.sampled_from([0.0, 0.01, 1.0]))
@settings(max_examples=40, deadline=None)
def test_any_cells_can_be_trimmed(seed, share, step):
    column = opened(
        Schema(columns=(Column(name="a", kind="decimal", edges=(0.0, 1.0), step=step, domain="read-from-data"),))
    ).columns[0]
    rng = np.random.default_rng(seed)
    kept = rng.random(column.size) < share
    kept[rng.integers(column.levels)] = True
    new, renamed = trimmed(column, kept)
    codes = np.repeat(np.flatnonzero(kept), 3)
    drawn = codec.decode_column(codes, column, rng)
    assert (codec.encode_column(drawn, new) == renamed[codes]).all()


def test_lists_are_trimmed_too():
    column = Column(name="a", kind="categorical", categories=("x", "y", "(other)"), other="(other)", nullable=True)
    new, codes = trimmed(column, np.array([True, False, False, True]))
    assert new.categories == ("x",)
    assert (new.other, new.nullable) == ("", True)
    assert codes.tolist() == [0, -1, -1, 1]
    new, codes = trimmed(column, np.array([False, True, True, False]))
    assert (new.categories, new.other, new.nullable) == (("y", "(other)"), "(other)", False)
    new, codes = trimmed(column, np.array([False, False, False, True]))  # nothing but "no value": one value stays
    assert (new.categories, new.nullable, codes.tolist()) == (("x",), True, [0, -1, -1, 1])
