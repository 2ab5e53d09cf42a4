"""Synthetic rows into a table of a database, all or nothing; a table that is there is not touched unasked."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from populace.border.columnar import DAMAGED
from populace.border.databases import duckdb_file, postgresql
from populace.border.databases.address import Address, parse_address
from populace.border.databases.statement import quoted, table_parts
from populace.border.regular import check_output, first_line
from populace.errors import DataError, InputError, PopulaceError, RunError

FRAME = "populace_frame"
AT_ONCE = 10_000  # rows
EXISTS = "the table {table} of {place} exists; choose another --table, or give --replace to write over it"


def write_database(frame: pa.Table, data: str, *, replace: bool = False) -> None:
    """A new table with these rows; one that exists is refused unless it may be replaced."""
    address = parse_address(data)
    if address.table is None:
        raise InputError(f"{address.place} is a database: say which table to write, with --table NAME")
    names = table_parts(address.table)
    if address.path is not None:
        check_output(address.path)
    writers = {"duckdb": _duckdb, "sqlite": _sqlite, "postgresql": _postgresql}
    writers[address.kind](_plain(frame), address, names, replace)


def _plain(frame: pa.Table) -> pa.Table:
    """The same rows in types that every database takes: moments and times to the microsecond, text without codes."""
    columns = []
    for column in frame.columns:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us"))
        elif pa.types.is_time(column.type):
            column = column.cast(pa.time64("us"))
        columns.append(column)
    return pa.table(columns, names=frame.column_names)


def _exists(address: Address) -> RunError:
    return RunError(EXISTS.format(table=address.table, place=address.place))


@contextlib.contextmanager
def _sentences(address: Address, errors: tuple[type[BaseException], ...]) -> Iterator[None]:
    """What goes wrong in one sentence; of a file that was not there before nothing is left."""
    new = address.path is not None and not address.path.exists()
    try:
        yield
    except BaseException as reason:
        if new and address.path is not None:
            for left in (address.path, Path(f"{address.path}.wal"), Path(f"{address.path}-journal")):
                left.unlink(missing_ok=True)
        if isinstance(reason, PopulaceError) or not isinstance(reason, errors):
            raise
        raise RunError(f"cannot write {address.text}: {first_line(str(reason)) or type(reason).__name__}") from None


def _duckdb(frame: pa.Table, address: Address, names: tuple[str, ...], replace: bool) -> None:
    library = duckdb_file.library()
    name = ".".join(map(quoted, names))
    with (
        _sentences(address, (library.Error, *DAMAGED, RuntimeError)),
        library.connect(str(address.path), config=duckdb_file.settings()) as connection,
    ):
        connection.execute("BEGIN")
        listed = connection.execute("SELECT table_schema, table_name FROM information_schema.tables").fetchall()
        there = {part.lower() for schema, table in listed for part in (table, f"{schema}.{table}")}
        if ".".join(names).lower() in there:
            if not replace:
                raise _exists(address)
            connection.execute(f"DROP TABLE {name}")
        connection.register(FRAME, frame)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM {FRAME}")  # noqa: S608 -- quoted
        connection.execute("COMMIT")


def _sqlite(frame: pa.Table, address: Address, names: tuple[str, ...], replace: bool) -> None:
    if len(names) != 1:
        raise InputError(f"expected --table as NAME in a SQLite file, got {address.table!r}")
    name = quoted(names[0])
    declared = ", ".join(f"{quoted(field.name)} {_sqlite_type(field.type)}" for field in frame.schema)
    marks = ", ".join("?" * frame.num_columns)
    with (
        _sentences(address, (sqlite3.Error, OverflowError)),
        contextlib.closing(sqlite3.connect(str(address.path), isolation_level=None)) as connection,
    ):
        connection.execute("BEGIN IMMEDIATE")
        there = connection.execute("SELECT 1 FROM sqlite_master WHERE lower(name) = lower(?)", names).fetchone()
        if there and not replace:
            raise _exists(address)
        if there:
            connection.execute(f"DROP TABLE {name}")
        connection.execute(f"CREATE TABLE {name} ({declared})")
        for start in range(0, frame.num_rows, AT_ONCE):
            piece = frame.slice(start, AT_ONCE)
            values = [_sqlite_values(column) for column in piece.columns]
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", zip(*values, strict=True))  # noqa: S608 -- quoted
        connection.execute("COMMIT")


def _sqlite_type(kind: Any) -> str:
    """What a column is declared as: SQLite's users read dates from text, and truth values from 0 and 1."""
    tests = {
        "BOOLEAN": pa.types.is_boolean, "INTEGER": pa.types.is_integer, "REAL": pa.types.is_floating,
        "DATE": pa.types.is_date, "TIMESTAMP": pa.types.is_timestamp, "TIME": pa.types.is_time,
    }  # fmt: skip
    return next((name for name, test in tests.items() if test(kind)), "TEXT")


def _sqlite_values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        return [None if value is None else value.isoformat(" ") for value in column.to_pylist()]
    if pa.types.is_temporal(column.type):
        return [None if value is None else value.isoformat() for value in column.to_pylist()]
    return list(column.to_pylist())


def _postgresql(frame: pa.Table, address: Address, names: tuple[str, ...], replace: bool) -> None:
    if len(names) > 2:
        raise InputError(f"expected --table as NAME or SCHEMA.NAME, got {address.table!r}")
    driver = postgresql.library()
    name = ".".join(map(quoted, names))
    literal = name.replace("'", "''")
    try:
        with contextlib.closing(postgresql.connect(address)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT to_regclass('{literal}') IS NOT NULL")
            if cursor.fetchone()[0]:
                if not replace:
                    raise _exists(address)
                cursor.execute(f"DROP TABLE {name}")
            schema = names[0] if len(names) == 2 else None
            cursor.adbc_ingest(names[-1], frame, mode="create", db_schema_name=schema)
            connection.commit()
    except (driver.Error, *DAMAGED, RuntimeError, DataError) as reason:
        said = str(reason if isinstance(reason, DataError) else postgresql.refused(address, reason))
        raise RunError(said.replace("cannot read", "cannot write", 1)) from None
