"""A linear classifier of images on public features, and its slopes: of records, one by one, and of generated examples."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from populace.models.gan import Gan
from populace.models.gan_training import drawn_labels
from populace.models.wavelets import Scattering

Array = Any

VALIDATED = 1_000  # generated images a classifier is tried on


@functools.lru_cache(maxsize=64)
def optimiser_of(rate: float, momentum: float) -> optax.GradientTransformation:
    return optax.adam(rate, b1=momentum)


def logits(features: Scattering, weights: Array, seen: Array) -> Array:
    """Of examples whose features are seen, [.., classes]; the last row of weights is the shift."""
    parts = weights.reshape(features.size + 1, -1)
    return seen @ parts[:-1] + parts[-1]


def slope_of_one(features: Scattering, weights: Array, x: Array, y: Array) -> Array:
    """Of the cross-entropy of one example, flat; x are intensities, or bytes."""
    pixels = x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x
    seen = features(pixels[None])[0]
    off = jax.nn.softmax(logits(features, weights, seen)) - y
    return (jnp.append(seen, 1.0)[:, None] * off).reshape(-1)


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
    seen = features(x)
    off = jax.nn.softmax(logits(features, weights, seen)) - y
    whole = jnp.concatenate([seen, jnp.ones((count, 1))], axis=1)
    lengths = jnp.linalg.norm(whole, axis=1) * jnp.linalg.norm(off, axis=1) / bound
    off = off / (bound * jnp.maximum(lengths, 1))[:, None]
    return (whole.T @ off).reshape(-1) / count


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
        kept = jnp.minimum(average, (1 + done) / (10 + done))
        return (weights, state, kept * mean + (1 - kept) * weights), None

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
