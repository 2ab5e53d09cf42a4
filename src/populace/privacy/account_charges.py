"""What a ledger's file holds about some accounts, read at once: ten thousand of them take a few queries, not a few each.

Guarantee: about every account the same rows decide as if it were read alone: its own, and those of the names that are linked
to it. `book` counts a charge before its entry is written, so that two charges of one account in one batch see each other.
Edge cases: what is read is as old as its transaction; what decides about a charge is read in the transaction that books it.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from populace.errors import BudgetError
from populace.privacy import events
from populace.privacy.events import Event
from populace.privacy.ledger import Budget, Charge, check_unit, composed, overspending
from populace.privacy.ledger_file import event_of

T = TypeVar("T")
AT_ONCE = 400  # accounts of a query, with a question each: below the 999 values that every SQLite takes

Counts = dict[tuple[str, str], int]  # charges by unit and event


class RunLimitError(BudgetError):
    """What is asked would exceed the guarantee of the run it is asked in."""


class RepeatedQuestionError(BudgetError):
    """An account has answered this question in another round of the same run."""


class AccountCharges:
    """The charges of some accounts, in all and in one run, and their answers to some questions of it."""

    def __init__(
        self,
        db: sqlite3.Connection,
        budget: Budget,
        accounts: Sequence[str],
        *,
        run: str | None = None,
        round_id: int | None = None,
        questions: Sequence[str] = (),
    ) -> None:
        self.budget, self.run, self.round_id = budget, run, round_id
        self._all: dict[str, Counts] = {account: {} for account in accounts}
        self._in_run: dict[str, Counts] = {account: {} for account in accounts}
        self._answers: dict[str, list[tuple[int, str, bytes]]] = {account: [] for account in accounts}
        self._overspending: dict[object, str | None] = {}  # what was found about equal charges
        self._names = names_of(db, list(self._all))
        self._owners: dict[str, list[str]] = {}
        for account, names in self._names.items():
            for name in names:
                self._owners.setdefault(name, []).append(account)
        self._read_charges(db)
        if run is not None and round_id is not None:
            self._read_answers(db, dict.fromkeys(zip(accounts, questions, strict=True)))

    def _read_charges(self, db: sqlite3.Connection) -> None:
        for names in in_parts(list(self._owners)):
            rows = db.execute(
                "SELECT account, run = ?, unit, event, COUNT(*) FROM entry "  # noqa: S608 - question marks alone
                f"WHERE account IN ({marks(names)}) GROUP BY 1, 2, 3, 4",
                (self.run, *names),
            )
            for name, in_run, unit, event, count in rows:
                self._count(name, unit, event, count, in_run=bool(in_run))

    def _read_answers(self, db: sqlite3.Connection, asked: Iterable[tuple[str, str]]) -> None:
        """The answers that were given in this round, or to the question that the account is asked."""
        pairs = [(name, question) for account, question in asked for name in self._names[account]]
        for part in in_parts(pairs):
            rows = db.execute(
                f"WITH asked (name, question) AS (VALUES {', '.join(['(?, ?)'] * len(part))}) "  # noqa: S608 - marks alone
                "SELECT name, round, entry.question, reply FROM asked CROSS JOIN entry "
                "ON entry.account = name AND run = ? AND (round = ? OR entry.question = asked.question)",
                (*itertools.chain.from_iterable(part), self.run, self.round_id),
            )
            for name, *answer in rows:
                for owner in self._owners[name]:
                    self._answers[owner].append(tuple(answer))

    def _count(self, name: str, unit: str, event: str, count: int, *, in_run: bool) -> None:
        for owner in self._owners[name]:
            for kept in (self._all, self._in_run) if in_run else (self._all,):
                counts = kept[owner]
                counts[unit, event] = counts.get((unit, event), 0) + count

    def stored(self, account: str, question: str) -> bytes | None:
        """The reply already given to this question in this round, or None.

        Refuses the same round with another question, and the same question in another round: a fresh reply to it would be a
        second release.
        """
        given = [answer for answer in self._answers[account] if answer[0] == self.round_id or answer[1] == question]
        for at, kept, reply in given:
            if at == self.round_id and kept == question:
                return bytes(reply)
            if at == self.round_id:
                raise BudgetError(
                    f"account {account!r} has answered another question in round {self.round_id} of run {self.run!r}; a round "
                    "is asked once"
                )
        if given:
            raise RepeatedQuestionError(
                f"account {account!r} has answered this very question in round {min(given)[0]} of run {self.run!r}, and round "
                f"{self.round_id} asks it again; a fresh answer would be a second release"
            )
        return None

    def entries(self, account: str) -> int:
        """How many charges an account has: in the run, where there is one, otherwise in all."""
        return sum((self._all if self.run is None else self._in_run)[account].values())

    def check(self, account: str, charge: Charge) -> None:
        """Raise BudgetError if one more such charge would overspend."""
        check_unit(charge, self.budget)
        self._check(self._all[account], account, charge, self.budget, words="")

    def check_run(self, account: str, charge: Charge, *, limit: Budget) -> None:
        """Raise RunLimitError if one more such charge would take more in the run than `limit`, what the run guarantees."""
        try:
            check_unit(charge, limit)
            words = f" in run {self.run!r}, by the run's own guarantee,"
            self._check(self._in_run[account], account, charge, limit, words=words)
        except BudgetError as error:
            raise RunLimitError(str(error)) from error

    def _check(self, counts: Counts, account: str, charge: Charge, limit: Budget, *, words: str) -> None:
        key = (limit, charge.event, tuple(sorted(counts.items())))
        if key not in self._overspending:
            self._overspending[key] = overspending(_with(self._spent(counts, account), charge), limit)
        if (sentence := self._overspending[key]) is not None:
            raise BudgetError(f"account {account!r}{words} {sentence}")

    def spent(self, account: str) -> Event | None:
        """All that an account was charged, as one event; None for nothing."""
        return composed(self._spent(self._all[account], account))

    def _spent(self, counts: Counts, account: str) -> list[tuple[Event, int]]:
        """The events of an account. Charges of different units are never added: refused."""
        if other := {unit for unit, _ in counts} - {self.budget.unit}:
            raise BudgetError(
                f"account {account!r} holds charges per {' and '.join(sorted(other))}, which do not add up to anything per "
                f"{self.budget.unit}; nothing more is released about it"
            )
        return [(event_of(text), count) for (_, text), count in sorted(counts.items())]

    def book(self, account: str, charge: Charge, *, event: str, question: str, reply: bytes) -> None:
        """Count a charge, and the answer it paid for, whose entry is about to be written; `event` is its text there."""
        self._count(account, charge.unit, event, 1, in_run=True)
        if self.round_id is not None:
            for owner in self._owners[account]:
                self._answers[owner].append((self.round_id, question, reply))


def read_memories(db: sqlite3.Connection, accounts: Sequence[str], *, run: str) -> dict[str, bytes]:
    """What the clients of these accounts keep at home in a run; an account that keeps nothing is left out."""
    named = [(account, name) for account, names in names_of(db, accounts).items() for name in names]
    kept: dict[str, bytes] = {}
    for part in in_parts([name for _, name in named]):
        rows = db.execute(
            f"SELECT account, content FROM memory WHERE account IN ({marks(part)}) AND run = ?",  # noqa: S608
            (*part, run),
        )
        kept |= {name: bytes(content) for name, content in rows}
    found: dict[str, bytes] = {}
    for account, name in sorted(named):
        if name in kept:
            found.setdefault(account, kept[name])
    return found


def names_of(db: sqlite3.Connection, accounts: Sequence[str]) -> dict[str, list[str]]:
    """The names under which charges count on each of these accounts: its own, and those that are linked to it."""
    names = {account: [account] for account in accounts}
    for part in in_parts(accounts):
        rows = db.execute(f"SELECT account, name FROM alias WHERE account IN ({marks(part)})", part)  # noqa: S608
        for account, name in rows:
            if name != account:
                names[account].append(name)
    return names


def in_parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """As many values as one query takes, again and again."""
    return (values[start : start + AT_ONCE] for start in range(0, len(values), AT_ONCE))


def marks(values: Sequence[object]) -> str:
    """A question mark for each value."""
    return ", ".join("?" * len(values))


def _with(spent: list[tuple[Event, int]], charge: Charge) -> Event | None:
    """What was spent and one charge more, as one event; the same charges give the same event, in whatever order they came."""
    merged: dict[Event, int] = {}
    for event, count in [*spent, (charge.event, 1)]:
        merged[event] = merged.get(event, 0) + count
    parts = list(merged.items())
    if len(parts) > 1:
        parts.sort(key=lambda each: json.dumps(events.to_json(each[0]), sort_keys=True))
    return composed(parts)
