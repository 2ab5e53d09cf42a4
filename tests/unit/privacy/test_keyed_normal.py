"""Keyed noise, exactly: tables against the law in whole numbers, sums of tables against the law, the bound of the distance, the
generator against its published answers. Draws are tested in tests/statistics."""

from __future__ import annotations

import functools
import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from populace.errors import SpecError
from populace.privacy import keyed_normal, secure_random
from populace.privacy.gaussian import MOST_DEVIATION, MOST_TOTAL, NOISE_DISTANCE
from populace.privacy.keyed_normal import (
    KEYED_DISTANCE,
    MOST_IN_TABLE,
    MOST_SLOTS,
    REACH,
    THRESHOLD_BITS,
    Level,
    alias_table,
    distance,
    levels_of,
    look_up,
    masses_of,
    rounded_normal,
    table_of,
    threefry,
)

DIGITS = 60
SCALE = 2**190  # of probabilities as whole numbers
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803")
SMALL = {"stride": 4, "most": 10}  # tables small enough that sums of three can be written out


def half_normal(x):
    """P(0 < N(0, 1) < x), to 60 digits: the series of positive terms."""
    if x == 0:
        return Decimal(0)
    term = total = x
    odd = 1
    while term > total * Decimal(10) ** -DIGITS:
        odd += 2
        term = term * x * x / odd
        total += term
    return total * (-x * x / 2).exp() / (2 * PI).sqrt()


@functools.cache
def rounded_law(deviation, most):
    """Probabilities of 0, 1, .., most of round(N(0, deviation^2)), each of one sign, times SCALE."""
    with localcontext() as context:
        context.prec = DIGITS + 15
        edges = [half_normal((Decimal(k) + Decimal("0.5")) / Decimal(deviation)) for k in range(most + 1)]
        shares = [2 * edges[0], *(second - first for first, second in itertools.pairwise(edges))]
        return [int(share * SCALE) for share in shares]


def discrete_law(variance, most):
    with localcontext() as context:
        context.prec = DIGITS + 15
        value = Decimal(variance.numerator) / variance.denominator
        weights = [(-Decimal(k * k) / (2 * value)).exp() for k in range(4 * most)]
        total = weights[0] + 2 * sum(weights[1:])
        return [int(weight / total * SCALE) for weight in weights[: most + 1]]


