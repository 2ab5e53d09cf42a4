"""RAPPOR with a Bloom filter: each value sets a few bits of a row, each bit is flipped with the same probability.

Erlingsson, Pihur and Korolova 2014, sent once (the permanent response only), as LoPub uses it (Ren et al. 2018). Values
share bits, so a count per bit is not yet a count per value: `frequency_estimation` regresses one on the other.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np

from populace.errors import out_of_range
from populace.privacy.guarantee import check_epsilon
from populace.privacy.randomizers.base import (
    Randomizer,
    check_size,
    check_values,
    count_rows,
    exp_share_below,
    release_bits,
    rounded_up,
)
from populace.privacy.randomizers.draws import draw_bits, pattern_table, words_for
from populace.privacy.randomizers.hashing import hash_values
from populace.types import Array, Number, NumpyArray

MOST_COMPARED = 4096  # values above which the worst pair is bounded instead of searched


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rappor(Randomizer):
    """Rows of `bits` booleans of which a value sets at most `hashes`; `salt` chooses the public hash functions.

    A bit is flipped with probability f/2, where eps = 2 h ln((1 - f/2) / (f/2)) (LoPub).

    Guarantee: the filters of two values differ in at most 2 h bits, so the probabilities of a report differ by at most
    ((1 - f/2) / (f/2))^(2 h) = e^eps; hash collisions only lower it.
    Edge cases: two values with the same filter cannot be told apart, by anyone; `candidates` shows them.
    """

    size: int
    epsilon: float
    bits: int = 64
    hashes: int = 4
    salt: int = 0

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_size(self.size)
        if not 2 <= self.bits <= 2**16:
            raise out_of_range("bits", "in [2, 65536]", self.bits)
        if not 1 <= self.hashes <= self.bits:
            raise out_of_range("hashes", f"in [1, {self.bits}]", self.hashes)
        if not 0 <= self.salt < 2**16:
            raise out_of_range("salt", "in [0, 65535]", self.salt)

    @property
    def width(self) -> int:
        return self.bits

    @functools.cached_property
    def exact_flip(self) -> Fraction:
        """f/2 as `release` uses it, rounded up so that the guarantee holds exactly."""
        return rounded_up(1 / (exp_share_below(self.epsilon, 2 * self.hashes) + 1))

    @property
    def flip(self) -> float:
        return float(self.exact_flip)

    @functools.cached_property
    def candidates(self) -> Array:
        """Which bits each value sets: booleans [size, bits]."""
        seeds = (self.salt * 2**16 + np.arange(self.hashes)).astype(np.uint32)
        positions = hash_values(seeds[None, :], np.arange(self.size, dtype=np.uint32)[:, None], self.bits)
        rows = np.zeros((self.size, self.bits), bool)
        rows[np.arange(self.size)[:, None], positions] = True
        return rows

    def worst_ratio(self) -> float:
        apart = 2 * self.hashes if self.size > 1 else 0
        if self.size <= MOST_COMPARED:
            apart = int(_distances(self.candidates, self.candidates).max())
        return float(((1 - self.exact_flip) / self.exact_flip) ** apart)

    @property
    def words(self) -> int:
        return words_for(self.bits)

    def draw(self, value: Array, words: Array) -> Array:
        flips = draw_bits(words, pattern_table(self.flip), self.bits)
        return jnp.asarray(self.candidates)[value] ^ flips

    def release(self, values: Array) -> Array:
        values = check_values(values, self.size)
        return self.candidates[values] ^ release_bits(self.exact_flip, len(values), self.bits)

    def support(self, reports: Array) -> Array:
        return jnp.asarray(reports)

    def counts(self, reports: Array) -> Array:
        return count_rows(reports)

    def estimate_bits(self, bit_counts: Array, reports: Number) -> NumpyArray:
        """Unbiased shares of clients whose filter has each bit set. With no reports, zero."""
        if reports == 0:
            return np.zeros(self.bits)
        return (np.asarray(bit_counts, np.float64) / reports - self.flip) / (1 - 2 * self.flip)

    def bit_variance(self, reports: int) -> float:
        """Variance of each of these shares, about fixed values, whatever the share."""
        return self.flip * (1 - self.flip) / (1 - 2 * self.flip) ** 2 / reports

    def likelihoods(self, reports: Array) -> Array:
        """Probability of each report under each value, [reports, size], divided by the largest of its row."""
        distance = _distances(np.asarray(reports, bool).reshape(-1, self.bits), self.candidates)
        nearest = distance.min(axis=1, keepdims=True)
        return np.exp(-math.log((1 - self.flip) / self.flip) * (distance - nearest))

    @property
    def wire_bytes(self) -> int:
        """The row of bits."""
        return -(-self.bits // 8)

    def encode(self, report: Array | np.int64) -> bytes:
        return np.packbits(np.asarray(report, bool)).tobytes()

    def _read(self, message: bytes) -> Array:
        return np.unpackbits(np.frombuffer(message, np.uint8))[: self.bits].astype(bool)


def _distances(first: Array, second: Array) -> Array:
    """Hamming distances between the rows of two boolean matrices."""
    first, second = first.astype(np.float32), second.astype(np.float32)  # exact: whole numbers below 2^24
    return (first.sum(axis=1)[:, None] + second.sum(axis=1) - 2 * first @ second.T).astype(np.int64)
