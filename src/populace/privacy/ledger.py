"""Who has had how much released about them. Nothing else spends, and nothing is spent twice.

A ledger is append-only and refuses *before* the release what would overspend. `MemoryLedger` serves simulations (millions
of accounts, counts per event); `SqliteLedger` lives with the client, survives a crash, and also keeps the reply it paid for,
so that a repeated question gets the stored answer and never a fresh randomisation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from populace.errors import BudgetError, RunError
from populace.privacy import events
from populace.privacy.accounting import epsilon_of
from populace.privacy.events import Event
from populace.privacy.guarantee import Unit

Array = np.ndarray[Any, Any]
MOST_AHEAD = 2**16  # charges looked ahead
COARSE = 1e-3  # discretisation of the privacy loss that is tried first


@dataclasses.dataclass(frozen=True, kw_only=True)
class Charge:
    """What ONE reply costs ONE account: the mechanism's own event, and whom it protects."""

    event: Event
    unit: Unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that may be released about one unit. Infinite for runs that claim nothing."""

    epsilon: float
    delta: float = 0.0
    unit: Unit = "client"


def composed(spent: Sequence[tuple[Event, int]]) -> Event | None:
    """All events of an account as one, or None for an untouched account."""
    parts = tuple(_repeated(event, count) for event, count in spent if count > 0)
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else events.Composed(parts)


def _repeated(event: Event, count: int) -> Event:
    """`count` times; what is itself a repetition becomes one longer one, so that it is computed in one way only."""
    if isinstance(event, events.Repeated):
        return events.Repeated(event.event, event.count * count)
    return event if count == 1 else events.Repeated(event, count)


def check_affordable(event: Event | None, budget: Budget, *, who: str) -> None:
    """Raise BudgetError if this total would pass the budget. The comparison is exact up to rounding of sums."""
    if event is None or math.isinf(budget.epsilon):
        return
    if not events.is_pure(event) and epsilon_of(event, delta=budget.delta, interval=COARSE) <= budget.epsilon:
        return  # the coarse answer is never optimistic, and much faster
    total = epsilon_of(event, delta=budget.delta)
    if total > budget.epsilon * (1 + 1e-12):
        raise BudgetError(
            f"{who} would have spent epsilon {total:.6g} of {budget.epsilon:g} (delta {budget.delta:g}, per "
            f"{budget.unit}); the release is refused and nothing left"
        )


def check_unit(charge: Charge, budget: Budget) -> None:
    if charge.unit != budget.unit:
        raise BudgetError(
            f"a charge per {charge.unit} cannot be booked on a budget per {budget.unit}; keep two ledgers"
        )


class MemoryLedger:
    """Accounts of simulated clients: for each distinct event, how often each client was charged with it."""

    def __init__(self, budget: Budget, *, clients: int) -> None:
        self.budget = budget
        self.clients = clients
        self._kinds: list[Event] = []
        self._counts: list[Array] = []
        self._entries: list[tuple[int, int, int]] = []
        self._afforded: list[Array] = []  # counts of each kind that were found to be within the budget

    @property
    def entries(self) -> tuple[tuple[int, int, int], ...]:
        """What was booked, in order: (round, number of clients, which event)."""
        return tuple(self._entries)

    def book(self, cohort: Array, charge: Charge, *, round_id: int) -> None:
        """Charge every client of the cohort once, or none of them. Raises before anything is released."""
        check_unit(charge, self.budget)
        cohort = np.asarray(cohort)
        if len(np.unique(cohort)) != len(cohort):
            raise BudgetError(f"round {round_id} asks a client twice; a client is asked once a round")
        kind = self._kind(charge.event)
        after = np.stack([counts[cohort] for counts in self._counts])
        after[kind] += 1
        for spent in np.unique(after, axis=1).T:
            self._check(spent, kind, who=f"a client asked in round {round_id}")
        self._counts[kind][cohort] += 1
        self._entries.append((round_id, len(cohort), kind))

    def _check(self, spent: Array, kind: int, *, who: str) -> None:
        """Raise if these counts pass the budget. What is affordable is kept, as far ahead as it goes: accounting is slow."""
        if any((spent <= known).all() for known in self._afforded):
            return
        self._check_counts(spent, who)
        most = spent.copy()
        step = 1
        while most[kind] < MOST_AHEAD and self._affordable(most, kind, step):
            most[kind] += step
            step *= 2
        while step > 1:
            step //= 2
            if self._affordable(most, kind, step):
                most[kind] += step
        self._afforded.append(most)

    def _affordable(self, counts: Array, kind: int, more: int) -> bool:
        counts = counts.copy()
        counts[kind] += more
        try:
            self._check_counts(counts, "")
        except BudgetError:
            return False
        return True

    def _check_counts(self, counts: Array, who: str) -> None:
        check_affordable(composed(list(zip(self._kinds, counts.tolist(), strict=True))), self.budget, who=who)

    def _kind(self, event: Event) -> int:
        if event not in self._kinds:
            self._kinds.append(event)
            self._counts.append(np.zeros(self.clients, np.int32))
            self._afforded = [np.append(known, 0) for known in self._afforded]
        return self._kinds.index(event)

    def spent(self, clients: slice = slice(None)) -> dict[str, Any]:
        """Epsilon of the account that spent most, and how many accounts were charged; of all clients, or of some."""
        if not self._kinds:
            return {"epsilon": 0.0, "delta": self.budget.delta, "accounts_charged": 0, "charges": 0}
        counts = np.stack(self._counts)[:, clients]
        totals = [composed(list(zip(self._kinds, row.tolist(), strict=True))) for row in np.unique(counts, axis=1).T]
        worst = max((epsilon_of(total, delta=self.budget.delta) for total in totals if total is not None), default=0.0)
        return {
            "epsilon": worst,
            "delta": self.budget.delta,
            "accounts_charged": int((counts.sum(axis=0) > 0).sum()),
            "charges": int(counts.sum()),
        }

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Arrays and a JSON document from which `restore` makes the same ledger."""
        arrays = {f"ledger_counts_{i}": counts for i, counts in enumerate(self._counts)}
        return arrays, {"kinds": [events.to_json(kind) for kind in self._kinds], "entries": self._entries}

    def restore(self, arrays: dict[str, Array], document: dict[str, Any]) -> None:
        self._kinds = [events.from_json(kind) for kind in document["kinds"]]
        self._counts = [np.array(arrays[f"ledger_counts_{i}"]) for i in range(len(self._kinds))]
        self._entries = [(int(a), int(b), int(c)) for a, b, c in document["entries"]]
        self._afforded = []


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
CREATE TABLE IF NOT EXISTS budget (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), epsilon REAL, delta REAL, unit TEXT);
CREATE TRIGGER IF NOT EXISTS entry_never_replaced BEFORE INSERT ON entry
    WHEN EXISTS (SELECT 1 FROM entry WHERE id = NEW.id OR (account = NEW.account AND run = NEW.run AND round = NEW.round))
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER IF NOT EXISTS entry_never_changes BEFORE UPDATE ON entry
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER IF NOT EXISTS entry_never_leaves BEFORE DELETE ON entry
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""


