"""The file under `SqliteLedger`: its tables, and how far it was.

Every entry is linked to the one before it by a hash. A small file beside the ledger, `NAME.head`, names the last entry; it is
written after each commit and before the reply leaves, so that a ledger which was put back from an old copy is noticed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pydantic

from populace.border.documents import parse_json, read_json
from populace.border.models import Form, check_document, interpreting
from populace.border.regular import check_output
from populace.errors import RunError
from populace.privacy import events
from populace.privacy.events import Event
from populace.privacy.ledger import Budget

#: Of the file, as `PRAGMA user_version`; 0 is that of version 0.1.0, which lacks `numbering`; 1 has no relation and no chain.
LAYOUT = 2
SCHEMA = """
CREATE TABLE IF NOT EXISTS entry (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    account TEXT NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL,
    question TEXT NOT NULL, unit TEXT NOT NULL, event TEXT NOT NULL,
    reply BLOB NOT NULL, at REAL NOT NULL,
    UNIQUE (account, run, round)
);
CREATE TABLE IF NOT EXISTS memory (account TEXT NOT NULL, run TEXT NOT NULL, content BLOB NOT NULL, PRIMARY KEY (account, run));
CREATE TABLE IF NOT EXISTS terms (run TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS numbering (run TEXT PRIMARY KEY, accounts TEXT NOT NULL, numbers BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS budget (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), epsilon REAL, delta REAL, unit TEXT);
CREATE TABLE IF NOT EXISTS relation (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), neighbours TEXT, trust TEXT);
CREATE TABLE IF NOT EXISTS alias (name TEXT PRIMARY KEY, account TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS chain_base (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), last INTEGER, chain TEXT);
CREATE INDEX IF NOT EXISTS alias_of ON alias (account);
CREATE VIEW IF NOT EXISTS charged AS
    SELECT entry.id, run, round, unit, event, at, COALESCE(alias.account, entry.account) AS owner
    FROM entry LEFT JOIN alias ON alias.name = entry.account;
CREATE TRIGGER IF NOT EXISTS entry_never_replaced BEFORE INSERT ON entry
    WHEN EXISTS (SELECT 1 FROM entry WHERE id = NEW.id OR (account = NEW.account AND run = NEW.run AND round = NEW.round))
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER IF NOT EXISTS entry_never_changes BEFORE UPDATE ON entry
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER IF NOT EXISTS entry_never_leaves BEFORE DELETE ON entry
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER IF NOT EXISTS numbering_never_changes BEFORE UPDATE ON numbering
    BEGIN SELECT RAISE(ABORT, 'a run keeps its numbers'); END;
CREATE TRIGGER IF NOT EXISTS numbering_never_leaves BEFORE DELETE ON numbering
    BEGIN SELECT RAISE(ABORT, 'a run keeps its numbers'); END;
"""
MOST_HEAD = 2**12  # bytes of the file that names the last entry
ADDED = ("neighbours", "trust", "chain")  # columns of `entry` since layout 2; empty in older rows
BEGINNING = hashlib.sha256(b"the first entry of a ledger").hexdigest()

#: What a damaged database raises; where its own words for what is wrong quote damaged names, they are no text either.
DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
#: What is read of a ledger's tables.
READ = {
    "entry": "id, account, run, round, unit, event, at",
    "charged": "id, owner, run, round, unit, event, at",
    "alias": "name, account",
    "budget": "epsilon, delta, unit",
}


class RolledBackError(RunError):
    """The ledger is older than the file beside it says: an old copy was put back."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """How far a ledger was: the number of its last entry (0 for none), and the hash of the chain there."""

    last: int
    chain: str


class _HeadForm(Form):
    last: int = pydantic.Field(ge=0)
    chain: str


def link(before: str, row: tuple[*tuple[object, ...], bytes, float]) -> str:
    """The chain after one more entry: its account, run, round, question, unit, event, neighbours, trust, reply, time."""
    *words, reply, at = row
    content = json.dumps([before, *words, hashlib.sha256(bytes(reply)).hexdigest(), float(at)])
    return hashlib.sha256(content.encode()).hexdigest()


@functools.lru_cache(maxsize=256)
def event_of(text: str) -> Event:
    """The event that an entry holds."""
    with interpreting("the ledger"):
        return events.from_json(parse_json(text, where="an entry of the ledger"))


def head_path(path: Path) -> Path:
    """Where the head of a ledger's chain is kept."""
    return path.with_name(f"{path.name}.head")


def read_head(path: Path) -> Head | None:
    """What the file beside a ledger says, or None where there is none."""
    head_file = head_path(path)
    if not os.path.lexists(head_file):
        return None
    try:
        document = check_document(
            read_json(head_file, most=MOST_HEAD), _HeadForm, where=str(head_file), advice="put it back"
        )
        return Head(last=document["last"], chain=document["chain"])
    except RunError as error:
        raise RunError(f"cannot read {head_file}, which says how far the ledger was: {error!r}; put it back") from error


