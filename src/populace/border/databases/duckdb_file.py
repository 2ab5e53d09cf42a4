"""DuckDB files, read only: no other file, no extension, no network, no setting can be reached from a query.

Decimals, floats of 32 bits, lists of values (ENUM) and uuids are given as text, which is what a CSV of the same table holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from populace.border.arrays import memory_of_machine
from populace.border.columnar import DAMAGED
from populace.border.databases.address import Address
from populace.border.databases.statement import failed, quoted, refuse_columns, select, which_table
from populace.border.regular import check_regular, first_line
from populace.errors import DataError, InputError, MissingExtra

MAGIC, MAGIC_AT = b"DUCK", 8
AS_TEXT = ("DECIMAL", "HUGEINT", "UHUGEINT", "FLOAT", "ENUM", "UUID", "TIME WITH TIME ZONE", "BIT", "VARINT", "BIGNUM")
AS_THEY_ARE = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "DOUBLE",
    "VARCHAR", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE",
)  # fmt: skip
TABLES = "SELECT DISTINCT table_name FROM information_schema.tables ORDER BY 1"
LOCKED = "Could not set lock on file"
SHARE_OF_MEMORY = 2  # one part in so many


def library() -> Any:
    """The duckdb package, or the line that installs it."""
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtra("DuckDB files need duckdb: pip install 'populace[databases]'") from error
    return duckdb


def settings() -> dict[str, str]:
    """How a file from a stranger is opened."""
    return {
        "enable_external_access": "false", "autoinstall_known_extensions": "false", "autoload_known_extensions": "false",
        "allow_community_extensions": "false", "python_enable_replacements": "false", "temp_directory": "",
        "memory_limit": f"{memory_of_machine() // SHARE_OF_MEMORY // 2**20}MiB", "lock_configuration": "true",
    }  # fmt: skip


class DuckdbFile:
    """A DuckDB file opened for reading; nobody can write to it meanwhile, so that all that is read is one snapshot."""

    def __init__(self, address: Address) -> None:
        self.address, self._duckdb = address, library()
        path = address.path
        if path is None:
            raise InputError(f"expected a DuckDB file, got {address.place}")
        if not check_regular(path, error=InputError).st_size:
            raise DataError(f"{path} is empty; expected a DuckDB database")
        try:
            self._connection = self._duckdb.connect(str(path.absolute()), read_only=True, config=settings())
        except (self._duckdb.Error, *DAMAGED, RuntimeError) as reason:
            raise self._failed(reason) from None
        try:
            self._types = self._described()
        except BaseException:
            self.close()
            raise

    def _described(self) -> dict[str, str]:
        """The columns with their types."""
        if self.address.table is None and self.address.query is None:
            raise which_table(self.address, self._tables())
        relation = self._relation(select(self.address))
        return dict(zip(relation.columns, map(str, relation.types), strict=True))

    def _tables(self) -> list[str]:
        return [row[0] for row in self._connection.execute(TABLES).fetchall()]

    @property
    def columns(self) -> list[str]:
        return list(self._types)

    def count(self) -> int:
        """How many rows there are."""
        try:
            return int(self._relation(select(self.address, ("count(*)",))).fetchall()[0][0])
        except (self._duckdb.Error, *DAMAGED, RuntimeError) as reason:
            raise self._failed(reason) from None

    def batches(self, columns: Sequence[str], order: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """The rows of these columns, at most `rows` at a time."""
        expressions = [self._expression(name) for name in columns]
        if None in expressions:
            odd = [name for name, made in zip(columns, expressions, strict=True) if made is None]
            raise refuse_columns(
                self.address, {name: f"values of the type {first_line(self._types[name], most=60)}" for name in odd}
            )
        try:
            yield from self._relation(select(self.address, [one for one in expressions if one], order)).to_arrow_reader(
                rows
            )
        except (self._duckdb.Error, *DAMAGED, RuntimeError) as reason:
            raise self._failed(reason) from None

    def _expression(self, name: str) -> str | None:
        """How a column is read; None where its values cannot be."""
        kind = self._types[name]
        if kind in AS_THEY_ARE:
            return quoted(name)
        if kind.partition("(")[0] in AS_TEXT and not kind.endswith("]"):
            return f"CAST({quoted(name)} AS VARCHAR) AS {quoted(name)}"
        return None

    def _relation(self, statement: str) -> Any:
        """One statement that selects; a cursor of its own, so that readers may be left half way."""
        try:
            cursor = self._connection.cursor()
            found = cursor.extract_statements(statement)
            if len(found) != 1 or found[0].type != self._duckdb.StatementType.SELECT:
                raise failed(self.address, "expected one SELECT, got several statements")
            return cursor.sql(statement)
        except self._duckdb.CatalogException as reason:
            if self.address.table is not None and "Table with name" in str(reason):
                raise which_table(self.address, self._tables()) from None
            raise self._failed(reason) from None
        except (self._duckdb.Error, *DAMAGED, RuntimeError) as reason:
            raise self._failed(reason) from None

    def _failed(self, reason: Exception) -> DataError:
        words = first_line(str(reason))
        if LOCKED in words:
            words = "another program has it open for writing; close it there, or copy the file"
        return failed(self.address, words or type(reason).__name__)

    def close(self) -> None:
        self._connection.close()
