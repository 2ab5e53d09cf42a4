"""Record batches of a table in a database, validated; and one snapshot for readers that pass over the rows several times."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from populace.border.arrays import memory_of_machine
from populace.border.columnar import MOST_COLUMNS, ROWS, validate
from populace.border.databases.address import Address, parse_address
from populace.border.databases.duckdb_file import MAGIC, MAGIC_AT, DuckdbFile
from populace.border.databases.postgresql import PostgresqlReader
from populace.border.databases.sqlite_file import SqliteFile
from populace.border.databases.statement import failed
from populace.border.regular import open_regular
from populace.errors import DataError, InputError


class Reader(Protocol):
    """An open database: the columns of what is read of it, and their rows."""

    @property
    def columns(self) -> list[str]: ...
    def count(self) -> int: ...
    def batches(self, columns: Sequence[str], order: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]: ...
    def close(self) -> None: ...


_held: contextvars.ContextVar[Mapping[str, Reader]] = contextvars.ContextVar("populace_snapshots")


def database_columns(data: str) -> list[str]:
    """The columns of a table, or of a query's rows."""
    with _opened(parse_address(data)) as reader:
        return reader.columns


def database_rows(data: str) -> int:
    """How many rows a table or query has; no value is read."""
    with _opened(parse_address(data)) as reader:
        return reader.count()


def database_batches(
    data: str, *, columns: Sequence[str] | None = None, order: Sequence[str] = (), rows: int = ROWS
) -> Iterator[pa.RecordBatch]:
    """The rows of a table or query, at most `rows` at a time, validated; of `columns` alone where they are given.

    Rows come in the order of the columns in `order`; without any in whatever order the database gives them.
    """
    address = parse_address(data)
    with _opened(address) as reader:
        wanted = reader.columns if columns is None else list(columns)
        if not wanted:
            raise DataError(f"{address.shown} has no columns; expected at least one")
        for batch in reader.batches(wanted, order, rows):
            try:
                validate(batch)
            except (pa.ArrowException, ValueError) as reason:
                raise failed(address, reason) from None
            yield batch


def read_database(data: str, *, without: Collection[str] = ()) -> pa.Table:
    """All rows of a table or query, which must fit into memory; columns in `without` are not read, and hold nothing."""
    address, most, size = parse_address(data), memory_of_machine(), 0
    batches = []
    names = database_columns(data) if without else []
    columns = [name for name in names if name not in without]
    if names and not columns:
        raise InputError(f"every column of {address.shown} is dropped; keep at least one")
    for batch in database_batches(data, columns=columns or None):
        size += batch.nbytes
        if size > most:
            raise DataError(f"{address.shown} holds more than this machine's memory; ask for fewer rows with --query")
        batches.append(batch)
    if not sum(batch.num_rows for batch in batches):
        raise DataError(f"{address.shown} has no rows; expected at least one")
    frame = pa.Table.from_batches(batches)
    for place, name in enumerate(names):
        if name in without:
            frame = frame.add_column(place, name, pa.nulls(frame.num_rows))
    return frame


@contextlib.contextmanager
def one_snapshot(data: str) -> Iterator[None]:
    """Whatever is read of this database inside is its state at one moment, however often it is read."""
    address = parse_address(data)
    reader = _open(address)
    token = _held.set({**_held.get({}), address.text: reader})
    try:
        yield
    finally:
        _held.reset(token)
        reader.close()


@contextlib.contextmanager
def _opened(address: Address) -> Iterator[Reader]:
    held = _held.get({}).get(address.text)
    if held is not None:
        yield held
        return
    reader = _open(address)
    try:
        yield reader
    finally:
        reader.close()


def _open(address: Address) -> Reader:
    if address.kind == "postgresql":
        reader: Reader = PostgresqlReader(address)
    elif address.kind == "duckdb" or (address.path is not None and _is_duckdb(address.path)):
        reader = DuckdbFile(address)
    else:
        reader = SqliteFile(address)
    if len(reader.columns) > MOST_COLUMNS:
        reader.close()
        raise DataError(f"expected at most {MOST_COLUMNS:,} columns in {address.shown}, got {len(reader.columns):,}")
    return reader


def _is_duckdb(path: Path) -> bool:
    """Whether a file that ends in .db is DuckDB's, by its first bytes."""
    with open_regular(path, error=InputError) as file:
        return file.read(MAGIC_AT + len(MAGIC))[MAGIC_AT:] == MAGIC
