"""Synthetic rows into a table of a database, all or nothing; no table is replaced but one that was written here.

A table carries a mark with its number of rows, made in the same transaction: a comment on it, in SQLite one in the statement
that made it, which SQLite keeps as it was written.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from populace.border.columnar import DAMAGED
from populace.border.databases import duckdb_file, postgresql
from populace.border.databases.address import Address, parse_address
from populace.border.databases.statement import quoted, table_parts
from populace.border.own_files import is_own_file
from populace.border.regular import check_output, first_line
from populace.errors import DataError, InputError, PopulaceError, RunError

FRAME = "populace_frame"
AT_ONCE = 10_000  # rows
MARK = "synthetic rows, written by populace: {}"
MARKED = re.compile(r"synthetic rows, written by populace: (\d+)")
SQLITE_MARKED = re.compile(r'CREATE TABLE (?:"(?:[^"]|"")*"|\w+) \(/\* ([^*]*) \*/')
DUCKDB_THERE = """
SELECT comment FROM duckdb_tables() WHERE lower(table_name) = lower(?) AND lower(schema_name) = lower(?)
UNION ALL SELECT NULL FROM duckdb_views() WHERE lower(view_name) = lower(?) AND lower(schema_name) = lower(?)
"""
EXISTS = "the table {table} of {place} exists; choose another --table, or give --replace to write over it"
NOT_OURS = (
    "the table {table} of {place} exists, and is not as populace wrote it; choose another --table, or drop it yourself if "
    "nobody needs its rows: --replace is for tables that populace wrote"
)


def write_database(frame: pa.Table, data: str, *, replace: bool = False) -> None:
    """A new table with these rows.

    Guarantee: with `replace` a table is replaced that was written here and still has as many rows; any other that exists is
    refused, under whatever spelling of its name, and so is a ledger.
    """
    address = parse_address(data)
    if address.table is None:
        raise InputError(f"{address.place} is a database: say which table to write, with --table NAME")
    names = table_parts(address.table)
    if address.path is not None:
        check_output(address.path)
        if is_own_file(address.path):
            raise InputError(
                f"{address.path} is a ledger, or another file that populace keeps; write to another database"
            )
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


def _check_ours(address: Address, mark: str | None, rows: int, *, replace: bool) -> None:
    """Refuse to write over a table unless it was written here, as its mark says, and it may be replaced."""
    found = MARKED.fullmatch(mark or "")
    if found is None or int(found.group(1)) != rows:
        raise RunError(NOT_OURS.format(table=address.table, place=address.place))
    if not replace:
        raise RunError(EXISTS.format(table=address.table, place=address.place))


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
        asked = [names[-1], names[-2] if len(names) > 1 else "main"]
        if there := connection.execute(DUCKDB_THERE, [*asked, *asked]).fetchall():
            (rows,) = connection.execute(f"SELECT count(*) FROM {name}").fetchone()  # noqa: S608 -- quoted
            for (mark,) in there:
                _check_ours(address, mark, rows, replace=replace)
            connection.execute(f"DROP TABLE {name}")
        connection.register(FRAME, frame)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM {FRAME}")  # noqa: S608 -- quoted
        connection.execute(f"COMMENT ON TABLE {name} IS '{MARK.format(frame.num_rows)}'")
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
        for kind, made in connection.execute(
            "SELECT type, sql FROM sqlite_master WHERE lower(name) = lower(?)", names
        ).fetchall():
            mark = SQLITE_MARKED.match(made or "") if kind == "table" else None
            rows = connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] if mark else 0  # noqa: S608 -- quoted
            _check_ours(address, mark and mark.group(1), rows, replace=replace)
            connection.execute(f"DROP TABLE {name}")
        connection.execute(f"CREATE TABLE {name} (/* {MARK.format(frame.num_rows)} */ {declared})")
        for start in range(0, frame.num_rows, AT_ONCE):
            piece = frame.slice(start, AT_ONCE)
            values = [_sqlite_values(column) for column in piece.columns]
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", zip(*values, strict=True))  # noqa: S608 -- quoted
        connection.execute("COMMIT")


def _sqlite_type(kind: Any) -> str:
    """What a column is declared as: SQLite's users read dates from text, and truth values from 0 and 1."""
    tests = {
        "BOOLEAN": pa.types.is_boolean, "INTEGER": pa.types.is_integer, "REAL": _is_fraction,
        "DATE": pa.types.is_date, "TIMESTAMP": pa.types.is_timestamp, "TIME": pa.types.is_time,
    }  # fmt: skip
    return next((name for name, test in tests.items() if test(kind)), "TEXT")


def _is_fraction(kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _sqlite_values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if pa.types.is_timestamp(column.type):
        return [None if value is None else value.isoformat(" ") for value in column.to_pylist()]
    if pa.types.is_temporal(column.type):
        return [None if value is None else value.isoformat() for value in column.to_pylist()]
    return list(column.to_pylist())


def _exact_types(frame: pa.Table) -> str:
    """What gives decimals their digits and places in PostgreSQL; nothing where there are none."""
    decimals = [field for field in frame.schema if pa.types.is_decimal(field.type)]
    return ", ".join(
        f"ALTER COLUMN {quoted(field.name)} TYPE numeric({field.type.precision}, {field.type.scale})"
        for field in decimals
    )


def _postgresql(frame: pa.Table, address: Address, names: tuple[str, ...], replace: bool) -> None:
    if len(names) > 2:
        raise InputError(f"expected --table as NAME or SCHEMA.NAME, got {address.table!r}")
    driver = postgresql.library()
    name = ".".join(map(quoted, names))
    literal = name.replace("'", "''")
    try:
        with contextlib.closing(postgresql.connect(address)) as connection, connection.cursor() as cursor:
            cursor.execute(
                f"SELECT to_regclass('{literal}') IS NOT NULL, obj_description(to_regclass('{literal}'), 'pg_class')"
            )
            there, mark = cursor.fetchone()
            if there:
                rows = 0
                if mark is not None:
                    cursor.execute(f"SELECT count(*) FROM {name}")  # noqa: S608 -- quoted
                    (rows,) = cursor.fetchone()
                _check_ours(address, mark, rows, replace=replace)
                cursor.execute(f"DROP TABLE {name}")
            schema = names[0] if len(names) == 2 else None
            cursor.adbc_ingest(names[-1], frame, mode="create", db_schema_name=schema)
            if exact := _exact_types(frame):  # the driver makes them numeric without places
                cursor.execute(f"ALTER TABLE {name} {exact}")
            cursor.execute(f"COMMENT ON TABLE {name} IS '{MARK.format(frame.num_rows)}'")
            connection.commit()
    except (driver.Error, *DAMAGED, RuntimeError, DataError) as reason:
        said = str(reason if isinstance(reason, DataError) else postgresql.refused(address, reason))
        raise RunError(said.replace("cannot read", "cannot write", 1)) from None
