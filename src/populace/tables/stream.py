"""A data file a piece at a time, so that its size does not matter: row groups of Parquet, blocks of CSV, batches of Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from populace.errors import DataError
from populace.tables.reading import check_file, csv_names, csv_options, sniffed_delimiter, unreadable
from populace.tables.schema import Schema

ROWS = 2**16
CSV_BLOCK = 2**23  # bytes


def stream_frames(
    path: str | Path, schema: Schema, *, also: tuple[str, ...] = (), rows: int = ROWS
) -> Iterator[pa.Table]:
    """The schema's columns, and those in `also`, at most `rows` rows at a time. Values are those `read_frame` gives."""
    path = check_file(path)
    reader = {".csv": _csv, ".parquet": _parquet}.get(path.suffix, _arrow)
    try:
        for frame in reader(path, schema, also):
            for start in range(0, frame.num_rows, rows):
                yield frame.slice(start, rows)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error


def _wanted(found: list[str], schema: Schema, also: tuple[str, ...], path: Path) -> list[str]:
    for name in (*schema.names, *also):
        if found.count(name) > 1:
            raise DataError(f"{path} has two columns named {name!r}; rename or drop one")
        if name not in found:
            what = "client column" if name in also else "column"
            raise DataError(f"no {what} {name!r} in {path}; its columns are {', '.join(found)}")
    return list(dict.fromkeys((*schema.names, *also)))


def _parquet(path: Path, schema: Schema, also: tuple[str, ...]) -> Iterator[pa.Table]:
    with pyarrow.parquet.ParquetFile(path) as file:
        names = _wanted(file.schema_arrow.names, schema, also, path)
        for batch in file.iter_batches(ROWS, columns=names):
            yield pa.Table.from_batches([batch]).select(names)


def _arrow(path: Path, schema: Schema, also: tuple[str, ...]) -> Iterator[pa.Table]:
    with pa.memory_map(str(path)) as source:
        reader = pyarrow.ipc.open_file(source)
        names = _wanted(reader.schema.names, schema, also, path)
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)]).select(names)


def _csv(path: Path, schema: Schema, also: tuple[str, ...]) -> Iterator[pa.Table]:
    names = _wanted(csv_names(path, sniffed_delimiter(path)), schema, also, path)
    read = pyarrow.csv.ReadOptions(block_size=CSV_BLOCK)
    with pyarrow.csv.open_csv(path, read_options=read, **csv_options(path, columns=names)) as reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])
