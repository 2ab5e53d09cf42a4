"""How the halves of a VAE are trained: at a client as published, by clipped and noised slopes, from the decoder's own samples.

All of it is arithmetic on vectors: who may see which examples, and what is paid for that, is the protocol's.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from populace.methods.blocks.code_law import CodeLaw, measure_law
from populace.methods.blocks.dp_sgd import Examples, TrainState, adam_step, shorten_step, start_training
from populace.methods.blocks.networks import pack, unpack
from populace.methods.blocks.vae_networks import Vae
from populace.types import Array

SAMPLES_AT_ONCE = 256  # of the decoder's own, for one step of the encoder
BATCH = 128  # of training on samples or pooled records
CODED = 30_000  # examples whose codes are measured
CODED_AT_ONCE = 1_000
RISING = 0.02  # share of the rounds over which a server's steps grow to their size
LAST = 0.05  # of that size at the end


@functools.lru_cache(maxsize=64)
def server_optimiser(kind: str, *, rate: float, momentum: float, rounds: int) -> optax.GradientTransformation:
    """`sgd` adds changes up with momentum; `adam` takes them as slopes, in steps that rise and then fall."""
    if kind == "sgd":
        return optax.sgd(rate, momentum=momentum)
    rising = max(1, round(RISING * rounds))
    falling = optax.cosine_decay_schedule(rate, max(1, rounds - rising), LAST)
    return optax.adam(optax.join_schedules([optax.linear_schedule(0.0, rate, rising), falling], [rising]), b1=momentum)


def mean_loss(vae: Vae, phi: Array, theta: Array, examples: Examples, noise: Array) -> Array:
    """Over the examples that are there; 0 if none is."""
    weights = jnp.asarray(examples.mask, jnp.float32)
    each = vae.losses(phi, theta, examples.x, examples.y, noise)
    return jnp.sum(weights * each) / jnp.maximum(jnp.sum(weights), 1)


def train_at_client(
    vae: Vae, encoder: TrainState, theta: Array, examples: Examples, key: Array, *, epochs: int, batch: int, rate: float
) -> tuple[TrainState, Array]:
    """Both halves on one client's batches (algorithm 1, lines 17 to 23); the decoder's optimiser begins anew."""
    rows = len(examples.mask)
    batches = -(-rows // batch)

    def step(
        carry: tuple[TrainState, TrainState], item: tuple[Array, Array]
    ) -> tuple[tuple[TrainState, TrainState], None]:
        encoder, decoder = carry
        places, key = item
        some = Examples(
            examples.x[places % rows], examples.y[places % rows], examples.mask[places % rows] & (places < rows)
        )
        noise = jax.random.normal(key, (batch, vae.latent))
        slopes = jax.grad(functools.partial(mean_loss, vae), argnums=(0, 1))(
            encoder.parameters, decoder.parameters, some, noise
        )
        return (adam_step(encoder, slopes[0], rate), adam_step(decoder, slopes[1], rate)), None

    def order(key: Array) -> Array:
        places = jnp.concatenate([jax.random.permutation(key, rows), jnp.full(batches * batch - rows, rows)])
        return places.reshape(batches, batch)

    first, second = jax.random.split(key)
    orders = jax.vmap(order)(jax.random.split(first, epochs)).reshape(epochs * batches, batch)
    (encoder, decoder), _ = jax.lax.scan(
        step, (encoder, start_training(theta, rate)), (orders, jax.random.split(second, epochs * batches))
    )
    return encoder, decoder.parameters


def slope_of_decoder(vae: Vae, phi: Array, theta: Array, x: Array, y: Array, noise: Array) -> Any:
    """Of one example's loss by the decoder's arrays, averaged over so many codes, [codes, latent]; the encoder is given."""
    parts = unpack(vae.decoder_shapes, theta)
    return jax.grad(lambda values: _mean_loss_of_one(vae, phi, values, x, y, noise))(parts)


def slope_of_both(vae: Vae, phi: Array, theta: Array, x: Array, y: Array, noise: Array) -> Any:
    """Of one example's loss by the arrays of encoder and decoder."""
    parts = unpack(vae.encoder_shapes, phi), unpack(vae.decoder_shapes, theta)
    return jax.grad(lambda both: _mean_loss_of_one(vae, both[0], both[1], x, y, noise))(parts)


