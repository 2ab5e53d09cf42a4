"""The store of a study: invitations, places, answers and rounds, and the only functions that change them.

Exactly once: an invitation is marked as used in the transaction that keeps its answer, and nothing is said to anybody before
that transaction is on disk. Unlinkable as far as that goes: answers stand in a table of their own under random keys; with
the invitation only a hash of the answer and of a nonce is kept, which the server does not keep, and its place is forgotten.
Places are handed out in a secret order, so that a place does not say when its answer came once that secret is gone.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from populace.border.models import interpreting
from populace.collector.places import secret_place
from populace.errors import PopulaceError

KEY_BYTES = 16
RETRY = 30.0  # seconds after which a device that has to wait asks again, at most
LAYOUT = 1
ORDER = "order"  # the fact that holds the secret of the order of places while a round is open

UNKNOWN = "this invitation is not one of this study"
USED = "this invitation has been used: its answer is in, and nobody can answer with it again"
OTHER = "another answer was given with this invitation; the first one stays"
LATE = "the round this question belongs to is over, and its answers have been counted; this one does not count"
LOST = "this invitation does not hold the place that the answer names, or held it too long; the answer does not count"
OVER = "this study is closed and takes no more answers"
BETWEEN = "the answers so far are being looked at; the next questions come soon"
FULL = "all places of this round are taken at the moment; one may become free, or the next round begin"


class StoreError(PopulaceError):
    """The store cannot be reached or written; nothing is known to have changed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    """A round as the store has it: how many places, how many are taken and answered, and when it closes (None: never)."""

    number: int
    state: str
    size: int
    taken: int
    answered: int
    opened: float
    closes: float | None
    last: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """A place in a round, held until then."""

    round: int
    place: int
    until: float
    closes: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wait:
    """No place now; ask again after so many seconds."""

    seconds: float
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept:
    """The answer is in the store; `fresh` unless it was there before."""

    receipt: bytes
    fresh: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    """A status code of HTTP and a sentence."""

    status: int
    sentence: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Take:
    """A device asks for a place."""

    invitation: bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """A device answers in its place; `receipt` is the hash of nonce and report."""

    invitation: bytes
    round: int
    place: int
    report: bytes
    receipt: bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mint:
    """Somebody asks for an invitation to an open study."""

    invitation: bytes


Work = Take | Answer | Mint
Result = Place | Wait | Kept | Refusal


@dataclasses.dataclass
class _Held:
    """An invitation as a transaction sees it."""

    round: int | None
    place: int | None
    receipt: bytes | None
    changed: bool = False
    until: float | None = None


