"""Exact sampling from the operating system's generator: whole numbers only, no rounding, no seed.

Every draw is a whole number below a bound, made by rejecting the incomplete last block of `os.urandom` bits, so the
distribution is exactly uniform. Probabilities are ratios of whole numbers; a mechanism rounds them *against* itself.

Rounded normals are drawn by rejection from a staircase above the density. Floats decide where their errors cannot matter;
where they could, the draw goes on with more bits, in whole numbers and Decimal, until all is certain.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction

import numpy as np

from populace.errors import out_of_range
from populace.types import NumpyArray

RESOLUTION = 2**63  # denominators of rounded probabilities
DIGITS = 60

REACH = 12  # standard deviations of a normal; what lies beyond, less than 2^-107 of the law, is never drawn
NORMAL_DISTANCE = 2.0**-107  # total variation distance of one rounded normal from its law, at most
MOST_DEVIATION = 2.0**32
SLOT_BITS, PLACE_BITS = 15, 48  # of one word; the last of its 64 bits is the sign
STEPS = 16  # of the staircase, in a standard deviation
DOUBT = 2.0**-44  # acceptance probabilities are computed to 2^-45
PLACE_DOUBT = 2.0**-47  # places, in standard deviations, to 2^-48
BLOCK = 2**16  # normals at a time: few enough to stay in the cache


def integers_below(bound: int, shape: tuple[int, ...] | int = ()) -> NumpyArray:
    """Uniform whole numbers in [0, bound), int64."""
    if not 1 <= bound <= RESOLUTION:
        raise out_of_range("bound", f"in [1, {RESOLUTION}]", bound)
    shape = (shape,) if isinstance(shape, int) else shape
    wanted = int(np.prod(shape, dtype=np.int64))
    mask = np.uint64((1 << (bound - 1).bit_length()) - 1)
    kept: list[NumpyArray] = []
    have = 0
    while have < wanted:
        drawn = np.frombuffer(os.urandom(8 * (2 * (wanted - have) + 8)), np.uint64) & mask
        drawn = drawn[drawn < np.uint64(bound)]
        kept.append(drawn)
        have += len(drawn)
    flat = np.concatenate(kept)[:wanted] if kept else np.zeros(0, np.uint64)
    return flat.astype(np.int64).reshape(shape)


def bernoulli(probability: Fraction, shape: tuple[int, ...] | int = ()) -> NumpyArray:
    """True with exactly this probability, whose denominator must divide `RESOLUTION`."""
    scaled = probability * RESOLUTION
    if scaled.denominator != 1 or not 0 <= probability <= 1:
        raise out_of_range("probability", f"a multiple of 1/{RESOLUTION} in [0, 1]", probability)
    return integers_below(RESOLUTION, shape) < int(scaled)


def subsets(size: int, chosen: int, count: int) -> NumpyArray:
    """`count` uniformly random subsets of {0, .., size - 1} with `chosen` elements, as rows of booleans.

    Each row is the `chosen` first places of a random order, made by Fisher-Yates swaps with exact draws.
    """
    if not 0 <= chosen <= size:
        raise out_of_range("chosen", f"in [0, {size}]", chosen)
    order = np.tile(np.arange(size, dtype=np.int64), (count, 1))
    rows = np.arange(count)
    for position in range(chosen):
        other = position + integers_below(size - position, count)
        swapped = order[rows, position].copy()
        order[rows, position] = order[rows, other]
        order[rows, other] = swapped
    mask = np.zeros((count, size), bool)
    mask[rows[:, None], order[:, :chosen]] = True
    return mask


def permutation(size: int) -> NumpyArray:
    """A random order of 0, .., size - 1, every one equally likely, int64.

    The order of independent 64-bit words, drawn anew where two are the same: given that all differ, every order of them is
    exactly as likely as any other.
    """
    if not 0 <= size <= 2**31:
        raise out_of_range("size", "in [0, 2^31]", size)
    while True:
        words = np.frombuffer(os.urandom(8 * size), np.uint64)
        order = np.argsort(words)
        if size < 2 or bool((np.diff(words[order]) != 0).all()):
            return order.astype(np.int64)


def exp_below(epsilon: float) -> Fraction:
    """A rational just below e^epsilon: a mechanism built with it never exceeds its epsilon."""
    with localcontext() as context:
        context.prec = DIGITS  # Decimal.exp is correctly rounded
        value = Decimal(epsilon).exp()
        return Fraction(value) * (1 - Fraction(1, 10 ** (DIGITS - 5)))


def rounded_down(probability: Fraction) -> Fraction:
    """The largest multiple of 1/RESOLUTION not above `probability`."""
    return Fraction((probability * RESOLUTION).__floor__(), RESOLUTION)


def rounded_normal(deviation: float, shape: tuple[int, ...] | int = ()) -> NumpyArray:
    """Whole numbers distributed as round(N(0, deviation^2)), int64.

    Guarantee: the total variation distance of one draw from the law is at most `NORMAL_DISTANCE`, all of it from the tail
    beyond `REACH` standard deviations; no float decides a draw that its error could change.
    Edge cases: any deviation above 0 and up to `MOST_DEVIATION`; no draw is beyond REACH * deviation + 1/2.
    """
    if not 0 < deviation <= MOST_DEVIATION:
        raise out_of_range("deviation", f"above 0 and at most {MOST_DEVIATION:g}", deviation)
    shape = (shape,) if isinstance(shape, int) else shape
    flat = np.empty(int(np.prod(shape, dtype=np.int64)), np.int64)
    have = 0
    while have < len(flat):
        left = len(flat) - have
        tries = min(BLOCK, left + left // 16 + 16)  # about one try in 35 is rejected
        words = np.frombuffer(os.urandom(16 * tries), np.uint64).reshape(2, tries)
        drawn = draw_normals(words, float(deviation))[:left]
        flat[have : have + len(drawn)] = drawn
        have += len(drawn)
    return flat.reshape(shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Staircase:
    """Steps above exp(-x^2 / 2), on the positive half: a slot, evenly drawn, names a cell, 1/STEPS wide.

    Cell i has `slots[i]` of the slots, no less than height * exp(-(i / STEPS)^2 / 2), so a place x in it is accepted with
    probability height * exp(-x^2 / 2) / slots[i]. Slots left over belong to no cell (-1) and are rejected.
    """

    height: int
    slots: NumpyArray
    cells: NumpyArray  # of each slot


@functools.cache
def staircase() -> Staircase:
    with localcontext() as context:
        context.prec = DIGITS
        tops = [(-((Decimal(cell) / STEPS) ** 2) / 2).exp() for cell in range(REACH * STEPS)]

        def slots(height: int) -> list[int]:
            return [int((height * top).to_integral_value(ROUND_CEILING)) for top in tops]

        height = 0
        for bit in reversed(range(SLOT_BITS)):  # the highest that fits
            if sum(slots(height + 2**bit)) <= 2**SLOT_BITS:
                height += 2**bit
        counts = np.array(slots(height), np.int64)
    cells = np.full(2**SLOT_BITS, -1, np.int16)
    cells[: counts.sum()] = np.repeat(np.arange(len(counts), dtype=np.int16), counts)
    return Staircase(height=height, slots=counts, cells=cells)


def draw_normals(
    words: NumpyArray, deviation: float, *, doubt: float = DOUBT, place_doubt: float = PLACE_DOUBT
) -> NumpyArray:
    """Rounded normals from two rows of random 64-bit words: those of the columns that are accepted, in order.

    A word of the first row is slot, place in the cell, and sign; one of the second is the coin that accepts. Both are known to
    their last bit only: where a further bit, or a float's error, could change the outcome, `settle` draws more.
    """
    stairs = staircase()
    word, coin = words
    cell = stairs.cells[word >> np.uint64(64 - SLOT_BITS)]
    place = (word >> np.uint64(1)) & np.uint64(2**PLACE_BITS - 1)
    size = (cell + place * 2.0**-PLACE_BITS) * (1 / STEPS)
    margin = np.exp(size * size * -0.5) * (stairs.height / stairs.slots)[cell] - coin * 2.0**-64
    units = size * deviation
    nearest = np.rint(units)
    unsure = np.abs(margin) <= doubt
    unsure_units = np.abs(units - nearest) >= 0.5 - deviation * place_doubt
    kept = (cell >= 0) & (margin > 0)
    draws = nearest.astype(np.int64)
    for index in np.flatnonzero((cell >= 0) & unsure | kept & unsure_units):
        threshold = coin[index] if unsure[index] else None
        settled = settle(int(cell[index]), int(place[index]), threshold, deviation)
        kept[index] = settled is not None
        draws[index] = settled or 0
    negative = (word & np.uint64(1)).astype(bool)
    signed: NumpyArray = np.where(negative, -draws, draws)[kept]
    return signed


def settle(cell: int, place: int, coin: int | None, deviation: float) -> int | None:
    """One try, with more bits until all is certain: the rounded size, or None if rejected. Without a coin it is accepted."""
    place_bits, coin_bits = PLACE_BITS, 64
    accepted = True if coin is None else None
    while True:
        place, place_bits = (place << 64) + int.from_bytes(os.urandom(8)), place_bits + 64
        low = Fraction((cell << place_bits) + place, STEPS << place_bits)
        high = low + Fraction(1, STEPS << place_bits)
        if accepted is None:
            coin, coin_bits = (int(coin or 0) << 64) + int.from_bytes(os.urandom(8)), coin_bits + 64
            accepted = accepts(cell, low, high, coin, coin_bits)
        if accepted is False:
            return None
        rounded = math.floor(low * Fraction(deviation) + Fraction(1, 2))
        if accepted and math.ceil(high * Fraction(deviation) + Fraction(1, 2)) == rounded + 1:
            return rounded


def accepts(cell: int, low: Fraction, high: Fraction, coin: int, coin_bits: int) -> bool | None:
    """Whether a coin accepts all places between `low` and `high`, or none of them; None where more bits must tell."""
    stairs = staircase()
    with localcontext() as context:
        context.prec = coin_bits  # decimal digits: far more than the coin has, so 1 covers all rounding
        weight = Decimal(stairs.height) / int(stairs.slots[cell]) * 2**coin_bits
        most, least = (
            weight * (-((Decimal(size.numerator) / size.denominator) ** 2) / 2).exp() for size in (low, high)
        )
        if coin + 1 <= least - 1:
            return True
        return False if coin >= most + 1 else None
