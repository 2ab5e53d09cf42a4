"""How critic and generator are trained against each other, and one visit of a GAN to a silo: DP-SGD steps of the critic on
its records, steps of the generator on none.

Methods whose GANs learn at clients share this, because what is clipped, noised and released must be the same everywhere. Codes
and places between examples are drawn apart for each example, so that an example's gradient depends on nothing but itself, the
parameters and public coins.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from populace.methods.base import (
    ImageShape,
    Population,
    Protocol,
    check_counts,
    check_not_negative,
    check_shares,
    check_sizes,
)
from populace.methods.blocks.dp_sgd import (
    Examples,
    TrainState,
    adam_step,
    draw_batches,
    noised_sum,
    shorten_step,
    start_training,
    sum_over_batch,
    update_ema,
)
from populace.methods.blocks.gan_networks import Arrays, ConvGan, DenseGan, Gan
from populace.methods.blocks.networks import Blocks
from populace.methods.blocks.vae_networks import NETS, RowsVae, Vae
from populace.privacy.gaussian import GaussianSum, clip_tree
from populace.privacy.noised_steps import NoisedSteps
from populace.privacy.source import Keyed, Source
from populace.tables.schema import Schema
from populace.types import Array

Net = Literal["basis", "small"]
Recipe = Literal["valid", "paper", "open"]
RowGradient = Callable[[Array], Arrays]
GanState = tuple[TrainState, TrainState, Array]  # critic, generator, moving average of the generator

BETAS = (0.5, 0.9)  # of Adam, for both networks
LEAST_SHARE = 0.1  # of the batch expected that a noisy count of records may lower the denominator to
AT_ONCE = 256  # records whose Fisher information is computed together


@dataclasses.dataclass(frozen=True, kw_only=True)
class GanNetworks(Protocol):
    """The budget and the networks of a method that trains a GAN."""

    epsilon: float
    delta: float = 0.0
    net: Net = "basis"
    hidden_size: int = 128
    critic_hidden_size: int = 64
    latent_size: int = 16
    basis_size: int = 10
    gradient_penalty: float = 10.0

    renamed: ClassVar[Mapping[str, str]] = {
        "width": "hidden_size", "critic_width": "critic_hidden_size", "latent": "latent_size", "waves": "basis_size",
        "penalty": "gradient_penalty",
    }  # fmt: skip
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "privacy loss over the whole run",
        "delta": "probability with which epsilon may be exceeded; 0 chooses one below 1 / number of protected units",
        "net": "networks for images: basis is dense layers on low-frequency cosines, small is convolutions",
        "hidden_size": "width of the generator's hidden layers",
        "critic_hidden_size": "width of the critic's hidden layers",
        "latent_size": "numbers in a code that the generator makes an example of",
        "basis_size": "cosines in each direction that the net basis sees of an image",
        "gradient_penalty": "weight of the gradient penalty in the critic's loss",
    }

    def check_networks(self) -> None:
        check_counts(
            hidden_size=self.hidden_size, critic_hidden_size=self.critic_hidden_size, latent_size=self.latent_size,
            basis_size=self.basis_size,
        )  # fmt: skip
        check_not_negative(gradient_penalty=self.gradient_penalty)
        check_shares(delta=self.delta)

    def gan(self, population: Population, *, conditional: bool = True) -> Gan:
        """The networks for these public facts; `conditional` says whether both are given an image's label."""
        return _networks(
            self.net, self.hidden_size, self.critic_hidden_size, self.latent_size, self.basis_size, self.gradient_penalty,
            conditional, population.schema,
        )  # fmt: skip


