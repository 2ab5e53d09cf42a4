"""What the four methods share: the network from their settings, and how encoder and decoder are trained.

At a client as published, by clipped and noised gradients, from the decoder's own samples, on records that may all be seen. Who
may see which examples, and what is paid for that, is the method's.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from populace.errors import SpecError, out_of_range
from populace.methods.base import Population, Shard
from populace.methods.blocks.composed import ComposedMethod
from populace.methods.blocks.dp_sgd import (
    Examples,
    NoisedSum,
    TrainState,
    adam_step,
    noised_sum,
    shorten_step,
    start_training,
    training_key,
)
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.vae_generator import CodeLaw, measure_law
from populace.methods.blocks.vae_networks import NETS, Net, Vae, design_vae
from populace.privacy.noised_steps import NoisedSteps
from populace.privacy.source import Source
from populace.tables.images import Images
from populace.types import Array, ArrayTree

EncoderTraining = Literal["sleep", "frozen", "joint", "paper"]

WARM_SAMPLES, WARM_STEPS, WARM_LEARNING_RATE = 120_000, 8_000, 1e-3
MOST_WARM_NUMBERS = 2**28  # in all samples together
SLEEP_LEARNING_RATE = 1e-3
SAMPLES_AT_ONCE = 256  # of the decoder's own, for one step of the encoder
BATCH_SIZE = 128  # of training on samples or pooled records
CODED = 30_000  # examples whose codes are measured
CODED_AT_ONCE = 1_000
RISING = 0.02  # share of the rounds over which a server's steps grow to their size
LAST = 0.05  # of that size at the end

SMALL_NETWORK = {"hidden_size": 4, "latent_size": 2}  # for conformance tests
NETWORK_MEANINGS = {
    "net": "The network for images: as published (small, large), or low-frequency cosines and dense layers (basis).",
    "hidden_size": "The units of a hidden layer, or the channels of the first convolution; 0: the network's own.",
    "latent_size": "The dimension of the code.",
    "beta": "The weight of the code's divergence from the standard normal distribution.",
}


class Start(NamedTuple):
    """Encoder and decoder before the first round, and the samples that they were fitted to, if there were any."""

    phi: Array
    theta: Array
    samples: ArrayTree = None


class VaeMethod(ComposedMethod):
    """The settings every method of this family has, and what follows from them."""

    net: Net
    hidden_size: int
    latent_size: int
    beta: float

    def check_vae(self) -> None:
        """Refuse settings that make no network."""
        if self.net not in NETS:
            raise SpecError(f"expected net in {', '.join(NETS)}, got {self.net!r}")
        if self.latent_size < 1:
            raise out_of_range("latent_size", "at least 1", self.latent_size)
        for name in ("hidden_size", "beta"):
            if not 0 <= getattr(self, name) < math.inf:
                raise out_of_range(name, "at least 0", getattr(self, name))

    def vae(self, population: Population) -> Vae:
        """The network for the public shape of the data."""
        basis = getattr(self, "basis_size", 0)
        return design_vae(self.net, self.hidden_size, self.latent_size, self.beta, basis, population.schema)

    def starts(self, vae: Vae, key: Array, warm: Synthesizer | None) -> Start:
        """What to begin with; fitted to a generator's samples if one is given (post-processing of it)."""
        first, samples, training = jax.random.split(key, 3)
        phi, theta = vae.start(first)
        if warm is None:
            return Start(phi, theta)
        steps = getattr(self, "fitting_steps", WARM_STEPS)
        count = warm_samples(vae, steps)
        drawn = warm.sample(count, samples)
        records = {"x": drawn.x, "y": drawn.y} if isinstance(drawn, Images) else drawn.codes
        records = jax.tree.map(jnp.asarray, records)
        phi, theta = fit(vae, phi, theta, records, count, training, steps=steps, learning_rate=WARM_LEARNING_RATE)
        return Start(phi, theta, records)