def write_head(path: Path, head: Head) -> None:
    """Write text to disk: whole, and readable by its owner alone, when this returns."""
    head_file = head_path(path)
    temporary = head_file.with_name(f".{head_file.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(dataclasses.asdict(head), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(head_file)
        folder = os.open(head_file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise RunError(f"cannot write {head_file}: {error}; nothing was released") from error


def kept_budget(path: str | Path) -> Budget | None:
    """The budget a ledger was begun with, or None where none was begun; changes nothing."""
    if not Path(path).is_file():
        return None
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=30.0)) as db:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'budget'").fetchone() is None:
                return None
            row = db.execute("SELECT epsilon, delta, unit FROM budget").fetchone()
    except DATABASE_ERRORS as error:
        raise RunError(f"cannot open the ledger {path}: {error}") from error
    return None if row is None else Budget(epsilon=row[0], delta=row[1], unit=row[2])


def open_file(path: Path, *, restored: bool = False) -> sqlite3.Connection:
    """A connection to a ledger in the layout of this version, whose entries reach at least as far as its head says.

    One file holds it all after each commit: there is no write-ahead log that a copy could miss.
    """
    check_output(path)  # a pipe would be waited on for ever
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    db = sqlite3.connect(path, isolation_level=None, timeout=30.0)
    try:
        (layout,) = db.execute("PRAGMA user_version").fetchone()
        if layout > LAYOUT:
            raise RunError(
                f"the ledger {path} was written by a later version of populace; update populace, nothing is answered"
            )
        db.execute("PRAGMA journal_mode=DELETE")
        db.execute("PRAGMA synchronous=EXTRA")
        if layout < LAYOUT:
            db.executescript(SCHEMA)
            with transaction(db):
                _bring_up(db, path)
        for (
            table,
            columns,
        ) in READ.items():  # tables and views whose text was damaged say so here, not in the middle of a round
            db.execute(f"SELECT {columns} FROM {table} LIMIT 0")  # noqa: S608 - our own names
        head = read_head(path)  # before the ledger is looked at: another process may go on in between
        if head is None or not _reaches(db, head):
            with transaction(db):
                _check_head(db, path, restored=restored)
    except BaseException:
        db.close()
        raise
    return db


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Nobody else writes from here to the end; what is read here is what is booked on."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _bring_up(db: sqlite3.Connection, path: Path) -> None:
    """The columns of layout 2, and a chain that begins with what is there. The head is written first."""
    if db.execute("PRAGMA user_version").fetchone() == (LAYOUT,):
        return  # another process did it
    there = {row[1] for row in db.execute("PRAGMA table_info(entry)")}
    for name in ADDED:
        if name not in there:
            db.execute(f"ALTER TABLE entry ADD COLUMN {name} TEXT")
    base = Head(last=0, chain=BEGINNING)
    for number, *row in db.execute(
        "SELECT id, account, run, round, question, unit, event, neighbours, trust, reply, at FROM entry ORDER BY id"
    ):
        base = Head(last=number, chain=link(base.chain, tuple(row)))
    if read_head(path) is None:
        write_head(path, base)
    db.execute("INSERT OR IGNORE INTO chain_base VALUES (1, ?, ?)", (base.last, base.chain))
    db.execute(f"PRAGMA user_version = {LAYOUT}")


def last_of(db: sqlite3.Connection) -> Head:
    """How far the ledger is now."""
    row = db.execute("SELECT id, chain FROM entry WHERE chain IS NOT NULL ORDER BY id DESC LIMIT 1").fetchone()
    row = row or db.execute("SELECT last, chain FROM chain_base").fetchone()
    return Head(last=int(row[0]), chain=str(row[1]))


def keep_head(db: sqlite3.Connection, path: Path) -> None:
    """Write down how far the ledger is, unless that stands there already; before this returns nothing may leave."""
    with transaction(db):
        now = last_of(db)
        if read_head(path) != now:
            write_head(path, now)


def _reaches(db: sqlite3.Connection, head: Head) -> bool:
    """Whether the entry that the head names is in the ledger; more may follow it."""
    row = db.execute(
        "SELECT chain FROM entry WHERE id = ? AND chain IS NOT NULL UNION ALL SELECT chain FROM chain_base WHERE last = ?",
        (head.last, head.last),
    ).fetchone()
    return row is not None and row[0] == head.chain


def _check_head(db: sqlite3.Connection, path: Path, *, restored: bool) -> None:
    head = read_head(path)
    if head is None:
        now = last_of(db)
        if now.last and not restored:
            raise RunError(
                f"{head_path(path)} is gone, which says how far the ledger was; put it back, or, if this ledger is the newest "
                "there is, join with --restored"
            )
        write_head(path, now)
    elif not _reaches(db, head):
        raise RolledBackError(
            f"the ledger {path} is not the one that was written last: entry {head.last}, which {head_path(path).name} names, "
            "is not in it. Put the newest copy back; what an older one has forgotten would be spent again"
        )


def back_up(path: Path, to: Path) -> None:
    """A whole copy of a ledger, also while others write to it."""
    try:
        os.close(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        with (
            contextlib.closing(sqlite3.connect(path, timeout=30.0)) as db,
            contextlib.closing(sqlite3.connect(to)) as copy,
        ):
            db.backup(copy)
    except (OSError, *DATABASE_ERRORS) as error:
        raise RunError(f"cannot copy the ledger {path} to {to}: {error}") from error