@functools.lru_cache(maxsize=64)
def _networks(
    net: Net,
    hidden_size: int,
    critic_hidden_size: int,
    latent_size: int,
    basis_size: int,
    gradient_penalty: float,
    conditional: bool,
    schema: Schema | ImageShape,
) -> Gan:
    """One object for the same facts. A table's target is one of its columns, so no label is given apart."""
    if not isinstance(schema, ImageShape):
        blocks = Blocks(schema.sizes)
        rows = RowsVae(shape=(blocks.width,), classes=0, latent=latent_size, width=hidden_size, blocks=blocks)
        return DenseGan(generator=rows, hidden_size=critic_hidden_size, gradient_penalty=gradient_penalty)
    generator = NETS[net](
        shape=schema.shape, classes=schema.classes if conditional else 1, latent=latent_size, width=hidden_size,
        **({"waves": basis_size} if net == "basis" else {}),
    )  # fmt: skip
    kind = DenseGan if net == "basis" else ConvGan
    return kind(generator=generator, hidden_size=critic_hidden_size, gradient_penalty=gradient_penalty)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GanTraining:
    """How a GAN is trained at one silo. `recipe` valid is DP-SGD of the critic; `paper` clips each coordinate and adds noise to
    the mean, as published, which guarantees nothing; `open` leaves the gradients of records as they are."""

    recipe: Recipe = "valid"
    critic_steps: int = 5
    batch_size: int = 128
    clip_norm: float = 1.0
    critic_learning_rate: float = 1e-3
    learning_rate: float = 1e-3
    ema_decay: float = 0.99
    later_pace: float = 1.0
    replay_weight: float = 0.0
    ewc_weight: float = 0.0

    def check_training(self) -> None:
        check_counts(critic_steps=self.critic_steps, batch_size=self.batch_size)
        check_sizes(
            clip_norm=self.clip_norm, critic_learning_rate=self.critic_learning_rate, learning_rate=self.learning_rate,
            later_pace=self.later_pace,
        )  # fmt: skip
        check_not_negative(replay_weight=self.replay_weight, ewc_weight=self.ewc_weight)
        check_shares(ema_decay=self.ema_decay)


