"""The file that remembers: it only grows, is refused when it is not one, and two processes see one another."""

import math
import os
import sqlite3
import stat
import threading

import numpy as np
import pytest

from populace.errors import BudgetError, RunError
from populace.privacy.events import Gaussian
from populace.privacy.run_ledger import TRIGGERS, RunLedger, make_ledger, set_name
from populace.privacy.run_totals import Cost

COST = Cost(
    epsilon=1.0, delta=1e-6, sampling_delta=1e-9, event=Gaussian(3.0), unit="record", neighbours="zero-out", trust="silo",
    seeded=True,
)  # fmt: skip
DIGESTS = np.array([9, 3, 3, 2**64 - 1], np.uint64)


def book(ledger, name="a", cost=COST):
    with ledger.transaction():
        ledger.book(
            booking=name, folder="runs/" + name, data="x.csv", rows=4, method="m", cost=cost, history={"said": "s"},
            used={("rows", '["a"]'): DIGESTS},
        )  # fmt: skip


@pytest.fixture
def path(tmp_path):
    make_ledger(tmp_path / "l.sqlite")
    return tmp_path / "l.sqlite"


def test_what_was_booked_is_there_again(path):
    with RunLedger(path) as ledger:
        book(ledger)
        secret = ledger.secret
    with RunLedger(path) as ledger:
        (run,) = ledger.runs()
        assert (run.cost, run.booking, run.folder, run.finished) == (COST, "a", "runs/a", False)
        assert run.used == {("rows", '["a"]'): set_name(DIGESTS)}
        assert ledger.members(set_name(DIGESTS)).tolist() == [3, 9, 2**64 - 1]
        assert ledger.secret == secret
        assert len(secret) == 32
        ledger.release("a", folder="runs/a", content=b"result")
        ledger.finish("a", folder="runs/a")
        ledger.finish("a", folder="runs/a")
        assert (ledger.run("a").finished, ledger.run("a").released_in) == (True, "runs/a")
        for ask in (lambda: ledger.finish("b", folder="x"), lambda: ledger.release("b", folder="x", content=b"")):
            with pytest.raises(RunError, match="does not know this run"):
                ask()


def test_one_booking_is_one_release(path):
    with RunLedger(path) as ledger:
        book(ledger)
        with pytest.raises(RunError, match="to nobody, not to runs/a"):
            ledger.finish("a", folder="runs/a")
        ledger.release("a", folder="runs/a", content=b"result")
        with pytest.raises(RunError, match=r"begun to be written in runs/a; .* a second release"):
            ledger.release("a", folder="runs/copy", content=b"result")
        with pytest.raises(RunError, match=r"another result: a second release"):
            ledger.release("a", folder="runs/a", content=b"another")
        with pytest.raises(RunError, match="must not be published"):
            ledger.finish("a", folder="runs/copy")
        ledger.release("a", folder="runs/a", content=b"result")  # after a crash it goes on
        ledger.finish("a", folder="runs/a")
        with pytest.raises(RunError, match="finished in runs/a"):
            ledger.release("a", folder="runs/a", content=b"result")