class Store(abc.ABC):
    """What both databases share. A subclass has transactions and a dialect; parameters are written `?`."""

    @abc.abstractmethod
    def transaction(self, *, lock: str = "") -> contextlib.AbstractContextManager[None]:
        """All or nothing. `lock` is "shared" while answers come in, "alone" while a round is closed to them."""

    @abc.abstractmethod
    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""

    @abc.abstractmethod
    def run(self, sql: str, *values: Any) -> int:
        """Execute one statement; returns how many rows it changed."""

    @abc.abstractmethod
    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute one statement for many rows."""

    @abc.abstractmethod
    def lock_invitations(self, hashes: Sequence[bytes]) -> list[tuple[Any, ...]]:
        """(hash, round, place, receipt) of those that exist, held until the transaction ends."""

    @abc.abstractmethod
    def expired(self, round_id: int, now: float, most: int) -> list[tuple[Any, ...]]:
        """(hash, place) of places held longer than they may be, held until the transaction ends."""

    @abc.abstractmethod
    def lock_round(self) -> list[tuple[Any, ...]]:
        """The newest round's row, held until the transaction ends."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of the database."""

    @abc.abstractmethod
    def forget_order(self) -> None:
        """Remove what the database itself keeps of the order in which answers came, as far as it can; StoreError if not."""

    # What the web server does.

    def work(self, items: Sequence[Work], *, now: float, hold: float) -> list[Result]:
        """Do all of this in one transaction, which is on disk when this returns; one result per item."""
        results: list[Result] = []
        with self.transaction(lock="shared"):
            minted = [item.invitation for item in items if isinstance(item, Mint)]
            if minted:
                self.add_invitations(minted)
            hashes = sorted({item.invitation for item in items if not isinstance(item, Mint)})
            held = {
                bytes(h): _Held(r, p, None if x is None else bytes(x)) for h, r, p, x in self.lock_invitations(hashes)
            }
            now_open = [_round(row) for row in self.lock_round()]
            current = now_open[0] if now_open else None
            closed = self.fact("closed") is not None
            kept: list[tuple[bytes, int, int, bytes]] = []
            for item in items:
                if isinstance(item, Answer):
                    results.append(self._answer(item, held, kept))
                elif isinstance(item, Mint):
                    results.append(Refusal(status=410, sentence=OVER) if closed else Wait(seconds=0.0, why=""))
                else:
                    results.append(Wait(seconds=0.0, why=""))
            asking = [(i, item) for i, item in enumerate(items) if isinstance(item, Take)]
            self._take(asking, results, held, current, closed=closed, now=now, hold=hold)
            self._write(held, kept)
        return results

    def _answer(self, item: Answer, held: dict[bytes, _Held], kept: list[tuple[bytes, int, int, bytes]]) -> Result:
        """Keep one answer, or say why not. Only answers in places that this very invitation holds come in."""
        row = held.get(item.invitation)
        if row is None:
            return Refusal(status=403, sentence=UNKNOWN)
        if row.receipt is not None:
            same = row.receipt == item.receipt
            return Kept(receipt=row.receipt, fresh=False) if same else Refusal(status=409, sentence=OTHER)
        if row.place is None or (row.round, row.place) != (item.round, item.place):
            return Refusal(status=410, sentence=LATE if row.round is not None and row.round > item.round else LOST)
        if self.round_state(item.round) != "open":
            return Refusal(status=410, sentence=LATE)
        kept.append((os.urandom(KEY_BYTES), item.round, item.place, item.report))
        row.round, row.place, row.receipt, row.until, row.changed = None, None, item.receipt, None, True
        return Kept(receipt=item.receipt, fresh=True)

    def _take(
        self, asking: list[tuple[int, Take]], results: list[Result], held: dict[bytes, _Held], current: Round | None, *,
        closed: bool, now: float, hold: float,
    ) -> None:  # fmt: skip
        """Give places to those who ask: the one they hold, a new one, or one that was held too long by another."""
        fresh: dict[bytes, list[int]] = {}  # who has none yet; somebody may ask twice at the same time
        waiting = Wait(seconds=RETRY / 10, why=BETWEEN)
        for index, item in asking:
            row = held.get(item.invitation)
            if row is None:
                results[index] = Refusal(status=403, sentence=UNKNOWN)
            elif row.receipt is not None:
                results[index] = Refusal(status=409, sentence=USED)
            elif closed:
                results[index] = Refusal(status=410, sentence=OVER)
            elif current is None or current.state != "open":
                results[index] = waiting
            elif row.place is not None and row.round == current.number:
                results[index] = self._hold(row, current, row.place, now + hold)
            elif current.closes is not None and now >= current.closes:
                results[index] = waiting
            else:
                fresh.setdefault(item.invitation, []).append(index)
        if not fresh or current is None:
            return
        free = self._free(current, len(fresh), held, now)
        for number, (invitation, indices) in enumerate(fresh.items()):
            for index in indices:
                results[index] = (
                    self._hold(held[invitation], current, free[number], now + hold)
                    if number < len(free)
                    else Wait(seconds=RETRY, why=FULL)
                )

    def _free(self, current: Round, wanted: int, held: dict[bytes, _Held], now: float) -> list[int]:
        """Places for so many: new ones, then those that others, who are not asking at this moment, held too long."""
        turns = range(current.taken, min(current.size, current.taken + wanted))
        free = []
        if turns:
            secret = self.fact(ORDER) or b""
            free = [secret_place(secret, current.size, turn) for turn in turns]
            self.run("UPDATE round SET taken = taken + ? WHERE number = ?", len(free), current.number)
        if len(free) < wanted:
            for owner, place in self.expired(current.number, now, wanted - len(free)):
                if bytes(owner) not in held:
                    self.run("UPDATE invitation SET place = NULL, until = NULL WHERE hash = ?", bytes(owner))
                    free.append(int(place))
        return free

    @staticmethod
    def _hold(row: _Held, current: Round, place: int, until: float) -> Place:
        row.round, row.place, row.until, row.changed = current.number, place, until, True
        return Place(round=current.number, place=place, until=until, closes=current.closes)

    def _write(self, held: dict[bytes, _Held], kept: list[tuple[bytes, int, int, bytes]]) -> None:
        changed = [(r.round, r.place, r.until, r.receipt, h) for h, r in sorted(held.items()) if r.changed]
        if changed:
            self.run_many("UPDATE invitation SET round = ?, place = ?, until = ?, receipt = ? WHERE hash = ?", changed)
        if kept:
            kept.sort()  # by random key: the order of arrival is not even that of the rows written
            self.run_many("INSERT INTO answer (key, round, place, report) VALUES (?, ?, ?, ?)", kept)
            for number in {row[1] for row in kept}:
                count = sum(row[1] == number for row in kept)
                self.run("UPDATE round SET answered = answered + ? WHERE number = ?", count, number)

    def add_invitations(self, hashes: Sequence[bytes]) -> None:
        """Note new invitations, within a transaction."""
        self.run_many("INSERT INTO invitation (hash) VALUES (?)", [(each,) for each in sorted(hashes)])

    # What the coordinator does.

    def open_round(self, number: int, ask: bytes, *, size: int, now: float, closes: float | None, last: bool) -> None:
        """Ask the next question, within a transaction; its places are handed out in an order of its own."""
        self.keep_fact(ORDER, os.urandom(KEY_BYTES))
        self.run("INSERT INTO ask (number, content) VALUES (?, ?)", number, ask)
        self.run(
            "INSERT INTO round (number, state, size, taken, answered, opened, closes, last) "
            "VALUES (?, 'open', ?, 0, 0, ?, ?, ?)",
            number, size, now, closes, int(last),
        )  # fmt: skip

    def seal(self, number: int) -> bool:
        """Take no more answers in a round; from here on its answers are fixed. False if it was not open."""
        with self.transaction(lock="alone"):
            sealed = self.run("UPDATE round SET state = 'sealed' WHERE number = ? AND state = 'open'", number) == 1
            if sealed:
                self.forget_places()
            return sealed

    def forget_places(self) -> None:
        """Delete the secret of the order of places, within a transaction: none are handed out any more."""
        self.run("DELETE FROM fact WHERE name = ?", ORDER)

    def absorbed(self, number: int) -> bool:
        """Mark a sealed round as absorbed, within a transaction. False if another process did it before."""
        return self.run("UPDATE round SET state = 'absorbed' WHERE number = ? AND state = 'sealed'", number) == 1

    def claim_lease(self, holder: str, *, now: float, seconds: float) -> bool:
        """Be the one coordinator for so long. False where another one is."""
        with self.transaction(lock="alone"):
            found = self.rows("SELECT holder, until FROM lease WHERE name = 'coordinator'")
            if found and found[0][0] != holder and found[0][1] > now:
                return False
            self.run("DELETE FROM lease WHERE name = 'coordinator'")
            self.run("INSERT INTO lease (name, holder, until) VALUES ('coordinator', ?, ?)", holder, now + seconds)
            return True

    def release_lease(self, holder: str) -> None:
        """Let another one be the coordinator."""
        with self.transaction(lock="alone"):
            self.run("DELETE FROM lease WHERE name = 'coordinator' AND holder = ?", holder)

    # What everybody reads.

    def rounds(self) -> list[Round]:
        """All rounds, the newest first."""
        return [_round(row) for row in self.rows(f"SELECT {ROUND} FROM round ORDER BY number DESC")]  # noqa: S608

    def round_state(self, number: int) -> str | None:
        found = self.rows("SELECT state FROM round WHERE number = ?", number)
        return str(found[0][0]) if found else None

    def ask(self, number: int) -> bytes | None:
        """What a round asks, as it was written when it began."""
        found = self.rows("SELECT content FROM ask WHERE number = ?", number)
        return bytes(found[0][0]) if found else None

    def replies(self, number: int) -> list[tuple[int, bytes]]:
        """Place and report of every answer of a round."""
        found = self.rows("SELECT place, report FROM answer WHERE round = ? ORDER BY place", number)
        return [(int(place), bytes(report)) for place, report in found]

    def fact(self, name: str) -> bytes | None:
        found = self.rows("SELECT value FROM fact WHERE name = ?", name)
        return bytes(found[0][0]) if found else None

    def keep_fact(self, name: str, value: bytes) -> None:
        """Write or replace a fact, within a transaction."""
        self.run("DELETE FROM fact WHERE name = ?", name)
        self.run("INSERT INTO fact (name, value) VALUES (?, ?)", name, value)

    def counts(self) -> dict[str, int]:
        """How many invitations there are, how many were used, and how many answers are in."""
        invited, used = self.rows("SELECT COUNT(*), COUNT(receipt) FROM invitation")[0]
        (answers,) = self.rows("SELECT COUNT(*) FROM answer")[0]
        return {"invitations": int(invited), "used": int(used), "answers": int(answers)}

    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        """Everything read inside is of one moment."""
        return self.transaction()


