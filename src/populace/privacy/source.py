"""Where randomness comes from.

`Keyed` carries a JAX key: traceable, vectorised, reproducible, for simulation; with `exact`, what protects people
comes from the operating system all the same. `System` is the operating system's generator with exact sampling, for deployment.
A protocol's `answer` takes either and never asks which.
"""

from __future__ import annotations

import dataclasses
import functools
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import out_of_range
from populace.privacy import on_host, secure_random
from populace.types import Array, NumpyArray

#: A probability, traced or not; a fraction is exact.
Probability = Array | Fraction | float

DRAWING = ("random_bits", "random_gamma", "threefry2x32")  # what takes bits from a key, by JAX's names
LATENTS = "drawn_latents"  # the name under which a program has them
LATENT_UNITS = 2.0**24  # a standard deviation of a latent, in steps


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Keyed:
    """Randomness from a JAX key. Split where it is used up, never reused.

    With `exact`, what protects people (noise, reports, coins, choices) is drawn on the host, from the operating system,
    exactly, also inside compiled code; latents still come from the key.
    """

    key: Array
    exact: bool = dataclasses.field(default=False, metadata={"static": True})

    def split(self, count: int) -> tuple[Source, ...]:
        """So many sources that are independent of each other."""
        return tuple(Keyed(key, exact=self.exact) for key in jax.random.split(self.key, count))

    def one_of(self, mask: Array) -> Array:
        """Index of one of the true entries, evenly; index 0 if there is none."""
        if self.exact:
            return on_host.drawn(_OneOf(), self.key, (), jnp.int32, mask)
        rank = jax.random.randint(self.key, (), 0, jnp.maximum(mask.sum(), 1))
        return jnp.argmax(jnp.cumsum(mask) == rank + 1)

    def below(self, bound: Array | int) -> Array:
        """A whole number in [0, bound), evenly."""
        if self.exact:
            return on_host.drawn(_Below(), self.key, (), jnp.int32, bound)
        return jax.random.randint(self.key, (), 0, bound)

    def order(self, size: int) -> Array:
        """A random order of 0, .., size - 1, evenly."""
        if self.exact:
            return on_host.drawn(_Order(size), self.key, (size,), jnp.int32)
        return jax.random.permutation(self.key, size)

    def coins(self, probability: Probability, shape: tuple[int, ...] | int) -> Array:
        """True with this probability, independently: Poisson batches.

        The probability is rounded down to a multiple of 2^-64, which never hurts privacy; a traced one is float32, exactly.
        """
        shape = (shape,) if isinstance(shape, int) else shape
        if self.exact:
            given = isinstance(probability, jax.core.Tracer)
            coins = _Coins(shape, None if given else _fraction(probability))
            return on_host.drawn(coins, self.key, shape, bool, *((probability,) if given else ()))
        high, low, certain = _threshold(probability)
        first, second = (jax.random.bits(key, shape, jnp.uint32) for key in jax.random.split(self.key))
        return (first < high) | ((first == high) & (second < low)) | certain

    def normal(self, shape: tuple[int, ...] | int) -> Array:
        """Standard normals, float32, for latents. Not for privacy noise: `gaussian.GaussianSum` makes that."""
        latents: Array = drawn_latents(self.key, (shape,) if isinstance(shape, int) else shape)
        return latents


@functools.partial(jax.jit, static_argnums=1)
def drawn_latents(key: Array, shape: tuple[int, ...]) -> Array:
    """Standard normals from a key; by this function's name (`LATENTS`) `uses_key` tells them from all else."""
    return jax.random.normal(key, shape, jnp.float32)


def uses_key(program: Any) -> bool:
    """Whether a traced program (`jax.make_jaxpr`) draws anything but latents from keys, of its source or of its arguments.

    An exact source draws nothing else from its key; a method that takes bits from a key by itself does.
    """
    for step in program.eqns:
        if step.primitive.name in DRAWING:
            return True
        if step.params.get("name") == LATENTS:
            continue
        inner = jax.tree.leaves(list(step.params.values()), is_leaf=lambda part: hasattr(part, "eqns"))
        if any(uses_key(part) for part in inner if hasattr(part, "eqns")):
            return True
    return False


