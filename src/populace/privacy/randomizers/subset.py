"""Subset selection: report w values, among them the own one with probability p. With w = 1 it is randomised response.

Ye and Barg 2018; at the best w, near k/(e^eps + 1), no epsilon-LDP report estimates a table with less total variance
(Pan 2026). A report is a set of exactly w values, here a row of booleans.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import DataError, out_of_range
from populace.privacy import on_host, secure_random
from populace.privacy.events import Event, Pure
from populace.privacy.guarantee import check_epsilon
from populace.privacy.randomizers.base import FrequencyOracle, check_size, check_values, count_rows, total_variance
from populace.privacy.randomizers.draws import draw_subset, threshold, words_for_subset
from populace.privacy.source import Keyed, Source
from populace.types import Array


@functools.lru_cache(maxsize=4096)
def best_subset_size(size: int, epsilon: float) -> int:
    """The w with the least total variance, by comparing all of them around k/(e^eps + 1)."""
    if size <= 2:
        return 1
    guess = size / (math.exp(epsilon) + 1)
    low, high = max(1, math.floor(guess) - 2), min(size - 1, math.ceil(guess) + 2)

    def loss(chosen: int) -> float:
        p, q = _support(size, epsilon, chosen)
        return total_variance(p, q, size)

    return min(range(low, max(low, high) + 1), key=loss)


def _support(size: int, epsilon: float, chosen: int) -> tuple[float, float]:
    weight = math.exp(epsilon)
    p = chosen * weight / (chosen * weight + size - chosen)
    q = (p * (chosen - 1) + (1 - p) * chosen) / (size - 1)
    return p, q


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubsetSelection(FrequencyOracle):
    """A random set of `chosen` values; `chosen` defaults to the best size."""

    size: int
    epsilon: float
    chosen: int = 0

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_size(self.size)
        if self.chosen == 0:
            object.__setattr__(self, "chosen", best_subset_size(self.size, float(self.epsilon)))
        if not 1 <= self.chosen <= max(1, self.size - 1):
            raise out_of_range("chosen", f"in [1, {max(1, self.size - 1)}]", self.chosen)

    @functools.cached_property
    def exact_p(self) -> Fraction:
        """p as `release` uses it, rounded down so that the guarantee holds exactly."""
        if self.size == 1:
            return Fraction(1)
        weight = self.chosen * secure_random.exp_below(self.epsilon)
        return secure_random.rounded_down(weight / (weight + self.size - self.chosen))

    @property
    def p(self) -> float:
        return float(self.exact_p)

    @property
    def heads(self) -> np.uint32:
        """p as `simulate` uses it: a threshold for a random word, rounded down too."""
        return threshold(self.exact_p)

    @property
    def q(self) -> float:
        if self.size == 1:
            return 0.0
        return (self.p * (self.chosen - 1) + (1 - self.p) * self.chosen) / (self.size - 1)

    def worst_ratio(self) -> float:
        if self.size == 1:
            return 1.0
        return float(self.exact_p / (1 - self.exact_p) * Fraction(self.size - self.chosen, self.chosen))

    @property
    def words(self) -> int:
        return words_for_subset(self.size, self.chosen)

    def draw(self, value: Array, words: Array) -> Array:
        return draw_subset(
            words, value, size=self.size, chosen=self.chosen, heads=self.heads, width=self.size, most=self.chosen
        )

    def release(self, values: Array) -> Array:
        values = check_values(values, self.size)
        reports = np.zeros((len(values), self.size), bool)
        if self.size == 1:
            reports[:] = True
            return reports
        own = secure_random.bernoulli(self.exact_p, len(values))
        others = np.zeros((len(values), self.size - 1), bool)
        for included, count in ((True, self.chosen - 1), (False, self.chosen)):
            others[own == included] = secure_random.subsets(self.size - 1, count, int((own == included).sum()))
        other_values = np.arange(self.size - 1)[None, :]
        other_values = other_values + (other_values >= values[:, None])  # skip the own value
        np.put_along_axis(reports, other_values, others, axis=1)
        reports[np.arange(len(values)), values] = own
        return reports

    def support(self, reports: Array) -> Array:
        return jnp.asarray(reports)

    def counts(self, reports: Array) -> Array:
        return count_rows(reports)

    @property
    def wire_bytes(self) -> int:
        """Bytes of one report as sent: a bit per value, or the chosen values one by one, whichever is shorter."""
        return -(-min(self.size, self.chosen * self._index_bits) // 8)

    @property
    def _index_bits(self) -> int:
        return max(1, (self.size - 1).bit_length())

    def encode(self, report: Array | np.int64) -> bytes:
        report = np.asarray(report, bool)
        if self.size <= self.chosen * self._index_bits:
            return np.packbits(report).tobytes()
        values = np.flatnonzero(report)
        bits = (values[:, None] >> np.arange(self._index_bits)) & 1
        return np.packbits(bits.astype(np.uint8)).tobytes()

    def _read(self, message: bytes) -> Array:
        bits = np.unpackbits(np.frombuffer(message, np.uint8))
        report = np.zeros(self.size, bool)
        if self.size <= self.chosen * self._index_bits:
            report[:] = bits[: self.size]
        else:
            values = bits[: self.chosen * self._index_bits].reshape(self.chosen, -1) @ (
                1 << np.arange(self._index_bits)
            )
            if (values >= self.size).any():
                raise DataError("a report names a value outside the domain")
            report[values] = True
        if report.sum() != self.chosen:
            raise DataError(f"expected a report of {self.chosen} distinct values, got {int(report.sum())}")
        return report


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubsetPanel:
    """Subset selection over several domains, of which a client is asked about one: one compiled function for all.

    Guarantee: a client that answers one question once has epsilon-LDP; which question it was is public.
    """

    sizes: tuple[int, ...]
    epsilon: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)

    @functools.cached_property
    def members(self) -> tuple[SubsetSelection, ...]:
        return tuple(SubsetSelection(size=size, epsilon=self.epsilon) for size in self.sizes)

    @property
    def event(self) -> Event:
        return Pure(float(self.epsilon))

    @property
    def width(self) -> int:
        return max(self.sizes)

    def apply(self, value: Array, question: Array, source: Source) -> Array:
        """A report about `value` in the domain of `question`: `width` booleans."""
        if isinstance(source, Keyed) and source.exact:
            return on_host.drawn(self, source.key, (self.width,), bool, value, question)
        if isinstance(source, Keyed):
            sizes = np.asarray(self.sizes, np.int32)
            chosen = np.asarray([member.chosen for member in self.members], np.int32)
            heads = np.asarray([member.heads for member in self.members], np.uint32)
            most = int(chosen.max())
            return draw_subset(
                jax.random.bits(source.key, (words_for_subset(self.width, most),)),
                value,
                size=jnp.asarray(sizes)[question],
                chosen=jnp.asarray(chosen)[question],
                heads=jnp.asarray(heads)[question],
                width=self.width,
                most=most,
            )
        member = self.members[int(question)]
        report = np.zeros(self.width, bool)
        report[: member.size] = member.apply(value, source)
        return report

    def release_rows(self, count: int, values: Array, questions: Array) -> Array:
        """Exact reports of many clients, each about its question, as the host draws them for compiled code."""
        reports = np.zeros((count, self.width), bool)
        for question in np.unique(questions):
            asked, member = questions == question, self.members[int(question)]
            reports[asked, : member.size] = member.release(values[asked])
        return reports
