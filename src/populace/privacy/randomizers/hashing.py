"""Optimised local hashing: hash the value to a small range with a seed of one's own, then randomised response on the hash.

Wang, Blocki, Li and Jha 2017 (OLH). The seed is public and drawn by the client without looking at the value; a report is a
pair of uint32: seed and randomised hash.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import out_of_range
from populace.privacy import secure_random
from populace.privacy.guarantee import check_epsilon
from populace.privacy.randomizers.base import FrequencyOracle, check_size, check_values, number_bytes, read_number
from populace.privacy.randomizers.draws import LARGEST_BOUND, below, threshold
from populace.types import Array

SEED_BYTES = 4
CHUNK = 16_384  # reports whose supports are made at a time


def mix(word: Array) -> Array:
    """A bijection of 32-bit words that scatters them: the finaliser of MurmurHash3 (Appleby, public domain)."""
    word = (word ^ (word >> 16)) * np.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * np.uint32(0xC2B2AE35)
    return word ^ (word >> 16)


def hash_values(seeds: Array | np.uint32, values: Array, buckets: int) -> Array:
    """The bucket of each value under each seed: uint32 arrays of NumPy or JAX in, the same numbers out of both.

    Each bucket is equally likely over the seeds, for any value. Two rounds, because after one some pairs of values met up
    to 2 % more often than 1 in `buckets` over the first 2^24 seeds; after two, no pair did beyond chance.
    """
    scattered = values * np.uint32(0x9E3779B9) + np.uint32(1)
    word = mix(mix(seeds ^ scattered) + values * np.uint32(0x85EBCA77))
    return below(word, np.uint32(buckets))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Olh(FrequencyOracle):
    """Randomised response over `buckets` = round(e^eps) + 1 hashes, with p = e^eps / (e^eps + buckets - 1), q = 1/buckets.

    Guarantee: given any seed, the probabilities of a hash under two values differ by at most e^eps; the seed says nothing.
    Edge cases: p holds for any seed, q only over random seeds, so estimates are unbiased over the seeds that clients draw
    and a client that picks its seed can choose what it supports. Above epsilon 11 the range stays at 2^16.
    """

    size: int
    epsilon: float
    buckets: int = 0

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_size(self.size)
        if self.buckets == 0:
            best = round(math.exp(min(self.epsilon, 20.0))) + 1
            object.__setattr__(self, "buckets", max(2, min(best, LARGEST_BOUND)))
        if not 2 <= self.buckets <= LARGEST_BOUND:
            raise out_of_range("buckets", f"in [2, {LARGEST_BOUND}]", self.buckets)

    @functools.cached_property
    def exact_p(self) -> Fraction:
        """p as `release` uses it, rounded down so that the guarantee holds exactly."""
        weight = secure_random.exp_below(self.epsilon)
        return secure_random.rounded_down(weight / (weight + self.buckets - 1))

    @property
    def p(self) -> float:
        return float(self.exact_p)

    @property
    def q(self) -> float:
        return 1.0 / self.buckets

    def worst_ratio(self) -> float:
        """The largest ratio, for any one seed, of the probabilities of one hash."""
        if self.size == 1:
            return 1.0
        return float(self.exact_p * (self.buckets - 1) / (1 - self.exact_p))

    @property
    def words(self) -> int:
        return 3

    def draw(self, value: Array, words: Array) -> Array:
        seed, coin, other = words
        true = hash_values(seed, jnp.asarray(value).astype(jnp.uint32), self.buckets)
        shift = 1 + below(other, np.uint32(self.buckets - 1))
        bucket = jnp.where(coin < threshold(self.p), true, (true + shift) % np.uint32(self.buckets))
        return jnp.stack([seed, bucket])

    def release(self, values: Array) -> Array:
        values = check_values(values, self.size)
        seeds = secure_random.integers_below(2**32, len(values)).astype(np.uint32)
        true = hash_values(seeds, values.astype(np.uint32), self.buckets).astype(np.int64)
        keep = secure_random.bernoulli(self.exact_p, len(values))
        shift = 1 + secure_random.integers_below(self.buckets - 1, len(values))
        buckets = np.where(keep, true, (true + shift) % self.buckets)
        return np.stack([seeds, buckets.astype(np.uint32)], axis=-1)

    def support(self, reports: Array) -> Array:
        """The values whose hash under the report's seed is the one reported."""
        reports = jnp.asarray(reports, jnp.uint32)
        hashes = hash_values(reports[..., :1], jnp.arange(self.size, dtype=jnp.uint32), self.buckets)
        return hashes == reports[..., 1:]

    def counts(self, reports: Array) -> Array:
        reports = np.asarray(reports, np.uint32).reshape(-1, 2)
        total = np.zeros(self.size, np.int64)
        for start in range(0, len(reports), CHUNK):
            part = reports[start : start + CHUNK]
            if len(part) < CHUNK:  # one compiled shape: fill up with a hash that no value has
                part = np.concatenate([part, np.full((CHUNK - len(part), 2), self.buckets, np.uint32)])
            total += np.asarray(_count(self, part))
        return total

    @property
    def wire_bytes(self) -> int:
        """Four bytes of seed, then the hash."""
        return SEED_BYTES + number_bytes(self.buckets)

    def encode(self, report: Array | np.int64) -> bytes:
        seed, bucket = (int(number) for number in np.asarray(report))
        return seed.to_bytes(SEED_BYTES, "little") + bucket.to_bytes(number_bytes(self.buckets), "little")

    def _read(self, message: bytes) -> Array:
        seed = read_number(message[:SEED_BYTES], 2**32)
        return np.array([seed, read_number(message[SEED_BYTES:], self.buckets)], np.uint32)


@functools.partial(jax.jit, static_argnames="oracle")
def _count(oracle: Olh, reports: Array) -> Array:
    return oracle.support(reports).sum(axis=0, dtype=jnp.int32)