@dataclasses.dataclass(frozen=True)
class VisitDesign:
    """The networks and the releases of one visit, from public facts. Sums are in units of the clipping norm."""

    gan: Gan
    steps: NoisedSteps
    labels: GaussianSum | None = None
    fisher: GaussianSum | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Visit:
    """What happens at one silo. `received` is the model that arrives; `counts` are the silo's noisy label counts, not negative,
    and empty where none are released; `key` is for public coins."""

    training: GanTraining = dataclasses.field(metadata={"static": True})
    design: VisitDesign = dataclasses.field(metadata={"static": True})
    received: dict[str, Array]
    examples: Examples
    counts: Array
    key: Array

    def label_shares(self) -> tuple[Array, Array, Array]:
        """The weight of the replayed part; the shares of labels to replay; those of labels for the generator to make."""
        classes, strength = max(1, self.design.gan.generator.classes), self.training.replay_weight
        even = jnp.full(classes, 1.0 / classes)
        if self.design.labels is None:
            before = strength * self.received["visited"]
            return before / (before + 1), even, even
        past, now = strength * self.received["counts"], self.counts
        every = jnp.maximum(jnp.sum(past) + jnp.sum(now), 1.0)
        return jnp.sum(past) / every, past / jnp.maximum(jnp.sum(past), 1.0), (past + now + 1e-6) / every

    def denominator(self) -> Array:
        """The batch size expected, by the noisy count of records or by the most that one silo holds."""
        most: Array = jnp.float32(self.design.steps.probability * len(self.examples.mask))
        if self.design.labels is None:
            return most
        return jnp.clip(self.design.steps.probability * jnp.sum(self.counts), LEAST_SHARE * most, most)

    def train(self, source: Source) -> GanState:
        """Critic, generator and the generator's moving average after all steps: compiled whole, or drawn for one by one."""
        state: GanState = (
            start_training(self.received["omega"], self.training.critic_learning_rate, BETAS),
            start_training(self.received["theta"], self.training.learning_rate, BETAS),
            self.received["theta"],
        )
        if isinstance(source, Keyed):
            after: GanState = _all_steps(self, state, source)
            return after
        for number in range(self.design.steps.steps):
            state = _one_step(self, state, jnp.int32(number), self.draw(source))
        return state

    def draw(self, source: Source) -> dict[str, Array]:
        """What protects people in one step: who is in the batch, and the noise."""
        if self.training.recipe != "valid":
            return {}
        batches, noises = source.split(2)
        drawn, noise = draw_batches(self.design.steps, batches=batches, noises=noises, mask=self.examples.mask)
        return {"drawn": drawn, "noise": noise}

    def step(self, state: GanState, number: Array, draws: dict[str, Array]) -> GanState:
        """One step of the critic; after every so many, one of the generator."""
        training, gan = self.training, self.design.gan
        critic, generator, mean = state
        keys = jax.random.split(jax.random.fold_in(self.key, number), 4)
        weight, past, wanted = self.label_shares()
        pace = jnp.where(self.received["visited"] > 0, training.later_pace, 1.0)
        gradient = self.record_gradient(critic.parameters, generator.parameters, draws, keys[0])
        if training.replay_weight:
            gradient = (1 - weight) * gradient + weight * self.replay_gradient(
                critic.parameters, generator.parameters, past, keys[1], keys[2]
            )
        if training.ewc_weight:
            fisher = self.received["fisher"][jnp.asarray(gan.groups())]
            pull = 2 * training.ewc_weight * fisher * (critic.parameters - self.received["omega"])
            gradient = gradient + pull / training.clip_norm
        critic = shorten_step(critic, adam_step(critic, gradient, training.critic_learning_rate, BETAS), pace)

        def train_generator() -> tuple[TrainState, Array]:
            after = generator_step(
                gan, generator, critic.parameters, wanted, training.batch_size, keys[3], training.learning_rate
            )
            after = shorten_step(generator, after, pace)
            return after, update_ema(mean, after.parameters, number // training.critic_steps, training.ema_decay)

        due = number % training.critic_steps == training.critic_steps - 1
        generator, mean = jax.lax.cond(due, train_generator, lambda: (generator, mean))
        return critic, generator, mean

    def record_gradient(self, omega: Array, theta: Array, draws: dict[str, Array], key: Array) -> Array:
        """In units of the clipping norm: by DP-SGD; or as published; or plain."""
        training, examples = self.training, self.examples
        rows, coin = jax.random.split(key)
        gradient_of = row_gradient(self.design.gan, omega, theta, examples, coin)
        if training.recipe == "valid":
            steps, flatten = self.design.steps, self.design.gan.flatten
            total = noised_sum(gradient_of, flatten, release=steps, clip_norm=training.clip_norm, **draws).total
            return total / self.denominator()
        logits = jnp.where(examples.mask, 0.0, -jnp.inf)
        some = jax.random.categorical(rows, logits, shape=(training.batch_size,))
        mean = jnp.any(examples.mask) * self.plain_mean(gradient_of, some)  # of no records there is no gradient
        if training.recipe == "open":
            return mean
        return mean + jax.random.normal(coin, omega.shape) * self.design.steps.noise_multiplier

    def plain_mean(self, gradient_of: RowGradient, rows: Array) -> Array:
        """The mean over these rows in units of the clipping norm, each coordinate clipped as published, or none."""
        gradients = jax.tree.map(lambda leaf: leaf / self.training.clip_norm, jax.vmap(gradient_of)(rows))
        if self.training.recipe == "paper":
            gradients = jax.tree.map(lambda leaf: jnp.clip(leaf, -1, 1), gradients)
        return self.design.gan.flatten(jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), gradients))

    def replay_gradient(self, omega: Array, theta: Array, shares: Array, samples: Array, key: Array) -> Array:
        """Of samples of the generator received, clipped the way records are, so that their weights mean the same."""
        training, gan = self.training, self.design.gan

        def of_samples() -> Array:
            examples = replay_examples(gan, self.received["average"], shares, training.batch_size, samples)
            if training.recipe == "valid":
                return mean_clipped_gradient(gan, omega, theta, examples, key, training.clip_norm)
            return self.plain_mean(row_gradient(gan, omega, theta, examples, key), jnp.arange(training.batch_size))

        gradient: Array = jax.lax.cond(self.received["visited"] > 0, of_samples, lambda: jnp.zeros_like(omega))
        return gradient

    def fisher_information(self, omega: Array, theta: Array, source: Source) -> Array:
        """The mean square of clipped gradients in each group of parameters, over the records, with noise."""
        design = self.design
        if design.fisher is None:
            raise AssertionError("no Fisher information is released")
        key = jax.random.fold_in(self.key, design.steps.steps)
        gradient_of = row_gradient(design.gan, omega, theta, self.examples, key)
        total = fisher_sum(design, gradient_of, self.training.clip_norm, self.examples.mask)
        released = jnp.maximum(design.fisher.release(total, jnp.asarray(design.fisher.noise(source))), 0)
        sizes = jnp.bincount(jnp.asarray(design.gan.groups()), length=design.fisher.size)
        records = self.denominator() / design.steps.probability
        return released * self.training.clip_norm**2 / (sizes * records)


