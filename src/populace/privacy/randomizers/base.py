"""What every local randomiser is, and what a frequency oracle adds: the arithmetic that undoes it on average.

A report *supports* some values of the domain. The own value is supported with probability p, any other with probability q,
so with support counts c of n reports the unbiased estimate of a frequency is (c/n - q)/(p - q).
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import jax
import numpy as np

from populace.errors import DataError, out_of_range
from populace.privacy import on_host, secure_random
from populace.privacy.events import Event, Pure
from populace.privacy.source import Keyed, Source
from populace.types import Array, Number, NumpyArray

RELEASE_DRAWS = 2**20  # exact coins drawn at a time: 16 MiB of operating-system bits
BATCH_BYTES = 2**22  # words and reports simulated at a time: few enough to stay in the cache


class Randomizer(abc.ABC):
    """An epsilon-LDP report about one value in {0, .., size - 1}.

    Guarantee: for any two values and any report, the probabilities of the report differ by at most a factor e^epsilon. The
    probabilities that `release` uses are rounded so that the factor stays below it exactly; `simulate` uses the same
    probabilities to 23 bits or better.
    Edge cases: with size 1 a report says nothing and costs the same; a value outside the domain is refused by `release` and
    `simulate_batch`.
    """

    size: int
    epsilon: float

    @property
    def event(self) -> Event:
        """What one report is, for the ledger: the same object that makes the noise describes it."""
        return Pure(float(self.epsilon))

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """How many counters a sum of reports has."""

    @property
    @abc.abstractmethod
    def words(self) -> int:
        """How many random 32-bit words a simulated report takes."""

    @abc.abstractmethod
    def draw(self, value: Array, words: Array) -> Array:
        """One report about one value, from `words` uint32s; traceable, to be vmapped."""

    def simulate(self, value: Array, key: Array) -> Array:
        """One report about one value, from a JAX key; traceable, to be vmapped. What engines run: a key per client."""
        return self.draw(value, jax.random.bits(key, (self.words,)))

    def simulate_batch(self, values: Array, seed: int) -> Array:
        """Reports about many values, a NumPy array, for studies of whole populations: one seed, no key per client.

        The same `draw` as `simulate`, hence the same law, but other words, so other reports: NumPy makes a word in 2 ns, a key
        per client one in 25 to 50. Reproducible: the report of a user depends on seed, place and value alone.
        """
        values = check_values(values, self.size).astype(np.int32)
        generator = np.random.PCG64DXSM(seed)
        report = _report(self)
        batch = 2 * max(1, BATCH_BYTES // (8 * self.words + 2 * report.size * report.dtype.itemsize))
        reports = np.empty((len(values), *report.shape), report.dtype)
        for start in range(0, len(values), batch):
            part = values[start : start + batch]
            words = generator.random_raw(self.words * batch // 2).view(np.uint32).reshape(self.words, batch)
            drawn = _draw_batch(self, np.pad(part, (0, batch - len(part))), words)  # padded: one compiled shape
            reports[start : start + batch] = np.asarray(drawn)[: len(part)]
        return reports

    @abc.abstractmethod
    def release(self, values: Array) -> Array:
        """Reports about many values, from the operating system's generator, exactly."""

    @abc.abstractmethod
    def support(self, reports: Array) -> Array:
        """Which counters each report raises: reports in, booleans [.., width] out."""

    @abc.abstractmethod
    def counts(self, reports: Array) -> Array:
        """`support` summed over all reports, int64 [width], without holding all supports at once."""

    @abc.abstractmethod
    def worst_ratio(self) -> float:
        """The largest ratio of a report's probabilities under two values, from the numbers `release` uses."""

    @property
    @abc.abstractmethod
    def wire_bytes(self) -> int:
        """Bytes of one report as sent."""

    @abc.abstractmethod
    def encode(self, report: Array | np.int64) -> bytes:
        """One report as sent."""

    @abc.abstractmethod
    def _read(self, message: bytes) -> Array | np.int64:
        """A message of the right length as a report; refuses what no client could have sent."""

    def decode(self, message: bytes) -> Array | np.int64:
        """The inverse of `encode`; refuses what no client could have sent, stray bits included."""
        if len(message) != self.wire_bytes:
            raise DataError(f"expected a report of {self.wire_bytes} bytes, got {len(message)}")
        report = self._read(message)
        if self.encode(report) != message:
            raise DataError("a report is not written as clients write it: its padding or its order differs")
        return report

    def apply(self, value: Array, source: Source) -> Array:
        """One report about one value, from either kind of source; traceable from a key, also where the host draws exactly."""
        if isinstance(source, Keyed):
            if source.exact:
                report = _report(self)
                return on_host.drawn(self, source.key, report.shape, report.dtype, value)
            return self.simulate(value, source.key)
        return self.release(np.asarray(value).reshape(1))[0]

    def release_rows(self, count: int, values: Array) -> Array:
        """`release`, as the host calls it from compiled code."""
        del count
        return self.release(values)


