"""What training by steps shares: examples, one half of a network with its optimiser, and sums over a Poisson batch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from populace.types import Array

Betas = tuple[float, float]

USUAL: Betas = (0.9, 0.999)  # Adam's
SPREAD = 4.0  # deviations of a Poisson batch that are computed at once; what goes beyond is computed after


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Examples:
    """What a client trains on: [n, ..] in [0, 1], one-hot labels, and which of the n are there."""

    x: Array
    y: Array
    mask: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Half:
    """Parameters of one half with its optimiser's state."""

    values: Array
    state: Any


def moved(half: Half, slope: Array, rate: float, betas: Betas = USUAL) -> Half:
    """One step of Adam."""
    change, state = optax.adam(rate, *betas).update(slope, half.state)
    return Half(half.values + change, state)


def fresh(values: Array, rate: float, betas: Betas = USUAL) -> Half:
    return Half(values, optax.adam(rate, *betas).init(values))


def averaged(average: Array, values: Array, done: Array, decay: float) -> Array:
    """A running mean of the parameters that forgets its start."""
    weight = jnp.minimum(decay, (1 + done) / (10 + done))
    return weight * average + (1 - weight) * values


def drawn_at_once(rows: int, probability: float) -> int:
    """How many examples of a Poisson batch are computed together."""
    expected = rows * probability
    return min(rows, math.ceil(expected + SPREAD * math.sqrt(expected * (1 - probability)) + 1))


def total_of(contribution: Callable[[Array], Any], drawn: Array, at_once: int) -> Any:
    """The sum of `contribution(row)` over the rows drawn, however many they are, `at_once` at a time."""

    def block(places: Array, there: Array) -> Any:
        def added(leaf: Array) -> Array:
            kept = jnp.where(there.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, jnp.zeros_like(leaf))
            return jnp.sum(kept, axis=0, dtype=leaf.dtype)

        return jax.tree.map(added, jax.vmap(contribution)(places))

    return total_of_blocks(block, drawn, at_once)


def total_of_blocks(block: Callable[[Array, Array], Any], drawn: Array, at_once: int) -> Any:
    """`total_of` where `block(rows, there)` adds up `at_once` of them itself; those not `there` must not count."""
    rows = len(drawn)
    order = jnp.argsort(~drawn, stable=True)
    order = jnp.concatenate([order, jnp.zeros(-rows % at_once, order.dtype)])
    count = jnp.sum(drawn)
    shapes = jax.eval_shape(block, order[:at_once], drawn[jnp.zeros(at_once, order.dtype)])
    start = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)

    def some(carry: tuple[Array, Any]) -> tuple[Array, Any]:
        at, total = carry
        places = jax.lax.dynamic_slice_in_dim(order, at, at_once)
        found = block(places, at + jnp.arange(at_once) < count)
        return at + at_once, jax.tree.map(jnp.add, total, found)

    return jax.lax.while_loop(lambda carry: carry[0] < count, some, (jnp.zeros((), count.dtype), start))[1]