def packed_slope(vae: Vae, slope: Any) -> Array:
    """Either of them as one vector."""
    if isinstance(slope, dict):
        return pack(vae.decoder_shapes, slope)
    return jnp.concatenate([pack(vae.encoder_shapes, slope[0]), pack(vae.decoder_shapes, slope[1])])


def _mean_loss_of_one(vae: Vae, phi: Array, theta: Array, x: Array, y: Array, noise: Array) -> Array:
    noise = jnp.atleast_2d(noise)
    several = (len(noise),)
    return jnp.mean(
        vae.losses(phi, theta, jnp.broadcast_to(x, several + x.shape), jnp.broadcast_to(y, several + y.shape), noise)
    )


def train_asleep(
    vae: Vae, encoder: TrainState, theta: Array, law: CodeLaw, key: Array, *, steps: int, rate: float
) -> TrainState:
    """The encoder on the decoder's own samples: labels evenly, codes by their law. No record of anybody."""

    def step(encoder: TrainState, key: Array) -> tuple[TrainState, None]:
        labels, codes = jax.random.split(key)
        numbers = jax.random.randint(labels, (SAMPLES_AT_ONCE,), 0, max(1, vae.classes))
        y = vae.labels(numbers)
        z = law.draw(numbers, jax.random.normal(codes, (SAMPLES_AT_ONCE, vae.latent)))
        x = vae.means(vae.decode(theta, z, y))
        slope = jax.grad(lambda phi: jnp.mean(vae.misses(phi, x, y, z)))(encoder.parameters)
        return adam_step(encoder, slope, rate), None

    return jax.lax.scan(step, encoder, jax.random.split(key, steps))[0]


def fit(
    vae: Vae, phi: Array, theta: Array, records: Any, rows: int, key: Array, *, steps: int, rate: float
) -> tuple[Array, Array]:
    """Both halves on records that may all be seen: a generator's samples, or pooled records of a baseline."""
    encoder, decoder = start_training(phi, rate), start_training(theta, rate)
    for number in range(steps):  # not a compiled loop: the records stay where they are
        key, places, noise = jax.random.split(key, 3)
        some = jax.random.randint(places, (min(BATCH, rows),), 0, rows)
        encoder, decoder = _fit_step(vae, encoder, decoder, records, some, noise, rate, number / steps)
    return encoder.parameters, decoder.parameters


@functools.partial(jax.jit, static_argnums=(0, 6))
def _fit_step(
    vae: Vae, encoder: TrainState, decoder: TrainState, records: Any, some: Array, key: Array, rate: float, done: Array
) -> tuple[TrainState, TrainState]:
    x, y = vae.read(jax.tree.map(lambda leaf: leaf[some], records))
    examples = Examples(x, y, jnp.ones(len(some), bool))
    noise = jax.random.normal(key, (len(some), vae.latent))
    slopes = jax.grad(functools.partial(mean_loss, vae), argnums=(0, 1))(
        encoder.parameters, decoder.parameters, examples, noise
    )
    fading = jnp.minimum(1.0, 4 * (1 - done))  # the last quarter of the steps grow smaller
    encoder, decoder = (
        shorten_step(before, adam_step(before, slope, rate), fading)
        for before, slope in zip((encoder, decoder), slopes, strict=True)
    )
    return encoder, decoder


def measure_codes(vae: Vae, phi: Array, records: Any, key: Array) -> CodeLaw:
    """Where this encoder puts the codes of records that may all be seen; of the first `CODED` of them."""
    rows = len(jax.tree.leaves(records)[0])
    count = min(rows, CODED)
    found, labels = [], []
    for start in range(0, count, CODED_AT_ONCE):
        places = np.arange(start, start + CODED_AT_ONCE) % rows  # one size, so that one shape is compiled
        z, y = _coded(vae, phi, records, places, jax.random.fold_in(key, start))
        found.append(np.asarray(z)[: count - start])
        labels.append(np.asarray(y)[: count - start])
    return measure_law(np.concatenate(found), np.concatenate(labels), vae.classes)


@functools.partial(jax.jit, static_argnums=0)
def _coded(vae: Vae, phi: Array, records: Any, places: Array, key: Array) -> tuple[Array, Array]:
    x, y = vae.read(jax.tree.map(lambda leaf: leaf[places], records))
    z, _ = vae.codes(phi, x, y, jax.random.normal(key, (len(places), vae.latent)))
    return z, jnp.argmax(y, axis=1) if vae.classes else jnp.zeros(len(places), jnp.int32)
