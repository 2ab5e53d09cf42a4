"""A linear classifier of images on public features, and its slopes: of records, one by one, and of generated examples."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from populace.errors import SpecError
from populace.methods.blocks.dp_sgd import update_ema
from populace.methods.blocks.gan_networks import Gan
from populace.methods.blocks.gan_training import drawn_labels
from populace.methods.blocks.whole_numbers import EXACT, WIDE
from populace.methods.genfl.wavelets import Scattering
from populace.types import Array

MOST_BITS, LEAST_BITS = 18, 12  # of a product
SPARE = 2  # units left for rounding, so that it seldom makes a row too long
VALIDATED = 1_000  # generated images a classifier is tried on


@functools.lru_cache(maxsize=64)
def optimiser_of(rate: float, momentum: float) -> optax.GradientTransformation:
    return optax.adam(rate, b1=momentum)


def logits(features: Scattering, weights: Array, seen: Array) -> Array:
    """Of examples whose features are seen, [.., classes]; the last row of weights is the shift."""
    parts = weights.reshape(features.size + 1, -1)
    return seen @ parts[:-1] + parts[-1]


def intensities(x: Array) -> Array:
    return x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x


def pairs(features: Scattering, weights: Array, x: Array, y: Array, bound: float) -> tuple[Array, Array]:
    """Of examples, [n, size + 1] and [n, classes]: their outer product is an example's clipped slope, in units of the bound.

    The cross-entropy's slope is what is seen of the example times what the classifier is off by; the first is scaled to length
    1, the second takes the rest and is clipped to it.
    """
    seen = features(intensities(x))
    off = jax.nn.softmax(logits(features, weights, seen)) - y
    whole = jnp.concatenate([seen, jnp.ones((len(seen), 1))], axis=1)
    length = jnp.linalg.norm(whole, axis=1, keepdims=True)
    off = off * length / bound
    return whole / length, off / jnp.maximum(jnp.linalg.norm(off, axis=1, keepdims=True), 1)


@dataclasses.dataclass(frozen=True)
class Bits:
    """Of whole numbers that stand for a slope's two factors; a product has both together."""

    seen: int
    off: int

    @property
    def both(self) -> int:
        return self.seen + self.off

    @property
    def at_once(self) -> int:
        """Examples whose products a float32 adds up without error."""
        return 1 << (EXACT - self.both)


def bits_for(size: int, records: int) -> Bits:
    """As many as fit: the sum over so many records has 31 bits at most, and so have the squares of a row of so many numbers."""
    room = min(MOST_BITS, WIDE - records.bit_length())
    seen = min((room + 2) // 2, (WIDE - size.bit_length()) // 2)
    if room < LEAST_BITS or seen < LEAST_BITS // 2:
        raise SpecError(f"slopes of {records:,} records of {size:,} numbers do not add up in {WIDE} bits")
    return Bits(seen, room - seen)


def in_whole(rows: Array, bits: int) -> Array:
    """Rows of length at most 1 in units of 2^-bits, float32 whole numbers.

    Guarantee: squares of a row add up to at most 4^bits, whatever came in: a row that rounding made longer is cut off towards
    zero instead, and one that is still longer, or not finite, counts as 0.
    """
    unit = 1 << bits
    scaled = jnp.clip(jnp.where(jnp.isfinite(rows), rows, 0.0) * (unit - SPARE), -unit, unit)

    def fits(whole: Array) -> Array:
        return jnp.sum(jnp.square(whole.astype(jnp.int32)), axis=1, keepdims=True) <= unit * unit

    near, shorter = jnp.round(scaled), jnp.trunc(scaled)
    return jnp.where(fits(near), near, jnp.where(fits(shorter), shorter, 0.0))


def restored(bits: Bits) -> float:
    """What a sum of products of `in_whole` factors is multiplied by, beyond their units, to be what it stands for."""
    return (1 << bits.both) / (((1 << bits.seen) - SPARE) * ((1 << bits.off) - SPARE))


def made(gan: Gan, theta: Array, count: int, key: Array) -> tuple[Array, Array]:
    """Images of a generator, labels evenly, one-hot."""
    labels, codes = jax.random.split(key)
    y = drawn_labels(gan, jnp.ones(gan.maker.classes), count, labels)
    z = jax.random.normal(codes, (count, gan.maker.latent))
    return gan.maker.means(gan.maker.decode(theta, z, y)), y


def generated_slope(
    gan: Gan, features: Scattering, weights: Array, theta: Array, count: int, bound: float, key: Array
) -> Array:
    """The mean of clipped slopes of so many generated examples, in units of the bound: a product, no slope is written out."""
    x, y = made(gan, theta, count, key)
    seen, off = pairs(features, weights, x, y, bound)
    return (seen.T @ off).reshape(-1) / count


@functools.partial(
    jax.jit, static_argnums=(0, 1), static_argnames=("steps", "batch", "bound", "rate", "momentum", "average")
)
def learn_alone(
    gan: Gan,
    features: Scattering,
    thetas: Array,
    told: Array,
    key: Array,
    *,
    steps: int,
    batch: int,
    bound: float,
    rate: float,
    momentum: float,
    average: float,
) -> Array:
    """The classifier on examples of the generators that were told, and on nothing else: the running mean of its weights."""
    optimiser = optimiser_of(rate, momentum)

    def step(carry: tuple[Array, Any, Array], item: tuple[Array, Array]) -> tuple[tuple[Array, Any, Array], None]:
        weights, state, mean = carry
        done, key = item
        slopes = jax.lax.map(
            lambda one: generated_slope(gan, features, weights, one[0], batch, bound, one[1]),
            (thetas, jax.random.split(key, len(thetas))),
        )
        slope = jnp.sum(slopes * told[:, None], axis=0) / jnp.maximum(jnp.sum(told), 1)
        change, state = optimiser.update(slope, state)
        weights = weights + change
        return (weights, state, update_ema(mean, weights, done, average)), None

    start = jnp.zeros((features.size + 1) * gan.maker.classes)
    items = (jnp.arange(steps), jax.random.split(key, steps))
    return jax.lax.scan(step, (start, optimiser.init(start), start), items)[0][2]


@functools.partial(jax.jit, static_argnums=(0, 1))
def validated_on(gan: Gan, features: Scattering, weights: Array, thetas: Array, told: Array, key: Array) -> Array:
    """How often the classifier is right about images of the generators that were told."""
    each = -(-VALIDATED // len(thetas))

    def right(item: tuple[Array, Array]) -> Array:
        theta, key = item
        x, y = made(gan, theta, each, key)
        guessed = jnp.argmax(logits(features, weights, features(x)), axis=1)
        return jnp.mean(guessed == jnp.argmax(y, axis=1))

    every = jax.lax.map(right, (thetas, jax.random.split(key, len(thetas))))
    return jnp.sum(every * told) / jnp.maximum(jnp.sum(told), 1)
