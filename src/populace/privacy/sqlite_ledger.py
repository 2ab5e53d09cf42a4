"""The ledger that lives with the records: a file that survives a crash, and keeps the replies it paid for.

One account per hosted client. A repeated question gets the stored reply and never a fresh randomisation; a run begins with
its terms and the secret numbers of the clients, kept here so that every process and every restart uses the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from populace.errors import BudgetError, RunError
from populace.privacy import events
from populace.privacy.account_charges import AccountCharges, read_memories
from populace.privacy.account_charges import RepeatedQuestionError as RepeatedQuestionError
from populace.privacy.account_charges import RunLimitError as RunLimitError
from populace.privacy.accounting import epsilon_of
from populace.privacy.guarantee import Unit
from populace.privacy.ledger import Budget, Charge, composed
from populace.privacy.ledger_file import DATABASE_ERRORS, event_of, keep_head, last_of, link, open_file, transaction
from populace.privacy.ledger_file import LAYOUT as LAYOUT
from populace.privacy.ledger_file import RolledBackError as RolledBackError
from populace.privacy.ledger_file import kept_budget as kept_budget
from populace.privacy.relation import UNKNOWN, Relation, assumed, check_same_relation
from populace.types import JsonObject


class OldRunError(RunError):
    """A run that was begun under version 0.1.0, which kept less about it than is needed to go on."""


class OvertakenError(RunError):
    """Another process wrote to the ledger between looking and booking; nothing was booked, look again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Begun:
    """What a run was begun with: what its requests must name, a digest of the accounts it is about, and its numbering.

    `numbers` holds, for each number a request may name, the place of the account it stands for: 32-bit whole numbers, least
    byte first. Empty: numbers are places.
    """

    terms: str
    accounts: str
    numbers: bytes = b""


def check_same_unit(kept: Budget, wanted: Budget, *, path: str | Path) -> None:
    """Raise BudgetError where a ledger that holds charges would count in another unit from now on."""
    if kept.unit != wanted.unit:
        raise BudgetError(
            f"the ledger {path} holds charges per {kept.unit}, which do not add up to anything per {wanted.unit}: its unit "
            "does not change any more. Keep what is charged otherwise in a folder of its own, and split the limit between them"
        )


