"""A data file a piece at a time, so that its size does not matter: row groups of Parquet, blocks of CSV, batches of Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from populace.errors import DataError, InputError
from populace.tables.schema import Column, Schema
from populace.tables.table import CSV_NULLS, SUFFIXES

ROWS = 2**16
CSV_BLOCK = 2**23  # bytes


def stream_frames(
    path: str | Path, schema: Schema, *, also: tuple[str, ...] = (), rows: int = ROWS
) -> Iterator[pa.Table]:
    """The schema's columns, and those in `also`, at most `rows` rows at a time.

    Values are those `read_frame` gives, but a CSV file's types follow from the schema and not from its values; a column in
    `also` is text there.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(f"expected a table in one of {', '.join(SUFFIXES)}, got {path.name!r}")
    if not path.is_file():
        raise InputError(f"no file {path}")
    reader = {".csv": _csv, ".parquet": _parquet}.get(path.suffix, _arrow)
    try:
        for frame in reader(path, schema, also):
            for start in range(0, frame.num_rows, rows):
                yield frame.slice(start, rows)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"cannot read {path}: {reason}; the file may be truncated or of another format") from error


def _wanted(found: list[str], schema: Schema, also: tuple[str, ...], path: Path) -> list[str]:
    for name in (*schema.names, *also):
        if found.count(name) > 1:
            raise DataError(f"{path} has two columns named {name!r}; rename or drop one")
        if name not in found:
            what = "client column" if name in also else "column"
            raise DataError(f"no {what} {name!r} in {path}; its columns are {', '.join(found)}")
    return [*schema.names, *also]


def _parquet(path: Path, schema: Schema, also: tuple[str, ...]) -> Iterator[pa.Table]:
    with pyarrow.parquet.ParquetFile(path) as file:
        names = _wanted(file.schema_arrow.names, schema, also, path)
        for batch in file.iter_batches(ROWS, columns=names):
            yield pa.Table.from_batches([batch])


def _arrow(path: Path, schema: Schema, also: tuple[str, ...]) -> Iterator[pa.Table]:
    with pa.memory_map(str(path)) as source:
        reader = pyarrow.ipc.open_file(source)
        names = _wanted(reader.schema.names, schema, also, path)
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)]).select(names)


def _csv(path: Path, schema: Schema, also: tuple[str, ...]) -> Iterator[pa.Table]:
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    with pyarrow.csv.open_csv(path, parse_options=parse) as header:
        names = _wanted(header.schema.names, schema, also, path)
    texts = [column.categories for column in schema.columns if column.dtype == "string"]
    literal = any(null in categories for categories in texts for null in CSV_NULLS)
    types = {column.name: _csv_type(column) for column in schema.columns} | dict.fromkeys(also, pa.string())
    convert = pyarrow.csv.ConvertOptions(
        column_types=types, include_columns=names, null_values=list(CSV_NULLS), strings_can_be_null=True,
        quoted_strings_can_be_null=not literal,
    )  # fmt: skip
    read = pyarrow.csv.ReadOptions(block_size=CSV_BLOCK)
    with pyarrow.csv.open_csv(path, parse_options=parse, convert_options=convert, read_options=read) as reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])


def _csv_type(column: Column) -> Any:
    """Whole numbers too are read as floats, 39.0 being one; categories beyond 2^53 are not."""
    if column.dtype == "string":
        return pa.string()
    if column.dtype == "boolean":
        return pa.bool_()
    large = column.kind != "numeric" and column.dtype == "integer" and any(len(c) > 15 for c in column.categories)
    return pa.int64() if large else pa.float64()
