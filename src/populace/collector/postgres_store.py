"""The store in PostgreSQL: for servers on several machines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from populace.collector.store import ROUND, Store, StoreError, tables
from populace.errors import MissingExtra

if TYPE_CHECKING:
    import psycopg

LOCK = 0x706F70756C616365  # of this software's advisory locks: "populace"
SECONDS_TO_CONNECT = 10
AWAY = "the database cannot be reached at the moment"


def _library() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtra("a PostgreSQL store needs psycopg: pip install 'populace[collector]'") from error
    return psycopg


class PostgresStore(Store):
    """Guarantee: what a transaction wrote is on disk when it ends (synchronous_commit on), or nothing of it is.

    Edge cases: a connection that was lost is made again for the next transaction; of one that was lost while it was being
    committed nothing is said, and the device sends its answer again. Rows carry numbers of transactions and stand in the order
    in which they came, which tells what was written together, until `forget_order`.
    """

    def __init__(self, url: str, *, create: bool = True) -> None:
        self.url = url
        self._psycopg = _library()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        if create:
            with self.transaction(lock="alone"):
                for statement in tables(blob="BYTEA", real="DOUBLE PRECISION", tail=""):
                    self.run(statement)

    @property
    def _db(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed or self._connection.broken:
            try:
                self._connection = self._psycopg.connect(
                    self.url, autocommit=True, connect_timeout=SECONDS_TO_CONNECT, prepare_threshold=2
                )
                self._connection.execute("SET synchronous_commit = on")
            except self._psycopg.Error as error:
                self._connection = None
                raise StoreError(AWAY) from error
        return self._connection

    @contextlib.contextmanager
    def transaction(self, *, lock: str = "") -> Iterator[None]:
        kind = {"shared": "_shared", "alone": ""}
        try:
            with self._db.transaction():
                if lock:
                    self._db.execute(f"SELECT pg_advisory_xact_lock{kind[lock]}(%s)", (LOCK,))
                else:
                    self._db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                yield
        except self._psycopg.Error as error:
            self._drop()
            raise StoreError(AWAY) from error

    def _drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(self._psycopg.Error):
                self._connection.close()
            self._connection = None

    def _execute(self, sql: str, values: Sequence[Any]) -> psycopg.Cursor[tuple[Any, ...]]:
        try:
            return self._db.execute(sql.replace("?", "%s"), values)  # type: ignore[arg-type]
        except self._psycopg.OperationalError as error:
            self._drop()
            raise StoreError(AWAY) from error

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._execute(sql, values).fetchall()

    def run(self, sql: str, *values: Any) -> int:
        return self._execute(sql, values).rowcount

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._db.cursor() as cursor:
            cursor.executemany(sql.replace("?", "%s"), rows)  # type: ignore[arg-type]

    def lock_invitations(self, hashes: Sequence[bytes]) -> list[tuple[Any, ...]]:
        if not hashes:
            return []
        return self.rows(
            "SELECT hash, round, place, receipt FROM invitation WHERE hash = ANY(?) ORDER BY hash FOR UPDATE",
            list(hashes),
        )

    def expired(self, round_id: int, now: float, most: int) -> list[tuple[Any, ...]]:
        return self.rows(
            "SELECT hash, place FROM invitation WHERE round = ? AND place IS NOT NULL AND until < ? LIMIT ? "
            "FOR UPDATE SKIP LOCKED",
            round_id, now, most,
        )  # fmt: skip

    def lock_round(self) -> list[tuple[Any, ...]]:
        return self.rows(f"SELECT {ROUND} FROM round ORDER BY number DESC LIMIT 1 FOR UPDATE")  # noqa: S608

    def forget_order(self) -> None:
        """Write all answers and invitations again in one transaction, then both tables anew in the order of their keys.

        After the first all have the same transaction number; after the second the order of rows says nothing, and what was
        deleted is gone from the files. CLUSTER keeps what a snapshot of another process still reads, and each one locks a
        single table, so that no two can wait for each other.
        """
        with self.transaction(lock="alone"):
            self.run("UPDATE answer SET round = round")
            self.run("UPDATE invitation SET hash = hash")
        for table in ("answer", "invitation", "fact"):
            with self.transaction(lock="alone"):
                self.run(f"CLUSTER {table} USING {table}_pkey")

    def close(self) -> None:
        self._drop()
