"""A table a piece at a time, so that its size does not matter: row groups of Parquet, blocks of CSV, batches of Arrow, of a
folder's files or of what a database sends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from populace.border.columnar import DAMAGED, arrow_batches, arrow_schema, parquet_batches, parquet_facts
from populace.border.databases.address import is_database, short_name
from populace.border.databases.reading import database_batches, database_columns
from populace.border.delimited import csv_names, sniffed_delimiter
from populace.errors import DataError
from populace.tables.reading import (
    check_file,
    check_same_columns,
    csv_options,
    files_in,
    unreadable,
)
from populace.tables.schema import Schema

ROWS = 2**16
CSV_BLOCK = 2**23  # bytes


def stream_frames(
    path: str | Path, schema: Schema, *, also: tuple[str, ...] = (), rows: int = ROWS
) -> Iterator[pa.Table]:
    """The schema's columns, and those in `also`, at most `rows` rows at a time. Values are those `read_frame` gives.

    Rows come in the order of the file. A database has none that stays: its rows come in the order of the columns in `also`.
    """
    if is_database(path):
        yield from _database(str(path), schema, also, rows)
        return
    files = files_in(check_file(path))
    for file in files:
        reader = {".csv": _csv, ".parquet": _parquet}.get(file.suffix, _arrow)
        if file != files[0]:
            check_same_columns(files[0], parquet_facts(files[0])[0].names, file, parquet_facts(file)[0].names)
        for frame in reader(file, schema, also):
            for start in range(0, frame.num_rows, rows):
                yield frame.slice(start, rows)


def rows_of(path: str | Path) -> int | None:
    """How many rows a table has, where its files say it without being read."""
    if is_database(path):
        return None
    files = files_in(check_file(path))
    if any(file.suffix != ".parquet" for file in files):
        return None
    return sum(parquet_facts(file)[1] for file in files)


def _wanted(found: list[str], schema: Schema, also: tuple[str, ...], path: Path | str) -> list[str]:
    for name in (*schema.names, *also):
        if found.count(name) > 1:
            raise DataError(f"{path} has two columns named {name!r}; rename or drop one")
        if name not in found:
            what = "client or person column" if name in also else "column"
            raise DataError(f"no {what} {name!r} in {path}; its columns are {', '.join(found)}")
    return list(dict.fromkeys((*schema.names, *also)))


def _database(data: str, schema: Schema, also: tuple[str, ...], rows: int) -> Iterator[pa.Table]:
    names = _wanted(database_columns(data), schema, also, short_name(data))
    for batch in database_batches(data, columns=names, order=also, rows=rows):
        yield pa.Table.from_batches([batch])


def _parquet(path: Path, schema: Schema, also: tuple[str, ...]) -> Iterator[pa.Table]:
    lists = [column.name for column in schema.columns if not column.is_scale and column.dtype == "string"]
    names = _wanted(parquet_facts(path)[0].names, schema, also, path)
    for batch in parquet_batches(path, columns=names, rows=ROWS, dictionaries=lists):
        yield pa.Table.from_batches([batch])


def _arrow(path: Path, schema: Schema, also: tuple[str, ...]) -> Iterator[pa.Table]:
    names = _wanted(arrow_schema(path).names, schema, also, path)
    for batch in arrow_batches(path, columns=names):
        yield pa.Table.from_batches([batch])


def _csv(path: Path, schema: Schema, also: tuple[str, ...]) -> Iterator[pa.Table]:
    names = _wanted(csv_names(path, sniffed_delimiter(path)), schema, also, path)
    read = pyarrow.csv.ReadOptions(block_size=CSV_BLOCK)
    try:
        with pyarrow.csv.open_csv(path, read_options=read, **csv_options(path, columns=names)) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])
    except DAMAGED as error:
        raise unreadable(path, error) from error
