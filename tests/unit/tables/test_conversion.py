"""The same values in whatever type or text they come, and what is written back."""

from __future__ import annotations

import datetime as dt
import itertools
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from populace.errors import DataError
from populace.tables import codec, conversion, stream
from populace.tables.proposal import propose
from populace.tables.schema import Column, Other, Schema
from populace.tables.table import make_table, output_frame, read_frame, read_table, write_frame

DAY = Column(name="d", kind="date", edges=(18_000, 18_262, 18_300), nullable=True)
AT = Column(name="t", kind="datetime", edges=(1.5e9, 1.6e9, 1.7e9), nullable=True)
CLOCK = Column(name="c", kind="time", edges=(0, 43_200, 86_399), step=60, nullable=True)
NUMBER = Column(name="n", kind="decimal", edges=(0, 5, 100), step=0.01, nullable=True)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([dt.date(2020, 1, 1), None]),
        pa.array([dt.date(2020, 1, 1), None], pa.date64()),
        pa.array([dt.datetime(2020, 1, 1, 13), None], pa.timestamp("ns")),
        pa.array([dt.datetime(2020, 1, 1, 13), None], pa.timestamp("us", "UTC")),
        pa.array(["2020-01-01", "?"]),
        pa.array(["2020-01-01 13:00:00", ""], pa.large_string()),
        pa.array(["2020-01-01", None]).dictionary_encode(),
    ],
    ids=str,
)
def test_dates_come_in_many_types(values: pa.Array) -> None:
    assert np.array_equal(DAY.numbers(values), [18_262, np.nan], equal_nan=True)
    assert codec.encode_column(values, DAY).tolist() == [1, 2]
    assert codec.store_column(values, DAY).to_pylist() == [dt.date(2020, 1, 1), None]


def test_time_zones_are_read_as_utc() -> None:
    utc = dt.datetime(2020, 6, 1, 10, tzinfo=dt.UTC)
    forms = [
        pa.array([utc], pa.timestamp("s", "Europe/Berlin")),
        pa.array([utc.replace(tzinfo=None)], pa.timestamp("ms")),
        pa.array(["2020-06-01T12:00:00+02:00"]),
        pa.array(["2020-06-01 10:00:00Z"]),
        pa.array(["2020-06-01 10:00"]),
    ]
    assert {float(AT.numbers(values)[0]) for values in forms} == {utc.timestamp()}


@pytest.mark.parametrize(
    "values",
    [
        pa.array([dt.time(13, 30), None], pa.time32("s")),
        pa.array([dt.time(13, 30), None], pa.time64("ns")),
        pa.array(["13:30", "NA"]),
        pa.array(["13:30:00.000", None]),
    ],
    ids=str,
)
def test_times_come_in_many_types(values: pa.Array) -> None:
    assert codec.encode_column(values, CLOCK).tolist() == [1, 2]
    assert codec.store_column(values, CLOCK).to_pylist() == [dt.time(13, 30), None]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([Decimal("7.25"), None], pa.decimal128(9, 2)),
        pa.array([7.25, float("nan")]),
        pa.array([7.25, None], pa.float32()),
        pa.array([" 7.25", "N/A"]),
        pa.array(["+7.25e0", "null"]),
    ],
    ids=str,
)
def test_numbers_come_in_many_types(values: pa.Array) -> None:
    assert codec.encode_column(values, NUMBER).tolist() == [1, 2]


WRONG = [
    (DAY, pa.array(["yesterday"]), "'d' has 'yesterday' in row 1, which is no date"),
    (DAY, pa.array(["2020-13-01"]), "which is no date"),
    (DAY, pa.array([18_262]), "'d' has 18262 in row 1, which is no date"),
    (AT, pa.array(["2020-01-01 25:00"]), "which is no datetime"),
    (CLOCK, pa.array(["noon"]), "which is no time"),
    (NUMBER, pa.array(["1_000"]), "which is no number"),
    (NUMBER, pa.array(["1,5"]), "which is no number"),
    (NUMBER, pa.array([dt.date(2020, 1, 1)]), "which is no number"),
    (NUMBER, pa.array([float("inf")]), "has inf in row 1, outside"),
]


@pytest.mark.parametrize(("column", "values", "message"), WRONG)
def test_what_is_no_value_of_the_kind_is_an_error(column: Column, values: pa.Array, message: str) -> None:
    with pytest.raises(DataError, match=message):
        codec.encode_column(values, column)


def test_all_problems_are_said_at_once() -> None:
    schema = Schema(columns=(DAY, NUMBER, Column(name="w", kind="categorical", categories=("a",)),
                             Column(name="gone", kind="categorical", categories=("a",))))  # fmt: skip
    with pytest.raises(
        DataError, match=r"4 problems: .*'gone' is not in the table.*no date.*outside.*unknown category 'b'"
    ):
        make_table(pa.table({"d": ["x"], "n": [1e9], "w": ["b"]}), schema)