@jax.jit
def _all_steps(visit: Visit, start: GanState, source: Keyed) -> GanState:
    def step(state: GanState, item: tuple[Array, Array]) -> tuple[GanState, None]:
        number, key = item
        return visit.step(state, number, visit.draw(Keyed(key, exact=source.exact))), None

    steps = visit.design.steps.steps
    return jax.lax.scan(step, start, (jnp.arange(steps, dtype=jnp.int32), jax.random.split(source.key, steps)))[0]


@jax.jit
def _one_step(visit: Visit, state: GanState, number: Array, draws: dict[str, Array]) -> GanState:
    return visit.step(state, number, draws)


def fisher_sum(design: VisitDesign, gradient_of: RowGradient, clip_norm: float, mask: Array) -> Array:
    """Squares of clipped gradients, added up within groups of parameters and over the records; in units of the clipping
    norm's square.

    Guarantee: a record changes it by at most 1 in L2: squares that add up to at most 1 have, in any grouping, a length of at
    most 1.
    """
    fisher = design.fisher
    if fisher is None:
        raise AssertionError("no Fisher information is released")

    def squares(row: Array) -> Array:
        clipped = clip_tree(jax.tree.map(lambda leaf: leaf / clip_norm, gradient_of(row)), 1.0)
        return fisher.on_grid(design.gan.sum_by_group(jax.tree.map(jnp.square, clipped)))

    total: Array = sum_over_batch(squares, mask, min(AT_ONCE, len(mask)))
    return total


def row_gradient(gan: Gan, omega: Array, theta: Array, examples: Examples, key: Array) -> RowGradient:
    """The gradient of the critic's whole loss, penalty included, for one row against a generated example with its label; its
    coins are made from the row's number."""
    critic = gan.arrays(omega)

    def gradient_of(row: Array) -> Arrays:
        codes, places = jax.random.split(jax.random.fold_in(key, row))
        y = examples.y[row]
        fake = gan.generate(theta, jax.random.normal(codes, (1, gan.generator.latent)), y[None])[0]
        gradient: Arrays = jax.grad(gan.loss_of_one)(critic, examples.x[row], fake, y, jax.random.uniform(places))
        return gradient

    return gradient_of


def mean_clipped_gradient(
    gan: Gan, omega: Array, theta: Array, examples: Examples, key: Array, clip_norm: float
) -> Array:
    """Of examples that may be seen: each clipped like a real one, in units of the clipping norm, without noise."""
    gradients = jax.vmap(row_gradient(gan, omega, theta, examples, key))(jnp.arange(len(examples.mask)))
    squares = sum(jnp.sum(leaf.reshape(len(leaf), -1) ** 2, axis=1) for leaf in jax.tree.leaves(gradients))
    weights = 1 / (clip_norm * jnp.maximum(jnp.sqrt(squares) / clip_norm, 1) * len(examples.mask))
    return gan.flatten(jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, axes=1), gradients))


def replay_examples(gan: Gan, theta: Array, shares: Array, count: int, key: Array) -> Examples:
    """Examples of a generator that was received, labels by these shares."""
    labels, codes = jax.random.split(key)
    y = draw_labels(gan.generator, shares, count, labels)
    x = gan.generate(theta, jax.random.normal(codes, (count, gan.generator.latent)), y)
    return Examples(x, y, jnp.ones(count, bool))


def draw_labels(generator: Vae, shares: Array, count: int, key: Array) -> Array:
    """One-hot labels by these shares, [count, classes]."""
    if generator.classes < 1:
        return jnp.zeros((count, 0))
    return generator.labels(jax.random.categorical(key, jnp.log(jnp.maximum(shares, 1e-12)), shape=(count,)))


def generator_step(
    gan: Gan, generator: TrainState, omega: Array, shares: Array, count: int, key: Array, learning_rate: float
) -> TrainState:
    """One step of the generator against a critic: it sees no record."""
    labels, codes = jax.random.split(key)
    y = draw_labels(gan.generator, shares, count, labels)
    z = jax.random.normal(codes, (count, gan.generator.latent))
    gradient = jax.grad(functools.partial(gan.generator_loss, omega=omega, z=z, y=y))(generator.parameters)
    return adam_step(generator, gradient, learning_rate, BETAS)
