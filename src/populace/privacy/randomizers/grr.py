"""Generalised randomised response (kRR): report the own value with probability p, otherwise another one, evenly."""

from __future__ import annotations

import dataclasses
import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from populace.privacy import on_host, secure_random
from populace.privacy.events import Event, Pure, Repeated
from populace.privacy.guarantee import check_epsilon
from populace.privacy.randomizers.base import FrequencyOracle, check_size, check_values, number_bytes, read_number
from populace.privacy.randomizers.draws import LARGEST_BOUND, below, threshold
from populace.privacy.source import Keyed, Source
from populace.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grr(FrequencyOracle):
    """p = e^eps / (e^eps + k - 1); a report is one value of the domain."""

    size: int
    epsilon: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_size(self.size)

    @functools.cached_property
    def exact_p(self) -> Fraction:
        """p as `release` uses it, rounded down so that the guarantee holds exactly."""
        weight = secure_random.exp_below(self.epsilon)
        return secure_random.rounded_down(weight / (weight + self.size - 1))

    @property
    def p(self) -> float:
        return float(self.exact_p) if self.size > 1 else 1.0

    @property
    def q(self) -> float:
        return (1.0 - self.p) / (self.size - 1) if self.size > 1 else 0.0

    def worst_ratio(self) -> float:
        if self.size == 1:
            return 1.0
        return float(self.exact_p * (self.size - 1) / (1 - self.exact_p))

    @property
    def words(self) -> int:
        return 2 if self.size <= LARGEST_BOUND else 3

    def draw(self, value: Array, words: Array) -> Array:
        if self.size == 1:
            return jnp.zeros_like(jnp.asarray(value))
        if self.size <= LARGEST_BOUND:
            shift = 1 + below(words[1], np.uint32(self.size - 1)).astype(jnp.int32)
        else:  # more values than one word tells apart evenly: the words are a key
            key = jax.random.wrap_key_data(jnp.asarray(words[1:]), impl="threefry2x32")
            shift = jax.random.randint(key, (), 1, self.size)
        return jnp.where(words[0] < threshold(self.exact_p), value, (value + shift) % self.size)

    def release(self, values: Array) -> Array:
        values = check_values(values, self.size)
        if self.size == 1:
            return np.zeros_like(values)
        keep = secure_random.bernoulli(self.exact_p, values.shape)
        shift = 1 + secure_random.integers_below(self.size - 1, values.shape)
        return np.where(keep, values, (values + shift) % self.size)

    def support(self, reports: Array) -> Array:
        return jnp.asarray(reports)[..., None] == jnp.arange(self.size)

    def counts(self, reports: Array) -> Array:
        return np.bincount(np.asarray(reports).reshape(-1), minlength=self.size).astype(np.int64)

    @property
    def wire_bytes(self) -> int:
        """A whole number below the size of the domain."""
        return number_bytes(self.size)

    def encode(self, report: Array | np.int64) -> bytes:
        return int(report).to_bytes(self.wire_bytes, "little")

    def _read(self, message: bytes) -> np.int64:
        return np.int64(read_number(message, self.size))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrrPanel:
    """Randomised response over several domains with traced sizes, each use with the same epsilon.

    Guarantee: each value reported costs epsilon; a client that reports several spends the sum.
    """

    sizes: tuple[int, ...]
    epsilon: float

    @functools.cached_property
    def members(self) -> tuple[Grr, ...]:
        return tuple(Grr(size=size, epsilon=self.epsilon) for size in self.sizes)

    def event(self, reports: int) -> Event:
        """What reporting so many values is, for the ledger."""
        one = Pure(float(self.epsilon))
        return Repeated(one, reports) if reports > 1 else one

    def apply(self, values: Array, domains: Array, source: Source) -> Array:
        """Reports about several values, `domains[i]` saying which domain `values[i]` is in."""
        if isinstance(source, Keyed) and source.exact:
            return on_host.drawn(self, source.key, jnp.shape(values), jnp.int32, values, domains)
        if isinstance(source, Keyed):
            size = jnp.asarray(np.asarray(self.sizes, np.int32))[domains]
            heads = jnp.asarray(np.asarray([threshold(member.exact_p) for member in self.members], np.uint32))[domains]
            keep_key, other_key = jax.random.split(source.key)
            keep = jax.random.bits(keep_key, jnp.shape(values)) < heads
            shift = jax.random.randint(other_key, jnp.shape(values), 1, jnp.maximum(size, 2))
            return jnp.where(keep, values, (values + shift) % size)
        reports = [self.members[int(d)].release(np.array([int(v)]))[0] for v, d in zip(values, domains, strict=True)]
        return np.array(reports, np.int32)

    def release_rows(self, count: int, values: Array, domains: Array) -> Array:
        """Exact reports of many clients, as the host draws them for compiled code."""
        del count
        reports = np.zeros(values.shape, np.int32)
        for domain in np.unique(domains):
            asked = domains == domain
            reports[asked] = self.members[int(domain)].release(values[asked])
        return reports
