"""What a run left on disk, at the coordinator and at the sites, read without populace's own readers of ledgers."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import numpy as np

BEGINNING = hashlib.sha256(b"the first entry of a ledger").hexdigest()
FIELDS = "id, account, run, round, question, unit, event, neighbours, trust, reply, at, chain"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One charge of a ledger, with the reply it paid for."""

    id: int
    account: str
    run: str
    round: int
    question: str
    unit: str
    event: str
    neighbours: str | None
    trust: str | None
    reply: bytes
    at: float
    chain: str | None

    @property
    def content(self) -> tuple[object, ...]:
        """All but number, time and chain: what an undisturbed run would have charged too."""
        return (self.account, self.round, self.question, self.unit, self.event, self.neighbours, self.trust, self.reply)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Books:
    """A site's ledger: its entries, where its chain begins, and what the file beside it says."""

    entries: tuple[Entry, ...]
    base: tuple[int, str]
    head: Mapping[str, object]
    limit: float
    delta: float

    def of(self, run: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.run == run)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """What the coordinator's log says of one round, counted from 0."""

    round: int
    replies: Mapping[str, int]
    refusals: Mapping[str, str]
    missing: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Log:
    """The coordinator's side of a run: its lines, those that cannot be read, who sat where, and the last checkpoint."""

    run: str
    lines: tuple[Line, ...]
    damaged: int
    seats: Mapping[str, tuple[int, int]]
    checkpoint: Mapping[str, np.ndarray]
    rounds: int

    @property
    def heard(self) -> np.ndarray:
        """How many replies of each client were absorbed."""
        return self.checkpoint["memory_0"]

    def line(self, round_id: int) -> Line | None:
        return next((line for line in reversed(self.lines) if line.round == round_id), None)


def read_books(ledger: Path) -> Books:
    with contextlib.closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True, timeout=30.0)) as db:
        rows = db.execute(f"SELECT {FIELDS} FROM entry ORDER BY id").fetchall()  # noqa: S608 - a constant
        base = db.execute("SELECT last, chain FROM chain_base").fetchone()
        limit, delta = db.execute("SELECT epsilon, delta FROM budget").fetchone()
    names = FIELDS.split(", ")
    entries = tuple(Entry(**dict(zip(names, row, strict=True))) for row in rows)
    head = json.loads(ledger.with_name(f"{ledger.name}.head").read_text())
    return Books(entries=entries, base=(int(base[0]), str(base[1])), head=head, limit=limit, delta=delta)


def read_log(place: Path) -> Log:
    """The log of a run in the coordinator's folder."""
    lines, damaged = [], 0
    for text in (place / "rounds.jsonl").read_bytes().splitlines():
        try:
            found = json.loads(text)
            lines.append(
                Line(
                    round=int(found["round"]) - 1,
                    replies=found["replies"],
                    refusals=found["refusals"],
                    missing=tuple(found["missing"]),
                )
            )
        except (ValueError, KeyError, TypeError):
            damaged += 1
    roster = json.loads((place / "roster.json").read_text())
    with np.load(place / "checkpoint.npz", allow_pickle=False) as stored:
        checkpoint = dict(stored)
    return Log(
        run=str(json.loads((place / "plan.json").read_text())["run"]), lines=tuple(lines), damaged=damaged,
        seats={seat["site"]: (int(seat["first"]), int(seat["clients"])) for seat in roster["seats"]},
        checkpoint=checkpoint, rounds=int(json.loads(checkpoint["document"].tobytes())["rounds"]),
    )  # fmt: skip


def account_of(place: int) -> str:
    """The account of a site's client; a seeded site with one row to a client numbers them in the order of the file."""
    return f"rows from {place + 1}"


def place_of(account: str) -> int:
    return int(account.rsplit(" ", 1)[1]) - 1


def same_state(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> list[str]:
    """The arrays in which two checkpoints differ, bit by bit; what went over the wire (`document`) may."""
    names = (set(first) | set(second)) - {"document"}
    return sorted(
        name
        for name in names
        if name not in first
        or name not in second
        or first[name].dtype != second[name].dtype
        or first[name].shape != second[name].shape
        or first[name].tobytes() != second[name].tobytes()
    )
