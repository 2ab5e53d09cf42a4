"""Steps of noised sums: events of the objects that make the noise, and what sampling adds to delta."""

from __future__ import annotations

import dataclasses
import math

import pytest

from populace.errors import SpecError
from populace.privacy.accounting import epsilon_of, noise_multiplier_for, sampled_gaussian, steps_for
from populace.privacy.events import Composed, Gaussian
from populace.privacy.gaussian import NOISE_DISTANCE, GaussianSum
from populace.privacy.noised_steps import SAMPLERS_SHARE, accounted_delta, noised_steps, sampled_delta

ASKED = {
    "epsilon": 2.0,
    "delta": 1e-5,
    "probability": 0.2,
    "wanted": 12,
    "size": 7,
    "noise": 0.0,
    "each": 1,
    "counting": 0.0,
}


def test_without_noise_given_it_is_calibrated_to_the_steps():
    release = noised_steps(**ASKED)
    assert release.steps == 12
    assert release.noise_multiplier == noise_multiplier_for(epsilon=2.0, delta=1e-5, probability=0.2, steps=12)
    assert 1.95 < epsilon_of(release.event(12), delta=1e-5) <= 2.0
    assert release.draws == 12 * 7


def test_a_count_that_goes_along_takes_its_share_of_the_same_budget():
    alone, both = noised_steps(**ASKED), noised_steps(**{**ASKED, "counting": 10.0})
    assert both.count is not None
    assert both.noise_multiplier == pytest.approx(alone.noise_multiplier, rel=1e-9)
    assert both.mechanism.noise_multiplier > alone.mechanism.noise_multiplier
    assert epsilon_of(both.event(12), delta=1e-5) == pytest.approx(epsilon_of(alone.event(12), delta=1e-5), rel=1e-6)
    assert both.draws == 12 * 8


def test_the_event_is_that_of_the_noise_that_is_made_and_of_none_other():
    """Whoever weakens the mechanism weakens the claim with it."""
    release = noised_steps(**ASKED)
    weaker = dataclasses.replace(release.mechanism, noise_multiplier=0.5 * release.mechanism.noise_multiplier)
    assert epsilon_of(dataclasses.replace(release, mechanism=weaker).event(12), delta=1e-5) > 4.0


@pytest.mark.parametrize("each", [1, 5])
def test_noise_that_is_given_allows_whole_lots_of_steps_within_the_budget(each):
    release = noised_steps(**{**ASKED, "noise": 2.5, "wanted": 1000, "each": each})
    fit = steps_for(epsilon=2.0, delta=1e-5, noise_multiplier=2.5, probability=0.2, wanted=1000)
    assert release.steps == fit // each * each < 1000
    one_more = sampled_gaussian(noise_multiplier=2.5, probability=0.2, steps=fit + 1)
    assert epsilon_of(release.event(release.steps), delta=1e-5) <= 2.0 < epsilon_of(one_more, delta=1e-5)


def test_too_little_noise_for_one_lot_is_refused():
    with pytest.raises(SpecError, match="5 are taken at a time; choose more noise or fewer steps"):
        noised_steps(**{**ASKED, "noise": 1.1, "each": 5})


def test_sampling_adds_its_distance_from_the_law_once_for_each_number_on_both_sides():
    assert sampled_delta(1e-5, 2.0, 0) == 1e-5
    added = sampled_delta(0.0, 2.0, 10**9)
    assert added == pytest.approx((1 + math.exp(2.0)) * 10**9 * NOISE_DISTANCE, rel=1e-9, abs=0)
    assert 0 < added < 1e-5


@pytest.mark.parametrize("draws", [10, 1_000])
@pytest.mark.parametrize("epsilon", [31.0, 45.0, 50.0])
def test_noise_for_a_large_epsilon_leaves_room_for_what_sampling_adds(epsilon, draws):
    """Calibrated to (epsilon, delta), the claim is within it with all that sampling adds, and hides none of that."""
    event = Gaussian(noise_multiplier_for(epsilon=epsilon, delta=1e-5))
    accounted = accounted_delta(1e-5, event, draws)
    spent = epsilon_of(event, delta=accounted)
    assert 0.98 * epsilon < spent <= epsilon
    assert sampled_delta(accounted, spent, draws) <= 1e-5 * (1 + SAMPLERS_SHARE)
    assert accounted <= 1e-5


def test_all_of_delta_is_accounted_where_sampling_adds_next_to_nothing_or_too_much():
    assert accounted_delta(1e-5, Gaussian(1.0), 10) == 1e-5
    large = Gaussian(noise_multiplier_for(epsilon=50.0, delta=1e-5))
    assert accounted_delta(1e-5, large, 10**9) == 1e-5


def test_what_goes_beside_and_what_was_paid_before_are_within_the_same_budget():
    counts = GaussianSum(bound=1.0, noise_multiplier=4.0, size=3)
    alone, both = noised_steps(**ASKED), noised_steps(**ASKED, beside=(counts,))
    assert both.noise_multiplier > alone.noise_multiplier
    assert both.whole == Composed((both.event(12), Gaussian(4.0)))
    assert 1.95 < epsilon_of(both.whole, delta=1e-5) <= 2.0
    assert both.draws == alone.draws + 3
    paid = noised_steps(**ASKED, before=Gaussian(4.0))
    assert paid.noise_multiplier == both.noise_multiplier
    assert paid.whole == paid.event(12)
    with pytest.raises(SpecError, match="alone costs more"):
        noised_steps(**ASKED, before=Gaussian(0.5))
