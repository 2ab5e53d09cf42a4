"""Rounded normals from a JAX key: round(N(0, deviation^2)) to a computed distance, in 32-bit whole numbers, traceable.

A draw is a sum of one to three draws from small tables. For s^2 + t^2 = deviation^2 and a whole number G,

    round(N(0, s^2)) + G D    with P(D = k) proportional to exp(-(G k)^2 / (2 t^2))

is round(N(0, deviation^2)) almost exactly: rounding commutes with adding whole numbers, and the density of N(0, s^2) + G D at
x is that of N(0, deviation^2) times c * sum_k exp(-(G k - x t^2 / deviation^2)^2 / (2 e^2)), where e = s t / deviation. By
Poisson summation that sum, whatever x, is within a factor 1 +- `ripple` of a constant, ripple = 2 sum_{j > 0}
exp(-2 pi^2 (e / G)^2 j^2), so the two laws are within ripple / (1 - ripple) in total variation. A discrete normal D is such a
sum again, D1 + G D2, by the same formula. These are the convolution theorems of Peikert (2010) and Micciancio and Walter
(2017); discrete normals as noise: Canonne, Kamath and Steinke (2020).

Tables are Walker's (1977) alias tables in exact whole numbers, of 112-bit thresholds, so that a table takes 128 random bits.
They are Threefry-2x32 of 20 rounds (Salmon et al. 2011), keyed by two words from the JAX key: JAX's own generator with all
rounds in one loop, several times as fast on processors.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import out_of_range
from populace.types import Array, NumpyArray

KEYED_DISTANCE = 2.0**-106  # total variation distance of one draw from its law, at most
MOST_DEVIATION = 2.0**26
REACH = 12  # standard deviations of a table
MOST_SLOTS = 2**14
THRESHOLD_BITS = 112  # and at most 15 of the slot, and one of the sign: four words of 32 bits
MOST_IN_TABLE = 1365  # standard deviations for which a table has slots enough
STRIDE = 512  # between the values of the next table; half of it where deviations are small
WIDTH = Fraction(5, 2)  # deviation of a table, in strides of the next: the less, the larger the ripple
LEAST_STRIDES = 5  # of a deviation that is split
FINE = 64  # parts of a standard deviation, at least, over which the density is expanded in its derivatives
TERMS = 8  # of that expansion
BITS = 192  # after the point, of the whole numbers that tables are computed in
COMPUTED = 2.0**-130  # total variation distance owed to `BITS` and `TERMS`, at most
MOST_DRAWS = 2**32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
    """One term of a draw: `stride` times a normal of this variance, rounded or (P(k) ~ exp(-k^2 / 2 variance)) discrete."""

    rounded: bool
    variance: Fraction
    stride: int

    @property
    def most(self) -> int:
        """The largest magnitude in the table: all beyond lies beyond `REACH` standard deviations."""
        return math.ceil(REACH * math.sqrt(self.variance) - 0.5)


@functools.lru_cache(maxsize=256)
def levels_of(
    deviation: float, *, stride: int = STRIDE, most: int = MOST_IN_TABLE, width: Fraction = WIDTH
) -> tuple[Level, ...]:
    """The terms of a draw. Their variances, times their strides squared, add up to deviation^2, exactly.

    Other strides, tables and widths than the constants are for checks against exact sums.
    """
    left, times, levels = Fraction(deviation) ** 2, 1, list[Level]()
    while left > most**2:
        step = stride if left >= (LEAST_STRIDES * stride) ** 2 else stride // 2
        variance = (width * step) ** 2
        levels.append(Level(rounded=not levels, variance=variance, stride=times))
        left, times = (left - variance) / step**2, times * step
    return (*levels, Level(rounded=not levels, variance=left, stride=times))


def distance(levels: tuple[Level, ...]) -> float:
    """An upper bound of the total variation distance of one draw from its law, round(N(0, deviation^2)), given random words.

    For each table what lies beyond it, 2 phi(x) / x at most with x in standard deviations (a discrete normal's tail is below
    the normal's, whose density is convex there), one unit of each rounded probability, and `COMPUTED`; for each split the
    ripple of the module's docstring.
    """
    total = 0.0
    for level in levels:
        x = (level.most + 0.5) / math.sqrt(level.variance)
        total += math.exp(-x * x / 2) * math.sqrt(2 / math.pi) / x + 2.0**-THRESHOLD_BITS + COMPUTED
    left = sum((level.variance * level.stride**2 for level in levels), Fraction(0))
    for level, above in itertools.pairwise(levels):
        step = above.stride // level.stride
        rest = left - level.variance
        wave = math.exp(-2 * math.pi**2 * float(level.variance * rest / left / step**2))
        ripple = 2 * wave / (1 - wave)
        total += ripple / (1 - ripple)
        left = rest / step**2
    return total * (1 + 1e-9)  # for the floats of this very function


@functools.partial(jax.jit, static_argnums=(1, 2))
def rounded_normal(key: Array, deviation: float, shape: tuple[int, ...]) -> Array:
    """Whole numbers distributed as round(N(0, deviation^2)), int32; traceable.

    Guarantee: were the generator's words random, one draw would be within `KEYED_DISTANCE` of the law in total variation, and
    draws of one key independent. What protects is the key: 64 bits, all that JAX's generator takes.
    Edge cases: any deviation above 0 and up to `MOST_DEVIATION`; a draw is in proportion to it at most `REACH` and what the
    lower tables reach, and always fits into 31 bits. Fewer than `MOST_DRAWS` numbers of one key.
    """
    if not 0 < deviation <= MOST_DEVIATION:
        raise out_of_range("deviation", f"above 0 and at most {MOST_DEVIATION:g}", deviation)
    count = math.prod(shape)
    if count >= MOST_DRAWS:
        raise out_of_range("numbers drawn from one key", f"below {MOST_DRAWS}", count)
    one, two = jax.random.bits(key, (2,), jnp.uint32)
    number = jnp.arange(count, dtype=jnp.uint32)
    total = jnp.zeros(count, jnp.int32)
    for index, level in enumerate(levels_of(float(deviation))):
        blocks = (threefry((one, two), (jnp.full_like(number, 2 * index + half), number)) for half in (0, 1))
        total += level.stride * look_up(table_of(level), tuple(word for block in blocks for word in block))
    return total.reshape(shape)


def look_up(table: Array, words: tuple[Array, ...]) -> Array:
    """The draws that four random words each make: slot, sign and threshold."""
    slots = table.shape[1]
    slot = words[0] >> np.uint32(33 - slots.bit_length())
    first, *others = (jnp.asarray(row)[slot] for row in table)
    pairs = [(words[0] & np.uint32(0xFFFF), first >> np.uint32(16)), *zip(words[1:], others, strict=True)]
    below: Array | bool = False
    for word, threshold in reversed(pairs):
        below = (word < threshold) | ((word == threshold) & below)
    magnitude = jnp.where(below, slot, first & np.uint32(0xFFFF)).astype(jnp.int32)
    return jnp.where(words[0] & np.uint32(0x10000) == 0, magnitude, -magnitude)


ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry(key: tuple[Array, Array], block: tuple[Array, Array]) -> tuple[Array, Array]:
    """Threefry-2x32 of 20 rounds (Salmon et al. 2011): two words of a counter to two random ones."""
    schedule = (*key, key[0] ^ key[1] ^ np.uint32(PARITY))
    left, right = block[0] + key[0], block[1] + key[1]
    for group in range(5):
        for turn in ROTATIONS[group % 2]:
            left = left + right
            right = ((right << np.uint32(turn)) | (right >> np.uint32(32 - turn))) ^ left
        left = left + schedule[(group + 1) % 3]
        right = right + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return left, right


@functools.lru_cache(maxsize=64)
def table_of(level: Level) -> Array:
    """Thresholds and aliases of all slots, packed into four rows of 32-bit words: threshold, high bits first, and after the
    first 16 of them the alias."""
    thresholds, others = alias_table(masses_of(level))
    rows = [[threshold >> 96 << 16 | other for threshold, other in zip(thresholds, others, strict=True)]]
    rows += [[threshold >> shift & 0xFFFFFFFF for threshold in thresholds] for shift in (64, 32, 0)]
    return np.array(rows, np.uint32)


def masses_of(level: Level) -> list[int]:
    """How many of slots * 2^THRESHOLD_BITS equal parts each magnitude 0, 1, .. gets: rounded down, the rest for 0."""
    weights = rounded_weights(level) if level.rounded else discrete_weights(level)
    slots = max(2, 1 << (len(weights) - 1).bit_length())
    if slots > MOST_SLOTS:
        raise out_of_range("the variance of a table", f"for at most {MOST_SLOTS} slots", level.variance)
    whole, total = slots << THRESHOLD_BITS, sum(weights)
    masses = [weight * whole // total for weight in weights[1:]]
    return [whole - sum(masses), *masses, *[0] * (slots - len(weights))]


def alias_table(masses: list[int]) -> tuple[list[int], list[int]]:
    """Walker's table (1977), exactly: slot i stands for i below its threshold, and for its alias from there on."""
    full = 1 << THRESHOLD_BITS
    left = list(masses)
    thresholds, others = [0] * len(left), list(range(len(left)))
    small = [value for value, mass in enumerate(left) if mass < full]
    large = [value for value, mass in enumerate(left) if mass > full]
    while small:
        value, other = small.pop(), large[-1]
        thresholds[value], others[value] = left[value], other
        left[other] -= full - left[value]
        if left[other] <= full:
            (small if left[other] < full else []).append(large.pop())
    return thresholds, others


def discrete_weights(level: Level) -> list[int]:
    """Weights in proportion to the probabilities of magnitudes 0, 1, .. of a discrete normal."""
    zero, *others = bell(level.variance, level.most + 1)
    return [zero, *(2 * weight for weight in others)]


def rounded_weights(level: Level) -> list[int]:
    """Weights in proportion to the probabilities of magnitudes 0, 1, .. of a rounded normal.

    Units are divided into an odd number of parts, at most 1/FINE of a standard deviation wide. Over a part of half width h
    around x, all in standard deviations, the density's mean is phi(x) sum_j He_2j(x) h^2j / (2j + 1)!, of which `TERMS` are
    taken; what is left out is below 1.1 sqrt((2 TERMS)!) h^(2 TERMS) / (2 TERMS + 1)! (Cramer's bound on Hermite functions).
    """
    if level.most == 0:  # half a unit is beyond REACH
        return [1]
    parts = math.isqrt(math.ceil(FINE**2 / level.variance) - 1) + 1 | 1
    variance = level.variance * parts**2  # of the parts' places, which are whole numbers
    weights = bell(variance, parts * level.most + parts // 2 + 1)
    square = (1 << BITS) * variance.denominator // (4 * variance.numerator)  # h^2
    positions = np.arange(len(weights)).astype(object)
    moved = positions * positions * square * variance.denominator // variance.numerator  # (h x)^2
    before: NumpyArray | int = 0
    term: NumpyArray = np.full(len(weights), 1 << BITS, object)
    total = term
    for j in range(TERMS - 1):
        # He_(2j+2) = (x^2 - 4j - 1) He_2j - 2j (2j - 1) He_(2j-2), each times its power of h
        after = (moved - (4 * j + 1) * square) * term - 2 * j * (2 * j - 1) * square * (before * square >> BITS)
        before, term = term, after >> BITS
        total = total + term // math.factorial(2 * j + 3)
    dense = [max(0, part) for part in (np.array(weights, object) * total >> BITS).tolist()]
    half = parts // 2
    return [
        dense[0] + 2 * sum(dense[1 : half + 1]),
        *(2 * sum(dense[start : start + parts]) for start in range(half + 1, len(dense), parts)),
    ]


def bell(variance: Fraction, count: int) -> list[int]:
    """exp(-i^2 / (2 variance)) for i = 0, 1, .., in units of 2^-BITS, each to less than 2^-150: products of at most `count`
    factors, none above 1."""
    with localcontext() as context:
        context.prec = BITS  # decimal digits: far more than needed
        factor = int((-Decimal(variance.denominator) / (2 * Decimal(variance.numerator))).exp() * 2**BITS)
    square = factor * factor >> BITS
    weights = [1 << BITS]
    for _ in range(1, count):
        weights.append(weights[-1] * factor >> BITS)
        factor = factor * square >> BITS
    return weights
