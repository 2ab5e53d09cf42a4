"""SQLite files, read only. Every value is given as the text a CSV would hold: SQLite has types of values, not of columns, so
that a type guessed from the first rows would fail at a later one.

A query becomes a temporary view, which can hold nothing but a SELECT; then an authorizer refuses everything but reading.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from populace.border.databases.address import Address
from populace.border.databases.statement import (
    ROWS,
    failed,
    inner_query,
    quoted,
    refuse_columns,
    table_parts,
    which_table,
)
from populace.border.regular import check_regular
from populace.errors import DataError, InputError

MAGIC = b"SQLite format 3\0"
SECONDS_FOR_LOCKS = 10.0
MOST_TEXT = 2**28  # bytes of one value
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MOST_TEXT,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
TRUTHS = {0: "false", 1: "true"}


class SqliteFile:
    """A read transaction on a SQLite file: all that is read of it is one snapshot."""

    def __init__(self, address: Address) -> None:
        self.address = address
        path = address.path
        if path is None:
            raise InputError(f"expected a SQLite file, got {address.place}")
        if not check_regular(path, error=InputError).st_size:
            raise DataError(f"{path} is empty; expected a SQLite database")
        try:
            self._connection = sqlite3.connect(
                f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, isolation_level=None, timeout=SECONDS_FOR_LOCKS,
                check_same_thread=False,
            )  # fmt: skip
        except sqlite3.Error as reason:
            raise failed(address, reason) from None
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        for limit, most in LIMITS.items():
            self._connection.setlimit(limit, most)
        try:
            for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "temp_store = MEMORY", "mmap_size = 0"):
                self._connection.execute(f"PRAGMA {pragma}")
            self._from, self._declared = self._source()
            self._connection.execute("PRAGMA query_only = ON")
            self._connection.execute("BEGIN")
        except (sqlite3.Error, UnicodeError) as reason:
            raise self._failed(reason) from None
        self._connection.set_authorizer(_only_reading)

    def _source(self) -> tuple[str, dict[str, str]]:
        """What stands behind FROM, and the columns with the types they were declared with."""
        address = self.address
        if address.query is not None:
            name: tuple[str, ...] = (ROWS,)
            query = f"SELECT * FROM ({inner_query(address)}\n)"  # noqa: S608 -- the owner's own; a view holds a SELECT alone
            self._connection.execute(f"CREATE TEMP VIEW {ROWS} AS {query}")
        else:
            tables = [row[0] for row in self._connection.execute(
                "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
            )]  # fmt: skip
            name = () if address.table is None else table_parts(address.table)
            if len(name) != 1 or name[0].lower() not in {table.lower() for table in tables}:
                raise which_table(address, tables)
        found = self._connection.execute(f"PRAGMA table_xinfo({quoted(name[0])})").fetchall()
        return quoted(name[0]), {row[1]: str(row[2]).upper() for row in found if row[6] != 1}

    @property
    def columns(self) -> list[str]:
        return list(self._declared)

    def count(self) -> int:
        """How many rows there are."""
        try:
            return int(self._connection.execute(f"SELECT count(*) FROM {self._from}").fetchone()[0])  # noqa: S608 -- quoted
        except (sqlite3.Error, UnicodeError, OverflowError) as reason:
            raise self._failed(reason) from None

    def batches(self, columns: Sequence[str], order: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """The rows of these columns, at most `rows` at a time."""
        ordered = f" ORDER BY {', '.join(map(quoted, order))}" if order else ""
        statement = f"SELECT {', '.join(map(quoted, columns))} FROM {self._from}{ordered}"  # noqa: S608 -- quoted
        truths = [self._declared.get(name, "").startswith("BOOL") for name in columns]
        schema = pa.schema([(name, pa.string()) for name in columns])
        try:
            cursor = self._connection.execute(statement)
            while found := cursor.fetchmany(rows):
                lists = zip(columns, truths, zip(*found, strict=True), strict=True)
                arrays = [pa.array(self._texts(name, values, truth), pa.string()) for name, truth, values in lists]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        except (sqlite3.Error, UnicodeError, OverflowError) as reason:
            raise self._failed(reason) from None

    def _texts(self, name: str, values: tuple[Any, ...], truth: bool) -> list[str | None]:
        """Values as a CSV would hold them; truth values of columns that were declared so are stored as 0 and 1."""
        found: list[str | None] = []
        for value in values:
            if value is None or type(value) is str:
                found.append(value)
            elif type(value) is bytes:
                raise refuse_columns(self.address, {name: "bytes (BLOB)"})
            else:
                found.append(TRUTHS[value] if truth and value in TRUTHS else repr(value))
        return found

    def _failed(self, reason: Exception) -> DataError:
        if isinstance(reason, UnicodeError) or "decode to UTF-8" in str(reason):
            return failed(self.address, "its names or values are not UTF-8 text")
        if "prohibited" in str(reason) or "not authorized" in str(reason):
            return failed(self.address, "expected a SELECT that reads tables of the file and nothing else")
        if "one statement" in str(reason):
            return failed(self.address, "expected one SELECT, got several statements")
        return failed(self.address, reason)

    def close(self) -> None:
        self._connection.close()


def _only_reading(action: int, first: str | None, second: str | None, _database: str | None, _by: str | None) -> int:
    if action in READING or (action == sqlite3.SQLITE_FUNCTION and second != "load_extension"):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY
