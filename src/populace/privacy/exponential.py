"""The exponential mechanism on whole scores: which of several things is chosen, and what the choice costs.

McSherry and Talwar (2007): thing i is chosen with a probability proportional to exp(epsilon score_i / (2 sensitivity)). Scores
are whole numbers, so that their sensitivity is exact, and an exact draw needs no float: a thing is proposed evenly and accepted
with probability exp(-rate gap), where its gap is what it lacks to the best score and the rate is a fraction.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import out_of_range
from populace.privacy import on_host, secure_random
from populace.privacy.events import Event, Pure
from populace.privacy.source import Keyed, Source
from populace.types import Array, NumpyArray

RATE_BITS = 40  # of the rate's denominator
MOST_SCORE = 2**30  # scores beyond it, either way, might not have their differences in 32 bits


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExponentialMechanism:
    """One choice by whole scores, of which one unit changes each by at most `sensitivity`.

    Guarantee: epsilon-DP, pure: for scores of neighbours and every choice, probabilities differ by at most a factor e^epsilon.
    `release` has exactly the law with the rate rounded down; `simulate` has it up to the rounding of floats.
    Edge cases: which things may be chosen (`allowed`) is public; where none may, 0 is chosen. Scores lie within `MOST_SCORE`.
    """

    epsilon: float
    sensitivity: int

    def __post_init__(self) -> None:
        if not isinstance(self.sensitivity, int) or self.sensitivity < 1:
            raise out_of_range("sensitivity", "a whole number of at least 1", self.sensitivity)
        if not (self.epsilon > 0 and self.rate > 0):
            raise out_of_range("epsilon", "above 0, and not too small for the sensitivity", self.epsilon)

    @property
    def event(self) -> Event:
        """What one choice is, for the ledger."""
        return Pure(float(self.epsilon))

    @property
    def rate(self) -> Fraction:
        """How much less likely, in logarithms, one unit of score makes a choice; never above epsilon / (2 sensitivity)."""
        exact = Fraction(self.epsilon) / (2 * self.sensitivity)
        return Fraction((exact * 2**RATE_BITS).__floor__(), 2**RATE_BITS)

    def worst_ratio(self) -> float:
        """The largest ratio of a choice's probabilities under scores of neighbours, from the rate that `release` uses."""
        return math.exp(2 * self.sensitivity * self.rate)

    def apply(self, scores: Array, allowed: Array, source: Source) -> Array:
        """The index of the choice, from either kind of source; traceable from a key."""
        if isinstance(source, Keyed):
            if source.exact:
                return on_host.drawn(self, source.key, (), jnp.int32, scores, allowed)
            return self.simulate(scores, allowed, source.key)
        return np.array(self.release(np.asarray(scores), np.asarray(allowed)), np.int32)

    def simulate(self, scores: Array, allowed: Array, key: Array) -> Array:
        """The choice by adding Gumbel noise, in floats; traceable, to be vmapped."""
        best = jnp.max(jnp.where(allowed, scores, -MOST_SCORE))
        noisy = (scores - best).astype(jnp.float32) * float(self.rate) + jax.random.gumbel(key, jnp.shape(scores))
        return jnp.argmax(jnp.where(allowed, noisy, -jnp.inf)).astype(jnp.int32)

    def release(self, scores: NumpyArray, allowed: NumpyArray) -> int:
        """The choice from the operating system's generator, exactly."""
        things = np.flatnonzero(allowed)
        if not len(things):
            return 0
        scores, rate = scores[things].astype(np.int64), self.rate
        gaps = [int(gap) for gap in scores.max() - scores]
        while True:
            place = int(secure_random.integers_below(len(things)))
            if coin_of_exp(gaps[place] * rate):
                return int(things[place])

    def release_rows(self, count: int, scores: NumpyArray, allowed: NumpyArray) -> NumpyArray:
        """`release`, as the host calls it from compiled code."""
        return np.array([self.release(scores[row], allowed[row]) for row in range(count)], np.int32)


def coin_of_exp(exponent: Fraction) -> bool:
    """True with probability exp(-exponent), exactly, for a fraction of at least 0 (Canonne, Kamath and Steinke 2020).

    For an exponent of at most 1, coins of probability exponent / k are thrown, k = 1, 2, .., until one shows tails: that an odd
    number were thrown has the probability wanted. A larger one is a product of such.
    """
    while exponent > 1:
        if not _coin_of_small_exp(Fraction(1)):
            return False
        exponent -= 1
    return _coin_of_small_exp(exponent)


def _coin_of_small_exp(exponent: Fraction) -> bool:
    thrown = 1
    while secure_random.integers_below(exponent.denominator * thrown) < exponent.numerator:
        thrown += 1
    return thrown % 2 == 1
