from __future__ import annotations

import datetime
import json
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from populace.errors import SchemaError
from populace.tables.inference import FEW_NUMBERS, from_sdv, infer, infer_column, quantile_edges
from populace.tables.table import make_table, read_table, to_arrow, write_frame

from .strategies import FAST

FRAME = pa.table(
    {
        "n": list(range(100)),
        "few": [i % 3 for i in range(100)],
        "x": [i / 7 for i in range(100)],
        "word": [("b", "a")[i % 2] for i in range(100)],
        "flag": [i % 5 == 0 for i in range(100)],
        "gap": [None if i % 10 == 0 else i for i in range(100)],
    }
)


def test_kinds_follow_the_values() -> None:
    schema = infer(FRAME)
    assert [(c.name, c.kind, c.dtype, c.nullable) for c in schema.columns] == [
        ("n", "numeric", "integer", False),
        ("few", "ordinal", "integer", False),
        ("x", "numeric", "float", False),
        ("word", "categorical", "string", False),
        ("flag", "categorical", "boolean", False),
        ("gap", "numeric", "integer", True),
    ]
    assert schema.column("few").categories == ("0", "1", "2")
    assert schema.column("word").categories == ("a", "b")
    assert schema.column("flag").categories == ("false", "true")
    assert schema.read_from_data == schema.names


def test_pandas_and_polars_propose_the_same_schema() -> None:
    assert infer(to_arrow(FRAME.to_pandas())) == infer(FRAME)
    assert infer(to_arrow(pl.from_arrow(FRAME))) == infer(FRAME)
    assert infer(to_arrow(pd.DataFrame({"c": pd.Categorical(["x", "y"])}))).columns[0].categories == ("x", "y")


NUMBERS = st.lists(st.integers(-1_000, 1_000), min_size=1, max_size=80)
REALS = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=80)


@FAST
@given(NUMBERS | REALS, st.integers(1, 20), st.booleans())
def test_a_proposed_schema_always_fits_its_table(values: list[float], bins: int, gap: bool) -> None:
    frame = pa.table({"v": pa.array([*values, None] if gap else values)})
    schema = infer(frame, bins=bins)
    made = make_table(frame, schema)
    assert len(made) == frame.num_rows
    assert schema.columns[0].nullable == gap
    assert schema.sizes[0] <= max(bins, FEW_NUMBERS) + int(gap)


def test_bins_have_about_equal_weight() -> None:
    edges = quantile_edges(np.arange(1_600.0), 16, integer=True)
    assert len(edges) == 17
    assert np.ptp(np.histogram(np.arange(1_600.0), edges)[0]) <= 1
    assert quantile_edges(np.array([3.0, 3.0]), 4, integer=True) == (3.0, 6.0)
    assert quantile_edges(np.array([1e17]), 4, integer=False) == (1e17, 2e17)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([None, None], pa.int64()), "'v' has no value in any row; drop it"),
        (pa.array([float("nan")]), "'v' has no value in any row"),
        (pa.array([1.0, float("inf")]), "'v' holds an infinite value; clean it, or declare edges"),
        (pa.array([f"id{i}" for i in range(1_001)]), "'v' has 1001 distinct values and looks like an identifier"),
        (
            pa.array([datetime.date(2020, 1, 1)]),
            r"'v' holds date32\[day\] values; expected text, truth values or numbers",
        ),
        (pa.array([[1]]), "'v' holds list"),
        (pa.array(range(2**60, 2**60 + 20)), "in -2.53 to 2.53.*drop the column if it is an identifier"),
    ],
)
def test_columns_that_cannot_be_inferred_are_explained(values: pa.Array, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        infer(pa.table({"v": values}))


def test_a_table_without_rows_is_refused() -> None:
    with pytest.raises(SchemaError, match="without rows"):
        infer(FRAME.slice(0, 0))


def test_a_number_may_be_called_categorical() -> None:
    column = infer_column(pa.chunked_array([[0.5, -0.0, 0.0]]), "v", kind="categorical")
    assert column.categories == ("0.0", "0.5")
    with pytest.raises(SchemaError, match="'v' is called numerical, but holds string values"):
        infer_column(pa.chunked_array([["a"]]), "v", kind="numeric")


def metadata(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


COLUMNS = {"n": {"sdtype": "numerical"}, "word": {"sdtype": "categorical"}, "flag": {"sdtype": "boolean"},
           "few": {"sdtype": "numerical"}, "x": {"sdtype": "id"}}  # fmt: skip


@pytest.mark.parametrize("document", [{"columns": COLUMNS}, {"tables": {"people": {"columns": COLUMNS}}}])
def test_sdv_metadata_names_kinds_and_the_rows_give_domains(document: object, tmp_path: Path) -> None:
    path = metadata(tmp_path / "m.json", document)
    schema = from_sdv(path, FRAME)
    assert [(c.name, c.kind) for c in schema.columns] == [
        ("n", "numeric"), ("word", "categorical"), ("flag", "categorical"), ("few", "numeric"),
    ]  # fmt: skip
    assert schema.read_from_data == schema.names
    write_frame(FRAME, tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet", path).schema == schema


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "has no columns; expected SDV single-table metadata"),
        ([], "has no columns"),
        ({"columns": {}}, "has no columns"),
        ({"columns": {"height": {"sdtype": "numerical"}}}, "names column 'height', which is not in the table"),
        (
            {"columns": {"n": {"sdtype": "datetime"}}},
            "gives column 'n' the sdtype 'datetime'; expected one of categorical",
        ),
        ({"columns": {"n": {"sdtype": ["id"]}}}, "gives column 'n' the sdtype"),
        ({"columns": {"n": "numerical"}}, "gives column 'n' the sdtype None"),
        ({"columns": {"n": {"sdtype": "id"}}}, "at least one column"),
        ({"tables": {"a": {}, "b": {}}}, "describes 2 tables; expected one"),
    ],
)
def test_wrong_metadata_is_explained(document: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=message):
        from_sdv(metadata(tmp_path / "m.json", document), FRAME)


def test_metadata_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="no schema file"):
        from_sdv(tmp_path / "m.json", FRAME)
    (tmp_path / "m.json").write_text("{")
    with pytest.raises(SchemaError, match="cannot read the metadata"):
        from_sdv(tmp_path / "m.json", FRAME)
