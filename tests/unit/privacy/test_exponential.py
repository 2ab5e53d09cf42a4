"""The exponential mechanism: its law from every source, the exact ratio of neighbours, and a wrong rate that is noticed."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import jax
import numpy as np
import pytest
from scipy import stats

from populace.errors import PopulaceError
from populace.privacy.events import Pure
from populace.privacy.exponential import ExponentialMechanism, coin_of_exp
from populace.privacy.source import Keyed, System

SCORES = np.array([40, -100, 55, 60, 7, 60], np.int32)
ALLOWED = np.array([True, True, True, True, True, False])
MECHANISM = ExponentialMechanism(epsilon=1.0, sensitivity=8)
DRAWS = {"keyed": 40_000, "host": 2_500, "system": 2_500}
ACCEPT, REJECT = 1e-6, 1e-9  # p-values: the operating system's draws differ each time


def law(mechanism, scores=SCORES, allowed=ALLOWED):
    weights = np.exp(mechanism.epsilon / (2 * mechanism.sensitivity) * (scores - scores.max())) * allowed
    return weights / weights.sum()


@functools.cache
def choices(face):
    count = DRAWS[face]
    if face == "system":
        return np.array([int(MECHANISM.apply(SCORES, ALLOWED, System())) for _ in range(count)])
    keys = jax.random.split(jax.random.key(3), count)
    draw = jax.vmap(lambda key: MECHANISM.apply(SCORES, ALLOWED, Keyed(key, exact=face == "host")))
    return np.asarray(jax.jit(draw)(keys))


def p_value(found, expected):
    here = expected > 0
    assert not np.isin(found, np.flatnonzero(~here)).any()
    return stats.chisquare(np.bincount(found, minlength=len(expected))[here], expected[here] * len(found)).pvalue


@pytest.mark.parametrize("face", DRAWS)
def test_the_law_is_accepted_and_another_epsilon_is_rejected(face):
    assert p_value(choices(face), law(MECHANISM)) > ACCEPT
    for wrong in (0.5, 2.0):
        assert p_value(choices(face), law(ExponentialMechanism(epsilon=wrong, sensitivity=8))) < REJECT


def test_neighbours_differ_by_at_most_e_to_epsilon_and_the_worst_by_nearly_that():
    """The worst neighbours lower every score but one: the ratio of that one's probabilities is near the bound."""
    mechanism = ExponentialMechanism(epsilon=0.8, sensitivity=5)
    scores = np.zeros(2000, np.int64)
    other = scores - 5
    other[0] += 10
    rate = float(mechanism.rate)
    one, two = (np.exp(rate * (both - both.max())) for both in (scores, other))
    ratios = np.log((one / one.sum()) / (two / two.sum()))
    assert 0.99 * 0.8 < np.abs(ratios).max() <= 0.8
    assert mechanism.rate <= Fraction(0.8) / 10
    assert mechanism.event == Pure(0.8)


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(3, 10), Fraction(1), Fraction(5, 2)])
def test_exact_coins(exponent):
    heads = sum(coin_of_exp(exponent) for _ in range(2_000))
    assert stats.binomtest(heads, 2_000, math.exp(-exponent)).pvalue > ACCEPT


def test_only_what_is_allowed_is_chosen():
    nothing = np.zeros(6, bool)
    assert int(MECHANISM.apply(SCORES, nothing, System())) == 0
    assert int(MECHANISM.apply(SCORES, nothing, Keyed(jax.random.key(0)))) == 0
    only = np.arange(6) == 1
    assert (
        int(MECHANISM.apply(SCORES, only, System()))
        == int(MECHANISM.apply(SCORES, only, Keyed(jax.random.key(0))))
        == 1
    )


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"sensitivity": 0}, {"epsilon": 1e-15}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(PopulaceError):
        ExponentialMechanism(**{"epsilon": 1.0, "sensitivity": 8, **wrong})
