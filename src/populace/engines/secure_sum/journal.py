"""What a site keeps of its secure sums: each step once, with the request it answered, the reply, and its secrets after it.

Guarantee: what `keep` returned from is kept, and a step of a round is kept once; a second one, in whatever process, is an
error. In SQLite that is a primary key and triggers that refuse every change; secrets are in a table of their own, from which
they are removed when their sum is over.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import sqlite3

from populace.engines.secure_sum.messages import STEPS, SecureSumError, Step
from populace.privacy.ledger_file import transaction

SCHEMA = """
CREATE TABLE IF NOT EXISTS sum_step (
    run TEXT NOT NULL, round INTEGER NOT NULL, step TEXT NOT NULL,
    context TEXT NOT NULL, request TEXT NOT NULL, reply BLOB NOT NULL,
    PRIMARY KEY (run, round, step)
);
CREATE TABLE IF NOT EXISTS sum_secret (
    run TEXT NOT NULL, round INTEGER NOT NULL, step TEXT NOT NULL, kept BLOB NOT NULL, PRIMARY KEY (run, round, step)
);
CREATE TRIGGER IF NOT EXISTS sum_step_never_replaced BEFORE INSERT ON sum_step
    WHEN EXISTS (SELECT 1 FROM sum_step WHERE run = NEW.run AND round = NEW.round AND step = NEW.step)
    BEGIN SELECT RAISE(ABORT, 'a step of a secure sum is taken once'); END;
CREATE TRIGGER IF NOT EXISTS sum_step_never_changes BEFORE UPDATE ON sum_step
    BEGIN SELECT RAISE(ABORT, 'a step of a secure sum is taken once'); END;
CREATE TRIGGER IF NOT EXISTS sum_secret_never_changes BEFORE UPDATE ON sum_secret
    BEGIN SELECT RAISE(ABORT, 'a step of a secure sum is taken once'); END;
CREATE TRIGGER IF NOT EXISTS sum_step_never_leaves BEFORE DELETE ON sum_step
    BEGIN SELECT RAISE(ABORT, 'a step of a secure sum is taken once'); END;
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taken:
    """One step that was taken: of which sum (`context`), in answer to which request (a digest), with which reply.

    `kept` are the site's secrets after it; empty once the sum is over.
    """

    step: Step
    context: str
    request: str
    reply: bytes
    kept: bytes


class Journal(abc.ABC):
    """The steps of one site, by run and round."""

    @abc.abstractmethod
    def taken(self, run: str, round_id: int, step: Step) -> Taken | None:
        """A step that was taken, or None."""

    @abc.abstractmethod
    def kept(self, run: str, round_id: int, step: Step) -> bytes:
        """The secrets that a site kept in a step; empty where it was not taken, or its sum is over."""

    @abc.abstractmethod
    def keep(self, run: str, round_id: int, taken: Taken) -> None:
        """Keep a step, before anything of it is sent; raises SecureSumError where it was taken before.

        With the last step the secrets of its sum are forgotten; requests and replies stay.
        """


class MemoryJournal(Journal):
    """A journal for rehearsals in one process: nothing survives it."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, int, str], Taken] = {}

    def taken(self, run: str, round_id: int, step: Step) -> Taken | None:
        return self._taken.get((run, round_id, step))

    def kept(self, run: str, round_id: int, step: Step) -> bytes:
        taken = self.taken(run, round_id, step)
        return b"" if taken is None else taken.kept

    def keep(self, run: str, round_id: int, taken: Taken) -> None:
        if self._taken.setdefault((run, round_id, taken.step), taken) is not taken:
            raise SecureSumError(f"step {taken.step!r} of round {round_id} of run {run!r} was taken before")
        if taken.step == STEPS[-1]:
            for place, one in self._taken.items():
                if place[:2] == (run, round_id):
                    self._taken[place] = dataclasses.replace(one, kept=b"")


class SqliteJournal(Journal):
    """A journal in a site's own ledger file, over a connection that its ledger opened (`SqliteLedger.connection`).

    Guarantee: a process killed at any moment leaves a step or nothing of it. Inside a transaction of the caller's, such as the
    one that books the charge, the step is kept with it or not at all.
    Edge cases: a copy of the file that is put back between two steps has forgotten the later one; the ledger's head notices
    that for the step `mask`, which is charged, and not for `confirm`.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        if self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sum_step_never_leaves'").fetchone() is None:
            self._db.executescript(SCHEMA)
        self._db.execute("PRAGMA secure_delete=ON")

    def taken(self, run: str, round_id: int, step: Step) -> Taken | None:
        row = self._db.execute(
            "SELECT context, request, reply, kept FROM sum_step LEFT JOIN sum_secret USING (run, round, step) "
            "WHERE run = ? AND round = ? AND step = ?",
            (run, round_id, step),
        ).fetchone()
        if row is None:
            return None
        return Taken(step=step, context=row[0], request=row[1], reply=bytes(row[2]), kept=bytes(row[3] or b""))

    def kept(self, run: str, round_id: int, step: Step) -> bytes:
        row = self._db.execute(
            "SELECT kept FROM sum_secret WHERE run = ? AND round = ? AND step = ?", (run, round_id, step)
        ).fetchone()
        return b"" if row is None else bytes(row[0])

    def keep(self, run: str, round_id: int, taken: Taken) -> None:
        place = (run, round_id, taken.step)
        with self._transaction():
            try:
                row = (*place, taken.context, taken.request, taken.reply)
                self._db.execute("INSERT INTO sum_step VALUES (?, ?, ?, ?, ?, ?)", row)
            except sqlite3.IntegrityError as error:
                raise SecureSumError(
                    f"step {taken.step!r} of round {round_id} of run {run!r} was taken before"
                ) from error
            if taken.step == STEPS[-1]:
                self._db.execute("DELETE FROM sum_secret WHERE run = ? AND round = ?", (run, round_id))
            else:
                self._db.execute("INSERT OR REPLACE INTO sum_secret VALUES (?, ?, ?, ?)", (*place, taken.kept))

    def _transaction(self) -> contextlib.AbstractContextManager[None]:
        """One of our own, unless the caller has one open."""
        return contextlib.nullcontext() if self._db.in_transaction else transaction(self._db)
