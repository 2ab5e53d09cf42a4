"""Rows read in a stream have the codes they have in one piece, and folders of Parquet files are one table."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from populace.errors import DataError, InputError
from populace.tables import coded, stream
from populace.tables.coded import code_type, read_coded
from populace.tables.partition import Clients, split, split_silos
from populace.tables.reading import read_frame
from populace.tables.schema import Column, Schema
from populace.tables.table import read_table


def in_folder(table, folder, parts=3):
    """The rows in several files, whose names stand in another order than they were written."""
    folder.mkdir()
    ends = np.linspace(0, len(table), parts + 1).astype(int)
    for number in reversed(range(parts)):
        some = table.frame.slice(ends[number], ends[number + 1] - ends[number])
        names = some.column_names if number != 1 else some.column_names[::-1]
        pq.write_table(some.select(names), folder / f"part-{number}.parquet")
    return folder


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow", "folder"])
def test_codes_are_those_of_the_table_in_one_piece(kind, small_table, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "CSV_BLOCK", 2_000)
    monkeypatch.setattr(stream, "ROWS", 37)
    monkeypatch.setattr(coded, "FIRST_ROOM", 10)
    path = tmp_path / f"small.{kind}"
    if kind == "folder":
        in_folder(small_table, path)
    else:
        small_table.save(path)
    table, others = read_coded(path, small_table.schema, also=small_table.schema.names[:1])
    assert table.codes.dtype == np.uint8
    assert table.codes.flags["C_CONTIGUOUS"]
    np.testing.assert_array_equal(table.codes, read_table(path, small_table.schema).codes)
    assert others.column_names == [small_table.schema.names[0]]
    assert others.num_rows == len(table) == len(small_table)
    assert table.frame.num_columns == 0
    assert len(table.take(np.arange(3))) == 3


def test_codes_are_as_wide_as_the_longest_column_needs():
    def width(cells):
        edges = tuple(map(float, range(cells + 1)))
        return code_type(Schema(columns=(Column(name="x", kind="integer", edges=edges),)))

    assert [width(cells) for cells in (256, 257, 2**16, 2**16 + 1)] == [np.uint8, np.uint16, np.uint16, np.int32]


def test_moved_values_are_counted_over_all_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "ROWS", 10)
    pq.write_table(pa.table({"x": list(range(100))}), tmp_path / "x.parquet")
    schema = Schema(columns=(Column(name="x", kind="integer", edges=(0.0, 50.0), clip=True),))
    assert read_coded(tmp_path / "x.parquet", schema)[0].clipped == {"x": 49}


def test_a_wrong_value_is_said_with_the_row_its_piece_begins_at(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "ROWS", 10)
    pq.write_table(pa.table({"x": [1] * 95 + [7] * 5}), tmp_path / "x.parquet")
    schema = Schema(columns=(Column(name="x", kind="integer", edges=(0.0, 5.0)),))
    with pytest.raises(DataError, match=r"has 7 in row 6 \(and 4 more\).*rows counted from row 91 of"):
        read_coded(tmp_path / "x.parquet", schema)


def test_a_folder_is_read_in_the_order_of_its_names(small_table, tmp_path):
    frame = read_frame(in_folder(small_table, tmp_path / "rows"))
    assert frame.equals(small_table.frame.cast(frame.schema))
    (tmp_path / "rows" / "_SUCCESS").write_text("")
    (tmp_path / "rows" / ".part-0.parquet.crc").write_text("x")
    assert read_frame(tmp_path / "rows").num_rows == len(small_table)


def spoil_by_csv(folder):
    (folder / "more.csv").write_text("x\n1\n")


def spoil_by_folder(folder):
    (folder / "year=2024").mkdir()


def spoil_by_columns(folder):
    pq.write_table(pa.table({"x": [1]}), folder / "part-9.parquet")


def spoil_by_nothing(folder):
    for file in folder.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("spoil", "kind", "sentence"),
    [
        (spoil_by_csv, InputError, "expected a folder of Parquet files alone.*also holds 'more.csv'"),
        (spoil_by_folder, InputError, "also holds 'year=2024'"),
        (spoil_by_columns, DataError, "expected the same columns in all files of a folder.*part-9.parquet differ in"),
        (spoil_by_nothing, InputError, "expected a folder of Parquet files.*holds none"),
    ],
)
def test_other_folders_are_refused_in_one_sentence(spoil, kind, sentence, small_table, tmp_path):
    folder = in_folder(small_table, tmp_path / "rows")
    spoil(folder)
    for read in (read_frame, lambda path: read_coded(path, small_table.schema)):
        with pytest.raises(kind, match=sentence):
            read(folder)


def test_records_that_lie_together_are_not_copied(small_table):
    clients = split_silos(small_table, [100, 500])
    found = clients.records_of(1)
    assert np.shares_memory(found, small_table.codes)
    np.testing.assert_array_equal(found, clients.gather(np.array([1]))[0][0])
    apart = Clients(data=small_table, order=np.arange(600)[::-1], starts=np.array([0, 600]), how="backwards")
    np.testing.assert_array_equal(apart.records_of(0), small_table.codes[::-1])


def test_engines_see_records_in_32_bits(small_table, tmp_path):
    small_table.save(tmp_path / "small.parquet")
    table, _ = read_coded(tmp_path / "small.parquet", small_table.schema)
    assert split(table, records_per_client=7).gather(np.array([0, 3]))[0].dtype == np.int32


def test_lists_of_numbers_and_gaps_read_from_parquet_as_they_stand(tmp_path):
    """A column of categories may be stored as numbers, as text with gaps, or in a dictionary."""
    schema = Schema(
        columns=tuple(
            Column(name=name, kind="categorical", categories=("1", "2"), nullable=name != "a") for name in "abc"
        )
    )
    values = ["2", None, "1", "?"] * 9
    frame = pa.table({"a": [1, 2] * 18, "b": values, "c": pa.array(values).dictionary_encode()})
    pq.write_table(frame, tmp_path / "x.parquet")
    table, _ = read_coded(tmp_path / "x.parquet", schema)
    np.testing.assert_array_equal(table.codes, read_table(tmp_path / "x.parquet", schema).codes)
    assert table.codes[:4].tolist() == [[0, 1, 1], [1, 2, 2], [0, 0, 0], [1, 2, 2]]