class LocallyTrained(VaeMethod):
    """Methods whose clients train both networks for some epochs and send what changed, of the decoder alone or of both."""

    shared: Literal["decoder", "whole"]
    local_epochs: int
    batch_size: int
    learning_rate: float

    def shared_size(self, vae: Vae) -> int:
        """How many parameters are shared."""
        return vae.decoder_size + (vae.encoder_size if self.shared == "whole" else 0)

    def first_memory(self, vae: Vae) -> ClientEncoder | tuple[()]:
        """What a client keeps before its first round: an encoder that has not begun; nothing where both networks are shared."""
        return () if self.shared == "whole" else blank_encoder(vae, self.learning_rate)

    def train(
        self, vae: Vae, common: ArrayTree, shard: Shard, memory: ArrayTree, source: Source
    ) -> tuple[Array, ArrayTree]:
        """What local training changes of what is shared, and what the client keeps (algorithm 1, lines 17 to 24)."""
        examples = Examples(*vae.read(shard.records), jnp.asarray(shard.mask))
        encoder = encoder_of(memory, common["phi"], self.learning_rate)
        after, theta = train_at_client(
            vae, encoder, common["theta"], examples, training_key(source), epochs=self.local_epochs,
            batch_size=self.batch_size, learning_rate=self.learning_rate,
        )  # fmt: skip
        change = theta - common["theta"]
        if self.shared == "whole":
            return jnp.concatenate([after.parameters - common["phi"], change]), memory
        return change, ClientEncoder(begun=jnp.asarray(True), train_state=after)