class SqliteLedger:
    """The ledger kept with the records: one account per hosted client; charge, memory and reply in one transaction.

    Guarantee: after `commit` returns the charge is on disk, in this one file (no write-ahead log, synchronous=EXTRA), and how
    far it is stands in `NAME.head` beside it: an older copy put back under it is refused. A process killed at any moment
    leaves either all of a commit or none of it. A ledger holds charges of one relation: `replace` and `zero-out`, and what the
    coordinator sees with or without noise, are never added. All that decides about a charge is read in the transaction that
    books it, so that processes side by side never spend more together than one of them could.
    Edge cases: the same (account, run, round) with the same question returns the stored reply through `stored`; with another
    question it is refused, and so is the same question in another round of the run. The file is readable by its owner alone.
    The budget is kept in it: reopening with another one is refused, unless `raise_budget` says that its owner means it; its
    unit changes only while nothing is booked. Charges of another unit than the budget's are never added: an account that has
    any spends nothing more. Without `create`, a ledger that is gone is refused: begun anew, it would have forgotten what was
    spent. A ledger of 0.1.0 is opened with all its entries; one of a later layout than this one is refused.
    """

    def __init__(
        self,
        path: str | Path,
        budget: Budget,
        *,
        create: bool = True,
        raise_budget: bool = False,
        restored: bool = False,
    ) -> None:
        self.budget = budget
        self.path = Path(path)
        if not create and kept_budget(self.path) is None:
            raise RunError(
                f"the ledger {path} is gone, and with it what was spent; put it back, nothing is answered without"
            )
        try:
            self._db = self.connection = open_file(self.path, restored=restored)  # also for what is kept beside
            kept = self._db.execute("SELECT epsilon, delta, unit FROM budget").fetchone()
        except (OSError, *DATABASE_ERRORS) as error:
            raise RunError(f"cannot open the ledger {path}: {error}") from error
        self._keep_budget(kept, raise_budget=raise_budget)

    def _keep_budget(self, kept: tuple[float, float, Unit] | None, *, raise_budget: bool) -> None:
        """Write the budget, or refuse one that differs from the budget kept."""
        wanted = (float(self.budget.epsilon), float(self.budget.delta), self.budget.unit)
        if kept == wanted:
            return
        try:
            if kept is not None and not raise_budget:
                raise BudgetError(
                    f"the ledger {self.path} keeps a budget of epsilon {kept[0]:g}, delta {kept[1]:g} per {kept[2]}, not "
                    f"epsilon {wanted[0]:g}, delta {wanted[1]:g} per {wanted[2]}; its owner may change it, nobody else"
                )
            with self._transaction():
                if kept is not None and self._db.execute("SELECT 1 FROM entry LIMIT 1").fetchone() is not None:
                    before = Budget(epsilon=kept[0], delta=kept[1], unit=kept[2])
                    check_same_unit(before, self.budget, path=self.path)
                self._db.execute("INSERT OR REPLACE INTO budget VALUES (1, ?, ?, ?)", wanted)
        except BudgetError:
            self.close()
            raise

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> SqliteLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _transaction(self) -> contextlib.AbstractContextManager[None]:
        return transaction(self._db)

    def read(
        self,
        accounts: Sequence[str],
        *,
        run: str | None = None,
        round_id: int | None = None,
        questions: Sequence[str] = (),
    ) -> AccountCharges:
        """What the ledger holds about these accounts now; with a round and a question each, also what they answered."""
        return AccountCharges(self._db, self.budget, accounts, run=run, round_id=round_id, questions=questions)

    def stored(self, account: str, *, run: str, round_id: int, question: str) -> bytes | None:
        """The reply already given to this question, or None; refuses what `AccountCharges.stored` does."""
        return self.read([account], run=run, round_id=round_id, questions=[question]).stored(account, question)

    def check(self, account: str, charge: Charge) -> None:
        """Raise BudgetError if one more such charge would overspend."""
        self.read([account]).check(account, charge)

    def check_run(self, account: str, charge: Charge, *, run: str, limit: Budget) -> None:
        """Raise RunLimitError if one more such charge would take more in this run than `limit`, what the run guarantees."""
        self.read([account], run=run).check_run(account, charge, limit=limit)

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
        limit: Budget | None = None,
        before: Sequence[int] | None = None,
        relation: Relation | None = None,
        beside: Callable[[], None] | None = None,
    ) -> None:
        """All of a site's hosted clients at once: (account, question, reply, memory) each; all are booked or none.

        `limit` is what the run guarantees. `before` says how many charges each account had in the run when its reply was made:
        where another process has booked since, OvertakenError. `relation` is that of the run's guarantee; where it is not
        given, it is taken from the event. `beside` writes more, in the same transaction. How far the ledger is stands beside it
        before this returns.
        """
        if not replies:
            return
        try:
            with self._transaction():
                self._keep_relation(relation, charge)
                self._db.executemany(
                    "INSERT INTO entry (account, run, round, question, unit, event, neighbours, trust, reply, at, chain) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    self._checked_rows(
                        replies, charge, relation, run=run, round_id=round_id, limit=limit, before=before
                    ),
                )
                kept = [(account, run, memory) for account, _, _, memory in replies if memory is not None]
                self._db.executemany("INSERT OR REPLACE INTO memory VALUES (?, ?, ?)", kept)
                if beside is not None:
                    beside()
            self.keep_head()
        except DATABASE_ERRORS as error:
            raise RunError(f"cannot write the ledger {self.path}: {error}; nothing was released") from error

    def _checked_rows(
        self,
        replies: Sequence[tuple[str, str, bytes, bytes | None]],
        charge: Charge,
        relation: Relation | None,
        *,
        run: str,
        round_id: int,
        limit: Budget | None,
        before: Sequence[int] | None,
    ) -> list[tuple[object, ...]]:
        """The entries of a commit, each checked after all before it were counted, and linked to the one before it."""
        event = json.dumps(events.to_json(charge.event), sort_keys=True)
        under = (None, None) if relation is None else (relation.neighbours, relation.trust)
        accounts, questions, _, _ = zip(*replies, strict=True)
        charges = self.read(accounts, run=run, round_id=round_id, questions=questions)
        chain = last_of(self._db).chain
        rows = []
        for number, (account, question, reply, _) in enumerate(replies):
            if before is not None and charges.entries(account) != before[number]:
                raise OvertakenError(f"account {account!r} was charged by another process in the meantime")
            if charges.stored(account, question) is not None:
                raise BudgetError(f"account {account!r} has answered round {round_id} of run {run!r} already")
            charges.check(account, charge)
            if limit is not None:
                charges.check_run(account, charge, limit=limit)
            charges.book(account, charge, event=event, question=question, reply=reply)
            row = (account, run, round_id, question, charge.unit, event, *under, reply, time.time())
            chain = link(chain, row)
            rows.append((*row, chain))
        return rows

    def keep_head(self) -> None:
        """Write down beside the ledger how far it is; a reply, also a stored one, may leave only after this."""
        keep_head(self._db, self.path)

    @property
    def last(self) -> int:
        """The number of the last entry, 0 for none."""
        return last_of(self._db).last

    def relation(self) -> Relation | None:
        """Between which data sets, and against whom, the charges of this ledger bound the loss; None while it has none."""
        row = self._db.execute("SELECT neighbours, trust FROM relation").fetchone()
        if row is not None:
            return Relation(neighbours=row[0], trust=row[1])
        old = {assumed(event_of(text)) for (text,) in self._db.execute("SELECT DISTINCT event FROM entry")}
        return old.pop() if len(old) == 1 else UNKNOWN if old else None

    def check_relation(self, relation: Relation) -> None:
        """Raise BudgetError where the ledger holds charges that do not add up with those of such a run."""
        check_same_relation(self.relation(), relation, path=self.path)

    def _keep_relation(self, relation: Relation | None, charge: Charge) -> None:
        self.check_relation(relation or assumed(charge.event))
        if relation is not None:
            self._db.execute("INSERT OR IGNORE INTO relation VALUES (1, ?, ?)", (relation.neighbours, relation.trust))

    def link_names(self, names: Iterable[tuple[str, str]]) -> None:
        """Count the charges of each name on its account from now on: (name, account)."""
        with self._transaction():
            self._db.executemany("INSERT OR IGNORE INTO alias VALUES (?, ?)", names)

    def begun(self, run: str) -> Begun | None:
        """What a run was begun with, or None for a new one. Raises OldRunError for one that version 0.1.0 began."""
        row = self._db.execute(
            "SELECT content, accounts, numbers FROM terms LEFT JOIN numbering USING (run) WHERE run = ?", (run,)
        ).fetchone()
        if row is None:
            return None
        if row[1] is None:
            raise OldRunError(
                f"run {run!r} was begun under version 0.1.0, which numbered clients in the order of the file and cannot tell "
                "whether a question was asked in another round; begin a new run. What was spent stays counted"
            )
        return Begun(terms=row[0], accounts=row[1], numbers=bytes(row[2]))

    def begin(self, run: str, begun: Begun) -> None:
        """Keep what a run begins with, before anything is released in it. OvertakenError where another process began it."""
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO terms VALUES (?, ?)", (run, begun.terms))
            self._db.execute("INSERT OR IGNORE INTO numbering VALUES (?, ?, ?)", (run, begun.accounts, begun.numbers))
            if self.begun(run) != begun:
                raise OvertakenError(f"run {run!r} was begun by another process in the meantime")

    def keep_terms(self, run: str, content: str) -> None:
        """Words kept under a name; kept again, they must be the same."""
        self._db.execute("INSERT OR IGNORE INTO terms VALUES (?, ?)", (run, content))
        (kept,) = self._db.execute("SELECT content FROM terms WHERE run = ?", (run,)).fetchone()
        if kept != content:
            raise BudgetError(f"run {run!r} was begun under other terms; terms do not change within a run")

    def kept_terms(self) -> dict[str, str]:
        """All words that are kept, by the names they are kept under."""
        return dict(self._db.execute("SELECT run, content FROM terms").fetchall())

    def memory(self, account: str, *, run: str) -> bytes | None:
        return self.memories([account], run=run).get(account)

    def memories(self, accounts: Sequence[str], *, run: str) -> dict[str, bytes]:
        """What the clients of these accounts keep at home in a run; who keeps nothing is left out."""
        return read_memories(self._db, accounts, run=run)

    def spent(self, account: str) -> float:
        """Epsilon spent by one account at the budget's delta."""
        total = self.read([account]).spent(account)
        return 0.0 if total is None else epsilon_of(total, delta=self.budget.delta)

    def summary(self) -> JsonObject:
        """A summary of all accounts: how many were charged, the most one has spent, and the charges of each run.

        Charges of another unit than the budget's stand apart, under `other_units`.
        """
        units = {unit for (unit,) in self._db.execute("SELECT DISTINCT unit FROM entry")}
        runs = self._db.execute(
            "SELECT run, COUNT(DISTINCT round), COUNT(DISTINCT owner), COUNT(*), MIN(at), MAX(at) FROM charged GROUP BY run "
            "ORDER BY MIN(id)"
        )
        names = ("run", "rounds", "accounts", "charges", "first", "last")
        totals = self._summary_of(self.budget.unit)
        others = {unit: self._summary_of(unit) for unit in sorted(units - {self.budget.unit})}
        return {
            **totals,
            **({"other_units": others} if others else {}),
            "runs": [dict(zip(names, row, strict=True)) for row in runs],
        }

    def _summary_of(self, unit: str) -> JsonObject:
        spent: dict[str, list[tuple[str, int]]] = {}
        for account, event, count in self._db.execute(
            "SELECT owner, event, COUNT(*) FROM charged WHERE unit = ? GROUP BY owner, event ORDER BY event", (unit,)
        ):
            spent.setdefault(account, []).append((event, count))
        epsilons = [
            epsilon_of(total, delta=self.budget.delta)
            for kinds in {tuple(each) for each in spent.values()}
            if (total := composed([(event_of(text), count) for text, count in kinds])) is not None
        ]
        return {
            "accounts_charged": len(spent),
            "epsilon_of_the_account_that_spent_most": max(epsilons, default=0.0),
            "charges": sum(count for each in spent.values() for _, count in each),
        }

    def accounts(self, *, after: int = 0) -> list[str]:
        """Who was charged, at all or after an entry."""
        return [
            row[0]
            for row in self._db.execute("SELECT DISTINCT owner FROM charged WHERE id > ? ORDER BY owner", (after,))
        ]

    def entries(self, account: str, *, run: str | None = None) -> int:
        """How many charges an account has, in all or in one run."""
        return self.read([account], run=run).entries(account)