def _threshold(probability: Probability) -> tuple[Array | np.uint32, Array | np.uint32, Array | np.bool]:
    """Two 32-bit words below which so many pairs of words lie, and whether all do."""
    if isinstance(probability, jax.core.Tracer):
        scaled = jnp.asarray(probability, jnp.float32) * 2.0**32  # exactly, and so are the floors
        high = jnp.floor(scaled)
        certain = probability >= 1
        low = jnp.floor((scaled - high) * 2.0**32)
        return jnp.where(certain, 0, high).astype(jnp.uint32), low.astype(jnp.uint32), certain
    if not 0 <= probability <= 1:
        raise out_of_range("probability", "in [0, 1]", probability)
    whole = int(_fraction(probability) * 2**64)
    return np.uint32(whole >> 32 & 0xFFFFFFFF), np.uint32(whole & 0xFFFFFFFF), np.bool_(probability == 1)


@dataclasses.dataclass(frozen=True)
class _OneOf:
    """`System.one_of` for many masks."""

    def release_rows(self, count: int, masks: NumpyArray) -> NumpyArray:
        counts = masks.reshape(count, -1).sum(axis=1)
        rank = _below_each(np.maximum(counts, 1))
        chosen: NumpyArray = np.argmax(np.cumsum(masks, axis=1) == rank[:, None] + 1, axis=1)
        return chosen


@dataclasses.dataclass(frozen=True)
class _Below:
    """`System.below` for many bounds."""

    def release_rows(self, count: int, bounds: NumpyArray) -> NumpyArray:
        del count
        return _below_each(bounds)


@dataclasses.dataclass(frozen=True)
class _Order:
    """`System.order`, many times."""

    size: int

    def release_rows(self, count: int) -> NumpyArray:
        return np.stack([secure_random.permutation(self.size) for _ in range(count)])


def _fraction(probability: Probability) -> Fraction:
    """The probability exactly; one that is a fraction already is not rounded."""
    return probability if isinstance(probability, Fraction) else Fraction(float(probability))


def _below_each(bounds: NumpyArray) -> NumpyArray:
    """A whole number below each bound, evenly and exactly."""
    drawn = np.zeros(bounds.shape, np.int64)
    for bound in np.unique(bounds):
        drawn[bounds == bound] = secure_random.integers_below(int(bound), int((bounds == bound).sum()))
    return drawn


@dataclasses.dataclass(frozen=True)
class _Coins:
    """`System.coins` for many rows; of a probability that is known, or given for each row."""

    shape: tuple[int, ...]
    probability: Fraction | None

    def release_rows(self, count: int, *given: Array) -> Array:
        if self.probability is not None:
            return System().coins(self.probability, (count, *self.shape))
        return np.stack([System().coins(float(probability), self.shape) for probability in given[0]])


@dataclasses.dataclass(frozen=True)
class System:
    """Randomness from the operating system, exact."""

    def split(self, count: int) -> tuple[Source, ...]:
        """The same source so many times: what it draws is independent anyway."""
        return (self,) * count

    def one_of(self, mask: Array) -> Array | np.int64:
        """Index of one of the true entries, evenly; index 0 if there is none."""
        indices: NumpyArray = np.flatnonzero(np.asarray(mask))
        return indices[secure_random.integers_below(len(indices))] if len(indices) else np.int64(0)

    def below(self, bound: Array | int) -> Array:
        """A whole number in [0, bound), evenly."""
        return secure_random.integers_below(int(bound))

    def order(self, size: int) -> Array:
        """A random order of 0, .., size - 1, evenly."""
        return secure_random.permutation(size)

    def coins(self, probability: Probability, shape: tuple[int, ...] | int) -> Array:
        """Exact coins; the probability is rounded down to a multiple of 2^-63, which never hurts privacy."""
        if not 0 <= probability <= 1:
            raise out_of_range("probability", "in [0, 1]", probability)
        return secure_random.bernoulli(secure_random.rounded_down(_fraction(probability)), shape)

    def normal(self, shape: tuple[int, ...] | int) -> Array:
        """Standard normals to about 2^-24, float32, for latents. Not for privacy noise: `gaussian.GaussianSum` makes that."""
        return (secure_random.rounded_normal(LATENT_UNITS, shape) / LATENT_UNITS).astype(np.float32)


Source = Keyed | System