class FrequencyOracle(Randomizer):
    """A randomiser whose reports support the own value with probability p and any other with probability q.

    Edge cases: with one value, or without reports, the estimate is the uniform table.
    """

    @property
    @abc.abstractmethod
    def p(self) -> float:
        """Probability that a report supports the own value."""

    @property
    @abc.abstractmethod
    def q(self) -> float:
        """Probability that a report supports a given other value."""

    @property
    def width(self) -> int:
        return self.size

    def variance(self, frequency: NumpyArray | float, reports: int) -> NumpyArray | float:
        """Variance of the estimate of a frequency from so many reports about fixed values, in closed form."""
        gap = self.p - self.q
        return (self.q * (1 - self.q) / gap**2 + frequency * (1 - self.p - self.q) / gap) / reports

    def total_variance(self) -> float:
        """Variance summed over the whole table, of one report."""
        return total_variance(self.p, self.q, self.size)

    def estimate(self, support_counts: Array, reports: Number) -> NumpyArray:
        """Unbiased frequencies; they may be negative. With no reports, or one value, the uniform table."""
        counts = np.asarray(support_counts, np.float64)
        if self.size == 1 or reports == 0:
            return np.full(self.size, 1.0 / self.size)
        return (counts / reports - self.q) / (self.p - self.q)


def total_variance(p: float, q: float, size: int) -> float:
    """The variance of one report's estimates, summed over a table of so many values."""
    if size == 1:
        return 0.0
    return (p * (1 - p) + (size - 1) * q * (1 - q)) / (p - q) ** 2


@functools.lru_cache(maxsize=256)
def _report(oracle: Randomizer) -> jax.ShapeDtypeStruct:
    """Shape and type of one simulated report."""
    shape: jax.ShapeDtypeStruct = jax.eval_shape(oracle.draw, np.int32(0), np.zeros(oracle.words, np.uint32))
    return shape


@functools.partial(jax.jit, static_argnames="oracle")
def _draw_batch(oracle: Randomizer, values: Array, words: Array) -> Array:
    return jax.vmap(oracle.draw, in_axes=(0, 1))(values, words)


def simulate_many(simulate: Callable[[Array, Array], Array], values: Array, key: Array) -> Array:
    """One report per value, each with a key of its own."""
    return jax.vmap(simulate)(values, jax.random.split(key, len(values)))


def check_size(size: int) -> None:
    if size < 1:
        raise out_of_range("size", "at least 1", size)


def check_values(values: Array, size: int) -> Array:
    """The values as a flat array, refused if one lies outside the domain: no probability is promised for it."""
    values = np.asarray(values).reshape(-1)
    if len(values) and not (values.min() >= 0 and values.max() < size):
        raise DataError(f"expected values in [0, {size}), got one outside")
    return values


def exp_share_below(epsilon: float, parts: int) -> Fraction:
    """A rational just below e^(epsilon/parts): its `parts`-th power never exceeds e^epsilon."""
    with localcontext() as context:
        context.prec = secure_random.DIGITS
        value = (Decimal(epsilon) / parts).exp()
        return Fraction(value) * (1 - Fraction(1, 10 ** (secure_random.DIGITS - 5)))


def rounded_up(probability: Fraction) -> Fraction:
    """The smallest multiple of 1/RESOLUTION not below `probability`."""
    return 1 - secure_random.rounded_down(1 - probability)


def release_bits(probability: Fraction, rows: int, width: int) -> Array:
    """Independent exact coins as rows of booleans, drawn in blocks so that memory stays bounded."""
    bits = np.empty((rows, width), bool)
    block = max(1, RELEASE_DRAWS // width)
    for start in range(0, rows, block):
        part = bits[start : start + block]
        part[:] = secure_random.bernoulli(probability, part.shape)
    return bits


def count_rows(rows: Array) -> Array:
    """Column sums of rows of booleans. In bytes, which hold the sum of 255: eight times faster than in int64 at once."""
    rows = np.asarray(rows, bool)
    rows = rows.reshape(-1, rows.shape[-1]).view(np.uint8)
    whole = len(rows) - len(rows) % 255
    sums = rows[:whole].reshape(255, -1).sum(axis=0, dtype=np.uint8).reshape(-1, rows.shape[-1])
    counts: NumpyArray = sums.sum(axis=0, dtype=np.int64) + rows[whole:].sum(axis=0, dtype=np.int64)
    return counts


def read_number(message: bytes, bound: int) -> int:
    """A little-endian whole number below `bound`."""
    number = int.from_bytes(message, "little")
    if number >= bound:
        raise DataError("a report names a value outside the domain")
    return number


def number_bytes(bound: int) -> int:
    """Bytes of a whole number below `bound`."""
    return max(1, -(-(bound - 1).bit_length() // 8))
