"""Statistics with power: the right probabilities are accepted, planted wrong ones rejected, and both faces agree.

Every test compares support frequencies with p and q by a z-score; at 5.5 standard deviations a right mechanism fails about once
in a million runs, and the planted errors lie 9 or more away.
"""

import dataclasses
import functools
import math
from fractions import Fraction

import jax
import numpy as np
import pytest

from populace.privacy import secure_random
from populace.privacy.randomizers.base import simulate_many
from populace.privacy.randomizers.grr import Grr
from populace.privacy.randomizers.subset import SubsetPanel, SubsetSelection
from populace.privacy.source import Keyed

USERS = 600_000
SIZE = 16
LIMIT = 5.5
ORACLES = [Grr, SubsetSelection]
EPSILONS = [1.0, 4.0]


@functools.cache
def supports(kind, epsilon, face):
    """How often each value is supported when all users hold value 3."""
    oracle = kind(size=SIZE, epsilon=epsilon)
    values = np.full(USERS, 3, np.int32)
    if face == "simulate":
        reports = jax.jit(lambda v, k: simulate_many(oracle.simulate, v, k))(values, jax.random.key(7))
    else:
        reports = oracle.release(values)
    return np.asarray(oracle.support(reports)).mean(axis=0)


def z_scores(frequencies, p, q):
    expected = np.full(SIZE, q)
    expected[3] = p
    return (frequencies - expected) / np.sqrt(expected * (1 - expected) / USERS)


@pytest.mark.parametrize("face", ["simulate", "release"])
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("kind", ORACLES)
def test_support_frequencies_accepted_at_p_and_q_and_rejected_three_per_cent_off(kind, epsilon, face):
    oracle = kind(size=SIZE, epsilon=epsilon)
    found = supports(kind, epsilon, face)
    assert np.abs(z_scores(found, oracle.p, oracle.q)).max() < LIMIT
    for wrong_p, wrong_q in ((0.97 * oracle.p, oracle.q), (oracle.p, 1.2 * oracle.q)):
        assert np.abs(z_scores(found, wrong_p, wrong_q)).max() > LIMIT


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("kind", ORACLES)
def test_simulate_and_release_agree(kind, epsilon):
    first, second = supports(kind, epsilon, "simulate"), supports(kind, epsilon, "release")
    pooled = (first + second) / 2
    assert (np.abs(first - second) / np.sqrt(2 * pooled * (1 - pooled) / USERS)).max() < LIMIT


def test_panel_draws_have_the_members_probabilities_and_joint():
    """The path the protocols take: traced sizes; every set of two values of six, not only every value."""
    panel = SubsetPanel(sizes=(3, 6, 40), epsilon=0.4)
    member = panel.members[1]
    assert member.chosen == 2
    users = 200_000
    keys = jax.random.split(jax.random.key(11), users)
    reports = np.asarray(jax.jit(jax.vmap(lambda k: panel.apply(4, 1, Keyed(k))))(keys))[:, :6]
    sets = np.bincount(reports @ (1 << np.arange(6)), minlength=64)
    for code in range(64):
        values = [v for v in range(6) if code >> v & 1]
        if len(values) != 2:
            assert sets[code] == 0
            continue
        expected = member.p / 5 if 4 in values else (1 - member.p) / 10
        assert abs(sets[code] / users - expected) < LIMIT * math.sqrt(expected * (1 - expected) / users)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpendsTwice(SubsetSelection):
    """Planted: tells the truth as if epsilon were half a unit larger."""

    @functools.cached_property
    def exact_p(self):
        weight = self.chosen * secure_random.exp_below(self.epsilon + 0.5)
        return secure_random.rounded_down(weight / (weight + self.size - self.chosen))


def test_planted_broken_mechanism_is_caught():
    broken, honest = SpendsTwice(size=SIZE, epsilon=1.0), SubsetSelection(size=SIZE, epsilon=1.0)
    assert broken.worst_ratio() > math.exp(1.0) * 1.5
    found = broken.release(np.full(USERS, 3)).mean(axis=0)
    assert np.abs(z_scores(found, honest.p, honest.q)).max() > LIMIT


def test_planted_wrong_subset_sampler_is_caught(monkeypatch):
    """Others picked with a bias towards small values: the support of others is uneven."""

    def biased(size, chosen, count):
        mask = np.zeros((count, size), bool)
        mask[:, :chosen] = True
        return mask

    monkeypatch.setattr(secure_random, "subsets", biased)
    oracle = SubsetSelection(size=SIZE, epsilon=1.0)
    found = oracle.release(np.full(USERS, 3)).mean(axis=0)
    assert np.abs(z_scores(found, oracle.p, oracle.q)).max() > LIMIT


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("kind", ORACLES)
def test_measured_variance_within_five_per_cent_of_closed_form(kind, epsilon):
    """Many small populations of 40 users: the spread of the estimates is what the formula says, and not 15 % more."""
    oracle = kind(size=SIZE, epsilon=epsilon)
    values = np.full(USERS, 3, np.int32)
    reports = np.asarray(
        oracle.support(jax.jit(lambda v, k: simulate_many(oracle.simulate, v, k))(values, jax.random.key(3)))
    )
    counts = reports.reshape(USERS // 40, 40, SIZE).sum(axis=1)
    estimates = (counts / 40 - oracle.q) / (oracle.p - oracle.q)
    others = np.delete(estimates, 3, axis=1).var()
    own = estimates[:, 3].var()
    assert others == pytest.approx(float(oracle.variance(0.0, 40)), rel=0.05)
    assert own == pytest.approx(float(oracle.variance(1.0, 40)), rel=0.10)
    assert others != pytest.approx(1.15 * float(oracle.variance(0.0, 40)), rel=0.05)


def test_exact_bernoulli_has_its_probability_and_not_another():
    probability = Fraction(3, 8)
    share = secure_random.bernoulli(probability, USERS).mean()
    assert abs(share - 0.375) < 6 * math.sqrt(0.375 * 0.625 / USERS)
    assert abs(share - 0.386) > 6 * math.sqrt(0.375 * 0.625 / USERS)
