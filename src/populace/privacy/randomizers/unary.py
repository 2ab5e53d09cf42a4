"""Unary encoding: one bit per value, each randomised on its own; the own value's bit leans towards 1.

Wang, Blocki, Li and Jha 2017: symmetric (SUE, the one-time RAPPOR of Erlingsson et al. 2014 with one bit per value) and
optimised (OUE). A report is a row of booleans.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from fractions import Fraction

import jax.numpy as jnp
import numpy as np

from populace.privacy import secure_random
from populace.privacy.guarantee import check_epsilon
from populace.privacy.randomizers.base import (
    FrequencyOracle,
    check_size,
    check_values,
    count_rows,
    exp_share_below,
    release_bits,
    rounded_up,
)
from populace.privacy.randomizers.draws import draw_bits, pattern_table, threshold, words_for
from populace.types import Array


class UnaryEncoding(FrequencyOracle):
    """What OUE and SUE share: they differ only in the two probabilities of a 1.

    Guarantee: between two values two bits change their probabilities, so a report's probabilities differ by at most
    p (1 - q) / (q (1 - p)).
    Edge cases: every row of bits is a possible report; only its length and padding can be refused.
    """

    @property
    @abc.abstractmethod
    def exact_p(self) -> Fraction:
        """Probability of a 1 at the own value, as `release` uses it."""

    @property
    @abc.abstractmethod
    def exact_q(self) -> Fraction:
        """Probability of a 1 at any other value, as `release` uses it."""

    @property
    def p(self) -> float:
        return float(self.exact_p)

    @property
    def q(self) -> float:
        return float(self.exact_q)

    def worst_ratio(self) -> float:
        if self.size == 1:
            return 1.0
        return float(self.exact_p * (1 - self.exact_q) / (self.exact_q * (1 - self.exact_p)))

    @property
    def words(self) -> int:
        return words_for(self.size) + 1

    def draw(self, value: Array, words: Array) -> Array:
        others = draw_bits(words[:-1], pattern_table(self.q), self.size)
        return jnp.where(jnp.arange(self.size) == value, words[-1] < threshold(self.p), others)

    def release(self, values: Array) -> Array:
        values = check_values(values, self.size)
        reports = release_bits(self.exact_q, len(values), self.size)
        reports[np.arange(len(values)), values] = secure_random.bernoulli(self.exact_p, len(values))
        return reports

    def support(self, reports: Array) -> Array:
        return jnp.asarray(reports)

    def counts(self, reports: Array) -> Array:
        return count_rows(reports)

    @property
    def wire_bytes(self) -> int:
        """A bit per value."""
        return -(-self.size // 8)

    def encode(self, report: Array | np.int64) -> bytes:
        return np.packbits(np.asarray(report, bool)).tobytes()

    def _read(self, message: bytes) -> Array:
        return np.unpackbits(np.frombuffer(message, np.uint8))[: self.size].astype(bool)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Oue(UnaryEncoding):
    """Optimised: p = 1/2, q = 1/(e^eps + 1), the pair with the least variance for rare values."""

    size: int
    epsilon: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_size(self.size)

    @property
    def exact_p(self) -> Fraction:
        return Fraction(1, 2)

    @functools.cached_property
    def exact_q(self) -> Fraction:
        """Rounded up: the worst ratio is (1 - q)/q."""
        return rounded_up(1 / (secure_random.exp_below(self.epsilon) + 1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sue(UnaryEncoding):
    """Symmetric: p = e^(eps/2) / (e^(eps/2) + 1), q = 1 - p; basic RAPPOR."""

    size: int
    epsilon: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_size(self.size)

    @functools.cached_property
    def exact_p(self) -> Fraction:
        """Rounded down: the worst ratio is (p / (1 - p))^2."""
        weight = exp_share_below(self.epsilon, 2)
        return secure_random.rounded_down(weight / (weight + 1))

    @property
    def exact_q(self) -> Fraction:
        return 1 - self.exact_p
