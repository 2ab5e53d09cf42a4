"""The store in one SQLite file: for one machine, and for most studies."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from populace.collector.store import ROUND, Store, StoreError, tables
from populace.privacy.ledger_file import DATABASE_ERRORS

SECONDS_TO_WAIT = 20.0  # for another process's transaction
BUSY = 10_000  # milliseconds
FIRST_PAUSE, LONGEST_PAUSE = (
    0.0005,
    0.005,
)  # between tries; SQLite's own are up to 100 ms, far longer than a transaction


class SqliteStore(Store):
    """Guarantee: what a transaction wrote is on disk when it ends (write-ahead log, synchronous FULL), or nothing of it is.

    Edge cases: the tables of invitations and answers have no row numbers; pages and the write-ahead log do say in which order
    rows came, until `forget_order`. The file is readable by its owner alone.
    """

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        self.path = Path(path)
        if not create and not self.path.is_file():
            raise StoreError(f"no store {path}; `populace collector init` makes it, nothing is answered without")
        try:
            if create:
                self.path.touch(mode=0o600)
            self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=0.0)
            self._settle()
        except (OSError, *DATABASE_ERRORS) as error:
            raise StoreError(f"cannot open the store {path}: {error}") from error

    def _settle(self) -> None:
        self._retrying("PRAGMA journal_mode = WAL")
        for setting in ("synchronous = FULL", "secure_delete = ON", "foreign_keys = ON"):
            self._db.execute(f"PRAGMA {setting}")
        with self.transaction(lock="alone"):
            for statement in tables(blob="BLOB", real="REAL", tail=" WITHOUT ROWID"):
                self._db.execute(statement)

    def _retrying(self, statement: str) -> None:
        """Execute a statement that needs the file for itself, again and again while another process has it."""
        until, pause = time.monotonic() + SECONDS_TO_WAIT, FIRST_PAUSE
        self._db.execute("PRAGMA busy_timeout = 0")
        while True:
            try:
                self._db.execute(statement)
                self._db.execute(f"PRAGMA busy_timeout = {BUSY}")  # of reads, while another process recovers the log
                return
            except sqlite3.OperationalError as error:
                if ("locked" not in str(error) and "busy" not in str(error)) or time.monotonic() >= until:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    @contextlib.contextmanager
    def transaction(self, *, lock: str = "") -> Iterator[None]:
        try:
            self._retrying("BEGIN IMMEDIATE" if lock else "BEGIN")
        except DATABASE_ERRORS as error:
            raise StoreError(f"the store {self.path} cannot be written at the moment: {error}") from error
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            if isinstance(error, DATABASE_ERRORS):
                raise StoreError(f"the store {self.path} could not be written: {error}") from error
            raise

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._db.execute(sql, values).fetchall()

    def run(self, sql: str, *values: Any) -> int:
        return self._db.execute(sql, values).rowcount

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._db.executemany(sql, rows)

    def lock_invitations(self, hashes: Sequence[bytes]) -> list[tuple[Any, ...]]:
        one = "SELECT hash, round, place, receipt FROM invitation WHERE hash = ?"
        return [row for each in hashes for row in self._db.execute(one, (each,))]

    def expired(self, round_id: int, now: float, most: int) -> list[tuple[Any, ...]]:
        return self.rows(
            "SELECT hash, place FROM invitation WHERE round = ? AND place IS NOT NULL AND until < ? LIMIT ?",
            round_id, now, most,
        )  # fmt: skip

    def lock_round(self) -> list[tuple[Any, ...]]:
        return self.rows(f"SELECT {ROUND} FROM round ORDER BY number DESC LIMIT 1")  # noqa: S608

    def forget_order(self) -> None:
        """Write the whole file again in the order of keys: pages have rows in the order in which they came.

        Then fold the write-ahead log into it and cut it off: it has the order of transactions.
        """
        try:
            self._retrying("VACUUM")
            until = time.monotonic() + SECONDS_TO_WAIT
            while self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:  # somebody reads
                if time.monotonic() >= until:
                    raise StoreError(f"the log of {self.path} could not be cut off: it is being read all the time")
                time.sleep(LONGEST_PAUSE)
        except DATABASE_ERRORS as error:
            raise StoreError(f"the store {self.path} could not be written again: {error}") from error

    def close(self) -> None:
        self._db.close()
