"""How critic and generator are trained against each other, step by step.

All of it is arithmetic: which slopes are noised, and what that costs, is the protocol's. Codes and places between examples are
drawn apart for each example, so that an example's slope depends on nothing but itself, the parameters and public coins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from populace.methods.blocks.dp_sgd import Examples, TrainState, adam_step
from populace.methods.blocks.gan_networks import Gan, Parts
from populace.types import Array

BETAS = (0.5, 0.9)  # of Adam, for both sides


def slope_of_one(gan: Gan, critic: Parts, theta: Array, x: Array, y: Array, key: Array) -> Parts:
    """Of the critic's whole loss, penalty included, for one example against one the generator makes with its label."""
    codes, places = jax.random.split(key)
    z = jax.random.normal(codes, (1, gan.maker.latent))
    made = gan.made(theta, z, y[None])[0]
    slope: Parts = jax.grad(gan.loss_of_one)(critic, x, made, y, jax.random.uniform(places))
    return slope


def slope_of_row(gan: Gan, omega: Array, theta: Array, seen: Examples, key: Array) -> Callable[[Array], Parts]:
    """`slope_of_one` of a row, its coins made from the row's number."""
    critic = gan.parts(omega)

    def slope(row: Array) -> Parts:
        return slope_of_one(gan, critic, theta, seen.x[row], seen.y[row], jax.random.fold_in(key, row))

    return slope


def replayed(gan: Gan, theta: Array, shares: Array, count: int, key: Array) -> Examples:
    """Examples of a generator that was received, labels by these shares."""
    labels, codes = jax.random.split(key)
    y = drawn_labels(gan, shares, count, labels)
    x = gan.made(theta, jax.random.normal(codes, (count, gan.maker.latent)), y)
    return Examples(x, y, jnp.ones(count, bool))


def drawn_labels(gan: Gan, shares: Array, count: int, key: Array) -> Array:
    """One-hot labels by these shares, [count, classes]."""
    if gan.maker.classes < 1:
        return jnp.zeros((count, 0))
    return gan.maker.labels(jax.random.categorical(key, jnp.log(jnp.maximum(shares, 1e-12)), shape=(count,)))


def mean_slope(gan: Gan, omega: Array, theta: Array, seen: Examples, key: Array, bound: Array) -> Array:
    """Of examples that may be seen: each clipped like a real one, in units of the bound, without noise."""
    slopes = jax.vmap(slope_of_row(gan, omega, theta, seen, key))(jnp.arange(len(seen.mask)))
    squares = sum(jnp.sum(leaf.reshape(len(leaf), -1) ** 2, axis=1) for leaf in jax.tree.leaves(slopes))
    weights = 1 / (bound * jnp.maximum(jnp.sqrt(squares) / bound, 1) * len(seen.mask))
    return gan.flat(jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, axes=1), slopes))


def generator_step(
    gan: Gan, generator: TrainState, omega: Array, shares: Array, count: int, key: Array, rate: float
) -> TrainState:
    """One step of the generator against a critic: it sees no record."""
    labels, codes = jax.random.split(key)
    y = drawn_labels(gan, shares, count, labels)
    z = jax.random.normal(codes, (count, gan.maker.latent))
    slope = jax.grad(functools.partial(gan.generator_loss, omega=omega, z=z, y=y))(generator.parameters)
    return adam_step(generator, slope, rate, BETAS)