def test_of_many_at_once_one_gets_the_release(path):
    with RunLedger(path) as ledger:
        book(ledger)
    ended, gate = [], threading.Barrier(6)

    def one(name):
        with RunLedger(path) as ledger:
            gate.wait(60)
            try:
                ledger.release("a", folder=name, content=b"result")
                ended.append(name)
            except RunError:
                ended.append("")

    threads = [threading.Thread(target=one, args=(str(i),)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ended)[:5] == [""] * 5
    with RunLedger(path) as ledger:
        assert ledger.run("a").released_in == max(ended)


def test_it_is_its_owners_alone_and_never_begun_anew(path):
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with RunLedger(path) as ledger:
        book(ledger)
    before = path.read_bytes()
    make_ledger(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["l.sqlite"]


@pytest.mark.parametrize("table", ["secret", "members", "run", "used", "release", "finished", "allowed"])
def test_nothing_in_it_changes(path, table):
    with RunLedger(path) as ledger:
        book(ledger)
        ledger.release("a", folder="runs/a", content=b"result")
        ledger.finish("a", folder="runs/a")
        with ledger.transaction():
            ledger.allow(3.0)
    with sqlite3.connect(path) as db:
        names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        statements = ("DELETE FROM {0}", "UPDATE {0} SET {1} = 0", "INSERT OR REPLACE INTO {0} SELECT * FROM {0}")
        delete, *changes = (statement.format(table, names[1]) for statement in statements)
        for statement in (delete, *changes):
            with pytest.raises(sqlite3.Error, match="only grows"):
                db.execute(statement)
        for line in TRIGGERS.splitlines():  # without the triggers the same statements do pass: the test can tell
            db.execute("DROP TRIGGER " + line.split()[2])
        assert db.execute(delete).rowcount == 1


def read(path):
    with RunLedger(path) as ledger:
        return ledger.runs(), ledger.members(set_name(DIGESTS))


def test_what_is_no_ledger_is_refused_and_left_as_it_is(path, tmp_path):
    with RunLedger(path) as ledger:
        book(ledger)
    whole = path.read_bytes()
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE entry (id INTEGER)")
    cases = {
        "a text": b"dear diary, " * 900, "empty": b"", "cut": whole[: len(whole) // 2],
        "overwritten": whole[:4096] + bytes(len(whole) - 4096), "foreign": foreign.read_bytes(),
    }  # fmt: skip
    for name, content in cases.items():
        other = tmp_path / f"{name}.sqlite"
        other.write_bytes(content)
        make_ledger(other)
        with pytest.raises(RunError, match="ledger"):
            read(other)
        assert other.read_bytes() == content
    for version in (1, 9):  # of an earlier layout, which nobody released, and of a later one
        with sqlite3.connect(path) as db:
            db.execute(f"PRAGMA user_version = {version}")
        before = path.read_bytes()
        with pytest.raises(RunError, match=f"format {version}, not 2; use the version of populace that keeps it"):
            RunLedger(path)
        assert path.read_bytes() == before
    with pytest.raises(RunError, match="no ledger"):
        RunLedger(tmp_path / "nowhere.sqlite")


def allow_two(ledger):
    ledger.allow(1.0)
    ledger.allow(2.0)  # refused: it raises what was just given


def test_a_failed_transaction_books_nothing(path):
    with RunLedger(path) as ledger:
        with pytest.raises(BudgetError), ledger.transaction():
            allow_two(ledger)
        assert ledger.limit == math.inf
        book(ledger)
        with pytest.raises(RunError, match="nothing was booked"):
            book(ledger)
        assert len(ledger.runs()) == 1


def test_a_limit_is_lowered_freely_and_raised_with_words(path):
    with RunLedger(path) as ledger:
        for epsilon, because in ((4.0, ""), (4.0, ""), (2.0, "")):
            with ledger.transaction():
                ledger.allow(epsilon, because=because)
        with pytest.raises(BudgetError, match="--because"), ledger.transaction():
            ledger.allow(3.0, because="  ")
        with pytest.raises(BudgetError, match="above 0"), ledger.transaction():
            ledger.allow(math.nan)
        assert ledger.limit == 2.0
        with ledger.transaction():
            ledger.allow(3.0, because="the board said so")
    with RunLedger(path) as ledger:
        assert [(one.epsilon, one.because) for one in ledger.limits()] == [(4, ""), (2, ""), (3, "the board said so")]


def test_one_waits_for_the_other(path):
    """Read, decide, book: without one transaction around them, both would see an empty ledger."""
    seen = []

    def one(name):
        with RunLedger(path) as ledger, ledger.transaction():
            seen.append(len(ledger.runs()))
            ledger.book(booking=name, folder="", data="", rows=0, method="", cost=COST, history={}, used={})

    threads = [threading.Thread(target=one, args=(str(i),)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(6))
