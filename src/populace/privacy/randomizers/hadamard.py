"""Hadamard response: one entry of the value's column of a Hadamard matrix, its row drawn at random, its sign randomised.

Bassily and Smith 2015, Acharya, Sun and Zhang 2019 (one bit). The row is public and drawn by the client without looking at
the value; a report is a pair of whole numbers: row, and 1 for a sign of +1 or 0 for -1.
"""

from __future__ import annotations

import dataclasses
import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from populace.privacy import secure_random
from populace.privacy.guarantee import check_epsilon
from populace.privacy.randomizers.base import FrequencyOracle, check_size, check_values, number_bytes, read_number
from populace.privacy.randomizers.draws import threshold
from populace.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hadamard(FrequencyOracle):
    """A report supports the values whose sign in the reported row is the reported one: p = e^eps/(e^eps + 1), q = 1/2.

    Two columns of a Hadamard matrix agree in exactly half of the rows, hence q, hence the variance for rare values,
    ((e^eps + 1)/(e^eps - 1))^2 per report. It sends the least and loses to the others above epsilon 1.

    Guarantee: given any row, the probabilities of a sign under two values differ by at most e^eps; the row says nothing.
    Edge cases: the domain is padded to a power of two, which costs nothing; row 0 is constant and carries no information.
    """

    size: int
    epsilon: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_size(self.size)

    @property
    def rows(self) -> int:
        """The size of the domain, padded to a power of two."""
        return int(1 << (self.size - 1).bit_length())

    @functools.cached_property
    def exact_p(self) -> Fraction:
        """p as `release` uses it, rounded down so that the guarantee holds exactly."""
        weight = secure_random.exp_below(self.epsilon)
        return secure_random.rounded_down(weight / (weight + 1))

    @property
    def p(self) -> float:
        return float(self.exact_p)

    @property
    def q(self) -> float:
        return 0.5

    def worst_ratio(self) -> float:
        """The largest ratio, for any one row, of the probabilities of one sign."""
        return float(self.exact_p / (1 - self.exact_p)) if self.size > 1 else 1.0

    @property
    def words(self) -> int:
        return 2

    def draw(self, value: Array, words: Array) -> Array:
        row, coin = words
        row = (row & np.uint32(self.rows - 1)).astype(jnp.int32)
        honest = coin < threshold(self.p)
        return jnp.stack([row, (_positive(row, jnp.asarray(value).astype(jnp.int32)) == honest).astype(jnp.int32)])

    def release(self, values: Array) -> Array:
        values = check_values(values, self.size)
        row = secure_random.integers_below(self.rows, len(values))
        honest = secure_random.bernoulli(self.exact_p, len(values))
        positive = np.bitwise_count(row & values) % 2 == 0
        return np.stack([row, positive == honest], axis=-1).astype(np.int32)

    def support(self, reports: Array) -> Array:
        reports = jnp.asarray(reports)
        return _positive(reports[..., :1], jnp.arange(self.size)) == (reports[..., 1:] == 1)

    def counts(self, reports: Array) -> Array:
        """Sign sums per row, then one fast Walsh-Hadamard transform: linear in the reports, whatever the domain."""
        reports = np.asarray(reports, np.int64).reshape(-1, 2)
        signs = np.bincount(2 * reports[:, 0] + reports[:, 1], minlength=2 * self.rows).reshape(-1, 2)
        agreement = transform(signs[:, 1] - signs[:, 0])[: self.size]
        return (len(reports) + agreement) // 2

    @property
    def wire_bytes(self) -> int:
        """Row and sign as one whole number."""
        return number_bytes(2 * self.rows)

    def encode(self, report: Array | np.int64) -> bytes:
        row, sign = (int(number) for number in np.asarray(report))
        return (2 * row + sign).to_bytes(self.wire_bytes, "little")

    def _read(self, message: bytes) -> Array:
        return np.array(divmod(read_number(message, 2 * self.rows), 2), np.int32)


def _positive(row: Array, value: Array) -> Array:
    """Whether the Hadamard matrix (Sylvester's) has a +1 there."""
    return jax.lax.population_count(jnp.bitwise_and(row, value)) % 2 == 0


def transform(values: Array) -> Array:
    """The product of Sylvester's Hadamard matrix with int64s, of which there are a power of two."""
    values = np.asarray(values, np.int64).copy()
    half = 1
    while half < len(values):
        pairs = values.reshape(-1, 2, half)
        values = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return values
