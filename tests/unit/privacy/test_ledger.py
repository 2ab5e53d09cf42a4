"""A simulation's ledger refuses before, never after."""

from collections import Counter

import numpy as np
import pytest

from populace.errors import BudgetError
from populace.privacy import ledger as ledger_module
from populace.privacy.accounting import epsilon_of
from populace.privacy.events import Gaussian, NonPrivate, PoissonSampled, Pure, Repeated
from populace.privacy.ledger import Budget, Charge, MemoryLedger, check_affordable, composed

ONE = Charge(event=Pure(1.0), unit="client")


def test_memory_ledger_refuses_before_booking_anything():
    ledger = MemoryLedger(Budget(epsilon=2.0), clients=5)
    ledger.book(np.array([0, 1, 2]), ONE, round_id=0)
    ledger.book(np.array([0]), ONE, round_id=1)
    before = ledger.spent()
    with pytest.raises(BudgetError, match=r"would have spent epsilon 3 of 2 .* refused"):
        ledger.book(np.array([4, 0]), ONE, round_id=2)
    assert ledger.spent() == before  # client 4 was not charged either
    assert before == {"epsilon": 2.0, "delta": 0.0, "accounts_charged": 3, "charges": 4}


def test_memory_ledger_refuses_the_same_client_twice_in_one_round():
    with pytest.raises(BudgetError, match="asks a client twice"):
        MemoryLedger(Budget(epsilon=9), clients=3).book(np.array([1, 1]), ONE, round_id=0)


def test_units_are_never_mixed():
    ledger = MemoryLedger(Budget(epsilon=9, unit="record"), clients=3)
    with pytest.raises(BudgetError, match="per client cannot be booked on a budget per record"):
        ledger.book(np.array([1]), ONE, round_id=0)


def test_memory_ledger_composes_different_events_and_survives_a_snapshot():
    ledger = MemoryLedger(Budget(epsilon=6.0, delta=1e-5), clients=4)
    ledger.book(np.array([0, 1]), ONE, round_id=0)
    ledger.book(np.array([1]), Charge(event=Gaussian(1.0), unit="client"), round_id=1)
    other = MemoryLedger(Budget(epsilon=6.0, delta=1e-5), clients=4)
    other.restore(*ledger.snapshot())
    assert other.spent() == ledger.spent()
    assert other.entries == ledger.entries
    assert 4.3 < ledger.spent()["epsilon"] < 5.38


class Naive:
    """A ledger that looks at every account anew, for every charge."""

    def __init__(self, budget, clients):
        self.budget, self.charged = budget, [[] for _ in range(clients)]

    def book(self, cohort, charge):
        for client in cohort:
            counts = Counter([*self.charged[client], charge.event])
            check_affordable(composed(list(counts.items())), self.budget, who="")
        for client in cohort:
            self.charged[client].append(charge.event)


@pytest.mark.parametrize(
    ("budget", "kinds", "seeds", "rounds"),
    [
        (Budget(epsilon=3.0), (Pure(0.3), Pure(0.7)), range(20), 24),
        (Budget(epsilon=2.0, delta=1e-5), (Gaussian(4.0), PoissonSampled(0.2, Gaussian(1.5))), range(1), 9),
        (Budget(epsilon=2.5, delta=1e-5), (Repeated(Gaussian(6.0), 2), Pure(0.4)), range(1), 24),
    ],
    ids=["pure", "Gaussian", "mixed"],
)
def test_looking_ahead_refuses_what_a_ledger_that_does_not_would_refuse(budget, kinds, seeds, rounds):
    """Random cohorts charged with two kinds of events in random order, long after the first refusal."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        ledger, naive, refused = MemoryLedger(budget, clients=3), Naive(budget, 3), 0
        for round_id in range(rounds):
            cohort = rng.permutation(3)[: rng.integers(1, 4)]
            charge = Charge(event=kinds[rng.integers(2)], unit="client")
            try:
                naive.book(cohort, charge)
            except BudgetError:
                refused += 1
                with pytest.raises(BudgetError):
                    ledger.book(cohort, charge, round_id=round_id)
            else:
                ledger.book(cohort, charge, round_id=round_id)
        assert 0 < refused < rounds
        assert ledger.spent()["charges"] == sum(map(len, naive.charged))


def test_looking_ahead_asks_the_accountant_seldom(monkeypatch):
    asked = []
    monkeypatch.setattr(ledger_module, "epsilon_of", lambda event, *, delta, interval=None: asked.append(event) or 0.0)
    ledger = MemoryLedger(Budget(epsilon=1.0, delta=1e-5), clients=4)
    for round_id in range(500):
        ledger.book(np.arange(4), Charge(event=Gaussian(100.0), unit="client"), round_id=round_id)
    assert len(asked) < 50
    ledger.restore(*ledger.snapshot())  # what was found affordable is not trusted from a file
    ledger.book(np.arange(4), Charge(event=Gaussian(100.0), unit="client"), round_id=500)
    assert len(asked) < 100


def test_repetitions_of_a_repetition_are_one():
    event = Repeated(PoissonSampled(0.1, Gaussian(1.0)), 3)
    assert composed([(event, 4)]) == Repeated(PoissonSampled(0.1, Gaussian(1.0)), 12)
    assert composed([(Gaussian(1.0), 1)]) == Gaussian(1.0)
    assert composed([(Gaussian(1.0), 0)]) is None


def test_a_run_that_claims_nothing_may_book_what_is_not_private():
    ledger = MemoryLedger(Budget(epsilon=np.inf), clients=2)
    ledger.book(np.array([0]), Charge(event=NonPrivate("baseline"), unit="client"), round_id=0)
    assert ledger.spent()["epsilon"] == np.inf
    with pytest.raises(BudgetError):
        MemoryLedger(Budget(epsilon=100.0, delta=1e-5), clients=2).book(
            np.array([0]), Charge(event=NonPrivate("baseline"), unit="client"), round_id=0
        )


def test_the_event_of_the_account_that_spent_most():
    ledger = MemoryLedger(Budget(epsilon=6.0, delta=1e-5), clients=4)
    assert ledger.worst_event() is None
    ledger.book(np.array([0, 1]), ONE, round_id=0)
    ledger.book(np.array([1, 2]), Charge(event=Gaussian(2.0), unit="client"), round_id=1)
    for round_id in (2, 3):
        ledger.book(np.array([2]), Charge(event=Gaussian(2.0), unit="client"), round_id=round_id)
    worst = ledger.worst_event()
    assert worst == Repeated(Gaussian(2.0), 3)
    assert epsilon_of(worst, delta=1e-5) == ledger.spent()["epsilon"]
    ledger.book(np.array([3]), Charge(event=Pure(5.0), unit="client"), round_id=4)
    assert ledger.worst_event() == Pure(5.0)
