"""The ledger on disk refuses before, never after, whoever else writes to it, and survives a kill."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap

import pytest

from populace.errors import BudgetError, RunError
from populace.privacy.events import Gaussian, Pure
from populace.privacy.ledger import Budget, Charge
from populace.privacy.ledger_file import back_up, head_path
from populace.privacy.relation import Relation
from populace.privacy.sqlite_ledger import (
    LAYOUT,
    Begun,
    OldRunError,
    OvertakenError,
    RepeatedQuestionError,
    RolledBackError,
    RunLimitError,
    SqliteLedger,
    kept_budget,
)

ONE = Charge(event=Pure(1.0), unit="client")
RECORD = Charge(event=Pure(3.0), unit="record")


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


def test_a_question_is_answered_in_one_round_of_a_run(tmp_path):
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=9.0)) as ledger:
        commit(ledger, question="q")
        with pytest.raises(
            RepeatedQuestionError, match=r"this very question in round 0 of run 'r', and round 1 asks it"
        ):
            ledger.stored("anna", run="r", round_id=1, question="q")
        with pytest.raises(RepeatedQuestionError):
            commit(ledger, round_id=1, question="q")
        assert ledger.stored("bert", run="r", round_id=1, question="q") is None
        assert ledger.stored("anna", run="another", round_id=1, question="q") is None
        commit(ledger, round_id=1, question="other")
        assert ledger.entries("anna") == 2


def test_a_run_takes_no_more_than_its_own_limit(tmp_path):
    """Whatever the budget of the account; another run has a limit of its own, and both count on the account."""
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=5.0)) as ledger:
        for round_id in (0, 1):
            ledger.commit_many(
                [("anna", f"q{round_id}", b"", None)], ONE, run="r", round_id=round_id, limit=Budget(epsilon=2.0)
            )
        with pytest.raises(
            RunLimitError, match=r"in run 'r', by the run's own guarantee, would have spent epsilon 3 of 2"
        ):
            ledger.commit_many([("anna", "q2", b"", None)], ONE, run="r", round_id=2, limit=Budget(epsilon=2.0))
        with pytest.raises(RunLimitError, match="per client cannot be booked on a budget per record"):
            ledger.check_run("anna", ONE, run="new", limit=Budget(epsilon=2.0, unit="record"))
        for run, limit in (("s", 2.0), ("t", 9.0)):
            ledger.commit_many([("anna", "q", b"", None)], ONE, run=run, round_id=0, limit=Budget(epsilon=limit))
        assert ledger.spent("anna") == 4.0


def test_the_unit_changes_only_while_nothing_is_booked(tmp_path):
    """Version 0.1.0 let the owner switch from record to client afterwards."""
    path, record, client = tmp_path / "l.db", Budget(epsilon=9.0, unit="record"), Budget(epsilon=9.0, unit="client")
    SqliteLedger(path, client).close()
    with SqliteLedger(path, record, raise_budget=True) as ledger:
        ledger.commit("anna", RECORD, run="r", round_id=0, question="q", reply=b"")
    with pytest.raises(BudgetError, match=r"holds charges per record.*its unit does not change any more"):
        SqliteLedger(path, client, raise_budget=True)
    assert kept_budget(path) == record
    with SqliteLedger(path, Budget(epsilon=4.0, unit="record"), raise_budget=True) as ledger:  # the limit itself may
        assert ledger.spent("anna") == 3.0


def test_charges_of_two_units_are_never_added(tmp_path):
    """A ledger made by hand: version 0.1.0 added 3 per record and 1 per client to 4 per client."""
    path = tmp_path / "l.db"
    with SqliteLedger(path, Budget(epsilon=9.0, unit="record")) as ledger:
        for who in ("anna", "bert"):
            ledger.commit(who, RECORD, run="r", round_id=0, question="q", reply=b"")
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE budget SET unit = 'client'")
    raw.close()
    with SqliteLedger(path, Budget(epsilon=9.0, unit="client")) as ledger:
        commit(ledger, account="carl")
        for refused in (
            lambda: ledger.spent("anna"),
            lambda: ledger.check("anna", ONE),
            lambda: commit(ledger, account="anna", round_id=1),
            lambda: ledger.check_run("anna", ONE, run="r", limit=Budget(epsilon=9.0)),
        ):
            with pytest.raises(
                BudgetError, match=r"'anna' holds charges per record.*nothing more is released about it"
            ):
                refused()
        assert ledger.spent("carl") == 1.0
        found = ledger.summary()
    assert (found["epsilon_of_the_account_that_spent_most"], found["accounts_charged"]) == (1.0, 1)
    assert found["other_units"] == {
        "record": {"accounts_charged": 2, "epsilon_of_the_account_that_spent_most": 3.0, "charges": 2}
    }


def test_a_run_keeps_what_it_was_begun_with(tmp_path):
    begun = Begun(terms="these", accounts="digest", numbers=b"\x01\x00\x00\x00\x00\x00\x00\x00")
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=9.0)) as ledger:
        assert ledger.begun("r") is None
        ledger.begin("r", begun)
        ledger.begin("r", begun)
        for other in (
            Begun(terms="these", accounts="digest"),
            Begun(terms="those", accounts="digest", numbers=begun.numbers),
        ):
            with pytest.raises(OvertakenError, match="begun by another process"):
                ledger.begin("r", other)
            assert ledger.begun("r") == begun
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=9.0)) as ledger:
        assert ledger.begun("r") == begun
        ledger.keep_terms("as 0.1.0 did", "these")
        with pytest.raises(
            OldRunError, match=r"begun under version 0\.1\.0.*begin a new run. What was spent stays counted"
        ):
            ledger.begun("as 0.1.0 did")


def test_what_another_process_booked_in_between_is_noticed(tmp_path):
    with (
        SqliteLedger(tmp_path / "l.db", Budget(epsilon=9.0)) as ledger,
        SqliteLedger(tmp_path / "l.db", Budget(epsilon=9.0)) as other,
    ):
        seen = ledger.entries("anna", run="r")
        commit(other, round_id=0)
        with pytest.raises(OvertakenError, match="in the meantime"):
            ledger.commit_many([("anna", "q1", b"", None)], ONE, run="r", round_id=1, before=[seen])
        ledger.commit_many([("anna", "q1", b"", None)], ONE, run="r", round_id=1, before=[seen + 1])
        assert other.entries("anna") == 2


def test_a_ledger_of_a_later_version_is_refused(tmp_path):
    path = tmp_path / "l.db"
    SqliteLedger(path, Budget(epsilon=1.0)).close()
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (LAYOUT,)
        raw.execute(f"PRAGMA user_version = {LAYOUT + 1}")
    raw.close()
    with pytest.raises(RunError, match="written by a later version of populace; update populace"):
        SqliteLedger(path, Budget(epsilon=1.0))


REPLACE, ZERO_OUT = (Relation(neighbours=name, trust="silo") for name in ("replace", "zero-out"))
CENTRAL = Relation(neighbours="zero-out", trust="central")
NOISED = Charge(event=Gaussian(5.0), unit="client")


def book(ledger, relation, charge=ONE, run="r", account="anna"):
    ledger.commit_many([(account, f"q {run}", b"", None)], charge, run=run, round_id=0, relation=relation)


@pytest.mark.parametrize(
    ("first", "other"), [(REPLACE, ZERO_OUT), (ZERO_OUT, REPLACE), (ZERO_OUT, CENTRAL), (CENTRAL, ZERO_OUT)]
)
def test_charges_of_two_relations_are_never_added(tmp_path, first, other):
    """Nor on another account: the limit of a ledger means one thing. What differs in words only is one relation."""
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=99.0, delta=1e-3)) as ledger:
        assert ledger.relation() is None
        book(ledger, first)
        assert ledger.relation() == first
        for account in ("anna", "bert"):
            with pytest.raises(
                BudgetError, match=f"holds charges under `{first.neighbours}` with trust `{first.trust}`"
            ):
                book(ledger, other, run="s", account=account)
        with pytest.raises(
            BudgetError, match="Agree to it in another folder, and lower its limit by what was spent here"
        ):
            ledger.check_relation(other)
        book(ledger, first, run="s")
        assert ledger.entries("anna") == 2
    with sqlite3.connect(tmp_path / "l.db") as raw:
        found = raw.execute("SELECT DISTINCT neighbours, trust FROM entry").fetchall()
    raw.close()
    assert found == [(first.neighbours, first.trust)]


def test_local_and_silo_and_secure_sum_are_one_class(tmp_path):
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=99.0)) as ledger:
        for number, trust in enumerate(("local", "silo", "secure-sum")):
            book(ledger, Relation(neighbours="replace", trust=trust), run=f"r{number}")
        assert ledger.entries("anna") == 3


def test_charges_without_a_relation_add_to_what_they_can_only_be(tmp_path):
    """Pure ones are randomised before they leave; of older Gaussian ones nothing is known, so nothing is added."""
    with SqliteLedger(tmp_path / "pure.db", Budget(epsilon=99.0, delta=1e-3)) as ledger:
        commit(ledger)
        with pytest.raises(BudgetError, match="under `replace` with trust `silo`"):
            book(ledger, ZERO_OUT, run="s")
        book(ledger, REPLACE, run="s")
    with SqliteLedger(tmp_path / "noised.db", Budget(epsilon=99.0, delta=1e-3)) as ledger:
        for run in ("a", "b"):
            book(ledger, None, NOISED, run=run)
        for relation in (REPLACE, ZERO_OUT, CENTRAL):
            with pytest.raises(BudgetError, match="a relation nobody wrote down"):
                book(ledger, relation, NOISED, run="s")


def test_an_old_copy_put_back_is_noticed(tmp_path):
    path = tmp_path / "l.db"
    with SqliteLedger(path, Budget(epsilon=99.0)) as ledger:
        commit(ledger)
    old = path.read_bytes()
    for round_id in (1, 2):
        with SqliteLedger(path, Budget(epsilon=99.0), create=False) as ledger:
            commit(ledger, round_id=round_id)
    new = path.read_bytes()
    path.write_bytes(old)
    with pytest.raises(RolledBackError, match=r"entry 3, which l\.db\.head names, is not in it"):
        SqliteLedger(path, Budget(epsilon=99.0))
    path.unlink()
    with pytest.raises(RolledBackError):  # also where it is begun anew
        SqliteLedger(path, Budget(epsilon=99.0))
    path.write_bytes(new)
    with SqliteLedger(path, Budget(epsilon=99.0)) as ledger:
        assert ledger.entries("anna") == 3


def test_another_history_of_the_same_length_is_noticed(tmp_path):
    for name in ("one", "two"):
        with SqliteLedger(tmp_path / f"{name}.db", Budget(epsilon=99.0)) as ledger:
            commit(ledger, reply=name.encode())
    shutil.copy(tmp_path / "two.db", tmp_path / "one.db")
    with pytest.raises(RolledBackError):
        SqliteLedger(tmp_path / "one.db", Budget(epsilon=99.0))


def test_a_ledger_ahead_of_its_head_opens(tmp_path):
    """A process killed between the commit and the head leaves that; the next reply catches up."""
    path = tmp_path / "l.db"
    with SqliteLedger(path, Budget(epsilon=99.0)) as ledger:
        commit(ledger)
        before = head_path(path).read_bytes()
        commit(ledger, round_id=1)
        after = head_path(path).read_bytes()
        head_path(path).write_bytes(before)
    with SqliteLedger(path, Budget(epsilon=99.0)) as ledger:
        ledger.keep_head()
    assert head_path(path).read_bytes() == after != before


def test_a_head_that_is_gone_is_written_anew_only_if_the_owner_says_so(tmp_path):
    path = tmp_path / "l.db"
    with SqliteLedger(path, Budget(epsilon=99.0)) as ledger:
        commit(ledger)
    head_path(path).unlink()
    with pytest.raises(RunError, match=r"l\.db\.head is gone.*join with --restored"):
        SqliteLedger(path, Budget(epsilon=99.0))
    SqliteLedger(path, Budget(epsilon=99.0), restored=True).close()
    SqliteLedger(path, Budget(epsilon=99.0)).close()
    head_path(path).write_text("{")
    with pytest.raises(RunError, match="cannot read"):
        SqliteLedger(path, Budget(epsilon=99.0), restored=True)


def test_the_one_file_is_the_whole_ledger_after_a_commit(tmp_path):
    """Also while another connection reads it: copied then, it lacks nothing. A copy by `back_up` does not either."""
    path = tmp_path / "l.db"
    SqliteLedger(path, Budget(epsilon=99.0)).close()
    reader = sqlite3.connect(path)
    reader.execute("SELECT COUNT(*) FROM entry").fetchone()
    with SqliteLedger(path, Budget(epsilon=99.0)) as ledger:
        commit(ledger)
        shutil.copy(path, tmp_path / "copy.db")
        back_up(path, tmp_path / "backup.db")
    reader.close()
    for name in ("copy.db", "backup.db"):
        with sqlite3.connect(tmp_path / name) as raw:
            assert raw.execute("SELECT COUNT(*) FROM entry").fetchone() == (1,)
        raw.close()
    assert (tmp_path / "backup.db").stat().st_mode & 0o077 == 0


def test_names_of_one_client_share_an_account(tmp_path):
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=2.0)) as ledger:
        commit(ledger, account="patient  001", memory=b"m")
        commit(ledger, account="patient 001", round_id=1)
        commit(ledger, account="patient 002")
        ledger.link_names([("patient  001", "#1"), ("patient 001", "#1")])
        assert ledger.accounts() == ["#1", "patient 002"]
        assert (ledger.entries("#1"), ledger.spent("#1"), ledger.memory("#1", run="r")) == (2, 2.0, b"m")
        assert ledger.stored("#1", run="r", round_id=1, question="q1") == b"yes"
        with pytest.raises(BudgetError, match="epsilon 3 of 2"):
            commit(ledger, account="#1", round_id=2)
        found = ledger.summary()
    assert (found["accounts_charged"], found["epsilon_of_the_account_that_spent_most"]) == (2, 2.0)
    assert found["runs"][0]["accounts"] == 2
