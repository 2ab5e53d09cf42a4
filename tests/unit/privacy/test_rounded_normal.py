"""The sampler of rounded normal numbers, cell by cell; coins and latents. Its law is in tests/statistics."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import jax
import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from populace.errors import SpecError
from populace.privacy import secure_random
from populace.privacy import source as source_module
from populace.privacy.secure_random import DOUBT, NORMAL_DISTANCE, PLACE_BITS, REACH, SLOT_BITS, STEPS, staircase
from populace.privacy.source import Keyed, System

ALL_ONES = 2**64 - 1


def words_of(slot, place, negative, coin):
    word = (slot << (64 - SLOT_BITS)) + (place << 1) + negative
    return np.array([[word], [coin]], np.uint64)


def exact_chance(cell, size):
    """Probability that a place in a cell is accepted, to 60 digits."""
    with localcontext() as context:
        context.prec = 60
        density = (-((Decimal(size.numerator) / size.denominator) ** 2) / 2).exp()
        return density * staircase().height / int(staircase().slots[cell])


def test_staircase_lies_above_the_density_and_fills_its_slots():
    stairs = staircase()
    for cell in range(REACH * STEPS):
        assert exact_chance(cell, Fraction(cell, STEPS)) <= 1
        assert stairs.slots[cell] == (stairs.cells == cell).sum() > 0
    spare = (stairs.cells == -1).sum()
    assert spare + stairs.slots.sum() == 2**SLOT_BITS
    assert spare < 40


def test_cells_have_the_probabilities_of_the_law():
    """Chance of a cell times chance to be accepted in it, by an exact integral, against differences of Phi."""
    stairs = staircase()
    edges = np.arange(REACH * STEPS + 1) / STEPS
    within, weights = np.polynomial.legendre.leggauss(12)
    x = edges[:-1, None] + (within + 1) / (2 * STEPS)
    accepted = (np.exp(-x * x / 2) * stairs.height / stairs.slots[:, None]) @ (weights / 2)
    found = stairs.slots / 2**SLOT_BITS * accepted
    expected = 2 * (ndtr(-edges[:-1]) - ndtr(-edges[1:]))
    assert found / found.sum() == pytest.approx(expected, rel=1e-9)
    assert found.sum() > 0.96  # tries that are not rejected


def test_the_tail_never_drawn_is_within_the_stated_distance():
    assert math.log(2) + float(log_ndtr(-REACH)) <= math.log(NORMAL_DISTANCE)
    assert NORMAL_DISTANCE <= 2.0**-80


@pytest.mark.parametrize("deviation", [0.01, 0.7, 3.0, 50.3, 1e5, 2.0**26, 2.0**32])
def test_floats_decide_as_decimal_does(deviation):
    """The same words, all of them settled with more bits in whole numbers and Decimal."""
    words = np.random.default_rng(0).integers(0, 2**64, (2, 1500), np.uint64)
    fast = secure_random.draw_normals(words, deviation)
    slow = secure_random.draw_normals(words, deviation, doubt=2.0)
    rounding = secure_random.draw_normals(words, deviation, place_doubt=1.0)
    assert 1400 < len(fast) < 1500
    assert np.array_equal(fast, slow)
    assert np.array_equal(fast, rounding)


@pytest.mark.parametrize("slot", [0, 1600, 20_000, 32_000, 32_753])
@pytest.mark.parametrize("place", [0, 12345678901234, 2**PLACE_BITS - 1])
def test_coins_next_to_the_chance_accept_below_it_only(slot, place):
    """A few units of 2^-64 beside the chance, where floats cannot tell."""
    cell = int(staircase().cells[slot])
    size = Fraction((cell << PLACE_BITS) + place, STEPS << PLACE_BITS)
    with localcontext() as context:
        context.prec = 60
        edge = int(exact_chance(cell, size) * 2**64)
    for coin, accepted in ((edge - 2**17, 1), (edge + 2, 0)):  # the place goes on after its last bit: up to 2^16 lower
        if 0 <= coin <= ALL_ONES:
            assert abs(coin - edge) < DOUBT * 2**64
            assert len(secure_random.draw_normals(words_of(slot, place, 0, coin), 3.0)) == accepted


def test_places_next_to_a_half_round_to_their_side():
    """With 2^20 units in a deviation a place has 2^32 values in a unit; the half lies between two of them."""
    half = 5 * 2**32 + 2**31
    for place, expected in ((half - 1, 5), (half, 6)):
        assert secure_random.draw_normals(words_of(0, place, 0, 0), 2.0**20).tolist() == [expected]
        assert secure_random.draw_normals(words_of(0, place, 1, 0), 2.0**20).tolist() == [-expected]


def test_a_half_between_the_bits_known_is_settled_by_more_bits():
    """The half lies a third of the way from one value of the place to the next: further bits decide, anew each time."""
    place, step = 2**40, Fraction(1, STEPS << PLACE_BITS)
    half = 10**6 + Fraction(1, 2)
    deviation = float(half / ((place + Fraction(1, 3)) * step))
    found = [secure_random.settle(0, place, None, deviation) for _ in range(3000)]
    assert set(found) == {10**6, 10**6 + 1}
    down = half / Fraction(deviation) / step - place
    assert np.mean(np.array(found) == 10**6) == pytest.approx(float(down), abs=0.05)


def test_spare_slots_are_rejected_and_the_far_tail_can_be_drawn():
    assert len(secure_random.draw_normals(words_of(2**SLOT_BITS - 1, 0, 0, 0), 1.0)) == 0
    last = int(staircase().slots.sum()) - 1
    assert secure_random.draw_normals(words_of(last, 2**PLACE_BITS - 1, 1, 0), 10.0).tolist() in ([-120], [])
    assert len(secure_random.draw_normals(words_of(last, 0, 0, 1), 10.0)) == 0


def test_draws_have_the_shape_asked_for_and_stay_in_reach():
    assert secure_random.rounded_normal(2.0).shape == ()
    assert secure_random.rounded_normal(2.0, 0).shape == (0,)
    found = secure_random.rounded_normal(1e6, (3, 40_000))
    assert found.shape == (3, 40_000)
    assert found.dtype == np.int64
    assert np.abs(found).max() <= REACH * 1e6 + 0.5
    assert len(np.unique(found)) > 100_000


@pytest.mark.parametrize("deviation", [0.0, -1.0, 2.0**33, math.nan, math.inf])
def test_a_deviation_out_of_range_is_refused(deviation):
    with pytest.raises(SpecError, match="expected deviation above 0"):
        secure_random.rounded_normal(deviation)


# Coins and latents.


@pytest.mark.parametrize("source", [Keyed(jax.random.key(0)), System()])
def test_coins_and_latents(source):
    assert np.all(source.coins(1.0, 1000))
    assert not np.any(source.coins(0.0, (10, 100)))
    assert np.mean(source.coins(0.25, 100_000)) == pytest.approx(0.25, abs=0.01)
    latents = np.asarray(source.normal((50, 2000)))
    assert latents.dtype == np.float32
    assert latents.std() == pytest.approx(1, abs=0.02)
    assert latents.mean() == pytest.approx(0, abs=0.02)


def test_probabilities_of_exact_coins_are_rounded_down():
    assert not np.any(System().coins(2.0**-64, 1000))  # below the resolution: never
    assert secure_random.rounded_down(Fraction(0.1)) <= Fraction(0.1)
    for wrong in (1.5, -0.1, math.nan):
        with pytest.raises(SpecError, match="expected probability"):
            System().coins(wrong, 3)


def test_keyed_coins_take_a_traced_probability():
    coins = jax.jit(lambda key, probability: Keyed(key).coins(probability, (1000,)))
    assert 400 < int(coins(jax.random.key(1), 0.5).sum()) < 600
    assert bool(coins(jax.random.key(1), 1.0).all())
    assert not bool(coins(jax.random.key(1), 0.0).any())


def test_probabilities_of_keyed_coins_are_rounded_down_to_64_bits():
    """A float32 coin has 2^23 values: it would round 2^-40 up to 2^-23, and 0.1 by more than a part in a million."""
    for probability in (0.1, 1e-6, 2.0**-40, 1 - 2.0**-53, 2.0**-64, 2.0**-70):
        high, low, certain = source_module._threshold(probability)
        threshold = (int(high) << 32) + int(low)
        assert not certain
        assert 0 <= Fraction(probability) * 2**64 - threshold < 1
    for probability in (0.1, 1e-6, 2.0**-40, 1 - 2.0**-24, 1.0, 0.0):
        traced = jax.jit(source_module._threshold)(np.float32(probability))
        expected = source_module._threshold(float(np.float32(probability)))
        assert [int(word) for word in traced] == [int(word) for word in expected]
    for wrong in (1.5, -0.1, math.nan):
        with pytest.raises(SpecError, match="expected probability"):
            Keyed(jax.random.key(0)).coins(wrong, 3)


def test_keyed_coins_compare_both_words():
    key = jax.random.key(7)
    first, second = (jax.random.bits(part, (64,), np.uint32) for part in jax.random.split(key))
    drawn = sorted((int(one) << 32) + int(other) for one, other in zip(first, second, strict=True))
    middle = drawn[32]
    below = Fraction(middle, 2**64)
    found = Keyed(key).coins(float(below), 64)  # a float64 of 53 bits: just above or below the draw itself
    assert int(found.sum()) == sum(value < int(Fraction(float(below)) * 2**64) for value in drawn)
