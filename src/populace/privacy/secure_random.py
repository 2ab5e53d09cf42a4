"""Exact sampling from the operating system's generator: whole numbers only, no rounding, no seed.

Every draw is a whole number below a bound, made by rejecting the incomplete last block of `os.urandom` bits, so the
distribution is exactly uniform. Probabilities are ratios of whole numbers; a mechanism rounds them *against* itself.
"""

from __future__ import annotations

import functools
import math
import os
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np

from populace.errors import out_of_range

Array = np.ndarray[Any, Any]

RESOLUTION = 2**63  # denominators of rounded probabilities
DIGITS = 60


def integers_below(bound: int, shape: tuple[int, ...] | int = ()) -> Array:
    """Uniform whole numbers in [0, bound), int64."""
    if not 1 <= bound <= RESOLUTION:
        raise out_of_range("bound", f"in [1, {RESOLUTION}]", bound)
    shape = (shape,) if isinstance(shape, int) else shape
    wanted = int(np.prod(shape, dtype=np.int64))
    mask = np.uint64((1 << (bound - 1).bit_length()) - 1)
    kept: list[Array] = []
    have = 0
    while have < wanted:
        drawn = np.frombuffer(os.urandom(8 * (2 * (wanted - have) + 8)), np.uint64) & mask
        drawn = drawn[drawn < np.uint64(bound)]
        kept.append(drawn)
        have += len(drawn)
    flat = np.concatenate(kept)[:wanted] if kept else np.zeros(0, np.uint64)
    return flat.astype(np.int64).reshape(shape)


def bernoulli(probability: Fraction, shape: tuple[int, ...] | int = ()) -> Array:
    """True with exactly this probability, whose denominator must divide `RESOLUTION`."""
    scaled = probability * RESOLUTION
    if scaled.denominator != 1 or not 0 <= probability <= 1:
        raise out_of_range("probability", f"a multiple of 1/{RESOLUTION} in [0, 1]", probability)
    return integers_below(RESOLUTION, shape) < int(scaled)


def subsets(size: int, chosen: int, count: int) -> Array:
    """`count` uniformly random subsets of {0, .., size - 1} with `chosen` elements, as rows of booleans.

    Each row is the `chosen` first places of a random order, made by Fisher-Yates swaps with exact draws.
    """
    if not 0 <= chosen <= size:
        raise out_of_range("chosen", f"in [0, {size}]", chosen)
    order = np.tile(np.arange(size, dtype=np.int64), (count, 1))
    rows = np.arange(count)
    for place in range(chosen):
        other = place + integers_below(size - place, count)
        held = order[rows, place].copy()
        order[rows, place] = order[rows, other]
        order[rows, other] = held
    mask = np.zeros((count, size), bool)
    mask[rows[:, None], order[:, :chosen]] = True
    return mask


def exp_below(epsilon: float) -> Fraction:
    """A rational just below e^epsilon: a mechanism built with it never exceeds its epsilon."""
    with localcontext() as context:
        context.prec = DIGITS  # Decimal.exp is correctly rounded
        value = Decimal(epsilon).exp()
        return Fraction(value) * (1 - Fraction(1, 10 ** (DIGITS - 5)))


def rounded_down(probability: Fraction) -> Fraction:
    """The largest multiple of 1/RESOLUTION not above `probability`."""
    return Fraction((probability * RESOLUTION).__floor__(), RESOLUTION)


# The normal law: rejection from a staircase of cells, CELL standard deviations wide, on the positive half.
CELL_BITS, SLOT_BITS, PLACE_BITS, SIGN_BITS = 4, 15, 48, 1  # of one 64-bit word: slot, place in the cell, sign
CELL = 2.0**-CELL_BITS
REACH = 12  # standard deviations; beyond lies less than 2^-107 of the law
NORMAL_DISTANCE = 2.0**-107
MOST_DEVIATION = 2.0**32
DOUBT = 2.0**-44  # more than all float errors of an acceptance probability, see `_accept`
BLOCK = 2**16  # draws at a time: few enough to stay in the cache