def table_law(level):
    """Probabilities of the draws of a packed table, one sign each, times SCALE: its words read back."""
    table = table_of(level).astype(object)
    slots = table.shape[1]
    thresholds = ((table[0] >> 16) << 96) + (table[1] << 64) + (table[2] << 32) + table[3]
    masses = [0] * slots
    for slot, (threshold, other) in enumerate(zip(thresholds, table[0] & 0xFFFF, strict=True)):
        masses[slot] += threshold
        masses[other] += 2**THRESHOLD_BITS - threshold
    assert sum(masses) == slots << THRESHOLD_BITS
    assert not any(masses[level.most + 1 :])
    found = [mass * SCALE // (slots << THRESHOLD_BITS) for mass in masses[: level.most + 1]]
    return [found[0], *(mass // 2 for mass in found[1:])]


def apart(found, law):
    """Total variation distance of two symmetric laws on whole numbers, each given for 0, 1, .. and one sign."""
    found = found + [0] * (len(law) - len(found))
    short = max(0, law[0] - found[0]) + 2 * sum(max(0, b - a) for a, b in zip(found[1:], law[1:], strict=True))
    beyond = SCALE - law[0] - 2 * sum(law[1:])
    return (short + beyond) / SCALE


def both_signs(law):
    return law[:0:-1] + law


def sum_law(levels):
    """The law of the sum of the levels' draws, exactly: probabilities of 0, 1, .. and one sign, times SCALE."""
    total = [SCALE]
    for level in levels:
        table = both_signs(table_law(level))
        spread = [0] * ((len(table) - 1) * level.stride + len(total))
        for place, chance in enumerate(table):
            start = place * level.stride
            for other, mass in enumerate(total):
                spread[start + other] += chance * mass
        total = [mass // SCALE for mass in spread]
    return total[len(total) // 2 :]


# Tables.


@pytest.mark.parametrize("deviation", [0.05, 0.3, 1.0, 7.7, 63.9, 90.0])
def test_the_table_of_a_rounded_normal_has_its_law(deviation):
    (level,) = levels_of(deviation)
    found, law = table_law(level), rounded_law(deviation, level.most)
    assert max(abs(a - b) for a, b in zip(found[1:], law[1:], strict=True)) < SCALE * 2.0**-107
    assert apart(found, law) <= distance((level,)) <= 2.0**-107
    for wrong in (0.9, 1.01, 1 + 1e-9):
        assert apart(found, rounded_law(wrong * deviation, level.most)) > 1e-12 or deviation < 0.1


@pytest.mark.parametrize("variance", [Fraction(75, 4), Fraction(40**2), Fraction(1000, 7)])
def test_the_table_of_a_discrete_normal_has_its_law(variance):
    level = Level(rounded=False, variance=variance, stride=1)
    found, law = table_law(level), discrete_law(variance, level.most)
    assert apart(found, law) <= distance((level,)) <= 2.0**-106.9
    assert apart(found, rounded_law(math.sqrt(variance), level.most)) > 1e-12  # which differs by its rounding alone


def test_every_part_of_the_mass_is_given_out_and_none_above_its_share():
    """All but 0 get their probability rounded down: that is what the bound counts."""
    (level,) = levels_of(20.0)
    masses, law = masses_of(level), rounded_law(20.0, level.most)
    whole = len(masses) << THRESHOLD_BITS
    assert sum(masses) == whole
    within = law[0] + 2 * sum(law[1:])
    for mass, share in zip(masses[1 : level.most + 1], law[1:], strict=True):
        assert -0.001 < Fraction(2 * share * whole, within) - mass < 1.001


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2**100), min_size=7, max_size=7), st.randoms())
def test_alias_tables_give_back_what_they_were_made_of(parts, random):
    whole = 8 << THRESHOLD_BITS
    masses = [*parts, whole - sum(parts)]
    random.shuffle(masses)
    thresholds, others = alias_table(masses)
    found = [0] * 8
    for slot, (threshold, other) in enumerate(zip(thresholds, others, strict=True)):
        assert 0 <= threshold < 2**THRESHOLD_BITS
        found[slot] += threshold
        found[other] += 2**THRESHOLD_BITS - threshold
    assert found == masses


def test_the_four_words_decide_as_one_number_of_112_bits():
    """At a slot's threshold the alias begins, and one below it, in the last word or any other, it does not."""
    (level,) = levels_of(5.0)
    table = table_of(level)
    thresholds, others = alias_table(masses_of(level))
    bits = table.shape[1].bit_length() - 1
    for slot in (1, 7, 40):
        threshold, other = thresholds[slot], others[slot]
        for number, wanted in (
            (threshold - 1, slot), (threshold, other), (threshold + 1, other), (threshold - 2**32, slot),
            (threshold - 2**64, slot), (threshold + 2**64, other), (threshold - 2**96, slot), (0, slot),
        ):  # fmt: skip
            number = max(number, 0)
            for sign in (0, 1):
                first = slot << (32 - bits) | sign << 16 | number >> 96
                words = [first, *(number >> shift & 0xFFFFFFFF for shift in (64, 32, 0))]
                found = look_up(table, tuple(jnp.asarray([word], jnp.uint32) for word in words))
                assert int(found[0]) == (-wanted if sign else wanted)


# Sums of tables.


@pytest.mark.parametrize(("deviation", "count"), [(9.5, 1), (10.1, 2), (19.9, 2), (33.3, 2), (60.0, 3), (101.7, 3)])
def test_sums_of_small_tables_have_the_law_within_the_bound(deviation, count):
    levels = levels_of(deviation, **SMALL)
    assert len(levels) == count
    found = sum_law(levels)
    law = rounded_law(deviation, max(len(found) - 1, math.ceil(13 * deviation)))
    assert apart(found, law) <= distance(levels) <= KEYED_DISTANCE
    for wrong in (0.9, 1.01, 1 + 1e-9):
        assert apart(found, rounded_law(wrong * deviation, len(law) - 1)) > 1e-12


@pytest.mark.parametrize(("width", "least"), [(Fraction(1), 1e-10), (Fraction(3, 2), 1e-21)])
def test_the_bound_sees_a_ripple(width, least):
    """Tables too narrow for their stride: the law is missed, by less than the bound and by more than a tenth of it."""
    levels = levels_of(33.3, width=width, **SMALL)
    found = sum_law(levels)
    missed = apart(found, rounded_law(33.3, max(len(found) - 1, 433)))
    assert least < missed <= distance(levels) < 10 * missed


@pytest.mark.slow
def test_a_sum_of_the_tables_used_has_the_law_within_the_bound():
    levels = levels_of(1366.0)
    found = sum_law(levels)
    law = rounded_law(1366.0, max(len(found) - 1, 13 * 1366))
    assert apart(found, law) <= distance(levels) <= KEYED_DISTANCE


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.floats(1e-9, 10.0), st.floats(-3, 26).map(lambda power: 2.0**power)))
def test_the_distance_is_within_what_is_stated_for_every_deviation(deviation):
    levels = levels_of(deviation)
    assert distance(levels) <= KEYED_DISTANCE <= 2.0**-80
    assert 1 <= len(levels) <= 3
    assert [level.rounded for level in levels] == [True, False, False][: len(levels)]
    assert sum(level.variance * level.stride**2 for level in levels) == Fraction(deviation) ** 2
    assert all(level.variance <= MOST_IN_TABLE**2 and level.most < MOST_SLOTS for level in levels)
    assert sum(level.most * level.stride for level in levels) < MOST_TOTAL


