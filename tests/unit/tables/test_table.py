from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given

from populace.errors import DataError, InputError, RunError
from populace.tables import files
from populace.tables.schema import Column, Schema
from populace.tables.table import (
    SUFFIXES,
    Table,
    from_codes,
    make_table,
    read_frame,
    read_table,
    to_arrow,
    write_frame,
)

from .strategies import FAST, schemas_with_codes

CASE = tuple[Schema, np.ndarray, np.random.Generator]
SCHEMA = Schema(
    columns=(
        Column(name="age", kind="integer", edges=(0, 18, 65, 120), nullable=True),
        Column(name="weight", kind="decimal", edges=(0, 50, 500), nullable=True),
        Column(name="city", kind="categorical", categories=("Köln", "Łódź", "007"), nullable=True),
        Column(name="rooms", kind="ordinal", categories=("1", "2", "3"), dtype="integer"),
        Column(name="garden", kind="categorical", categories=("false", "true"), dtype="boolean"),
    ),
    target="garden",
)
VALUES = {
    "age": [17, None, 70],
    "weight": [61.5, 49.9, None],
    "city": ["Köln", "007", None],
    "rooms": [1, 3, 2],
    "garden": [True, False, False],
    "not in the schema": ["x", "y", "z"],
}
CODES = [[0, 1, 0, 0, 1], [3, 0, 2, 2, 0], [2, 2, 3, 1, 0]]


def table() -> Table:
    return make_table(pa.table(VALUES), SCHEMA)


