"""Draws of keyed noise: their law with its tails, from one table to three, and the independence of all that makes them up.

Every test that accepts the sampler rejects something planted: another scale, rounded floats, tables that share their words.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from builders import FAST_CODE
from populace.privacy.keyed_normal import levels_of, look_up, rounded_normal, table_of, threefry

DRAWS = 4_000_000
DEVIATIONS = (0.3, 5.0, 700.0, 1400.0, 3000.0, 1e6, 5e7)  # one table, two from 1366 on, three from 7e5 on
ACCEPT, REJECT = 1e-6, 1e-12
FAR = 3.0


@functools.partial(jax.jit, static_argnums=1, compiler_options=FAST_CODE)
def drawn(key, deviation):
    return rounded_normal(key, deviation, (DRAWS,))


@functools.partial(jax.jit, compiler_options=FAST_CODE)
def float_drawn(key, deviation):
    return jnp.round(jax.random.normal(key, (DRAWS,)) * deviation)


@functools.cache
def draws(deviation):
    return np.asarray(drawn(jax.random.key(11), deviation), np.int64)


def float_noise(deviation):
    """What must be rejected: rounded float32 normals, of 2^23 values."""
    return np.asarray(float_drawn(jax.random.key(11), deviation), np.int64)


@functools.cache
def sorted_draws(deviation):
    return np.sort(draws(deviation))


def edges_of(deviation, shares):
    return np.unique(np.floor(stats.norm.ppf(shares) * deviation) + 0.5)


def p_value(ordered, deviation, edges):
    """Pearson's test of sorted draws against round(N(0, deviation^2)), in cells with at least ten of them expected."""
    expected = np.diff(np.r_[0.0, ndtr(edges / deviation), 1.0]) * len(ordered)
    counts = np.diff(np.r_[0, np.searchsorted(ordered, edges), len(ordered)])
    full = expected >= 10
    few, wanted = counts[~full].sum(), expected[~full].sum()
    counts, expected = np.r_[counts[full], few], np.r_[expected[full], wanted]
    return stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue


BODY = np.arange(1, 400) / 400
TAIL = ndtr(-np.linspace(FAR, 5.0, 20))
TAILS = np.r_[TAIL[::-1], 1 - TAIL]  # some ten thousand draws lie there


@pytest.mark.parametrize("deviation", DEVIATIONS)
@pytest.mark.parametrize(
    ("shares", "scales"), [(BODY, (0.9, 0.99, 1.01)), (TAILS, (0.9, 0.97, 1.03))], ids=["body", "tails"]
)
def test_the_law_is_accepted_and_other_scales_are_rejected(deviation, shares, scales):
    ordered, edges = sorted_draws(deviation), edges_of(deviation, shares)
    assert p_value(ordered, deviation, edges) > ACCEPT
    for wrong in scales:
        assert p_value(ordered, wrong * deviation, edges) < REJECT


def collisions(found, deviation):
    """Draws beyond `FAR` deviations that repeat an earlier one, and how many the law makes."""
    far = found[np.abs(found) > FAR * deviation]
    places = np.arange(int(FAR * deviation) + 1, int(7 * deviation))
    chances = ndtr(-(places - 0.5) / deviation) - ndtr(-(places + 0.5) / deviation)
    expected = 2 * np.sum(DRAWS * chances + np.expm1(-DRAWS * chances))
    return len(far) - len(np.unique(far)), expected


@pytest.mark.parametrize("deviation", [1e5, 1e6])
def test_all_numbers_far_out_occur_and_floats_that_skip_most_are_rejected(deviation):
    """How many different numbers occur beyond three deviations: floats repeat themselves."""
    repeated, expected = collisions(draws(deviation), deviation)
    assert abs(repeated - expected) < 5 * np.sqrt(expected) + 3
    repeated, expected = collisions(float_noise(deviation), deviation)
    assert repeated > expected + 20 * np.sqrt(expected)


def test_low_bits_are_fair_far_out_and_those_of_floats_are_not():
    def chi_square(found, deviation, bits):
        far = np.abs(found[np.abs(found) > FAR * deviation])
        return stats.chisquare(np.bincount(far & (2**bits - 1), minlength=2**bits)).pvalue

    assert chi_square(draws(5e7), 5e7, 6) > ACCEPT
    assert chi_square(float_noise(5e7), 5e7, 6) < REJECT


def parts_table(low, high, cells=16):
    """How often which part of the low table's draws meets which of the high one's."""
    rows, columns = (np.searchsorted(np.quantile(of, np.arange(1, cells) / cells), of) for of in (low, high))
    return np.histogram2d(rows, columns, bins=(cells, cells))[0]


def levels_drawn(deviation, *, shared):
    """Each table's draws by themselves; `shared` plants the break that all use the same words."""
    key = tuple(jax.random.bits(jax.random.key(2), (2,), jnp.uint32))
    number = jnp.arange(400_000, dtype=jnp.uint32)
    found = []
    for place, level in enumerate(levels_of(deviation)):
        first = 0 if shared else 2 * place
        words = [threefry(key, (jnp.full_like(number, first + half), number)) for half in (0, 1)]
        found.append(np.asarray(look_up(table_of(level), (*words[0], *words[1]))))
    return found


def test_tables_of_a_draw_are_independent_and_shared_words_are_noticed():
    right, broken = (levels_drawn(1e8 / 2, shared=shared) for shared in (False, True))
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert stats.chi2_contingency(parts_table(right[first], right[second])).pvalue > ACCEPT
        assert stats.chi2_contingency(parts_table(broken[first], broken[second])).pvalue < REJECT


def test_remainder_and_quotient_of_a_draw_are_independent():
    """Of round(N) with a deviation far above 512 the remainder modulo 512 is even, whatever the quotient."""
    found = draws(1e6)
    table = np.histogram2d(found & 511, np.searchsorted(edges_of(1e6, np.arange(1, 16) / 16), found), bins=(32, 16))[0]
    assert stats.chi2_contingency(table).pvalue > ACCEPT
    assert stats.chisquare(np.bincount(found & 511)).pvalue > ACCEPT


@pytest.mark.parametrize("deviation", [5.0, 1e6])
def test_coordinates_and_keys_are_independent(deviation):
    found = draws(deviation) / deviation
    keys = jax.random.split(jax.random.key(4), 2)
    first, second = (np.asarray(drawn(key, deviation)) / deviation for key in keys)
    bound = 5 / np.sqrt(DRAWS)

    def correlation(one, other):
        one, other = one - one.mean(), other - other.mean()
        return one @ other / np.sqrt((one @ one) * (other @ other))

    for one, other in ((found[:-1], found[1:]), (found[:-512], found[512:]), (first, second), (found, first)):
        assert abs(correlation(one, other)) < bound
        assert abs(correlation(np.abs(one), np.abs(other))) < bound
    assert correlation(found, np.roll(found, 1) + 0.02 * found) > bound
