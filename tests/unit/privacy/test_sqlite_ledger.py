"""The ledger on disk refuses before, never after, whoever else writes to it, and survives a kill."""

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap

import pytest

from populace.errors import BudgetError, RunError
from populace.privacy.events import Pure
from populace.privacy.ledger import Budget, Charge
from populace.privacy.sqlite_ledger import SqliteLedger, kept_budget

ONE = Charge(event=Pure(1.0), unit="client")


def commit(ledger, account="anna", round_id=0, question=None, reply=b"yes", memory=None):
    question = f"q{round_id}" if question is None else question
    ledger.commit(account, ONE, run="r", round_id=round_id, question=question, reply=reply, memory=memory)


def test_sqlite_ledger_answers_a_repeated_question_from_store(tmp_path):
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=2.0)) as ledger:
        assert ledger.stored("anna", run="r", round_id=0, question="q0") is None
        commit(ledger)
        assert ledger.stored("anna", run="r", round_id=0, question="q0") == b"yes"
        with pytest.raises(BudgetError, match="another question"):
            ledger.stored("anna", run="r", round_id=0, question="other")
        with pytest.raises(BudgetError, match="already"):
            commit(ledger, reply=b"no")
        assert ledger.entries("anna") == 1


def test_sqlite_ledger_refuses_before_overspending_and_keeps_accounts_apart(tmp_path):
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=2.0)) as ledger:
        commit(ledger, round_id=0)
        commit(ledger, round_id=1)
        with pytest.raises(BudgetError, match="epsilon 3 of 2"):
            commit(ledger, round_id=2)
        commit(ledger, account="bert", round_id=2)
        assert (ledger.spent("anna"), ledger.spent("bert")) == (2.0, 1.0)
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=2.0)) as again:  # a restart forgets nothing
        with pytest.raises(BudgetError):
            commit(again, round_id=3)
        assert again.accounts() == ["anna", "bert"]


def test_sqlite_ledger_books_all_hosted_clients_or_none(tmp_path):
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=1.0)) as ledger:
        commit(ledger, account="bert")
        with pytest.raises(BudgetError):
            ledger.commit_many([("anna", "q1", b"1", None), ("bert", "q1", b"2", None)], ONE, run="r", round_id=1)
        assert ledger.entries("anna") == 0


def test_sqlite_ledger_is_append_only(tmp_path):
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=2.0)) as ledger:
        commit(ledger)
    with sqlite3.connect(tmp_path / "l.db") as raw:
        for statement in ("DELETE FROM entry", "UPDATE entry SET reply = 'x'"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                raw.execute(statement)
    raw.close()


def test_sqlite_ledger_keeps_its_budget_and_its_secrets(tmp_path):
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=1.0)) as ledger:
        commit(ledger)
    assert (tmp_path / "l.db").stat().st_mode & 0o077 == 0
    with pytest.raises(BudgetError, match="keeps a budget of epsilon 1"):
        SqliteLedger(tmp_path / "l.db", Budget(epsilon=5.0))
    assert kept_budget(tmp_path / "l.db") == Budget(epsilon=1.0)
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=5.0), raise_budget=True) as ledger:
        commit(ledger, round_id=1)
    with sqlite3.connect(tmp_path / "l.db") as raw, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        raw.execute("INSERT OR REPLACE INTO entry SELECT * FROM entry WHERE id = 1")
    raw.close()


def test_a_ledger_that_is_gone_or_empty_is_not_begun_anew(tmp_path):
    path = tmp_path / "l.db"
    for make in (lambda: None, path.touch):
        make()
        with pytest.raises(RunError, match="is gone, and with it what was spent"):
            SqliteLedger(path, Budget(epsilon=1.0), create=False)
        assert kept_budget(path) is None
    SqliteLedger(path, Budget(epsilon=1.0)).close()
    with SqliteLedger(path, Budget(epsilon=1.0), create=False) as ledger:
        assert ledger.accounts() == []


def test_memory_is_kept_with_the_charge(tmp_path):
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=2.0)) as ledger:
        commit(ledger, memory=b"first")
        commit(ledger, round_id=1, memory=b"second")
        assert ledger.memory("anna", run="r") == b"second"
        assert ledger.memory("bert", run="r") is None


def test_sqlite_ledger_survives_kill_9(tmp_path):
    """A process killed while committing leaves whole commits only, and every one it reported."""
    script = textwrap.dedent("""
        import sys
        from populace.privacy.events import Pure
        from populace.privacy.ledger import Budget, Charge
        from populace.privacy.sqlite_ledger import SqliteLedger
        ledger = SqliteLedger(sys.argv[1], Budget(epsilon=1e6))
        for i in range(100000):
            many = [(f"c{j}", f"q{i}", bytes(2000), b"m") for j in range(5)]
            ledger.commit_many(many, Charge(event=Pure(1.0), unit="client"), run="r", round_id=i)
            print(i, flush=True)
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "l.db")], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    told = [int(process.stdout.readline()) for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    told += [int(line) for line in process.stdout.read().split("\n")[:-1]]
    process.wait()
    process.stdout.close()
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=1e6)) as ledger:
        counts = {account: ledger.entries(account) for account in ledger.accounts()}
    assert len(counts) == 5
    assert len(set(counts.values())) == 1
    assert counts["c0"] >= len(told)
