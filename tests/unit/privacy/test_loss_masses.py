"""Masses by arrays are dp-accounting's, whose loops are the oracle."""

import math

import numpy as np
import pytest
from dp_accounting.pld import common, pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld

from populace.privacy import events
from populace.privacy.accounting import epsilon_of
from populace.privacy.loss_masses import Masses, _convolution_bounds
from populace.privacy.sampled_loss import sampled_gaussian_loss

DELTAS = (0.3, 1e-2, 1e-5, 1e-9, 0.0)
CASES = [(1.0, 1.0, 1e-3), (0.3, 1.0, 1e-2), (30.0, 1.0, 1e-3), (1.0, 0.1, 1e-3), (0.5, 0.004, 1e-3), (3.0, 0.9, 1e-4)]


@pytest.fixture(scope="module", params=CASES, ids=str)
def pair(request):
    """Ours, and the same masses in dp-accounting's class."""
    ours = sampled_gaussian_loss(*request.param)._pmf_remove
    return ours, theirs(ours)


def theirs(ours):
    parts = (ours._discretization, ours._lower_loss, ours._probs.copy(), ours._infinity_mass, True)
    return pld_pmf.DensePLDPmf(*parts)


def assert_same(ours, oracle, deltas=DELTAS):
    assert type(ours) is Masses
    assert ours._lower_loss == oracle._lower_loss
    assert ours._infinity_mass == pytest.approx(oracle._infinity_mass, rel=1e-12)
    np.testing.assert_array_equal(ours._probs, oracle._probs)
    for delta in deltas:
        assert ours.get_epsilon_for_delta(delta) == pytest.approx(oracle.get_epsilon_for_delta(delta), rel=1e-12)


def test_epsilons(pair):
    assert_same(*pair)


@pytest.mark.parametrize("times", [1, 2, 30, 1000])
def test_composed_with_itself(pair, times):
    ours, oracle = pair
    if times == 1 and ours.size <= pld_pmf._MAX_PMF_SPARSE_SIZE:  # dp-accounting would hold a dictionary
        assert ours.self_compose(1) is ours
    else:
        assert_same(ours.self_compose(times), oracle.self_compose(times), DELTAS[:3])


@pytest.mark.parametrize("tail", [0.0, 1e-15, 1e-3, 0.4])
def test_composed_with_another(pair, tail):
    ours, oracle = pair
    other = sampled_gaussian_loss(2.0, 0.5, ours._discretization)._pmf_add
    assert_same(ours.compose(other, tail), oracle.compose(theirs(other), tail), DELTAS[:3])
    pure = pld_pmf.SparsePLDPmf({-300: 0.4, 300: 0.6}, ours._discretization, 0.0, True)
    assert_same(pld_pmf.compose_pmfs(ours, pure, tail), pld_pmf.compose_pmfs(oracle, pure, tail), DELTAS[:3])


def test_dots_are_connected_as_dp_accounting_does():
    interval, low = 1e-2, -40
    deltas = np.exp(-np.linspace(0.1, 9, 90))
    oracle = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, low, low + 89, deltas)
    assert_same(Masses.connecting_the_dots(interval, low, deltas), oracle.to_dense_pmf())
    alone = Masses.connecting_the_dots(interval, 3, np.array([0.2]))
    oracle = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, 3, 3, [0.2])
    assert_same(alone, oracle.to_dense_pmf(), (0.5, 0.21, 0.1))
    with pytest.raises(ValueError, match="do not grow"):
        Masses.connecting_the_dots(interval, low, deltas[::-1])


@pytest.mark.parametrize(("low", "delta"), [(80_000, 1e-5), (-3, 0.9), (0, 1e-5)])
def test_losses_so_large_that_nothing_is_left_of_their_exponentials_and_none_above_0(low, delta):
    masses = np.array([0.5, 0.3, 0.1, 0.1])
    ours = Masses(1e-2, low, masses, 0.0, True)
    assert ours.get_epsilon_for_delta(delta) == pytest.approx(theirs(ours).get_epsilon_for_delta(delta), rel=1e-12)
    assert Masses(1e-2, low, masses / 2, 0.5, True).get_epsilon_for_delta(0.4) == math.inf


def test_more_masses_than_are_looked_at_at_once():
    """The answer lies in the first, a later and the last lot."""
    ours = sampled_gaussian_loss(0.4, 1.0, 1e-3)._pmf_remove
    assert ours.size > 3 * 4096
    for delta in (*10.0 ** np.arange(-14, -1, 0.5), 0.5, 0.9):
        assert ours.get_epsilon_for_delta(delta) == pytest.approx(theirs(ours).get_epsilon_for_delta(delta), rel=1e-12)


def test_bounds_keep_all_but_the_tail():
    masses = np.random.default_rng(0).dirichlet(np.ones(50))
    low, high = _convolution_bounds(masses, 40, 1e-6)
    whole = theirs(Masses(1.0, 0, masses, 0.0, True)).self_compose(40, 0)._probs
    assert 0 < low < high < len(whole) - 1
    assert whole[:low].sum() + whole[high + 1 :].sum() <= 1e-6
    assert _convolution_bounds(masses, 40, 0) == (0, 49 * 40)


GAUSSIAN = events.Repeated(events.PoissonSampled(0.1, events.Gaussian(1.0)), 20)
PURE = events.Repeated(events.Pure(0.01), 50)


@pytest.mark.parametrize(
    "parts",
    [(GAUSSIAN, PURE), (PURE, GAUSSIAN), (PURE, PURE, GAUSSIAN, events.Pure(0.1)), (events.Pure(0.1), GAUSSIAN)],
)
def test_what_is_pure_and_what_is_not_compose_in_every_order(parts):
    """Repeated and single, dense and in dictionaries: as dp-accounting composes its own."""
    gaussian = pld.from_gaussian_mechanism(1.0, sampling_prob=0.1, value_discretization_interval=1e-3).self_compose(20)

    def oracle(part):
        if part is GAUSSIAN:
            return gaussian
        epsilon, times = (0.01, 50) if part is PURE else (0.1, 1)
        parameters = common.DifferentialPrivacyParameters(epsilon, 0.0)
        return pld.from_privacy_parameters(parameters, value_discretization_interval=1e-3).self_compose(times)

    whole = oracle(parts[0])
    for part in parts[1:]:
        whole = whole.compose(oracle(part))
    found = epsilon_of(events.Composed(parts), delta=1e-5, interval=1e-3)
    assert found == pytest.approx(whole.get_epsilon_for_delta(1e-5), rel=1e-8)
