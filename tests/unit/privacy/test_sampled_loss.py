"""The privacy loss distribution computed by arrays is the one dp-accounting computes point by point."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import example, given, settings
from hypothesis import strategies as st

from populace.errors import SpecError
from populace.privacy.sampled_loss import sampled_gaussian_loss

CASES = [(1.0, 1.0), (0.3, 1.0), (20.0, 1.0), (1.0, 0.1), (0.5, 0.004), (3.0, 0.9), (40.0, 0.5), (0.8, 1 - 1e-9)]


def assert_same(noise, probability, interval, deltas=(1e-2, 1e-5, 1e-10)):
    found = sampled_gaussian_loss(noise, probability, interval)
    oracle = pld.from_gaussian_mechanism(noise, sampling_prob=probability, value_discretization_interval=interval)
    for epsilon in (0.0, 0.01, 0.3, 1.0, 5.0):
        one, other = found.get_delta_for_epsilon(epsilon), oracle.get_delta_for_epsilon(epsilon)
        assert one == pytest.approx(other, rel=1e-9, abs=1e-15)
    for steps, within, least in ((1, 1e-9, 1e-12), (7, 1e-6, 1e-6)):  # composed by Fourier transforms, which round
        one, other = (each.self_compose(steps) if steps > 1 else each for each in (found, oracle))
        for delta in deltas:
            wanted = pytest.approx(other.get_epsilon_for_delta(delta), rel=within, abs=least)
            assert one.get_epsilon_for_delta(delta) == wanted


@pytest.mark.parametrize(("noise", "probability"), CASES)
def test_it_is_dp_accountings(noise, probability):
    assert_same(noise, probability, 1e-3)


def test_also_at_the_interval_claims_are_made_with():
    assert_same(1.3, 0.05, 1e-4)


@settings(max_examples=25, deadline=None)
@given(
    noise=st.floats(0.3, 30),
    probability=st.floats(1e-4, 1 - 1e-9) | st.just(1.0),
    interval=st.sampled_from([1e-2, 3e-3]),
)
@example(noise=0.8125, probability=1e-4, interval=1e-2)  # a small epsilon, of which rounding is more than a millionth
def test_it_is_dp_accountings_wherever_one_looks(noise, probability, interval):
    assert_same(noise, probability, interval)


@pytest.mark.parametrize(("noise", "probability"), [(0.9, 0.2), (0.1, 0.01), (0.7, 1e-4), (2.0, 0.999)])
def test_masses_agree_one_by_one(noise, probability):
    """Noise .1 has losses above 100, whose exponentials need care."""
    found = sampled_gaussian_loss(noise, probability, 1e-2)
    oracle = pld.from_gaussian_mechanism(noise, sampling_prob=probability, value_discretization_interval=1e-2)
    for name in ("_pmf_remove", "_pmf_add"):
        one, other = (getattr(each, name).to_dense_pmf() for each in (found, oracle))
        assert one._lower_loss == other._lower_loss
        assert math.isclose(one._infinity_mass, other._infinity_mass, rel_tol=1e-9)
        np.testing.assert_allclose(one._probs, other._probs, rtol=1e-7, atol=1e-15)


def test_a_wrong_rate_or_noise_would_be_seen():
    """The comparison has power: one per cent less of either is another distribution."""
    oracle = pld.from_gaussian_mechanism(1.0, sampling_prob=0.1, value_discretization_interval=1e-3)
    for noise, probability in ((0.99, 0.1), (1.0, 0.101)):
        other = sampled_gaussian_loss(noise, probability, 1e-3)
        assert other.get_epsilon_for_delta(1e-5) > 1.001 * oracle.get_epsilon_for_delta(1e-5)


@pytest.mark.parametrize("probability", [1.0, 0.1])
def test_next_to_no_noise_is_refused_in_one_sentence_and_little_is_not(probability):
    with pytest.raises(SpecError, match="1e-06 protects nobody"):
        sampled_gaussian_loss(1e-6, probability, 1e-4)
    assert sampled_gaussian_loss(0.1, probability, 1e-2).get_epsilon_for_delta(1e-5) > 50