def test_both_faces_are_within_the_distance_counted_in_delta():
    assert max(KEYED_DISTANCE, secure_random.NORMAL_DISTANCE) == NOISE_DISTANCE
    assert keyed_normal.MOST_DEVIATION == MOST_DEVIATION


@pytest.mark.parametrize("deviation", [0.0, -1.0, math.nan, math.inf, 2.0**26 * 1.001])
def test_deviations_out_of_range_are_refused(deviation):
    with pytest.raises(SpecError, match="expected deviation above 0 and at most"):
        rounded_normal(jax.random.key(0), deviation, (3,))


def test_more_numbers_than_the_counter_counts_are_refused():
    with pytest.raises(SpecError, match="numbers drawn from one key below"):
        jax.eval_shape(lambda key: rounded_normal(key, 1.0, (2**16, 2**16)), jax.random.key(0))


# Drawing.


@pytest.mark.parametrize(
    ("key", "block", "answer"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_the_generator_gives_the_published_answers(key, block, answer):
    """Known answers of Salmon et al.'s Random123."""
    found = threefry(*(tuple(jnp.asarray([word], jnp.uint32) for word in pair) for pair in (key, block)))
    assert tuple(int(word[0]) for word in found) == answer


def test_a_draw_is_made_of_the_words_and_tables_it_says():
    key, deviation = jax.random.key(3), 1e6
    words = tuple(jax.random.bits(key, (2,), jnp.uint32))
    number = jnp.arange(10, dtype=jnp.uint32)
    expected = 0
    for place, level in enumerate(levels_of(deviation)):
        blocks = [threefry(words, (jnp.full(10, 2 * place + half, jnp.uint32), number)) for half in (0, 1)]
        drawn = look_up(table_of(level), (*blocks[0], *blocks[1]))
        expected = expected + level.stride * np.asarray(drawn)
    assert np.array_equal(rounded_normal(key, deviation, (10,)), expected)


@pytest.mark.parametrize("deviation", [0.3, 100.0, 5e3, 2e6])
def test_compiled_mapped_and_uncompiled_draws_are_the_same(deviation):
    keys = jax.random.split(jax.random.key(0), 3)
    together = jax.jit(jax.vmap(lambda key: rounded_normal(key, deviation, (2, 5))))(keys)
    one_by_one = jax.lax.map(lambda key: rounded_normal(key, deviation, (2, 5)), keys)
    assert together.dtype == jnp.int32
    assert np.array_equal(together, one_by_one)
    with jax.disable_jit():
        assert np.array_equal(together[1], rounded_normal(keys[1], deviation, (2, 5)))
    assert len({tuple(row) for row in np.asarray(together).reshape(6, 5)}) > 1


def test_a_deviation_far_below_the_grid_gives_no_noise_and_nothing_else_does():
    assert not np.any(rounded_normal(jax.random.key(0), 1e-3, (1000,)))
    assert np.any(rounded_normal(jax.random.key(0), 0.3, (1000,)))
    assert rounded_normal(jax.random.key(0), 0.3, ()).shape == ()
    assert rounded_normal(jax.random.key(0), 0.3, (0, 4)).shape == (0, 4)


def test_no_draw_is_beyond_what_tables_reach():
    for deviation in (0.3, 50.0, 1e5):
        reach = sum(level.most * level.stride for level in levels_of(deviation))
        assert REACH * deviation - 0.5 <= reach <= 1.42 * REACH * deviation + 2
