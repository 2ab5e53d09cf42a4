"""Exact sampling from the operating system's generator: whole numbers only, no rounding, no seed.

Every draw is a whole number below a bound, made by rejecting the incomplete last block of `os.urandom` bits, so the
distribution is exactly uniform. Probabilities are ratios of whole numbers; a mechanism rounds them *against* itself.
"""

from __future__ import annotations

import os
from decimal import Decimal, localcontext
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