def rounded_normal(deviation: float, shape: tuple[int, ...] | int = ()) -> Array:
    """Whole numbers distributed as round(N(0, deviation^2)), int64.

    Rejection from a staircase above the density, with the place in a step and the coin that accepts known to as many bits as
    the answer needs: floats decide where their errors cannot matter, whole numbers and Decimal decide the rest, with more bits.

    Guarantee: the total variation distance of one draw from the law is at most `NORMAL_DISTANCE`, all of it from the tail
    beyond `REACH` standard deviations, which is never drawn; no float rounds a result.
    Edge cases: |draw| is at most REACH * deviation + 1/2; deviations up to `MOST_DEVIATION`.
    """
    if not 0 < deviation <= MOST_DEVIATION:
        raise out_of_range("deviation", f"above 0 and at most {MOST_DEVIATION:g}", deviation)
    shape = (shape,) if isinstance(shape, int) else shape
    flat = np.empty(int(np.prod(shape, dtype=np.int64)), np.int64)
    have = 0
    while have < len(flat):
        wanted = min(BLOCK, len(flat) - have)
        drawn = _normal_block(float(deviation), wanted + wanted // 16 + 16)[: len(flat) - have]
        flat[have : have + len(drawn)] = drawn
        have += len(drawn)
    return flat.reshape(shape)


@functools.lru_cache(maxsize=1)
def _staircase() -> tuple[Array, Array, int]:
    """Steps above the density: how many slots each cell has, the cell of each slot, and the height of the density in slots.

    A cell has at least height * exp(-left^2 / 2) slots. Slots that are left over belong to no cell (-1) and are rejected.
    """
    with localcontext() as context:
        context.prec = DIGITS
        tops = [(-((Decimal(cell) / 2**CELL_BITS) ** 2) / 2).exp() for cell in range(REACH << CELL_BITS)]

        def slots(height: int) -> list[int]:
            return [int((height * top).to_integral_value(ROUND_CEILING)) for top in tops]

        height = 1
        for bit in reversed(range(SLOT_BITS)):
            if sum(slots(height + (1 << bit))) <= 1 << SLOT_BITS:
                height += 1 << bit
    counts = np.array(slots(height), np.int64)
    cells = np.full(1 << SLOT_BITS, -1, np.int16)
    cells[: counts.sum()] = np.repeat(np.arange(len(counts), dtype=np.int16), counts)
    return counts, cells, height


def _normal_block(deviation: float, tries: int) -> Array:
    """As many draws as `tries` tries give, in order."""
    counts, cells, height = _staircase()
    words = np.frombuffer(os.urandom(16 * tries), np.uint64)
    word, coin = words[:tries], words[tries:]
    cell = cells[word >> np.uint64(64 - SLOT_BITS)]
    place = (word >> np.uint64(SIGN_BITS)) & np.uint64((1 << PLACE_BITS) - 1)
    negative = (word & np.uint64(1)).astype(bool)
    # |x| in standard deviations, its last bits cut off
    size = (cell + place * 2.0**-PLACE_BITS) * CELL
    chance = np.exp(size * size * -0.5) * (height / counts)[cell]
    margin = chance - coin * 2.0**-64
    units = size * deviation
    nearest = np.rint(units)
    unsure_units = np.abs(np.abs(units - nearest) - 0.5) <= deviation * (REACH * 2.0**-50 + 2.0**-48)
    unsure_margin = np.abs(margin) <= DOUBT
    keep = (margin > 0) & (cell >= 0)
    draws = nearest.astype(np.int64)
    for index in np.flatnonzero((cell >= 0) & (unsure_margin | (keep & unsure_units))):
        found = _settle(int(cell[index]), int(place[index]), int(coin[index]), deviation, bool(unsure_margin[index]))
        keep[index] = found is not None
        draws[index] = found or 0
    return np.where(negative, -draws, draws)[keep]


def _settle(cell: int, place: int, coin: int, deviation: float, accept: bool) -> int | None:
    """One try with ever more bits until all is certain: the rounded size, or None where it is rejected."""
    counts, _, height = _staircase()
    exact, bits, coin_bits = Fraction(deviation), PLACE_BITS, 64
    while True:
        place, bits = place << 64 | int.from_bytes(os.urandom(8)), bits + 64
        coin, coin_bits = coin << 64 | int.from_bytes(os.urandom(8)), coin_bits + 64
        low, high = (Fraction((cell << bits) + place + more, 1 << (bits + CELL_BITS)) for more in (0, 1))
        if accept:
            with localcontext() as context:
                context.prec = DIGITS * (bits // 64 + 1)
                most, least = (
                    (-((Decimal(size.numerator) / Decimal(size.denominator)) ** 2) / 2).exp()
                    * height
                    / int(counts[cell])
                    * 2**coin_bits
                    for size in (low, high)
                )
                if coin + 1 <= least - 1:
                    accept = False
                elif coin >= most + 1:
                    return None
                else:
                    continue
        rounded = math.floor(low * exact + Fraction(1, 2))
        if rounded == math.ceil(high * exact + Fraction(1, 2)) - 1:
            return rounded