@pytest.mark.parametrize(
    "frame",
    [
        pa.table(VALUES),
        pd.DataFrame(VALUES),
        pd.DataFrame(VALUES).convert_dtypes(),
        pd.DataFrame(VALUES).astype({"city": "category"}),
        pl.DataFrame(VALUES),
        pl.DataFrame(VALUES).with_columns(pl.col("city").cast(pl.Categorical)),
    ],
    ids=["pyarrow", "pandas", "pandas-nullable", "pandas-category", "polars", "polars-category"],
)
def test_every_kind_of_table_gives_the_same_codes(frame: object) -> None:
    made = make_table(frame, SCHEMA)
    assert made.codes.tolist() == CODES
    assert made.codes.dtype == np.int32
    assert made.frame.equals(table().frame)
    assert made.frame.column_names == list(SCHEMA.names)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_saved_table_reads_back(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"table{suffix}"
    table().save(path)
    again = read_table(path, SCHEMA)
    assert again.codes.tolist() == CODES
    assert again.frame.equals(table().frame)
    assert os.listdir(tmp_path) == [path.name]
    SCHEMA.save(tmp_path / "schema.toml")
    assert read_table(path, tmp_path / "schema.toml").codes.tolist() == CODES


@FAST
@given(schemas_with_codes(least=2))
def test_any_table_survives_every_file_format(case: CASE) -> None:
    schema, codes, rng = case
    original = from_codes(codes, schema, rng)
    with tempfile.TemporaryDirectory() as folder:
        for suffix in SUFFIXES:
            path = Path(folder) / f"t{suffix}"
            original.save(path)
            again = read_table(path, schema)
            assert np.array_equal(again.codes, codes), suffix
            assert again.frame.equals(original.frame), suffix


def test_text_that_looks_like_null_or_a_number_stays_text(tmp_path: Path) -> None:
    words = ("", "nan", "NaN", "NA", "007", "a,b", 'say "no"', "two\nlines", "2020-01-01", "true", " x ")
    schema = Schema(columns=(Column(name="w", kind="categorical", categories=words, nullable=True),
                             Column(name="n", kind="integer", edges=(0, 20))))  # fmt: skip
    frame = pa.table({"w": [*words, None], "n": list(range(len(words) + 1))})
    write_frame(frame, tmp_path / "words.csv")
    assert read_table(tmp_path / "words.csv", schema).frame.column("w").to_pylist() == [*words, None]


def test_an_empty_field_in_quotes_is_null_unless_it_is_a_category(tmp_path: Path) -> None:
    path = tmp_path / "quoted.csv"
    path.write_text('"age","city"\n"17","Köln"\n"","007"\n"18",""\n', encoding="utf-8")
    schema = Schema(columns=(SCHEMA.column("age"), SCHEMA.column("city")))
    assert read_table(path, schema).codes.tolist() == [[0, 0], [3, 2], [1, 3]]


def test_take_accepts_numbers_and_masks() -> None:
    whole = table()
    assert whole.take(np.array([2, 0])).codes.tolist() == [CODES[2], CODES[0]]
    assert whole.take(np.array([2, 0])).frame.column("rooms").to_pylist() == [2, 1]
    assert whole.take(np.array([False, True, True])).codes.tolist() == CODES[1:]
    assert whole.take(np.array([-1])).frame.column("rooms").to_pylist() == [2]
    assert len(whole.take(np.array([], np.int64))) == 0
    assert whole.one_hot().shape == (3, sum(SCHEMA.sizes))
    assert list(whole.to_pandas()["rooms"]) == [1, 3, 2]
    assert whole == whole
    assert whole != table()


def test_without_a_schema_domains_are_read_from_the_data(tmp_path: Path) -> None:
    write_frame(pa.table(VALUES), tmp_path / "t.parquet")
    made = read_table(tmp_path / "t.parquet", without=("not in the schema", "absent"))
    assert made.schema.names == SCHEMA.names
    assert made.schema.read_from_data == SCHEMA.names


def test_files_that_cannot_be_read_are_explained(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"expected a table in one of .csv, .parquet, .arrow, .feather, .* got 't.xlsx'"
    ):
        read_frame(tmp_path / "t.xlsx")
    with pytest.raises(InputError, match=r"no file .*t.csv"):
        read_frame(tmp_path / "t.csv")
    write_frame(pa.table(VALUES), tmp_path / "whole.parquet")
    content = (tmp_path / "whole.parquet").read_bytes()
    for suffix in (".parquet", ".arrow", ".feather"):
        (tmp_path / f"cut{suffix}").write_bytes(content[:-7])
        with pytest.raises(DataError, match=r"cannot read .*; the file may be truncated or of another format"):
            read_frame(tmp_path / f"cut{suffix}")
    for name, content in {"empty": b"", "ragged": b"a,b\n1,2\n3\n", "latin": b"a\n\xe9\n"}.items():
        (tmp_path / f"{name}.csv").write_bytes(content)
        with pytest.raises(DataError, match=r"is empty; expected a header" if name == "empty" else "cannot read"):
            read_table(
                tmp_path / f"{name}.csv", Schema(columns=(Column(name="a", kind="categorical", categories=("é",)),))
            )
    (tmp_path / "header.csv").write_text("a,b\n")
    with pytest.raises(DataError, match=r"header.csv has no rows; expected at least one"):
        read_frame(tmp_path / "header.csv")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n")
    with pytest.raises(DataError, match="two columns named 'a'; rename or drop one"):
        read_table(tmp_path / "twice.csv")
    with pytest.raises(DataError, match="two columns named 'a'"):
        to_arrow(pa.table([[1], [2]], names=["a", "a"]))
    with pytest.raises(DataError, match="expected a pyarrow, pandas or polars table"):
        to_arrow(pd.DataFrame([[1, 2]], columns=["a", "a"]))


@pytest.mark.parametrize(
    "thing", [[1, 2], {"a": [1]}, "t.csv", pd.DataFrame({"a": [1, "x"]}), pl.LazyFrame({"a": [1]})]
)
def test_what_is_not_a_table_is_refused(thing: object) -> None:
    with pytest.raises(DataError, match="expected a pyarrow, pandas or polars table, got"):
        to_arrow(thing)


def test_writing_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected an output name ending in one of .*, got 't.txt'"):
        table().save(tmp_path / "t.txt")
    with pytest.raises(RunError, match=r"cannot write .*; nothing was left"):
        table().save(tmp_path / "missing" / "t.csv")
    path = tmp_path / "t.txt"
    files.write_text(path, "old")

    def fail() -> None:
        with files.replacing(path) as temporary:
            temporary.write_text("half")
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["t.txt"]


def test_json_files(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    files.write_json(path, {"name": "Łódź", "n": [1, 2.5, None]})
    assert files.read_json(path) == {"name": "Łódź", "n": [1, 2.5, None]}
    assert "Łódź" in path.read_text(encoding="utf-8")
    path.write_text("{")
    with pytest.raises(RunError, match="cannot read"):
        files.read_json(path)
    with pytest.raises(RunError, match="no file"):
        files.read_json(tmp_path / "absent.json")
