"""Lists of values: a right mechanism is accepted, wrong ones are caught; and what lists cost, alone and with others."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from scipy import stats

from populace.errors import SpecError
from populace.privacy import events
from populace.privacy.accounting import epsilon_of, noise_multiplier_for
from populace.privacy.bracket import bracket
from populace.privacy.consequences import best_test, changed_epsilon
from populace.privacy.events import Composed, Gaussian, NoisyLists, PoissonSampled, Repeated
from populace.privacy.ledger import Budget, Charge, MemoryLedger
from populace.privacy.partition import ValueLists
from populace.privacy.source import Keyed, System

TIMES = 3_000
SURE = 1e-6  # the probability of flagging a right mechanism
LISTS = ValueLists(columns=4, noise_multiplier=3.0, delta=0.05)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowThreshold(ValueLists):
    """The same noise, and a threshold for one column only, without what rounding adds."""

    @property
    def event(self) -> NoisyLists:
        return NoisyLists(self.noise_multiplier, self.columns, math.ceil(stats.norm.isf(self.delta) * 3.0 * 2))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SensitivityOne(ValueLists):
    """Noise for one column, although a record has a value in each."""

    def release(self, counts, source):
        del source
        noise = np.random.default_rng(0).normal(scale=self.noise_multiplier, size=(TIMES, 4, 2)).round()
        shown = noise[np.random.default_rng().integers(TIMES)]
        return tuple(
            {v: c + int(shown[i, j]) for j, (v, c) in enumerate(sorted(column.items())) if c + shown[i, j] > 30}
            for i, column in enumerate(counts)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithoutNoise(ValueLists):
    """The true counts of values above the threshold."""

    def release(self, counts, source):
        return tuple({v: c for v, c in column.items() if c > self.event.threshold} for column in counts)


def faults(lists: ValueLists) -> list[str]:
    """What is wrong with a mechanism, by what it shows of a silo with one record that nobody resembles."""
    honest = ValueLists(columns=lists.columns, noise_multiplier=lists.noise_multiplier, delta=lists.delta)
    counts = [{"all": 1_000, "one": 1} for _ in range(lists.columns)]
    shown, noise = 0, []
    for _ in range(TIMES):
        released = lists.release(counts, System())
        shown += any("one" in column for column in released)
        noise += [column["all"] - 1_000 for column in released]
    found = []
    if stats.binomtest(shown, TIMES, lists.delta, alternative="greater").pvalue < SURE:
        found.append("shows lone values")
    expected = honest.event.deviation**2 + 1 / 12  # rounding adds a twelfth
    if stats.chi2.cdf(np.sum(np.square(noise)) / expected, len(noise)) < SURE:
        found.append("too little noise")
    return found


def test_a_right_mechanism_is_accepted():
    assert faults(LISTS) == []


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [(LowThreshold, "shows lone values"), (SensitivityOne, "too little noise"), (WithoutNoise, "too little noise")],
)
def test_wrong_mechanisms_are_caught(wrong, fault):
    assert fault in faults(wrong(**dataclasses.asdict(LISTS)))


def test_the_threshold_is_the_least_that_keeps_within_delta():
    for columns, multiplier, delta in ((1, 0.5, 1e-6), (9, 12.0, 1e-6), (37, 40.0, 1e-9)):
        event = ValueLists(columns=columns, noise_multiplier=multiplier, delta=delta).event
        assert event.failure() <= delta
        assert NoisyLists(multiplier, columns, event.threshold - 1).failure() > delta
        tail = stats.norm.sf((event.threshold - 0.5) / (multiplier * math.sqrt(columns)))
        assert event.failure() == pytest.approx(1 - (1 - tail) ** columns, rel=1e-6)


def test_groups_fail_as_often_as_their_worst_split():
    event = NoisyLists(2.0, 1, 12)
    tails = [stats.norm.sf((12.5 - held) / 2) for held in range(1, 5)]
    splits = [(4,), (3, 1), (2, 2), (2, 1, 1), (1, 1, 1, 1)]
    worst = max(1 - math.prod(1 - tails[held - 1] for held in split) for split in splits)
    assert worst <= event.failure(4) <= 4 * worst
    assert event.failure(1) < event.failure(2) < event.failure(4)
    assert NoisyLists(1.0, 3, 2).failure(5) == 1.0


def test_values_stand_in_an_order_of_their_own_and_empty_silos_show_nothing():
    lists = ValueLists(columns=2, noise_multiplier=1.0, delta=1e-6)
    first = lists.release([{"b": 900, "a": 900}, {}], System())
    assert [list(column) for column in first] == [["a", "b"], []]
    assert lists.release([{}, {}], System()) == ({}, {})
    with pytest.raises(SpecError):
        lists.release([{}], System())


def test_a_seed_gives_the_same_lists_again():
    lists = ValueLists(columns=1, noise_multiplier=2.0, delta=1e-6)
    counts = [{f"v{i}": 10 * i for i in range(40)}]
    first, second = (lists.release(counts, Keyed(jax.random.key(3))) for _ in range(2))
    assert first == second != lists.release(counts, Keyed(jax.random.key(4)))


def test_lists_cost_their_noise_and_their_failure():
    lists = ValueLists(columns=9, noise_multiplier=10.0, delta=1e-6).event
    lost = lists.failure()
    alone = epsilon_of(Gaussian(10.0), delta=1e-5 - lost)
    assert epsilon_of(lists, delta=1e-5) == pytest.approx(alone - math.log1p(-lost), rel=1e-12)
    assert epsilon_of(lists, delta=1e-5) > epsilon_of(Gaussian(10.0), delta=1e-5)
    assert epsilon_of(lists, delta=lost) == math.inf
    assert epsilon_of(lists, delta=0.0) == math.inf
    both = epsilon_of(Composed((lists, Gaussian(4.0))), delta=1e-5)
    plain = Composed((Gaussian(10.0), Gaussian(4.0)))
    assert both == pytest.approx(epsilon_of(plain, delta=1e-5 - lost) - math.log1p(-lost), rel=1e-12)
    assert epsilon_of(Repeated(lists, 9), delta=9 * lost) == math.inf
    assert epsilon_of(Repeated(lists, 9), delta=1e-5) < math.inf
    assert both <= epsilon_of(Composed((lists, Gaussian(4.0))), delta=1e-5, accountant="rdp")
    with pytest.raises(SpecError, match="sample"):
        epsilon_of(PoissonSampled(0.1, lists), delta=1e-5)


def test_lists_travel_as_json_and_through_a_ledger():
    lists = ValueLists(columns=3, noise_multiplier=5.0, delta=1e-7).event
    event = Composed((lists, Gaussian(2.0)))
    assert events.from_json(events.to_json(event)) == event
    for wrong in ({"columns": 0}, {"threshold": 0}, {"threshold": 2.5}, {"noise_multiplier": 0.0}):
        with pytest.raises(SpecError):
            dataclasses.replace(lists, **wrong)
    epsilon = epsilon_of(event, delta=1e-5)
    ledger = MemoryLedger(Budget(epsilon=epsilon, delta=1e-5, unit="record"), clients=2)
    ledger.book(np.array([0, 1]), Charge(event=lists, unit="record"), round_id=0)
    ledger.book(np.array([0, 1]), Charge(event=Gaussian(2.0), unit="record"), round_id=1)
    assert ledger.spent()["epsilon"] == pytest.approx(epsilon, rel=1e-9)
    with pytest.raises(Exception, match="refused"):
        ledger.book(np.array([0]), Charge(event=Gaussian(2.0), unit="record"), round_id=2)


def test_calibration_beside_lists_keeps_within_the_budget():
    lists = ValueLists(columns=9, noise_multiplier=12.0, delta=1e-6).event
    noise = noise_multiplier_for(epsilon=1.0, delta=1e-5, beside=(lists,))
    assert 0.99 <= epsilon_of(Composed((Gaussian(noise), lists)), delta=1e-5) <= 1.0


def test_bounds_from_below_and_for_groups_know_lists():
    lists = ValueLists(columns=9, noise_multiplier=12.0, delta=1e-6).event
    event = Composed((lists, Gaussian(4.0)))
    found = bracket(event, delta=1e-5)
    assert found.at_least <= found.proved == epsilon_of(event, delta=1e-5)
    assert found.at_least > 0.97 * found.proved
    assert found.renyi is not None
    assert found.renyi >= found.proved
    one, two = (changed_epsilon(event, delta=1e-5, change=change) for change in (1, 2))
    assert found.proved <= one * (1 + 1e-9) + 1e-6 < two < math.inf
    assert two < changed_epsilon(event, delta=1e-5, change="replaced") + 0.02
    plain = Composed((Gaussian(12.0), Gaussian(4.0)))
    assert best_test(event, change=1) == pytest.approx(best_test(plain, change=1) + lists.failure())
    assert changed_epsilon(Composed((NoisyLists(0.5, 1, 4),)), delta=1e-5, change=5) == math.inf
