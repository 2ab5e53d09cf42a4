"""The ledger of runs on the same data: an SQLite file that only grows.

It holds what every run cost one unit, digests of the rows and persons each run used, keyed with a secret of this ledger, and
the owner's limit. Nothing in it is ever changed or taken out. It knows nothing of tables: digests come as arrays of 64 bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from populace.border.documents import parse_json
from populace.border.own_files import APPLICATION
from populace.errors import BudgetError, RunError
from populace.privacy import events
from populace.privacy.ledger_file import DATABASE_ERRORS
from populace.privacy.run_totals import Cost
from populace.types import JsonObject, NumpyArray

#: What a set of digests tells apart: whole rows over the columns named, their core, values of an id column, clients of a
#: column, or simulated clients of so many rows each.
Kind = Literal["rows", "core", "id", "client", "block"]

FORMAT = 2
WAIT = 60.0  # seconds for another process
SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
CREATE TABLE secret (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), content BLOB NOT NULL);
CREATE TABLE members (id TEXT PRIMARY KEY, digests BLOB NOT NULL);
CREATE TABLE run (
    id INTEGER PRIMARY KEY AUTOINCREMENT, booking TEXT NOT NULL UNIQUE, at REAL NOT NULL,
    folder TEXT NOT NULL, data TEXT NOT NULL, rows INTEGER NOT NULL, method TEXT NOT NULL, cost TEXT NOT NULL,
    history TEXT NOT NULL
);
CREATE TABLE used (
    run INTEGER NOT NULL REFERENCES run (id), kind TEXT NOT NULL, name TEXT NOT NULL,
    members TEXT NOT NULL REFERENCES members (id), PRIMARY KEY (run, kind, name)
);
CREATE TABLE release (
    booking TEXT PRIMARY KEY REFERENCES run (booking), folder TEXT NOT NULL, content TEXT NOT NULL, at REAL NOT NULL
);
CREATE TABLE finished (booking TEXT PRIMARY KEY REFERENCES run (booking), at REAL NOT NULL);
CREATE TABLE allowed (id INTEGER PRIMARY KEY AUTOINCREMENT, epsilon REAL NOT NULL, because TEXT NOT NULL, at REAL NOT NULL);
"""
#: Which row a new one would replace, were it not refused.
SAME = {
    "secret": "1", "members": "id = NEW.id", "run": "id = NEW.id OR booking = NEW.booking",
    "used": "run = NEW.run AND kind = NEW.kind AND name = NEW.name", "release": "booking = NEW.booking",
    "finished": "booking = NEW.booking", "allowed": "id = NEW.id",
}  # fmt: skip
ABORT = "BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;"
TRIGGERS = "\n".join(
    f"CREATE TRIGGER {table}_never_changed BEFORE UPDATE ON {table} {ABORT}\n"
    f"CREATE TRIGGER {table}_never_deleted BEFORE DELETE ON {table} {ABORT}\n"
    f"CREATE TRIGGER {table}_never_replaced BEFORE INSERT ON {table} WHEN EXISTS ({select} WHERE {same}) {ABORT}"
    for table, same in SAME.items()
    for select in (f"SELECT 1 FROM {table}",)  # noqa: S608 -- names written above
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Booked:
    """One run of the ledger. `used` names the sets of digests of what it read: (kind, name) to a set's id.

    `released_in` is the folder that its result is, or was, written into; empty before.
    """

    number: int
    booking: str
    at: float
    folder: str
    data: str
    rows: int
    method: str
    cost: Cost
    history: JsonObject
    used: Mapping[tuple[Kind, str], str]
    finished: bool
    released_in: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit:
    """The most epsilon over all runs that the owner allows, since when, and why it was raised."""

    epsilon: float
    because: str
    at: float


def new_booking() -> str:
    """A name for one run that no other has."""
    return secrets.token_hex(16)


def make_ledger(path: Path) -> None:
    """Begin a ledger, unless there is one: made whole under another name, then linked, so that nobody sees half of one.

    Guarantee: an existing file, whatever it is, is left as it is. The new one is readable by its owner alone.
    """
    if path.exists():
        return
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as db:
            db.executescript("BEGIN;" + SCHEMA + TRIGGERS + "COMMIT;")
            db.execute("INSERT INTO secret VALUES (1, ?)", (secrets.token_bytes(32),))
        _put(temporary, path)
    except (OSError, *DATABASE_ERRORS) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RunError(f"cannot make the ledger {path}: {reason}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _put(temporary: Path, path: Path) -> None:
    """Give a file its name, unless somebody else was quicker; by a copy where the file system knows no links."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError:
        with contextlib.suppress(FileExistsError), path.open("xb") as file:
            path.chmod(0o600)
            file.write(temporary.read_bytes())


class RunLedger:
    """An open ledger of runs.

    Guarantee: what is booked is on disk before `transaction` ends (synchronous=FULL), and two processes never book at once:
    each sees what the other booked. Rows are never changed or deleted, which triggers in the file enforce.
    Edge cases: a file that is missing, damaged, or another program's is refused in words, and left as it is.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise RunError(f"no ledger {path}; `populace synthesize DATA ...` begins one beside the data")
        with self._readable():
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=WAIT)
            self._db.execute("PRAGMA synchronous=FULL")
            self._recognise()

    def _recognise(self) -> None:
        (mark,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if mark != APPLICATION:
            self.close()
            raise RunError(f"{self.path} is not a ledger of runs; it is left as it is, choose another --ledger")
        if version != FORMAT:
            self.close()
            raise RunError(
                f"the ledger {self.path} has format {version}, not {FORMAT}; use the version of populace that keeps it, or "
                "another --ledger; it is left as it is"
            )
        (health,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        secret = self._db.execute("SELECT content FROM secret").fetchone()
        if health != "ok" or secret is None:
            self.close()
            raise RunError(
                f"the ledger {self.path} is damaged ({health}); restore it from a copy, it is never begun anew"
            )
        self.secret = bytes(secret[0])

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error, KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"cannot use the ledger {self.path}: {error}; it is left as it is: restore it from a copy, or choose another "
                "--ledger"
            ) from error

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> RunLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is booked inside, or nothing; no other process books meanwhile."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
        except DATABASE_ERRORS as error:
            raise RunError(f"cannot write the ledger {self.path}: {error}; nothing was booked or released") from error

    def runs(self) -> list[Booked]:
        """Every run, in the order of booking."""
        with self._readable():
            where = f"the ledger {self.path}"
            used: dict[int, dict[tuple[Kind, str], str]] = {}
            for run, kind, name, members in self._db.execute("SELECT run, kind, name, members FROM used"):
                used.setdefault(run, {})[kind, name] = members
            rows = self._db.execute(
                "SELECT id, booking, at, folder, data, rows, method, cost, history, "
                "EXISTS (SELECT 1 FROM finished WHERE finished.booking = run.booking), "
                "(SELECT folder FROM release WHERE release.booking = run.booking) FROM run ORDER BY id"
            )
            return [
                Booked(
                    number=row[0], booking=row[1], at=row[2], folder=row[3], data=row[4], rows=row[5], method=row[6],
                    cost=_cost_from_json(parse_json(row[7], where=where)), history=parse_json(row[8], where=where),
                    used=used.get(row[0], {}), finished=bool(row[9]), released_in=row[10] or "",
                )
                for row in rows
            ]  # fmt: skip

    def run(self, booking: str) -> Booked | None:
        return next((run for run in self.runs() if run.booking == booking), None)

    def members(self, name: str) -> NumpyArray:
        """A set of digests, sorted."""
        with self._readable():
            row = self._db.execute("SELECT digests FROM members WHERE id = ?", (name,)).fetchone()
            if row is None or hashlib.sha256(row[0]).hexdigest() != name:
                raise ValueError("a set of digests is not what was written")
            return np.frombuffer(row[0], "<u8")

    def book(
        self,
        *,
        booking: str,
        folder: str,
        data: str,
        rows: int,
        method: str,
        cost: Cost,
        history: JsonObject,
        used: Mapping[tuple[Kind, str], NumpyArray],
    ) -> None:
        """Add a run, inside a transaction. A set of digests that is there already is stored once."""
        cursor = self._db.execute(
            "INSERT INTO run (booking, at, folder, data, rows, method, cost, history) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                booking,
                time.time(),
                folder,
                data,
                rows,
                method,
                json.dumps(_cost_to_json(cost)),
                json.dumps(dict(history)),
            ),
        )
        for (kind, name), digests in used.items():
            content = _packed(digests)
            key = hashlib.sha256(content).hexdigest()
            if self._db.execute("SELECT 1 FROM members WHERE id = ?", (key,)).fetchone() is None:
                self._db.execute("INSERT INTO members VALUES (?, ?)", (key, content))
            self._db.execute("INSERT INTO used VALUES (?, ?, ?, ?)", (cursor.lastrowid, kind, name, key))

    def release(self, booking: str, *, folder: str, content: bytes) -> None:
        """Claim the one release that a booking pays for: what `content` is made from, written into `folder`.

        Guarantee: of all that claim the same booking one folder gets it, and with one content alone; the others raise.
        Edge cases: the same folder with the same content gets it again, so that it can go on after a crash; a booking that
        is not here, or is finished, raises.
        """
        digest = hashlib.blake2b(content, key=self.secret).hexdigest()
        with self.transaction():
            run = self._known(booking)
            claimed = self._db.execute("SELECT folder, content FROM release WHERE booking = ?", (booking,)).fetchone()
            if run.finished or (claimed and claimed[0] != folder):
                raise RunError(
                    f"this run was {'finished' if run.finished else 'begun to be written'} in {run.released_in}; going on with "
                    "a copy of its folder would be a second release: choose another --out"
                )
            if claimed and claimed[1] != digest:
                raise RunError(
                    f"the run in {folder} was begun to be written, and now has another result: a second release; restore its "
                    "checkpoint.npz, or choose another --out to begin (and pay for) a new run"
                )
            if not claimed:
                self._db.execute("INSERT INTO release VALUES (?, ?, ?, ?)", (booking, folder, digest, time.time()))

    def finish(self, booking: str, *, folder: str) -> None:
        """Note that a run ended; raises if it is not booked here, or its release is another folder's."""
        with self.transaction():
            run = self._known(booking)
            if run.released_in != folder:
                raise RunError(
                    f"the ledger {self.path} gave the release of this run to {run.released_in or 'nobody'}, not to {folder}: "
                    "what was written there must not be published"
                )
            if not run.finished:
                self._db.execute("INSERT INTO finished VALUES (?, ?)", (booking, time.time()))

    def _known(self, booking: str) -> Booked:
        run = self.run(booking)
        if run is None:
            raise RunError(f"the ledger {self.path} does not know this run; put back the file it was booked in")
        return run

    def limits(self) -> list[Limit]:
        """Every limit that was given, in order; the last one holds."""
        with self._readable():
            rows = self._db.execute("SELECT epsilon, because, at FROM allowed ORDER BY id").fetchall()
        return [Limit(epsilon=row[0], because=row[1], at=row[2]) for row in rows]

    @property
    def limit(self) -> float:
        """The most epsilon over all runs; infinite where none was given."""
        given = self.limits()
        return given[-1].epsilon if given else math.inf

    def allow(self, epsilon: float, *, because: str = "") -> None:
        """Keep a limit, inside a transaction. Lowering it is always fine; raising it needs words."""
        if not epsilon > 0:
            raise BudgetError(f"expected a limit above 0, got {epsilon:g}")
        kept = self.limit
        if epsilon > kept and not because.strip():
            raise BudgetError(
                f"the ledger {self.path} keeps a limit of epsilon {kept:g}, less than {epsilon:g}; raising it is for the owner "
                f"of the data: populace ledger limit {self.path} {epsilon:g} --because WORDS"
            )
        if epsilon != kept:
            self._db.execute(
                "INSERT INTO allowed (epsilon, because, at) VALUES (?, ?, ?)", (epsilon, because.strip(), time.time())
            )


def distinct(digests: NumpyArray) -> NumpyArray:
    """Every digest once, sorted: several times as fast as `np.unique`."""
    ordered = np.sort(digests.astype("<u8", copy=False))
    kept: NumpyArray = ordered[np.append(np.ones(min(1, len(ordered)), bool), ordered[1:] != ordered[:-1])]
    return kept


def _packed(digests: NumpyArray) -> bytes:
    return distinct(digests).tobytes()


def set_name(digests: NumpyArray) -> str:
    """The name a set of digests is kept under."""
    return hashlib.sha256(_packed(digests)).hexdigest()


def _cost_to_json(cost: Cost) -> JsonObject:
    document = dataclasses.asdict(dataclasses.replace(cost, event=None))
    document["epsilon"] = "inf" if math.isinf(cost.epsilon) else cost.epsilon
    document["event"] = None if cost.event is None else events.to_json(cost.event)
    return document


def _cost_from_json(document: JsonObject) -> Cost:
    event = document["event"]
    return Cost(
        **{
            **document,
            "epsilon": float(document["epsilon"]),
            "event": None if event is None else events.from_json(event),
        }
    )
