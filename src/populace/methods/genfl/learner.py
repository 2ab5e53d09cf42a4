"""What the clients of `genfl` and `dp-fl` send, and what the server makes of it.

Under trust `silo` a client sends a gradient that is noised already. Under `secure-sum` it sends the same in whole numbers
without noise, with the part of its generated examples rounded to the same grid: an engine adds its share of the noise, and
opens the sum of all clients alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import optax

from populace.methods.base import NO_ERROR, NUMBER, Ask, Population, Replies, Shard
from populace.methods.blocks.composed import RememberingLearner
from populace.methods.blocks.dp_sgd import (
    FactorBits,
    draw_batches,
    exact_linear_sum,
    exact_linear_units,
    poisson_batches,
    training_key,
    update_ema,
)
from populace.methods.blocks.gan_training import Visit, VisitDesign
from populace.methods.blocks.vae_networks import ImageVae
from populace.methods.genfl.classifier import (
    ClassifierImages,
    Scattering,
    accuracy_on_generated,
    generated_gradient,
    gradient_factors,
    optimizer_of,
    train_on_generated,
)
from populace.methods.genfl.design import Learned, TwoStages
from populace.privacy.noised_steps import NoisedSteps
from populace.privacy.source import Source
from populace.types import Array, ArrayTree

if TYPE_CHECKING:
    from populace.methods.genfl.protocol import GenFl

MOST_GENERATED = 128  # examples of one client in one step: they carry no noise, so that few give their mean gradient


@dataclasses.dataclass(frozen=True)
class GenFlLearner(RememberingLearner):
    """A GAN at each client, which keeps its generator at home too; then one classifier, a step in every round."""

    settings: GenFl
    population: Population
    generator: ImageVae
    scattering: Scattering
    bits: FactorBits  # of the classifier's gradients
    release: TwoStages

    @property
    def weights(self) -> int:
        """The number of the classifier's weights."""
        return (self.scattering.size + 1) * self.generator.classes

    @property
    def optimizer(self) -> optax.GradientTransformation:
        return optimizer_of(self.settings.learning_rate, self.settings.momentum)

    def split(self, key: Array) -> tuple[Array, Array]:
        """The learner has the whole key: everybody is asked in every round, so that the schedule needs none."""
        return key, key

    def begin(self, key: Array, warm: object = None) -> Learned:
        del warm
        coin, start = jax.random.split(key)
        weights = jnp.zeros(self.weights)
        generators = self.population.clients if self.settings.synthetic_share else 0
        return Learned(
            coin=coin, start=jnp.concatenate(self.settings.gan(self.population).start(start)),
            thetas=jnp.zeros((generators, self.generator.decoder_size)), known=jnp.zeros(generators, bool),
            weights=weights, optimizer_state=self.optimizer.init(weights), average=weights,
            validated=jnp.zeros(self.settings.rounds),
        )  # fmt: skip

    def question(self, state: Learned, number: Array) -> dict[str, Array]:
        return {"start": state.start} if int(number) < self.release.gan_rounds else {"weights": state.weights}

    def example(self, number: int) -> dict[str, Array]:
        if number < self.release.gan_rounds:
            gan = self.settings.gan(self.population)
            return {"start": jnp.zeros(gan.critic_size + gan.generator_size)}
        return {"weights": jnp.zeros(self.weights)}

    def done(self, state: Learned, number: int) -> bool:
        steps, wanted = number - self.release.gan_rounds, self.settings.stop_accuracy
        return bool(wanted and steps > 0 and float(state.validated[steps - 1]) >= wanted)

    def remember(self) -> ArrayTree:
        """The client's generator, once it is trained."""
        if not 0 < self.settings.synthetic_share < 1:
            return ()
        return {"theta": jnp.zeros(self.generator.decoder_size), "trained": jnp.asarray(False)}

    def answer_and_keep(
        self, question: dict[str, Array], own: Array, shard: Shard, memory: ArrayTree, source: Source
    ) -> tuple[dict[str, Array], ArrayTree]:
        if "start" in question:
            theta = self._train_gan(question["start"], shard, source)
            return {"theta": theta}, {"theta": theta, "trained": jnp.asarray(True)} if memory else memory
        return {"gradient": self._gradient(question["weights"], memory, shard, source)}, memory

    def _train_gan(self, start: Array, shard: Shard, source: Source) -> Array:
        """The first stage: a GAN on the client's records, from a public start."""
        gan, noised = self.settings.gan(shard.population), self.release.gan
        if noised is None:
            raise AssertionError("no generator is trained")
        omega, theta = start[: gan.critic_size], start[gan.critic_size :]
        received = {"visited": jnp.int32(0), "omega": omega, "theta": theta, "average": theta}
        steps, coins = source.split(2)
        examples, no_counts = gan.read(shard.records, shard.mask), jnp.zeros(0)
        design = VisitDesign(gan, noised)
        return Visit(
            self.settings.gan_training, design, received, examples, no_counts, training_key(coins)
        ).train(steps)[2]  # fmt: skip

    def _gradient(self, weights: Array, memory: ArrayTree, shard: Shard, source: Source) -> Array:
        """The second stage: the gradient of a batch's mean loss, in units of the clipping norm: records clipped and noised,
        generated examples clipped. Of a secure sum, the same in whole units, and the records without noise."""
        share, noised = self.settings.synthetic_share, self.release.classifier
        batches, noises, coins = source.split(3)
        gradient: Array = jnp.zeros(self.weights)
        made = None
        if share:
            made = self.generated(weights, memory["theta"], memory["trained"], training_key(coins))
        if noised is not None:
            x = jnp.asarray(shard.records["x"]).reshape(-1, *self.scattering.shape)
            y = jax.nn.one_hot(shard.records["y"], self.generator.classes)
            mask = jnp.asarray(shard.mask)
            if self.release.sites is not None:
                drawn = poisson_batches(noised, batches, mask)
                units = self.gradient_units(weights, x, y, clip_norm=self.settings.clip_norm, drawn=drawn)
                return units if made is None else units + noised.mechanism.on_grid(share * made / self.unit_weight)
            drawn, noise = draw_batches(noised, batches=batches, noises=noises, mask=mask)
            total = self.noised_gradient(weights, x, y, clip_norm=self.settings.clip_norm, drawn=drawn, noise=noise)
            gradient = total * (1 - share) / self.records_expected
        return gradient if made is None else gradient + share * made

    @property
    def _classifier(self) -> NoisedSteps:
        if self.release.classifier is None:
            raise AssertionError("no record enters the classifier")
        return self.release.classifier

    @property
    def records_expected(self) -> float:
        """The records expected in a client's batch: fewer than it asks for where a client holds fewer."""
        return self._classifier.probability * self.population.records

    @property
    def unit_weight(self) -> float:
        """What a sum of 1 in a secure sum's numbers is in a client's gradient, in units of the clipping norm."""
        return (1 - self.settings.synthetic_share) * self.bits.correction / self.records_expected

    def noised_gradient(
        self, weights: Array, x: Array, y: Array, *, clip_norm: float, drawn: Array, noise: Array
    ) -> Array:
        """The noised sum of the clipped gradients of the records drawn, in units of the clipping norm."""
        return exact_linear_sum(
            self._factors_of(weights, x, y), jnp.ravel, release=self._classifier, clip_norm=clip_norm, drawn=drawn,
            noise=noise, bits=self.bits,
        ).total  # fmt: skip

    def gradient_units(self, weights: Array, x: Array, y: Array, *, clip_norm: float, drawn: Array) -> Array:
        """The same sum without noise, in whole units of the mechanism's grid."""
        return exact_linear_units(
            self._factors_of(weights, x, y), jnp.ravel, release=self._classifier, clip_norm=clip_norm, drawn=drawn,
            bits=self.bits,
        )  # fmt: skip

    def _factors_of(self, weights: Array, x: Array, y: Array) -> Callable[[Array], tuple[Array, Array]]:
        return lambda row: gradient_factors(self.scattering, weights, x[row][None], y[row][None])

    def generated(self, weights: Array, theta: Array, trained: Array, key: Array) -> Array:
        """The mean clipped gradient of generated examples; 0 at a client that has no generator."""
        count = min(MOST_GENERATED, max(1, round(self.settings.synthetic_share * self.settings.batch_size)))
        mean = generated_gradient(self.generator, self.scattering, weights, theta, count, self.settings.clip_norm, key)
        return jnp.where(trained, mean, 0.0)

    def absorb(self, state: Learned, ask: Ask, replies: Replies, source: Source) -> Learned:
        present, number = replies.present, jnp.asarray(ask.round)
        if int(number) < self.release.gan_rounds:
            whose = jnp.where(present, replies.clients, len(state.known))
            thetas = jnp.asarray(state.thetas).at[whose].set(replies.values["theta"], mode="drop")
            known = jnp.asarray(state.known).at[whose].set(True, mode="drop")
            return dataclasses.replace(state, thetas=thetas, known=known)
        steps = number - self.release.gan_rounds
        gradient = self._mean_gradient(replies)
        change, optimizer_state = self.optimizer.update(gradient, state.optimizer_state)
        weights = state.weights + change
        average = update_ema(state.average, weights, steps, self.settings.ema_decay)
        validated = jnp.asarray(state.validated)
        if self.settings.stop_accuracy:
            coin = jax.random.fold_in(state.coin, number)
            accuracy = accuracy_on_generated(self.generator, self.scattering, average, state.thetas, state.known, coin)
            validated = validated.at[steps].set(accuracy)
        return dataclasses.replace(
            state, weights=weights, optimizer_state=optimizer_state, average=average, validated=validated
        )

    def _mean_gradient(self, replies: Replies) -> Array:
        """The mean of the clients' noised gradients, in units of the clipping norm."""
        gradients, present = replies.values["gradient"], replies.present
        if self.release.sites is not None:
            total, heard = self.release.total(dataclasses.replace(replies, values=gradients))
            grid = self._classifier.mechanism.grid
            return jnp.asarray(total * grid, jnp.float32) * (self.unit_weight / heard)
        return jnp.sum(jnp.where(present[:, None], gradients, 0), axis=0) / jnp.maximum(jnp.sum(present), 1)

    def finish(self, state: Learned, key: Array) -> ClassifierImages:
        settings, generator = self.settings, self.generator
        thetas = np.zeros((0, generator.decoder_size), np.float32)
        if settings.synthetic_share:
            thetas = np.asarray(state.thetas)[np.asarray(state.known)]
        learned = state.average if settings.ema_decay else state.weights
        if settings.synthetic_share == 1:
            learned = train_on_generated(
                generator, self.scattering, state.thetas, state.known, key, steps=settings.rounds,
                batch_size=min(MOST_GENERATED, settings.batch_size), clip_norm=settings.clip_norm,
                learning_rate=settings.learning_rate, momentum=settings.momentum, ema_decay=settings.ema_decay,
            )  # fmt: skip
        weights = np.asarray(learned).reshape(-1, generator.classes)
        return ClassifierImages(vae=generator, thetas=thetas, weights=weights, cells=self.scattering.cells)

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        """Of a round of either stage; without one, the mean over all rounds."""
        gan, of_gan, rounds = self.settings.gan(self.population), self.release.gan_rounds, self.release.replies
        if ask is not None:
            of_gan, rounds = int(int(ask.round) < of_gan), 1

        shares = self.release.shares(self.release.gan_rounds)

        def mean(first: int, number: float = NUMBER) -> float:
            return (NUMBER * of_gan * first + number * (rounds - of_gan) * self.weights) / rounds

        sent = NUMBER if shares is None else shares.bits / 8
        return mean(gan.critic_size + gan.generator_size), mean(gan.generator_size, sent)

    def notes(self) -> tuple[str, ...]:
        return (*self.release.notes(), NO_ERROR)