def test_markers_mean_no_value_unless_they_are_categories() -> None:
    values = pa.array(["a", "?", "NA", "none", None, ""])
    open_ = Column(name="w", kind="categorical", categories=("a", "NA"), nullable=True, missing=("none",))
    assert codec.encode_column(values, open_).tolist() == [0, 2, 1, 2, 2, 2]


def test_fields_may_be_parted_by_other_signs(tmp_path: Path) -> None:
    for delimiter in ",;\t|":
        lines = ['"a x",b', '"1,5;\t|",2', "3,4"]
        text = (
            "\n".join(lines)
            .replace(",b", f"{delimiter}b")
            .replace(",2", f"{delimiter}2")
            .replace("3,4", f"3{delimiter}4")
        )
        (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
        frame = read_frame(tmp_path / "t.csv")
        assert frame.to_pylist() == [{"a x": "1,5;\t|", "b": "2"}, {"a x": "3", "b": "4"}]
    (tmp_path / "t.csv").write_bytes("a,b\né,1\n".encode("latin-1"))
    with pytest.raises(DataError, match="it is not UTF-8 text; save it as CSV in UTF-8"):
        read_frame(tmp_path / "t.csv")


def mixed(rows: int = 300) -> pa.Table:
    start = dt.datetime(2020, 1, 1, 8)
    return pa.table(
        {
            "patient_id": [f"P{i:05d}" for i in range(rows)],
            "ward": [("A", "?", "C")[i % 3] for i in range(rows)],
            "admitted": [(start + dt.timedelta(days=i)).strftime("%d.%m.%Y") for i in range(rows)],
            "seen": [start + dt.timedelta(minutes=17 * i) for i in range(rows)],
            "remarks": [f"slept badly, note {i} of the night" for i in range(rows)],
            "fever": [None if i % 9 == 0 else round(36 + (i % 40) / 10, 1) for i in range(rows)],
        }
    )


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow"])
def test_what_is_written_has_the_form_of_the_original(suffix: str, tmp_path: Path) -> None:
    write_frame(mixed(), tmp_path / f"t{suffix}")
    table = read_table(tmp_path / f"t{suffix}")
    assert table.schema.order == tuple(mixed().column_names)
    assert table.remarks == (
        "left out, being free text: remarks",
        "made afresh in synthetic rows, being ids: patient_id",
    )
    out = output_frame(table.frame, table.schema, first_row=7)
    assert out.column_names == ["patient_id", "ward", "admitted", "seen", "fever"]
    first, second = out.slice(0, 2).to_pylist()
    assert list(first.values()) == ["syn-000008", "A", "01.01.2020", dt.datetime(2020, 1, 1, 8), None]
    assert list(second.values()) == ["syn-000009", "?", "02.01.2020", dt.datetime(2020, 1, 1, 8, 17), 36.1]
    table.save(tmp_path / f"again{suffix}")
    assert read_table(tmp_path / f"again{suffix}", table.schema).frame.equals(table.frame)
    whole = Schema(columns=table.schema.columns, others=(Other(name="n", kind="id", position=1, dtype="integer"),))
    assert output_frame(table.frame, whole, 5).column("n").to_pylist()[:2] == [6, 7]
    assert output_frame(table.frame, whole).column_names[:2] == ["ward", "n"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow"])
def test_pieces_of_a_mixed_table_are_the_whole(suffix: str, tmp_path: Path) -> None:
    write_frame(mixed(), tmp_path / f"t{suffix}")
    whole = read_table(tmp_path / f"t{suffix}")
    pieces = stream.stream_frames(tmp_path / f"t{suffix}", whole.schema, also=("patient_id",), rows=64)
    assert np.array_equal(np.concatenate([make_table(piece, whole.schema).codes for piece in pieces]), whole.codes)


def test_a_schema_with_everything_survives_its_file(tmp_path: Path) -> None:
    from populace.tables.schema import load_schema, schema_from_dict

    schema = propose(mixed(), target="ward").schema
    schema.save(tmp_path / "s.toml")
    assert load_schema(tmp_path / "s.toml") == schema
    assert schema_from_dict(schema.to_dict()) == schema
    assert "2020-01-01" in (tmp_path / "s.toml").read_text()


@pytest.mark.parametrize("wrong", ["", "x", "99"])
@pytest.mark.parametrize("as_dictionary", [False, True])
def test_text_by_its_distinct_values_is_what_it_is_one_by_one(wrong, as_dictionary, monkeypatch):
    """Codes, values, what was moved, and the sentence about the first row that is wrong."""
    texts = ["1", " 2", "03", None, "NA", "4.0"] * 20 + ([wrong] if wrong else [])
    for clip, nullable in itertools.product((False, True), repeat=2):
        column = Column(name="x", kind="integer", edges=(0.0, 2.0, 5.0), clip=clip, nullable=nullable)
        values = pa.array(texts, pa.string())
        found = []
        for few in (8, 10**6):
            monkeypatch.setattr(conversion, "FEW", few)
            try:
                made = codec.encode_values(values.dictionary_encode() if as_dictionary else values, column)
                found.append((made.codes.tolist(), made.values.to_pylist(), made.moved))
            except DataError as error:
                found.append(str(error))
        assert found[0] == found[1]
