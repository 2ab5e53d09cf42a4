"""Files that populace keeps for itself: ledgers, journals and the collector's store. None is data, or a place for rows."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from urllib.parse import quote

from populace.border.regular import open_regular

MAGIC = b"SQLite format 3\0"
APPLICATION = 0x706F7062  # marks a ledger of runs among SQLite files
MARK_AT = 68  # where SQLite keeps it in a file
#: Tables that tell the others: a ledger of clients or of a site, the journal of secure sums, a collector's store.
TABLES = ({"entry", "memory", "terms"}, {"sum_step", "sum_secret"}, {"fact", "invitation", "answer", "lease"})
WAIT = 10.0  # seconds for another process


def is_ledger(path: Path) -> bool:
    """Whether a file is a ledger of runs, by the mark among its first bytes."""
    return _is_ledger(_first_bytes(path))


def is_own_file(path: Path) -> bool:
    """Whether a file is one that populace keeps for itself, by its mark or its tables."""
    first = _first_bytes(path)
    if not first.startswith(MAGIC):
        return False
    if _is_ledger(first):
        return True
    try:
        address = f"file:{quote(str(path.absolute()))}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=WAIT)) as connection:
            listed = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    except (sqlite3.Error, UnicodeError):  # damaged: reading it says so
        return False
    names = {name for (name,) in listed}
    return any(tables <= names for tables in TABLES)


def _first_bytes(path: Path) -> bytes:
    if not path.is_file():
        return b""
    with open_regular(path) as file:
        return file.read(MARK_AT + 4)


def _is_ledger(first: bytes) -> bool:
    return first[MARK_AT:] == APPLICATION.to_bytes(4, "big")
