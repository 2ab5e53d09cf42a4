"""SignDS that reports several coordinates at once (Jiang et al. 2022, section 5.3.1): a set of them, and one sign.

A set J has the weight e^(eps u), u a number in [0, 1] that grows with its overlap with the k top coordinates S:

    least >= 1   u = 1 if |J & S| >= least, else 0
    least = 0    u = |J & S| / reported

Given that S has exactly k coordinates the weights of all sets add up to the same whatever the vector, so a set's probability
changes by at most e^eps between vectors, not e^(2 eps); with u = |J & S| itself it would be e^(reported eps). At the matched
share of one coordinate several gain nothing; at the paper's fixed 5 % and epsilon 8 two count as much as 1.6 times the clients.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import secrets
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import DataError, out_of_range
from populace.privacy import on_host, secure_random
from populace.privacy.events import Event, Pure
from populace.privacy.guarantee import check_epsilon
from populace.privacy.randomizers.base import check_size, number_bytes, read_number
from populace.privacy.randomizers.draws import threshold
from populace.privacy.randomizers.signds import NORMAL, mark_top
from populace.privacy.source import Keyed, Source
from populace.types import Array

MOST_REPORTED = 64
SCALE = 2**64  # of the whole-number weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeveralSignDS:
    """A set of `reported` coordinates and one sign of a vector of `size` coordinates, `chosen` of which are its top.

    Guarantee: epsilon-LDP, pure, for the whole vector and all it was made from. `release` draws the overlap with whole-number
    weights whose largest ratio is below e^epsilon exactly, then the coordinates evenly; `simulate` the overlap to 2^-32.
    Edge cases: ties, NaN and minus zero as in `SignDS`. The coordinates are reported in rising order, so that their order says
    nothing. Where all overlaps a set can have are quality the same (all coordinates top) a report says nothing.
    """

    size: int
    epsilon: float
    chosen: int
    reported: int
    least: int = 0

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_size(self.size)
        if not 1 <= self.chosen <= self.size:
            raise out_of_range("chosen", f"in [1, {self.size}]", self.chosen)
        if not 1 <= self.reported <= min(self.size, MOST_REPORTED):
            raise out_of_range("reported", f"in [1, {min(self.size, MOST_REPORTED)}]", self.reported)
        if not 0 <= self.least <= self.reported:
            raise out_of_range("least", f"in [0, {self.reported}]", self.least)

    def _set_weight(self, overlap: int) -> int:
        """The weight of one set with this overlap: e^(eps u), rounded down, times SCALE."""
        quality = float(overlap >= self.least) if self.least else overlap / self.reported
        return SCALE if quality == 0 else int(secure_random.exp_below(self.epsilon * quality) * SCALE)

    @functools.cached_property
    def weights(self) -> tuple[int, ...]:
        """The weight of each overlap from 0 on: the number of its sets times the weight of one."""
        return tuple(
            math.comb(self.chosen, n) * math.comb(self.size - self.chosen, self.reported - n) * self._set_weight(n)
            for n in range(self.reported + 1)
        )

    @property
    def event(self) -> Event:
        """What one report is, for the ledger."""
        return Pure(float(self.epsilon))

    def worst_ratio(self) -> float:
        """The largest ratio of a report's probabilities under two vectors, from the numbers `release` uses."""
        each = [self._set_weight(n) for n, weight in enumerate(self.weights) if weight]
        return float(Fraction(max(each), min(each)))

    def law(self, top: Array) -> dict[tuple[int, ...], Fraction]:
        """The exact probability of every set, given which coordinates are the top; for small sizes."""
        total = sum(self.weights)
        marked = np.asarray(top, bool)
        return {
            subset: Fraction(self._set_weight(int(marked[list(subset)].sum())), total)
            for subset in itertools.combinations(range(self.size), self.reported)
        }

    @property
    def mean_overlap(self) -> float:
        return float(Fraction(sum(n * weight for n, weight in enumerate(self.weights)), sum(self.weights)))

    @property
    def pull(self) -> float:
        """sqrt(d) times the mean inner product of a report with a unit vector of Gaussian-looking coordinates."""
        share = self.chosen / self.size
        if share == 1:
            return 0.0
        density = NORMAL.pdf(NORMAL.inv_cdf(1 - share))
        return self.mean_overlap * density / share - (self.reported - self.mean_overlap) * density / (1 - share)

    @property
    def gain(self) -> float:
        """`pull` beside the noise of so many coordinates: what `SignDS.gain` is for one."""
        return self.pull / math.sqrt(self.reported)

    @functools.cached_property
    def _thresholds(self) -> Array:
        """Thresholds of a 32-bit word: the overlap is the number of those at or below it."""
        total = sum(self.weights)
        sums = itertools.accumulate(self.weights[:-1])
        return np.array([threshold(Fraction(part, total)) for part in sums], np.uint32)

    def simulate(self, vector: Array, key: Array, start: Array | int = 0) -> Array:
        """One report about one vector, [reported] numbers 2 * coordinate + (1 if the sign is +), from a JAX key; traceable."""
        coins, ranks = jax.random.split(key)
        words = jax.random.bits(coins, (2,))
        positive = (words[0] >> 31).astype(bool)
        top = mark_top(jnp.where(positive, vector, -vector), self.chosen, start)
        overlap = jnp.minimum(jnp.sum(words[1] >= jnp.asarray(self._thresholds)), self.chosen)
        return self._report(top, positive, overlap, jax.random.permutation(ranks, self.size))

    def _report(self, top: Array, positive: Array, overlap: Array, order: Array) -> Array:
        """The report: in a random order the first of the top coordinates, and the first of the others, are an even choice."""
        marked = top[order]
        inside = marked & (jnp.cumsum(marked) <= overlap)
        outside = ~marked & (jnp.cumsum(~marked) <= self.reported - overlap)
        picked = jnp.zeros(self.size, bool).at[order].set(inside | outside)
        return (2 * jnp.flatnonzero(picked, size=self.reported) + positive).astype(jnp.int32)

    def release(self, vector: Array, start: Array | int = 0) -> Array:
        """One report about one vector, from the operating system's generator, exactly."""
        vector = np.asarray(vector, np.float32)
        if vector.shape != (self.size,):
            raise DataError(f"expected a vector of {self.size} coordinates, got shape {vector.shape}")
        positive = bool(secure_random.integers_below(2))
        top = np.asarray(mark_top(jnp.asarray(vector if positive else -vector), self.chosen, start))
        drawn = secrets.randbelow(sum(self.weights))
        overlap = sum(drawn >= part for part in itertools.accumulate(self.weights[:-1]))
        picked = []
        for pool, count in ((np.flatnonzero(top), overlap), (np.flatnonzero(~top), self.reported - overlap)):
            picked.append(pool[secure_random.subsets(len(pool), count, 1)[0]])
        return (2 * np.sort(np.concatenate(picked)) + positive).astype(np.int32)

    def apply(self, vector: Array, source: Source, start: Array | int = 0) -> Array:
        """One report about one vector, from either kind of source; traceable from a key, also where the host draws exactly."""
        if not isinstance(source, Keyed):
            return self.release(vector, start)
        if not source.exact:
            return self.simulate(vector, source.key, start)
        sign, order = source.split(2)
        positive = sign.below(2) == 1
        top = mark_top(jnp.where(positive, vector, -vector), self.chosen, start)
        drawn = on_host.drawn(self, order.key, (1 + self.size,), jnp.int32)  # type: ignore[union-attr]
        return self._report(top, positive, drawn[0], drawn[1:])

    def release_rows(self, count: int) -> Array:
        """Exact draws of many overlaps, each with an order of all coordinates, as the host makes them for compiled code."""
        limits = list(itertools.accumulate(self.weights[:-1]))
        rows = np.empty((count, 1 + self.size), np.int32)
        for row in rows:
            number = secrets.randbelow(sum(self.weights))
            row[0] = sum(number >= limit for limit in limits)
            row[1:] = secure_random.permutation(self.size)
        return rows

    def add_up(self, reports: Array, present: Array) -> Array:
        """The sum of the signed unit vectors the present reports, [reports, reported], stand for."""
        coordinate = jnp.where(jnp.asarray(present)[:, None], reports // 2, self.size)  # absent ones fall off the end
        signs = jnp.where(reports % 2 == 1, 1.0, -1.0).astype(jnp.float32)
        return jnp.zeros(self.size, jnp.float32).at[coordinate].add(signs, mode="drop")

    @property
    def wire_bytes(self) -> int:
        """Bytes of one report as sent: one whole number, the coordinates its digits, the sign its last bit."""
        return number_bytes(2 * self.size**self.reported)

    def encode(self, report: Array) -> bytes:
        numbers = [int(number) for number in np.asarray(report)]
        whole = 0
        for number in numbers:
            whole = whole * self.size + number // 2
        return (2 * whole + numbers[0] % 2).to_bytes(self.wire_bytes, "little")

    def decode(self, message: bytes) -> Array:
        """The inverse of `encode`; refuses what no client could have sent."""
        if len(message) != self.wire_bytes:
            raise DataError(f"expected a report of {self.wire_bytes} bytes, got {len(message)}")
        whole, positive = divmod(read_number(message, 2 * self.size**self.reported), 2)
        coordinates = []
        for _ in range(self.reported):
            whole, coordinate = divmod(whole, self.size)
            coordinates.append(coordinate)
        if any(low >= high for low, high in itertools.pairwise(coordinates[::-1])):
            raise DataError("a report's coordinates are not different and in rising order")
        return np.array([2 * coordinate + positive for coordinate in coordinates[::-1]], np.int32)
