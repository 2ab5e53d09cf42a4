"""What a client's local training changes, and pre-training on rows drawn from the public domain (Jiang et al. 2022)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from populace.methods.blocks.conv_networks import ConvAutoencoder
from populace.methods.blocks.dense_networks import DenseAutoencoder
from populace.types import Array

Trained = DenseAutoencoder | ConvAutoencoder

ADAM = (0.9, 0.999, 1e-8)
PRETRAINING_BATCH, PRETRAINING_EPOCHS = 64, 1


def adam_update(
    net: Trained, theta: Array, x: Array, mask: Array, key: Array, epochs: int, learning_rate: float
) -> Array:
    """What so many full-batch epochs of Adam change (algorithm 2, lines 13 to 17)."""
    b1, b2, tiny = ADAM

    def epoch(number: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        now, mean, square = carry
        slope = jax.grad(net.loss)(now, x, mask, jax.random.fold_in(key, number))
        mean, square = b1 * mean + (1 - b1) * slope, b2 * square + (1 - b2) * slope**2
        t = jnp.asarray(number + 1, jnp.float32)
        move = mean / (1 - b1**t) / (jnp.sqrt(square / (1 - b2**t)) + tiny)
        return now - learning_rate * move, mean, square

    zero = jnp.zeros_like(theta)
    end, _, _ = jax.lax.fori_loop(0, epochs, epoch, (theta, zero, zero))
    return end - theta


def pretrain(net: Trained, theta: Array, steps: int, learning_rate: float, key: Array) -> Array:
    """Adam on batches of rows drawn evenly from the public domain (section 5.2): no record of anybody."""

    def step(number: Array, now: Array) -> Array:
        rows, latents = jax.random.split(jax.random.fold_in(key, number))
        ones = jnp.ones(PRETRAINING_BATCH)
        return now + adam_update(
            net, now, net.draw(PRETRAINING_BATCH, rows), ones, latents, PRETRAINING_EPOCHS, learning_rate
        )

    found: Array = jax.jit(lambda begin: jax.lax.fori_loop(0, steps, step, begin))(theta)
    return found
