"""Many accounts read at once decide as each one alone does, by the queries of one account at a time written out here."""

import numpy as np
import pytest

from populace.errors import BudgetError
from populace.privacy import account_charges
from populace.privacy.account_charges import RepeatedQuestionError, RunLimitError
from populace.privacy.events import Gaussian, Pure
from populace.privacy.ledger import Budget, Charge
from populace.privacy.sqlite_ledger import OvertakenError, SqliteLedger

ONE, HALF = (Charge(event=Pure(epsilon), unit="client") for epsilon in (1.0, 0.5))
NAMES = "(SELECT ? UNION ALL SELECT name FROM alias WHERE account = ?)"
LIMIT = Budget(epsilon=2.0)


def stored_alone(db, account, *, run, round_id, question):
    """As the ledger asked about one account until many were read at once."""
    rows = db.execute(
        f"SELECT round, question, reply FROM entry WHERE account IN {NAMES} AND run = ? "  # noqa: S608 - our own names
        "AND (round = ? OR question = ?) ORDER BY round",
        (account, account, run, round_id, question),
    ).fetchall()
    for at, kept, reply in rows:
        if at == round_id:
            return bytes(reply) if kept == question else "another question"
    return f"in round {rows[0][0]} of" if rows else None


def epsilon_alone(db, account, *, run=None):
    """What an account has spent of pure charges, and how many there are."""
    rows = db.execute(
        f"SELECT event FROM entry WHERE account IN {NAMES} AND (? IS NULL OR run = ?)",  # noqa: S608 - our own names
        (account, account, run, run),
    ).fetchall()
    return sum(1.0 if "1.0" in event else 0.5 for (event,) in rows), len(rows)


def outcome(decide, *args, **options):
    try:
        return decide(*args, **options)
    except BudgetError as error:
        return error


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """A thousand accounts, some linked to others, with charges of two kinds in two runs."""
    rng = np.random.default_rng(3)
    accounts = [f"client {number}" for number in range(1_000)]
    ledger = SqliteLedger(tmp_path_factory.mktemp("ledger") / "l.db", Budget(epsilon=2.5))
    for round_id, charge in enumerate((ONE, HALF, ONE, HALF)):
        for run in ("r", "s"):
            many = [
                (name, f"q{rng.integers(3)} {number}", f"{run} {round_id} {number}".encode(), None)
                for number, name in enumerate(accounts)
                if rng.random() < 0.2
            ]
            names, asked, *_ = zip(*many, strict=True)
            charges = ledger.read(names, run=run, round_id=round_id, questions=asked)
            able = [
                each
                for each in many
                if outcome(charges.stored, *each[:2]) is None and outcome(charges.check, each[0], charge) is None
            ]
            ledger.commit_many(able, charge, run=run, round_id=round_id)
    ledger.link_names([(accounts[i], accounts[i + 1]) for i in range(0, 1_000, 7)] + [("client 0", "#0")])
    yield ledger, [*accounts, "#0", "nobody"]
    ledger.close()


def test_every_account_is_decided_on_as_alone(history, monkeypatch):
    monkeypatch.setattr(account_charges, "AT_ONCE", 64)
    ledger, accounts = history
    db, seen = ledger.connection, set()
    for question in range(3):
        questions = [f"q{question} {number}" for number in range(len(accounts))]
        charges = ledger.read(accounts, run="r", round_id=2, questions=questions)
        for account, asked in zip(accounts, questions, strict=True):
            wanted = stored_alone(db, account, run="r", round_id=2, question=asked)
            found = outcome(charges.stored, account, asked)
            if isinstance(wanted, str):
                assert wanted in str(found)
                assert isinstance(found, RepeatedQuestionError) == wanted.startswith("in round")
            else:
                assert found == wanted
            seen.add(type(found))
    assert seen == {BudgetError, RepeatedQuestionError, bytes, type(None)}
    refused = [0, 0]
    for account in accounts:
        spent, _ = epsilon_alone(db, account)
        in_run, count = epsilon_alone(db, account, run="r")
        assert charges.entries(account) == count == ledger.entries(account, run="r")
        assert ledger.spent(account) == spent
        in_all = outcome(charges.check, account, ONE)
        in_limit = outcome(charges.check_run, account, ONE, limit=LIMIT)
        for place, (limit, used, found) in enumerate(((ledger.budget, spent, in_all), (LIMIT, in_run, in_limit))):
            assert (found is None) == (used + 1.0 <= limit.epsilon)
            if found is not None:
                refused[place] += 1
                assert f"account {account!r}" in str(found)
                assert f"would have spent epsilon {used + 1.0:g} of {limit.epsilon:g}" in str(found)
                assert isinstance(found, RunLimitError) == bool(place)
    assert all(refused)


def test_charges_of_one_batch_see_each_other(tmp_path):
    """The same account twice, or two names of one client: all are booked or none, and never more than the limit."""
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=1.0)) as ledger:
        ledger.link_names([("anna b", "#1")])
        for batch, sentence in (
            ([("anna", "q"), ("anna", "q")], "has answered round 0 of run 'r' already"),
            ([("anna", "q"), ("anna", "p")], "another question in round 0"),
            ([("anna b", "q"), ("#1", "q")], "has answered round 0 of run 'r' already"),
        ):
            with pytest.raises(BudgetError, match=sentence):
                ledger.commit_many([(*each, b"", None) for each in batch], ONE, run="r", round_id=0)
            assert ledger.last == 0
        twice = [("anna b", "q", b"", None), ("#1", "p", b"", None)]
        with pytest.raises(OvertakenError, match="'#1' was charged"):
            ledger.commit_many(twice, ONE, run="r", round_id=0, before=[0, 0])
        assert ledger.last == 0
        ledger.commit_many([("bert", "q", b"", None)], ONE, run="r", round_id=0)
        with pytest.raises(BudgetError, match="would have spent epsilon 2 of 1"):
            ledger.commit_many([("carl", "q", b"", None), ("bert", "p", b"", None)], ONE, run="r", round_id=1)
        assert ledger.accounts() == ["bert"]


def test_an_expensive_total_is_computed_once_for_equal_accounts(tmp_path, monkeypatch):
    """What ten thousand accounts have in common is accounted for once; one with other charges is not taken for them."""
    computed = []
    real = account_charges.overspending
    monkeypatch.setattr(account_charges, "overspending", lambda *each: computed.append(each) or real(*each))
    noised = Charge(event=Gaussian(4.0), unit="client")
    with SqliteLedger(tmp_path / "l.db", Budget(epsilon=1.0, delta=1e-5)) as ledger:
        ledger.commit_many([("spender", "q", b"", None)], noised, run="r", round_id=0)
        computed.clear()
        accounts = [*(f"client {i}" for i in range(500)), "spender"]
        charges = ledger.read(accounts)
        found = [outcome(charges.check, account, noised) for account in accounts]
    assert len(computed) == 2
    assert found[:500] == [None] * 500
    assert isinstance(found[500], BudgetError)