def kept_budget(path: str | Path) -> Budget | None:
    """The budget a ledger was begun with, or None where none was begun; changes nothing."""
    if not Path(path).is_file():
        return None
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=30.0)) as db:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'budget'").fetchone() is None:
                return None
            row = db.execute("SELECT epsilon, delta, unit FROM budget").fetchone()
    except sqlite3.Error as error:
        raise RunError(f"cannot open the ledger {path}: {error}") from error
    return None if row is None else Budget(epsilon=row[0], delta=row[1], unit=row[2])


class SqliteLedger:
    """The ledger a client keeps at home: one account per hosted client, charge, memory and reply in one transaction.

    Guarantee: after `commit` returns the charge is on disk (WAL, synchronous=FULL); a process killed at any moment leaves
    either all of a commit or none of it.
    Edge cases: the same (account, run, round) with the same question returns the stored reply through `stored`; with another
    question it is refused. The file is readable by its owner alone. The budget is kept in it: reopening with another one is
    refused, unless `raise_budget` says that its owner means it. Without `create`, a ledger that is gone is refused: begun
    anew, it would have forgotten what was spent.
    """

    def __init__(self, path: str | Path, budget: Budget, *, create: bool = True, raise_budget: bool = False) -> None:
        self.budget = budget
        self.path = Path(path)
        if not create and kept_budget(self.path) is None:
            raise RunError(
                f"the ledger {path} is gone, and with it what was spent; put it back, nothing is answered without"
            )
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=30.0)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(SCHEMA)
            kept = self._db.execute("SELECT epsilon, delta, unit FROM budget").fetchone()
        except (OSError, sqlite3.Error) as error:
            raise RunError(f"cannot open the ledger {path}: {error}") from error
        self._keep_budget(kept, raise_budget=raise_budget)

    def _keep_budget(self, kept: tuple[float, float, str] | None, *, raise_budget: bool) -> None:
        wanted = (float(self.budget.epsilon), float(self.budget.delta), self.budget.unit)
        if kept == wanted:
            return
        if kept is not None and not raise_budget:
            self.close()
            raise BudgetError(
                f"the ledger {self.path} keeps a budget of epsilon {kept[0]:g}, delta {kept[1]:g} per {kept[2]}, not epsilon "
                f"{wanted[0]:g}, delta {wanted[1]:g} per {wanted[2]}; its owner may change it, nobody else"
            )
        self._db.execute("INSERT OR REPLACE INTO budget VALUES (1, ?, ?, ?)", wanted)

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> SqliteLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def stored(self, account: str, *, run: str, round_id: int, question: str) -> bytes | None:
        """The reply already given to this question, or None. Refuses the same round with another question."""
        row = self._db.execute(
            "SELECT question, reply FROM entry WHERE account = ? AND run = ? AND round = ?", (account, run, round_id)
        ).fetchone()
        if row is None:
            return None
        if row[0] != question:
            raise BudgetError(
                f"account {account!r} has answered another question in round {round_id} of run {run!r}; a round is asked once"
            )
        return bytes(row[1])

    def check(self, account: str, charge: Charge) -> None:
        """Raise BudgetError if one more such charge would overspend."""
        check_unit(charge, self.budget)
        spent = [*self._spent(account), (charge.event, 1)]
        merged: dict[Event, int] = {}
        for event, count in spent:
            merged[event] = merged.get(event, 0) + count
        check_affordable(composed(list(merged.items())), self.budget, who=f"account {account!r}")

    def commit(
        self,
        account: str,
        charge: Charge,
        *,
        run: str,
        round_id: int,
        question: str,
        reply: bytes,
        memory: bytes | None = None,
    ) -> None:
        """Book the charge, keep the reply and the client's memory, in one transaction; only then may the reply leave."""
        self.commit_many([(account, question, reply, memory)], charge, run=run, round_id=round_id)

    def commit_many(
        self,
        replies: Sequence[tuple[str, str, bytes, bytes | None]],
        charge: Charge,
        *,
        run: str,
        round_id: int,
    ) -> None:
        """All of a site's hosted clients at once: (account, question, reply, memory) each; all are booked or none."""
        event = json.dumps(events.to_json(charge.event), sort_keys=True)
        try:
            with self._transaction():
                for account, question, reply, memory in replies:
                    if self.stored(account, run=run, round_id=round_id, question=question) is not None:
                        raise BudgetError(f"account {account!r} has answered round {round_id} of run {run!r} already")
                    self.check(account, charge)
                    self._db.execute(
                        "INSERT INTO entry (account, run, round, question, unit, event, reply, at) "
                        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                        (account, run, round_id, question, charge.unit, event, reply, time.time()),
                    )
                    if memory is not None:
                        self._db.execute("INSERT OR REPLACE INTO memory VALUES (?, ?, ?)", (account, run, memory))
        except sqlite3.Error as error:
            raise RunError(f"cannot write the ledger {self.path}: {error}; nothing was released") from error

    def keep_terms(self, run: str, content: str) -> None:
        """The terms of a run as its first request named them; any later request of that run must name the same."""
        self._db.execute("INSERT OR IGNORE INTO terms VALUES (?, ?)", (run, content))
        (kept,) = self._db.execute("SELECT content FROM terms WHERE run = ?", (run,)).fetchone()
        if kept != content:
            raise BudgetError(f"run {run!r} was begun under other terms; terms do not change within a run")

    def memory(self, account: str, *, run: str) -> bytes | None:
        row = self._db.execute("SELECT content FROM memory WHERE account = ? AND run = ?", (account, run)).fetchone()
        return None if row is None else bytes(row[0])

    def _spent(self, account: str) -> list[tuple[Event, int]]:
        rows = self._db.execute("SELECT event, COUNT(*) FROM entry WHERE account = ? GROUP BY event", (account,))
        return [(events.from_json(json.loads(text)), count) for text, count in rows]

    def spent(self, account: str) -> float:
        """Epsilon spent by one account at the budget's delta."""
        total = composed(self._spent(account))
        return 0.0 if total is None else epsilon_of(total, delta=self.budget.delta)

    def summary(self) -> dict[str, Any]:
        """Of all accounts: how many were charged, the most one has spent, and the charges of each run."""
        totals: dict[tuple[tuple[str, int], ...], int] = {}
        spent: dict[str, list[tuple[str, int]]] = {}
        for account, event, count in self._db.execute(
            "SELECT account, event, COUNT(*) FROM entry GROUP BY account, event ORDER BY event"
        ):
            spent.setdefault(account, []).append((event, count))
        for events_of in spent.values():
            totals[tuple(events_of)] = totals.get(tuple(events_of), 0) + 1
        epsilons = [
            epsilon_of(total, delta=self.budget.delta)
            for kinds in totals
            if (total := composed([(events.from_json(json.loads(text)), count) for text, count in kinds])) is not None
        ]
        runs = self._db.execute(
            "SELECT run, COUNT(DISTINCT round), COUNT(DISTINCT account), COUNT(*), MIN(at), MAX(at) FROM entry GROUP BY run "
            "ORDER BY MIN(id)"
        )
        names = ("run", "rounds", "accounts", "charges", "first", "last")
        return {
            "accounts_charged": len(spent),
            "epsilon_of_the_account_that_spent_most": max(epsilons, default=0.0),
            "charges": sum(count for events_of in spent.values() for _, count in events_of),
            "runs": [dict(zip(names, row, strict=True)) for row in runs],
        }

    def accounts(self) -> list[str]:
        return [row[0] for row in self._db.execute("SELECT DISTINCT account FROM entry ORDER BY account")]

    def entries(self, account: str, *, run: str | None = None) -> int:
        """How many charges an account has, in all or in one run."""
        row = self._db.execute(
            "SELECT COUNT(*) FROM entry WHERE account = ? AND (? IS NULL OR run = ?)", (account, run, run)
        ).fetchone()
        return int(row[0])
