from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pytest

from populace.errors import SchemaError
from populace.tables.proposal import propose
from populace.tables.sdv import from_sdv, propose_from_sdv, to_sdv
from populace.tables.table import read_table, write_frame

FRAME = pa.table(
    {
        "n": list(range(100)),
        "word": [("b", "a")[i % 2] for i in range(100)],
        "flag": [i % 5 == 0 for i in range(100)],
        "few": [i % 3 for i in range(100)],
        "x": [i / 7 for i in range(100)],
        "day": [dt.date(2020, 1, 1) + dt.timedelta(days=i) for i in range(100)],
        "on": [f"{1 + i % 28:02d}.03.2021" for i in range(100)],
        "mail": [f"a{i}@example.org" for i in range(100)],
        "key": list(range(900, 1_000)),
    }
)
COLUMNS = {
    "n": {"sdtype": "numerical"}, "word": {"sdtype": "categorical"}, "flag": {"sdtype": "boolean"},
    "few": {"sdtype": "numerical"}, "x": {"sdtype": "unknown"}, "day": {"sdtype": "datetime", "datetime_format": "%Y-%m-%d"},
    "on": {"sdtype": "datetime", "datetime_format": "%d.%m.%Y"}, "mail": {"sdtype": "email", "pii": True},
    "key": {"sdtype": "id"},
}  # fmt: skip


def metadata(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.mark.parametrize("document", [{"columns": COLUMNS}, {"tables": {"people": {"columns": COLUMNS}}}])
def test_sdv_metadata_names_kinds_and_the_rows_give_domains(document: object, tmp_path: Path) -> None:
    path = metadata(tmp_path / "m.json", document)
    found = propose_from_sdv(path, FRAME)
    schema = found.schema
    assert [(c.name, c.kind) for c in schema.columns] == [
        ("n", "integer"), ("word", "categorical"), ("flag", "boolean"), ("few", "integer"), ("day", "date"), ("on", "date"),
    ]  # fmt: skip
    assert [(o.name, o.kind) for o in schema.others] == [("x", "text"), ("mail", "text"), ("key", "id")]
    assert "mail: personal data of the kind 'email'; left out" in found.notes
    assert schema.column("on").format == "%d.%m.%Y"
    assert schema.read_from_data == schema.names
    write_frame(FRAME, tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet", path).schema == schema == from_sdv(path, FRAME)


def test_a_proposal_survives_sdv_metadata_up_to_its_domains(tmp_path: Path) -> None:
    schema = propose(FRAME.drop_columns(["few"]), ids=["key"], kinds={"mail": "text"}).schema
    document = to_sdv(schema)
    assert document["columns"]["on"] == {"sdtype": "datetime", "datetime_format": "%d.%m.%Y"}
    assert document["columns"]["key"] == {"sdtype": "id"}
    again = from_sdv(metadata(tmp_path / "m.json", document), FRAME.drop_columns(["few"]))
    assert again == schema


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "has no columns; expected SDV single-table metadata"),
        ([], "has no columns"),
        ({"columns": {}}, "has no columns"),
        ({"columns": {"height": {"sdtype": "numerical"}}}, "names column 'height', which is not in the table"),
        ({"columns": {"n": {"sdtype": "datetime"}}}, "column 'n' is to be a datetime, but holds values that are none"),
        (
            {"columns": {"word": {"sdtype": "numerical"}}},
            "column 'word' is to be decimal, but holds values that are no num",
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
