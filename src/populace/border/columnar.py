"""Arrow and Parquet. Both come with offsets, lengths and codes that the libraries follow without looking: every batch is
validated in full, which is a pass over its values, before it is handed on.

Files are read, not mapped into memory: one that shrinks under a map ends the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet

from populace.border.regular import check_regular, first_line
from populace.errors import DataError, PopulaceError

ROWS = 2**16  # of a batch
MOST_COLUMNS = 2**14
CELLS_PER_BYTE = 2**16  # of a file; only columns without content, or of one value throughout, come near
FIRST_DAY, LAST_DAY = -719_162, 2_932_896  # of the years 1 to 9999, from 1970 on
SECONDS = 86_400  # of a day
UNITS = ("s", "ms", "us", "ns")
DAMAGED = (
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    MemoryError,
    SystemError,
)


@contextlib.contextmanager
def sentence(path: Path, error: type[PopulaceError] = DataError) -> Iterator[None]:
    """What a library says of a damaged file, in one sentence."""
    try:
        yield
    except PopulaceError:
        raise
    except DAMAGED as reason:
        if isinstance(reason, MemoryError):
            words = "it announces more than this machine's memory holds"
        elif isinstance(reason, UnicodeDecodeError):
            words = "its names or values are not UTF-8 text"
        else:
            words = first_line(str(reason)) or type(reason).__name__
        raise error(f"cannot read {path}: {words}; the file may be truncated or of another format") from reason


def arrow_schema(path: Path) -> pa.Schema:
    """The columns of an Arrow file."""
    with sentence(path), _opened_arrow(path) as reader:
        return reader.schema


def arrow_batches(path: Path, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The batches of an Arrow file, validated; of `columns` alone where they are given."""
    size, cells = check_regular(path, error=DataError).st_size, 0
    with sentence(path):
        wanted = None if columns is None else [arrow_schema(path).get_field_index(name) for name in columns]
        with _opened_arrow(path, included_fields=wanted) as reader:
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                cells += batch.num_rows * max(1, batch.num_columns)
                _check_cells(cells, size)
                validate(batch)
                yield batch if columns is None else batch.select(list(columns))


def read_arrow(path: Path) -> pa.Table:
    """All of an Arrow file, validated."""
    schema = arrow_schema(path)
    batches = list(arrow_batches(path))
    with sentence(path):
        return pa.Table.from_batches(batches, schema)


def parquet_facts(path: Path) -> tuple[pa.Schema, int]:
    """The columns of a Parquet file and how many rows it says it has."""
    with sentence(path), _opened_parquet(path) as file:
        return file.schema_arrow, int(file.metadata.num_rows)


def parquet_batches(
    path: Path, *, columns: Sequence[str] | None = None, rows: int = ROWS, dictionaries: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, at most `rows` at a time, validated; text of `dictionaries` as codes and their list."""
    with sentence(path), _opened_parquet(path, read_dictionary=list(dictionaries)) as file:
        for batch in file.iter_batches(rows, columns=None if columns is None else list(columns)):
            validate(batch)
            yield batch if columns is None else batch.select(list(columns))


def read_parquet(path: Path) -> pa.Table:
    """All of a Parquet file, validated."""
    with sentence(path), _opened_parquet(path) as file:
        table = file.read()
        validate(table)
        return table


@contextlib.contextmanager
def _opened_arrow(path: Path, *, included_fields: list[int] | None = None) -> Iterator[Any]:
    check_regular(path, error=DataError)
    with pa.OSFile(str(path)) as source:
        options = pa.ipc.IpcReadOptions(included_fields=included_fields)
        reader = pa.ipc.open_file(source, options=options)
        _check_names(reader.schema)
        yield reader


@contextlib.contextmanager
def _opened_parquet(path: Path, **options: Any) -> Iterator[Any]:
    size = check_regular(path, error=DataError).st_size
    with pyarrow.parquet.ParquetFile(path, **options) as file:
        _check_names(file.schema_arrow)
        if file.metadata.num_rows < 0:
            raise ValueError(f"expected at least 0 rows, got {file.metadata.num_rows:,}")
        _check_cells(file.metadata.num_rows * max(1, file.metadata.num_columns), size)
        yield file


def validate(rows: pa.RecordBatch | pa.Table) -> None:
    """Look at every offset, length, code and text, and at dates: those beyond the calendar are no dates."""
    rows.validate(full=True)
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            continue  # text, or a list that is looked up value by value
        days = _days(column)
        if days is not None and not FIRST_DAY <= days[0] <= days[1] <= LAST_DAY:
            raise ValueError(f"column {name!r} holds dates outside the years 1 to 9999")


def _days(column: pa.Array | pa.ChunkedArray) -> tuple[int, int] | None:
    """The first and the last day in a column of dates or moments, from 1970 on; None for other columns, and without any."""
    kind = column.type
    if pa.types.is_date32(kind):
        per_day, stored = 1, pa.int32()
    elif pa.types.is_date64(kind):
        per_day, stored = 1000 * SECONDS, pa.int64()
    elif pa.types.is_timestamp(kind):
        per_day, stored = SECONDS * 1000 ** UNITS.index(kind.unit), pa.int64()
    else:
        return None
    ends = pc.min_max(column.cast(stored)).as_py()
    return None if ends["min"] is None else (ends["min"] // per_day, ends["max"] // per_day)


def _check_names(schema: pa.Schema) -> None:
    if len(schema) > MOST_COLUMNS:
        raise ValueError(f"expected at most {MOST_COLUMNS:,} columns, got {len(schema):,}")
    _ = schema.names  # decodes them: a name that is not UTF-8 is an error here, not later


def _check_cells(cells: int, size: int) -> None:
    if cells > CELLS_PER_BYTE * size:
        raise ValueError(f"it announces {cells:,} cells, more than {size:,} bytes can hold")