ROUND = "number, state, size, taken, answered, opened, closes, last"


def _round(row: Sequence[Any]) -> Round:
    number, state, size, taken, answered, opened, closes, last = row
    with interpreting("a round in the store", error=StoreError):
        return Round(
            number=int(number), state=str(state), size=int(size), taken=int(taken), answered=int(answered),
            opened=float(opened), closes=None if closes is None else float(closes), last=bool(last),
        )  # fmt: skip


def tables(*, blob: str, real: str, tail: str) -> Iterator[str]:
    """The statements that make the tables, in one dialect."""
    yield f"CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value {blob} NOT NULL){tail}"
    yield (
        "CREATE TABLE IF NOT EXISTS round (number INTEGER PRIMARY KEY, state TEXT NOT NULL, size INTEGER NOT NULL, "
        f"taken INTEGER NOT NULL, answered INTEGER NOT NULL, opened {real} NOT NULL, closes {real}, last INTEGER NOT NULL)"
    )
    yield f"CREATE TABLE IF NOT EXISTS ask (number INTEGER PRIMARY KEY, content {blob} NOT NULL)"
    yield (
        f"CREATE TABLE IF NOT EXISTS invitation (hash {blob} PRIMARY KEY, round INTEGER, place INTEGER, until {real}, "
        f"receipt {blob}){tail}"
    )
    yield "CREATE INDEX IF NOT EXISTS held ON invitation (round, until) WHERE place IS NOT NULL"
    yield (
        f"CREATE TABLE IF NOT EXISTS answer (key {blob} PRIMARY KEY, round INTEGER NOT NULL, place INTEGER NOT NULL, "
        f"report {blob} NOT NULL){tail}"
    )
    yield "CREATE UNIQUE INDEX IF NOT EXISTS one_answer ON answer (round, place)"
    yield f"CREATE TABLE IF NOT EXISTS lease (name TEXT PRIMARY KEY, holder TEXT NOT NULL, until {real} NOT NULL)"