def warm_samples(vae: Vae, steps: int) -> int:
    """How many samples to draw: no more than are looked at once, nor than memory holds easily."""
    return max(BATCH_SIZE, min(WARM_SAMPLES, BATCH_SIZE * steps, MOST_WARM_NUMBERS // math.prod(vae.shape)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientEncoder:
    """What a client keeps at home: its encoder with its optimizer, once it has begun."""

    begun: Array
    train_state: TrainState


def blank_encoder(vae: Vae, learning_rate: float) -> ClientEncoder:
    """An encoder that has not begun."""
    return ClientEncoder(
        begun=jnp.asarray(False), train_state=start_training(jnp.zeros(vae.encoder_size), learning_rate)
    )


def encoder_of(memory: ArrayTree, start: Array, learning_rate: float) -> TrainState:
    """The client's own encoder; the public start in its first round, or where it keeps none."""
    first = start_training(start, learning_rate)
    if not isinstance(memory, ClientEncoder):
        return first
    own: TrainState = jax.tree.map(lambda kept, new: jnp.where(memory.begun, kept, new), memory.train_state, first)
    return own


@functools.lru_cache(maxsize=64)
def server_optimizer(
    kind: str, *, learning_rate: float, momentum: float, rounds: int
) -> optax.GradientTransformationExtraArgs:
    """`sgd` adds changes up with momentum; `adam` takes them as gradients, in steps that rise and then fall."""
    if kind == "sgd":
        return optax.sgd(learning_rate, momentum=momentum)
    rising = max(1, round(RISING * rounds))
    falling = optax.cosine_decay_schedule(learning_rate, max(1, rounds - rising), LAST)
    schedule = optax.join_schedules([optax.linear_schedule(0.0, learning_rate, rising), falling], [rising])
    return optax.adam(schedule, b1=momentum)


def mean_loss(vae: Vae, phi: Array, theta: Array, examples: Examples, noise: Array) -> Array:
    """The mean loss over the examples that are there; 0 if none is."""
    weights = jnp.asarray(examples.mask, jnp.float32)
    each = vae.losses(phi, theta, examples.x, examples.y, noise)
    return jnp.sum(weights * each) / jnp.maximum(jnp.sum(weights), 1)


def train_at_client(
    vae: Vae,
    encoder: TrainState,
    theta: Array,
    examples: Examples,
    key: Array,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
) -> tuple[TrainState, Array]:
    """Both networks after one client's batches (algorithm 1, lines 17 to 23); the decoder's optimizer begins anew."""
    rows = len(examples.mask)
    batches = -(-rows // batch_size)

    def step(
        carry: tuple[TrainState, TrainState], item: tuple[Array, Array]
    ) -> tuple[tuple[TrainState, TrainState], None]:
        encoder, decoder = carry
        chosen, key = item
        batch = Examples(
            examples.x[chosen % rows], examples.y[chosen % rows], examples.mask[chosen % rows] & (chosen < rows)
        )
        noise = jax.random.normal(key, (batch_size, vae.latent))
        gradients = jax.grad(functools.partial(mean_loss, vae), argnums=(0, 1))(
            encoder.parameters, decoder.parameters, batch, noise
        )
        return (adam_step(encoder, gradients[0], learning_rate), adam_step(decoder, gradients[1], learning_rate)), None

    def order(key: Array) -> Array:
        numbers = jnp.concatenate([jax.random.permutation(key, rows), jnp.full(batches * batch_size - rows, rows)])
        return numbers.reshape(batches, batch_size)

    first, second = jax.random.split(key)
    orders = jax.vmap(order)(jax.random.split(first, epochs)).reshape(epochs * batches, batch_size)
    (encoder, decoder), _ = jax.lax.scan(
        step, (encoder, start_training(theta, learning_rate)), (orders, jax.random.split(second, epochs * batches))
    )
    return encoder, decoder.parameters


def decoder_gradient(vae: Vae, phi: Array, theta: Array, x: Array, y: Array, noise: Array) -> ArrayTree:
    """The gradient of one example's loss by the decoder's arrays, averaged over so many codes, [codes, latent]."""
    arrays = vae.decoder_arrays(theta)
    return jax.grad(lambda decoder: _mean_loss_of_one(vae, phi, decoder, x, y, noise))(arrays)


def joint_gradient(vae: Vae, phi: Array, theta: Array, x: Array, y: Array, noise: Array) -> ArrayTree:
    """The gradient of one example's loss by the arrays of encoder and decoder, averaged over so many codes."""
    arrays = vae.encoder_arrays(phi), vae.decoder_arrays(theta)
    return jax.grad(lambda both: _mean_loss_of_one(vae, both[0], both[1], x, y, noise))(arrays)


def _mean_loss_of_one(vae: Vae, phi: ArrayTree, theta: ArrayTree, x: Array, y: Array, noise: Array) -> Array:
    noise = jnp.atleast_2d(noise)
    several = (len(noise),)
    return jnp.mean(
        vae.losses(phi, theta, jnp.broadcast_to(x, several + x.shape), jnp.broadcast_to(y, several + y.shape), noise)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisedTraining:
    """DP-SGD at one client: the decoder's noised steps, and what becomes of the encoder meanwhile."""

    vae: Vae
    release: NoisedSteps
    encoder: EncoderTraining
    batch_size: int
    optimizer: Literal["sgd", "adam"]
    learning_rate: float
    encoder_learning_rate: float

    @functools.partial(jax.jit, static_argnums=0)
    def steps(
        self, encoder: TrainState, theta: Array, clip_norm: Array, examples: Examples, draws: ArrayTree
    ) -> tuple[TrainState, Array, Array]:
        """The encoder after the noised steps of one reply, the decoder's change, and the noisy count of short gradients."""

        def step(carry: tuple[TrainState, TrainState], item: ArrayTree) -> tuple[tuple[TrainState, TrainState], Array]:
            encoder, decoder = carry
            phi, theta = encoder.parameters, decoder.parameters
            total, short = self.noised_gradient(phi, theta, clip_norm, examples, item)
            gradient = total * clip_norm / self.batch_size
            after = encoder
            if self.encoder == "joint":
                after = adam_step(encoder, gradient[: len(phi)], self.encoder_learning_rate)
                gradient = gradient[len(phi) :]
            elif self.encoder == "paper":
                batch = dataclasses.replace(examples, mask=item["drawn"])
                codes = item["codes"].reshape(len(examples.mask), -1, self.vae.latent)[:, 0]
                own = jax.grad(functools.partial(mean_loss, self.vae))(phi, theta, batch, codes)
                after = adam_step(encoder, own, self.encoder_learning_rate)
            if self.optimizer == "adam":
                decoder = adam_step(decoder, gradient, self.learning_rate)
            else:
                decoder = dataclasses.replace(decoder, parameters=theta - self.learning_rate * gradient)
            return (after, decoder), short

        start = start_training(theta, self.learning_rate)
        (encoder, decoder), short = jax.lax.scan(step, (encoder, start), draws)
        return encoder, decoder.parameters - theta, jnp.sum(short)

    def noised_gradient(
        self, phi: Array, theta: Array, clip_norm: Array, examples: Examples, item: ArrayTree
    ) -> NoisedSum:
        """The noised sum of a batch's clipped gradients by the decoder, or by both networks."""
        gradient_of = joint_gradient if self.encoder == "joint" else decoder_gradient

        def gradient_of_row(row: Array) -> ArrayTree:
            return gradient_of(self.vae, phi, theta, examples.x[row], examples.y[row], item["codes"][row])

        return noised_sum(
            gradient_of_row, self.vae.flatten, release=self.release, clip_norm=clip_norm, drawn=item["drawn"],
            noise=item["noise"], count_noise=None if self.release.count is None else item["count"][0],
        )  # fmt: skip


@functools.partial(jax.jit, static_argnames=("vae", "steps", "learning_rate"))
def train_on_own_samples(
    vae: Vae,
    encoder: TrainState,
    theta: Array,
    law: CodeLaw,
    key: Array,
    *,
    steps: int,
    learning_rate: float = SLEEP_LEARNING_RATE,
) -> TrainState:
    """The encoder after training on the decoder's own samples: labels evenly, codes by their law. No record of anybody."""

    def step(encoder: TrainState, key: Array) -> tuple[TrainState, None]:
        labels, codes = jax.random.split(key)
        numbers = jax.random.randint(labels, (SAMPLES_AT_ONCE,), 0, max(1, vae.classes))
        y = vae.labels(numbers)
        z = law.draw(numbers, jax.random.normal(codes, (SAMPLES_AT_ONCE, vae.latent)))
        x = vae.means(vae.decode(theta, z, y))
        gradient = jax.grad(lambda phi: jnp.mean(vae.code_losses(phi, x, y, z)))(encoder.parameters)
        return adam_step(encoder, gradient, learning_rate), None

    return jax.lax.scan(step, encoder, jax.random.split(key, steps))[0]


def fit(
    vae: Vae, phi: Array, theta: Array, records: ArrayTree, rows: int, key: Array, *, steps: int, learning_rate: float
) -> tuple[Array, Array]:
    """Both networks after training on records that may all be seen: a generator's samples, or a baseline's pooled records."""
    encoder, decoder = start_training(phi, learning_rate), start_training(theta, learning_rate)
    for number in range(steps):  # not a compiled loop: the records stay where they are
        key, choice, noise = jax.random.split(key, 3)
        some = jax.random.randint(choice, (min(BATCH_SIZE, rows),), 0, rows)
        encoder, decoder = _fit_step(vae, encoder, decoder, records, some, noise, learning_rate, number / steps)
    return encoder.parameters, decoder.parameters


@functools.partial(jax.jit, static_argnums=(0, 6))
def _fit_step(
    vae: Vae, encoder: TrainState, decoder: TrainState, records: ArrayTree, some: Array, key: Array,
    learning_rate: float, done: Array | float,
) -> tuple[TrainState, TrainState]:  # fmt: skip
    x, y = vae.read(jax.tree.map(lambda leaf: leaf[some], records))
    examples = Examples(x, y, jnp.ones(len(some), bool))
    noise = jax.random.normal(key, (len(some), vae.latent))
    gradients = jax.grad(functools.partial(mean_loss, vae), argnums=(0, 1))(
        encoder.parameters, decoder.parameters, examples, noise
    )
    pace = jnp.minimum(1.0, 4 * (1 - done))  # the last quarter of the steps grow smaller
    encoder, decoder = (
        shorten_step(before, adam_step(before, gradient, learning_rate), pace)
        for before, gradient in zip((encoder, decoder), gradients, strict=True)
    )
    return encoder, decoder


def measure_codes(vae: Vae, phi: Array, records: ArrayTree, key: Array) -> CodeLaw:
    """Where this encoder puts the codes of records that may all be seen; of the first `CODED` of them."""
    rows = len(jax.tree.leaves(records)[0])
    count = min(rows, CODED)
    codes, labels = [], []
    for start in range(0, count, CODED_AT_ONCE):
        some = np.arange(start, start + CODED_AT_ONCE) % rows  # one size, so that one shape is compiled
        z, y = _coded(vae, phi, records, some, jax.random.fold_in(key, start))
        codes.append(np.asarray(z)[: count - start])
        labels.append(np.asarray(y)[: count - start])
    return measure_law(np.concatenate(codes), np.concatenate(labels), vae.classes)


@functools.partial(jax.jit, static_argnums=0)
def _coded(vae: Vae, phi: Array, records: ArrayTree, some: Array, key: Array) -> tuple[Array, Array]:
    x, y = vae.read(jax.tree.map(lambda leaf: leaf[some], records))
    z, _ = vae.codes(phi, x, y, jax.random.normal(key, (len(some), vae.latent)))
    return z, jnp.argmax(y, axis=1) if vae.classes else jnp.zeros(len(some), jnp.int32)
