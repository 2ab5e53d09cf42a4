"""The law of the Gaussian noise, of all faces: the right one is accepted, one whose scale is off by 3 % is rejected."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from populace.privacy import secure_random
from populace.privacy.gaussian import GaussianSum, analytic_delta
from populace.privacy.source import Keyed, System

DRAWS = 400_000
DEVIATIONS = (0.7, 3.0, 50.0, 1e5)  # in units of the grid
FACES = ("keyed", "host", "system")  # `host`: a keyed source whose Gaussian noise is drawn from the operating system
ACCEPT, REJECT = 1e-6, 1e-12  # p-values: the operating system's draws differ each time
BINS = 200


def source_of(face):
    return System() if face == "system" else Keyed(jax.random.key(5), exact=face == "host")


def mechanism_of(deviation):
    """A sum of one coordinate whose noise has this deviation, in units of the grid."""
    plain = GaussianSum(bound=1.0, noise_multiplier=1.0, size=1)
    return GaussianSum(bound=1.0, noise_multiplier=deviation / plain.deviation, size=1)


@functools.cache
def draws(face, deviation):
    mechanism = mechanism_of(deviation)
    assert mechanism.deviation == pytest.approx(deviation)
    return np.asarray(mechanism.noise(source_of(face), (DRAWS, 1)), np.int64).reshape(-1)


def edges_of(deviation):
    """Halves between whole numbers, at most BINS of them, where the law has about equal shares."""
    wanted = stats.norm.ppf(np.arange(1, BINS) / BINS) * deviation
    return np.unique(np.floor(wanted) + 0.5)


def p_value(found, deviation, *, edges):
    """Pearson's test of whole numbers against round(N(0, deviation^2))."""
    expected = np.diff(np.r_[0.0, ndtr(edges / deviation), 1.0]) * len(found)
    counts = np.bincount(np.searchsorted(edges, found), minlength=len(edges) + 1)
    return stats.chisquare(counts, expected).pvalue


@pytest.mark.parametrize("deviation", DEVIATIONS)
@pytest.mark.parametrize("face", FACES)
def test_the_law_is_accepted_and_a_scale_off_by_three_percent_is_rejected(face, deviation):
    found, edges = draws(face, deviation), edges_of(deviation)
    assert p_value(found, deviation, edges=edges) > ACCEPT
    for wrong in (0.97, 1.03):
        assert p_value(found, wrong * deviation, edges=edges) < REJECT


@pytest.mark.parametrize("deviation", DEVIATIONS)
@pytest.mark.parametrize("face", FACES)
def test_mean_and_variance(face, deviation):
    """Where rounding matters, the variance is that of the rounded law."""
    found = draws(face, deviation)
    places = np.arange(-int(9 * deviation) - 9, int(9 * deviation) + 10)
    shares = ndtr((places + 0.5) / deviation) - ndtr((places - 0.5) / deviation)
    variance, fourth = (float(np.sum(shares * places.astype(float) ** power)) for power in (2, 4))
    assert abs(found.mean()) < 5 * np.sqrt(variance / DRAWS)
    assert abs(np.mean(found.astype(float) ** 2) - variance) < 5 * np.sqrt((fourth - variance**2) / DRAWS)


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_the_faces_agree_with_each_other_and_not_with_another_scale(deviation):
    edges = edges_of(deviation)

    def compared(other):
        tables = [np.bincount(np.searchsorted(edges, found), minlength=len(edges) + 1) for found in (ours, other)]
        filled = np.sum(tables, axis=0) > 0
        return stats.chi2_contingency(np.array(tables)[:, filled]).pvalue

    ours = draws("system", deviation)
    for face in ("keyed", "host"):
        assert compared(draws(face, deviation)) > ACCEPT
    assert compared(secure_random.rounded_normal(1.03 * deviation, DRAWS)) < REJECT


def test_the_tail_has_its_share():
    """Beyond four deviations a cell has few slots; of four million draws some 253 lie there."""
    found = np.abs(secure_random.rounded_normal(1e6, 4_000_000))
    for reach in (4.0, 4.5):
        expected = 2 * ndtr(-reach) * len(found)
        assert abs(np.sum(found > reach * 1e6) - expected) < 5 * np.sqrt(expected) + 3


def test_places_within_a_cell_are_even_to_the_last_unit():
    """At 2^26 units in a deviation a cell has 2^22: the low bits of a draw are fair, and so is the sign."""
    found = secure_random.rounded_normal(2.0**26, DRAWS)
    for bit in range(18):
        assert np.mean(found >> bit & 1) == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(DRAWS))
    assert np.mean(found > 0) == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(DRAWS))


@pytest.mark.parametrize("face", FACES)
def test_draws_are_independent_of_their_neighbours(face):
    found = draws(face, 50.0) / 50.0
    for values in (found, np.abs(found) - np.abs(found).mean()):
        for lag in (1, 2, 7):
            together = np.corrcoef(values[:-lag], values[lag:])[0, 1]
            assert abs(together) < 5 / np.sqrt(DRAWS)


@pytest.mark.parametrize("probability", [0.01, 0.3])
@pytest.mark.parametrize("face", FACES)
def test_coins_have_their_probability(face, probability):
    found = int(np.sum(source_of(face).coins(probability, DRAWS)))
    assert stats.binomtest(found, DRAWS, probability).pvalue > ACCEPT
    assert stats.binomtest(found, DRAWS, 1.2 * probability).pvalue < 1e-8


@pytest.mark.parametrize("face", FACES)
def test_latents_are_standard_normal(face):
    found = np.asarray(source_of(face).normal(1_000_000))
    assert stats.kstest(found, "norm").pvalue > ACCEPT
    assert stats.kstest(1.03 * found, "norm").pvalue < REJECT


def measured_delta(mechanism, epsilon, face):
    """Of the best test between a sum and the same with one unit more: P(above t | more) - e^epsilon P(above t | less)."""
    count = 1_000_000
    first, second = source_of(face).split(2)
    zeros = np.zeros((count, 1), np.float32)
    less = np.asarray(mechanism.apply(zeros, first))
    more = np.asarray(mechanism.apply(zeros + np.float32(mechanism.bound), second))
    z = mechanism.noise_multiplier
    best = (epsilon * z * z + 0.5) * mechanism.sensitivity
    return np.mean(more > best) - np.exp(epsilon) * np.mean(less > best)


@pytest.mark.parametrize("face", FACES)
def test_a_release_spends_the_delta_of_the_closed_form_and_no_more(face):
    epsilon, mechanism = 1.0, GaussianSum(bound=3.0, noise_multiplier=1.0, size=1)
    claimed = analytic_delta(epsilon, 1.0)
    assert measured_delta(mechanism, epsilon, face) == pytest.approx(claimed, abs=0.005)
    broken = GaussianSum(bound=3.0, noise_multiplier=0.9, size=1)
    assert measured_delta(broken, epsilon, face) > claimed + 0.01
