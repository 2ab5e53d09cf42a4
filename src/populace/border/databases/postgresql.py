"""PostgreSQL by URL, read only: one read-only transaction at one snapshot (REPEATABLE READ).

Passwords come from the environment: PGPASSWORD, PGPASSFILE or ~/.pgpass, which libpq reads itself, or a variable that the URL
names (`?password_from=VARIABLE`). None is stored, and what the server or the driver says is searched for them before it is
repeated.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa

from populace.border.columnar import DAMAGED
from populace.border.databases.address import PASSWORD_FROM, Address, parameters
from populace.border.databases.statement import failed, quoted, refuse_columns, select, table_parts, which_table
from populace.border.regular import first_line
from populace.errors import DataError, InputError, MissingExtra

SECONDS_TO_CONNECT = 10
READ_ONLY = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
    "SET LOCAL synchronize_seqscans = off",  # these two: rows that did not change come in the same order again
    "SET LOCAL max_parallel_workers_per_gather = 0",
    "SET LOCAL timezone = 'UTC'",
)
AS_THEY_ARE = ("bool", "int2", "int4", "int8", "float8", "text", "varchar", "bpchar", "name", "char", "date", "time",
               "timestamp", "timestamptz")  # fmt: skip
CASTS = {
    "numeric": "text", "float4": "text", "money": "numeric", "uuid": "text", "inet": "text", "cidr": "text",
    "macaddr": "text", "macaddr8": "text", "timetz": "text", "citext": "text", "oid": "int8", "bit": "text", "varbit": "text",
}  # fmt: skip
WRITTEN = {
    "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real", "float8": "double precision",
    "bool": "boolean", "bpchar": "char",
}  # fmt: skip
TYPE_KEYS = (b"POSTGRESQL:type", b"ADBC:postgresql:typname")
TABLES = (
    "SELECT CASE WHEN table_schema = 'public' THEN table_name ELSE table_schema || '.' || table_name END "
    "FROM information_schema.tables WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 1"
)
SERVER_WORDS = re.compile(r"(?:ERROR|FATAL|PANIC):\s+(.*)")
CONNECTING = "Failed to connect:"
NOT_ONE_SELECT = ('at or near ";"', "data-modifying")  # what the server says of a query in parentheses
WHO = ("authentication failed", "no password supplied", "role ", "no pg_hba.conf entry", "peer authentication")
WHO_IN_WORDS = (
    "the server does not accept the user or the password; set PGUSER and PGPASSWORD in the environment (or ~/.pgpass)"
)


def library() -> Any:
    """The driver, or the line that installs it."""
    try:
        import adbc_driver_postgresql.dbapi as driver
    except ImportError as error:
        raise MissingExtra("PostgreSQL needs its ADBC driver: pip install 'populace[databases]'") from error
    return driver


def connect(address: Address) -> Any:
    """An open connection, with the password from the environment; what goes wrong is one sentence without it."""
    driver = library()
    try:
        return driver.connect(_with_password(address), autocommit=False)
    except (driver.Error, *DAMAGED, RuntimeError) as reason:
        raise refused(address, reason) from None


def _with_password(address: Address) -> str:
    """What libpq is given; the only place where a password is put into words, which are not kept."""
    base, found = address.place.partition("?")[0], dict(parameters(address.place))
    variable = found.pop(PASSWORD_FROM, None)
    if variable is not None:
        if not os.environ.get(variable):
            raise InputError(f"{address.place} takes its password from the variable {variable}, which is not set")
        found["password"] = os.environ[variable]
    if "PGCONNECT_TIMEOUT" not in os.environ:
        found.setdefault("connect_timeout", str(SECONDS_TO_CONNECT))
    found.setdefault("application_name", "populace")
    return f"{base}?{urlencode(found, quote_via=quote)}"


def refused(address: Address, reason: BaseException) -> DataError:
    """The sentence for what the server or the driver says; who asked, and with which password, is not repeated."""
    said = str(reason)
    words = SERVER_WORDS.search(said)
    text = words.group(1) if words else first_line(said.partition(CONNECTING)[2] or said)
    if any(each in said for each in WHO) and (CONNECTING in said or "FATAL" in said):
        text = WHO_IN_WORDS
    elif address.query is not None and any(each in said for each in NOT_ONE_SELECT):
        text = "populace only reads: give one SELECT without a semicolon"
    elif CONNECTING in said and not words:
        text = f"no connection to the server: {text}"
    return failed(address, _without_secrets(text, address))


def _without_secrets(text: str, address: Address) -> str:
    """The text without passwords, wherever they stand in it, and without the user where that is a word of its own."""
    names = ["PGPASSWORD", "PGUSER", dict(parameters(address.place)).get(PASSWORD_FROM, "")]
    for name in filter(None, names):
        secret = os.environ.get(name, "")
        for form in {secret, quote(secret), quote(secret, safe="")}:
            if form and form not in address.place:
                found = re.escape(form) if name != "PGUSER" else rf"(?<!\w){re.escape(form)}(?!\w)"
                text = re.sub(found, "***", text)
    return text


class PostgresqlReader:
    """A transaction on a PostgreSQL server that can only read, at the state of the moment it began."""

    def __init__(self, address: Address) -> None:
        self.address, self._driver = address, library()
        self._connection = connect(address)
        try:
            with self._sentences():
                for statement in READ_ONLY:
                    self._execute(statement)
                self._types = self._described()
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except (self._driver.Error, *DAMAGED, RuntimeError) as reason:
            raise refused(self.address, reason) from None

    def _execute(self, statement: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)

    def _tables(self) -> list[str]:
        with self._connection.cursor() as cursor:
            cursor.execute(TABLES)
            return [row[0] for row in cursor.fetchall()]

    def _described(self) -> dict[str, str]:
        """The columns with the server's names of their types."""
        address = self.address
        if address.table is None and address.query is None:
            raise which_table(address, self._tables())
        if address.table is not None:
            self._check_there(address.table)
        with self._connection.cursor() as cursor:
            cursor.execute(f"{select(address)} LIMIT 0")
            schema = cursor.fetch_record_batch().schema
        if len(set(schema.names)) != len(schema.names):
            twice = next(name for name in schema.names if schema.names.count(name) > 1)
            raise DataError(f"{address.shown} gives two columns named {twice!r}; rename or drop one")
        return {field.name: _type_name(field) for field in schema}

    def _check_there(self, table: str) -> None:
        name = ".".join(map(quoted, table_parts(table))).replace("'", "''")
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT to_regclass('{name}') IS NOT NULL")
            if not cursor.fetchone()[0]:
                raise which_table(self.address, self._tables())

    @property
    def columns(self) -> list[str]:
        return list(self._types)

    def count(self) -> int:
        """How many rows there are."""
        with self._sentences(), self._connection.cursor() as cursor:
            cursor.execute(select(self.address, ("count(*)",)))
            return int(cursor.fetchone()[0])

    def batches(self, columns: Sequence[str], order: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """The rows of these columns, at most `rows` at a time."""
        expressions = [self._expression(name) for name in columns]
        if None in expressions:
            odd = [name for name, made in zip(columns, expressions, strict=True) if made is None]
            raise refuse_columns(
                self.address, {name: f"values of the type {_shown(self._types[name])}" for name in odd}
            )
        with self._sentences(), self._connection.cursor() as cursor:
            cursor.execute(select(self.address, [one for one in expressions if one], order))
            for batch in cursor.fetch_record_batch():
                plain = pa.RecordBatch.from_arrays([_storage(column) for column in batch.columns], list(columns))
                for start in range(0, plain.num_rows, rows):
                    yield plain.slice(start, rows)

    def _expression(self, name: str) -> str | None:
        """How a column is read; None where its values cannot be."""
        kind = self._types[name]
        if kind in AS_THEY_ARE:
            return quoted(name)
        if kind in CASTS:
            return f"CAST({quoted(name)} AS {CASTS[kind]}) AS {quoted(name)}"
        return None

    def close(self) -> None:
        with contextlib.suppress(self._driver.Error, *DAMAGED, RuntimeError):
            self._connection.close()


def _type_name(field: pa.Field) -> str:
    """The server's name of a column's type; a type of the owner's whose values are text (ENUM) is text."""
    metadata = field.metadata or {}
    named = next((metadata[key].decode(errors="replace") for key in TYPE_KEYS if key in metadata), str(field.type))
    if named not in CASTS and pa.types.is_string(field.type):
        return "text"
    return named


def _shown(kind: str) -> str:
    """A type as people write it: the server calls integer[] _int4."""
    plain = kind.removeprefix("_")
    return first_line(kind, most=60) if plain == kind else f"{WRITTEN.get(plain, first_line(plain, most=60))}[]"


def _storage(column: pa.Array) -> pa.Array:
    return column.storage if isinstance(column, pa.ExtensionArray) else column
