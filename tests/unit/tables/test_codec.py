from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from populace.errors import DataError
from populace.tables import codec
from populace.tables.conversion import arrow_type
from populace.tables.schema import Column, Schema

from .strategies import FAST, schemas_with_codes

CASE = tuple[Schema, np.ndarray, np.random.Generator]


@FAST
@given(schemas_with_codes())
def test_encoding_what_was_decoded_gives_the_codes_back(case: CASE) -> None:
    schema, codes, rng = case
    frame = codec.decode(codes, schema, rng)
    assert np.array_equal(codec.encode(frame, schema), codes)
    assert [frame.schema.field(c.name).type for c in schema.columns] == [arrow_type(c) for c in schema.columns]


@FAST
@given(schemas_with_codes())
def test_one_hot_and_back(case: CASE) -> None:
    schema, codes, _ = case
    rows = codec.one_hot(codes, schema.sizes)
    assert rows.shape == (len(codes), sum(schema.sizes))
    assert rows.dtype == np.float32
    assert (rows.sum(axis=1) == len(schema.sizes)).all()
    assert np.array_equal(codec.from_one_hot(rows, schema.sizes), codes)


@FAST
@given(st.lists(st.integers(0, 100), min_size=1, max_size=30), st.booleans())
def test_bins_hold_their_lower_edge_and_the_last_its_upper_one(values: list[int], whole: bool) -> None:
    column = Column(name="a", kind="integer" if whole else "decimal", edges=(0, 10, 50, 100))
    codes = codec.encode_column(pa.chunked_array([pa.array(values, pa.int64() if whole else pa.float64())]), column)
    assert codes.tolist() == [0 if v < 10 else 1 if v < 50 else 2 for v in values]


def test_a_soft_row_takes_the_largest_entry_of_each_block() -> None:
    assert codec.from_one_hot(np.array([[0.1, 0.7, 0.2, 0.6, 0.4]]), (3, 2)).tolist() == [[1, 0]]


def test_draws_fill_the_bin_evenly() -> None:
    column = Column(name="a", kind="integer", edges=(0, 3, 10))
    rng = np.random.default_rng(0)
    drawn = codec.decode_column(np.repeat([0, 1], 8_000), column, rng).to_numpy()
    counts = np.bincount(drawn, minlength=11)
    assert (np.abs(counts[:3] - 8_000 / 3) < 250).all()
    assert (np.abs(counts[3:] - 8_000 / 8) < 160).all()
    wide = Column(name="a", kind="decimal", edges=(-1.7e308, 1.7e308))
    values = codec.decode_column(np.zeros(1_000, np.int32), wide, rng).to_numpy()
    assert np.isfinite(values).all()
    assert abs(np.mean(values / 1.7e308)) < 0.1


NULLABLE = Column(name="a", kind="integer", edges=(0, 5, 10), nullable=True)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None, 7], pa.int64()),
        pa.array([1, None, 7], pa.uint8()),
        pa.array([1.0, None, 7.0]),
        pa.array([1.0, float("nan"), 7.0]),
        pa.array([1.0, float("nan"), 7.0], pa.float32()),
        pa.array(["1", None, "7.0"]),
        pa.array(["1", "nan", "7"]),
        pa.array([1, None, 7], pa.int64()).dictionary_encode(),
        pa.array([1, None, 7], pa.int64()).cast(pa.decimal128(20, 0)),
        pa.chunked_array([pa.array(["1"]).dictionary_encode(), pa.array([None, "7"]).dictionary_encode()]),
    ],
    ids=str,
)
def test_numbers_may_come_in_many_types(values: pa.Array) -> None:
    assert codec.encode_column(values, NULLABLE).tolist() == [0, 2, 1]
    assert codec.store_column(values, NULLABLE).to_pylist() == [1, None, 7]


@pytest.mark.parametrize(
    ("dtype", "categories", "values", "codes"),
    [
        ("string", ("x", "y"), pa.array(["y", "x"], pa.large_string()), [1, 0]),
        ("string", ("x", "y"), pa.array(["y", "x"], pa.string_view()), [1, 0]),
        ("string", ("1", "2"), pa.array([2, 1]), [1, 0]),
        ("integer", ("1", "2"), pa.array([2.0, 1.0]), [1, 0]),
        ("float", ("0.0", "0.5"), pa.array([0.5, -0.0]), [1, 0]),
        ("float", ("1e+17", "0.5"), pa.array([10**17]), [0]),
        ("boolean", ("false", "true"), pa.array([True, False]), [1, 0]),
        ("boolean", ("false", "true"), pa.array([1, 0]), [1, 0]),
    ],
)
def test_categories_may_come_in_many_types(
    dtype: str, categories: tuple[str, ...], values: pa.Array, codes: list[int]
) -> None:
    column = Column(name="c", kind="categorical", categories=categories, dtype=dtype)
    assert codec.encode_column(values, column).tolist() == codes


RANK = Column(name="i", kind="ordinal", categories=("1",), dtype="integer")
FLAG = Column(name="b", kind="categorical", categories=("true",), dtype="boolean")
CATEGORY = Column(name="c", kind="categorical", categories=tuple("abcdefgh"))


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (CATEGORY, pa.array(["a", "z"]), "'c' has the unknown category 'z' in row 2; .* a, b, c, d, e, f and 2 more"),
        (CATEGORY, pa.array(["a", None]), "'c' has no value in row 2, but is not nullable; fill it, or declare"),
        (NULLABLE, pa.array([1, 11]), "'a' has 11 in row 2, outside its declared cells 0 to 10; widen the edges"),
        (NULLABLE, pa.array([-1.0]), "'a' has -1 in row 1, outside"),
        (NULLABLE, pa.array([1.0, 2.5]), "'a' has 2.5 in row 2, which is no whole number"),
        (NULLABLE, pa.array([float("inf")]), "'a' has inf in row 1, outside"),
        (NULLABLE, pa.array(["x"]), "'a' has 'x' in row 1, which is no whole number"),
        (NULLABLE, pa.array([[1]]), "'a' has the list<.*> .1. in row 1, which is no whole number"),
        (RANK, pa.array([1.5]), "'i' holds 1.5 in row 1, which is no integer"),
        (FLAG, pa.array(["maybe"]), "'b' holds 'maybe' in row 1, which is no boolean"),
    ],
)  # fmt: skip
def test_a_value_outside_the_domain_is_an_error(column: Column, values: pa.Array, message: str) -> None:
    with pytest.raises(DataError, match=message):
        codec.encode_column(values, column)


def test_tables_without_rows_or_columns_are_refused() -> None:
    schema = Schema(columns=(NULLABLE,))
    with pytest.raises(DataError, match="no rows; expected at least one"):
        codec.encode(pa.table({"a": pa.array([], pa.int64())}), schema)
    with pytest.raises(DataError, match=r"none of the schema's columns .a. is in the table, which has b, c"):
        codec.encode(pa.table({"b": [1], "c": [2]}), schema)


def test_codes_of_another_schema_are_refused() -> None:
    schema = Schema(columns=(NULLABLE, CATEGORY))
    rng = np.random.default_rng(0)
    with pytest.raises(DataError, match="expected codes of column 'c' in 0 to 7, got 8"):
        codec.decode(np.array([[0, 8]]), schema, rng)
    with pytest.raises(DataError, match="expected codes of column 'a' in 0 to 2, got -1"):
        codec.decode(np.array([[-1, 0]]), schema, rng)
    with pytest.raises(DataError, match="expected codes with 2 columns"):
        codec.decode(np.array([[0]]), schema, rng)


@pytest.mark.parametrize("dtype", ["boolean", "string", "integer"])
@pytest.mark.parametrize("words", [("f", "t"), ("F", "T"), ("false", "TRUE"), ("no", "Yes"), ("n", "y"), ("0", "1")])
def test_a_boolean_column_takes_truth_values_in_every_writing(dtype, words):
    categories = {"boolean": ("false", "true"), "string": ("no", "yes"), "integer": ("0", "1")}[dtype]
    column = Column(name="y", kind="boolean", categories=categories, dtype=dtype, nullable=True)
    made = codec.encode_values(pa.array([words[1], words[0], "", f" {words[0]} "]), column)
    assert made.codes.tolist() == [1, 0, 2, 0]
    assert made.values.to_pylist()[:2] == [codec.parse_category(text, dtype, "y") for text in reversed(categories)]
    assert codec.encode_values(pa.array([True, False, None]), column).codes.tolist() == [1, 0, 2]


def test_words_are_truth_values_in_boolean_columns_alone():
    column = Column(name="y", kind="categorical", categories=("no", "yes"))
    with pytest.raises(DataError, match="unknown category 't'"):
        codec.encode_values(pa.array(["t"]), column)
    with pytest.raises(DataError, match="'maybe' in row 1, which is no boolean"):
        codec.encode_values(
            pa.array(["maybe"]), Column(name="y", kind="boolean", categories=("false", "true"), dtype="boolean")
        )
