"""The law of noise in shares: survivors' shares have the right scale, and a wrong one is rejected."""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from populace.privacy.gaussian import GaussianSum
from populace.privacy.noise_shares import NoiseShares
from populace.privacy.source import Keyed, System

DRAWS = 200_000
ACCEPT, REJECT = 1e-6, 1e-12
MECHANISM = GaussianSum(bound=3.0, noise_multiplier=4.0, size=DRAWS, whole=True)  # a deviation of 12
SITES = {"clients": 6, "colluders": 1, "dropouts": 1}  # four honest sites carry it


def drawn_by(count, face, shares):
    """The sum of so many sites' shares."""
    sources = [System()] * count if face == "system" else Keyed(jax.random.key(3)).split(count)
    return sum(np.asarray(shares.draw(source), np.int64) for source in sources)


def p_value(found, count, deviation):
    """Pearson's test against round(N + U_1 + .. + U_{count-1}), with the even numbers' variance in the normal's place: at this
    scale the difference of the two is far below what the test can see."""
    scale = math.sqrt(deviation**2 + (count - 1) / 12)
    edges = np.unique(np.floor(stats.norm.ppf(np.arange(1, 100) / 100) * scale) + 0.5)
    expected = np.diff(np.r_[0.0, ndtr(edges / scale), 1.0]) * len(found)
    counts = np.bincount(np.searchsorted(edges, found), minlength=len(edges) + 1)
    return stats.chisquare(counts, expected).pvalue


@pytest.mark.parametrize("face", ["system", "keyed"])
@pytest.mark.parametrize("survivors", [4, 5, 6])
def test_survivors_shares_have_the_variance_of_their_number(face, survivors):
    """K' survivors have K' / (K - c - d) times the target's variance; 3 % more or less is rejected."""
    shares = NoiseShares(mechanism=MECHANISM, **SITES)
    found = drawn_by(survivors, face, shares)
    right = MECHANISM.deviation * math.sqrt(survivors / shares.least_honest)
    assert p_value(found, survivors, right) > ACCEPT
    for wrong in (0.97, 1.03):
        assert p_value(found, survivors, wrong * right) < REJECT


@pytest.mark.parametrize("face", ["system", "keyed"])
def test_a_simulation_draws_the_law_of_the_survivors_shares(face):
    shares = NoiseShares(mechanism=MECHANISM, **SITES)
    source = System() if face == "system" else Keyed(jax.random.key(4))
    found = np.asarray(shares.summed(6).noise(source), np.int64)
    assert p_value(found, 1, MECHANISM.deviation * math.sqrt(6 / 4)) > ACCEPT
    assert p_value(found, 1, MECHANISM.deviation) < REJECT


def test_shares_calibrated_for_all_sites_are_too_small_where_some_are_missing():
    """Planted: a site that takes every site for honest and there draws shares whose survivors do not carry the claim."""
    right = NoiseShares(mechanism=MECHANISM, **SITES)
    planted = dataclasses.replace(right, colluders=0, dropouts=0)
    assert p_value(drawn_by(4, "system", planted), 4, MECHANISM.deviation) < REJECT
    assert p_value(drawn_by(4, "system", right), 4, MECHANISM.deviation) > ACCEPT
