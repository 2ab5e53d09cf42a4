"""Bounds on what events cost: from below, proved, and by Renyi divergences; each on its side of the truth."""

import logging
import math

import pytest
from scipy.stats import norm

from populace.privacy.bracket import TOLERANCE, bracket, releases
from populace.privacy.events import Composed, Gaussian, NonPrivate, PoissonSampled, Pure, Repeated


def gaussian_delta(epsilon, noise_multiplier):
    """Exact, for one Gaussian release (Balle and Wang 2018, theorem 8)."""
    half = 1 / (2 * noise_multiplier)
    shifted = epsilon * noise_multiplier
    return norm.cdf(half - shifted) - math.exp(epsilon) * norm.cdf(-half - shifted)


def exact_epsilon(noise_multiplier, delta):
    low, high = 0.0, 200.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(middle, noise_multiplier) <= delta else (middle, high)
    return high


@pytest.mark.parametrize("noise", [0.7, 1.0, 3.0, 20.0, 300.0])
@pytest.mark.parametrize("steps", [1, 30])
def test_the_truth_lies_between(noise, steps):
    """Known exactly for Gaussian releases: `steps` of them are one with less noise."""
    event = Gaussian(noise) if steps == 1 else Repeated(Gaussian(noise), steps)
    found = bracket(event, delta=1e-6)
    truth = exact_epsilon(noise / math.sqrt(steps), 1e-6)
    assert found.at_least <= truth <= found.proved
    assert truth <= found.renyi
    assert found.proved <= found.renyi + TOLERANCE
    assert found.at_least > 0.99 * found.proved  # a claim that is one hundredth too small lies outside


@pytest.mark.parametrize("probability", [0.01, 0.2])
@pytest.mark.parametrize("noise", [0.8, 3.0, pytest.param(1e4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("steps", [1, 100])
def test_sampled_releases_are_in_order(probability, noise, steps):
    event = Repeated(PoissonSampled(probability, Gaussian(noise)), steps)
    found = bracket(event, delta=1e-5)
    assert found.at_least <= found.proved <= found.renyi + TOLERANCE
    assert noise == 1e4 or found.at_least > 0.99 * found.proved


def test_pure_events_add_up_at_delta_0():
    event = Composed((Pure(0.5), Repeated(Pure(0.25), 4)))
    found = bracket(event, delta=0.0)
    assert found.at_least == found.proved == found.renyi == 1.5
    assert releases(event) == 5
    above = bracket(event, delta=1e-6)
    assert above.at_least <= above.proved <= above.renyi == 1.5


def test_what_the_renyi_accountant_does_not_know_has_no_renyi_bound():
    event = Composed((PoissonSampled(0.1, Pure(1.0)), Gaussian(2.0)))
    found = bracket(event, delta=1e-6)
    assert found.renyi is None
    assert 0.99 * found.proved < found.at_least <= found.proved


def test_without_protection_everything_is_infinite():
    found = bracket(Composed((Gaussian(1.0), NonPrivate("a test"))), delta=1e-6)
    assert found.at_least == found.proved == math.inf
    assert bracket(Gaussian(1.0), delta=0.0).proved == math.inf


def test_orders_that_are_left_out_are_not_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        bracket(PoissonSampled(0.2, Gaussian(1.0)), delta=1.3e-5)
    assert not caplog.records
    assert not logging.getLogger("absl").disabled
