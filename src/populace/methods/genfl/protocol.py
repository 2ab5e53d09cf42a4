"""`genfl` and `dp-fl`: a classifier learned together from records and generated data (DP-GenFL), and from records alone.

Li et al. 2023. First each client trains a conditional GAN on its own records; then all learn one classifier, each step on a
mixture with a share (gamma in the letter) of the client's generated examples. Here both stages are DP-SGD in one ledger: the
GAN's critic is noised (the visit of `fl-gan`), and in the second stage only records are clipped, noised and counted: each
enters a step with probability (1 - gamma) batch / records, while generated examples are post-processing of the first. The
classifier is linear on public wavelet features. Validation is on generated images at the server.

`recipe` valid is that; `paper` trains the GAN without noise, as published, and reports inf.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from populace.errors import SpecError, out_of_range
from populace.methods.base import (
    NO_ERROR,
    NUMBER,
    Ask,
    Facts,
    ImageShape,
    Population,
    Replies,
    Shard,
    check_counts,
    check_shares,
    check_sizes,
)
from populace.methods.blocks.composed import ComposedMethod, Composition, RememberingLearner
from populace.methods.blocks.dp_sgd import (
    FactorBits,
    draw_batches,
    exact_linear_sum,
    factor_bits,
    training_key,
    update_ema,
)
from populace.methods.blocks.gan_training import GanNetworks, GanTraining, Visit, VisitDesign
from populace.methods.blocks.schedules import Sampled
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
from populace.methods.genfl.design import Learned, TwoStages, two_stages
from populace.privacy.accounting import resolved_delta
from populace.privacy.noised_steps import noised_steps
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.source import Source
from populace.types import Array, ArrayTree

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
        generated examples clipped."""
        share, noised = self.settings.synthetic_share, self.release.classifier
        batches, noises, coins = source.split(3)
        gradient: Array = jnp.zeros(self.weights)
        if noised is not None:
            x = jnp.asarray(shard.records["x"]).reshape(-1, *self.scattering.shape)
            y = jax.nn.one_hot(shard.records["y"], self.generator.classes)
            drawn, noise = draw_batches(noised, batches=batches, noises=noises, mask=jnp.asarray(shard.mask))
            # Of a batch, what is expected: fewer than it asks for where a client holds fewer.
            expected = noised.probability * len(x)
            total = self.noised_gradient(weights, x, y, clip_norm=self.settings.clip_norm, drawn=drawn, noise=noise)
            gradient = total * (1 - share) / expected
        if share:
            made = self.generated(weights, memory["theta"], memory["trained"], training_key(coins))
            gradient = gradient + share * made
        return gradient

    def noised_gradient(
        self, weights: Array, x: Array, y: Array, *, clip_norm: float, drawn: Array, noise: Array
    ) -> Array:
        """The noised sum of the clipped gradients of the records drawn, in units of the clipping norm."""
        if self.release.classifier is None:
            raise AssertionError("no record enters the classifier")

        def factors_of(row: Array) -> tuple[Array, Array]:
            return gradient_factors(self.scattering, weights, x[row][None], y[row][None])

        return exact_linear_sum(
            factors_of, jnp.ravel, release=self.release.classifier, clip_norm=clip_norm, drawn=drawn, noise=noise,
            bits=self.bits,
        ).total  # fmt: skip

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
        heard = jnp.maximum(jnp.sum(present), 1)
        gradient = jnp.sum(jnp.where(present[:, None], replies.values["gradient"], 0), axis=0) / heard
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

        def mean(first: int) -> float:
            return NUMBER * (of_gan * first + (rounds - of_gan) * self.weights) / rounds

        return mean(gan.critic_size + gan.generator_size), mean(gan.generator_size)

    def notes(self) -> tuple[str, ...]:
        return (*self.release.notes(), NO_ERROR)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenFl(ComposedMethod, GanNetworks):
    """Guarantee: (epsilon, delta)-DP for one record zeroed out, against everybody, the server included: noise is added
    at the client, in both stages, which are composed. With `recipe` paper nothing is guaranteed.

    `budget_share` of epsilon is what the GAN's stage alone would cost; the rest follows by composition. Half was chosen on
    public images (`docs/methods/genfl.md`).
    Edge cases: `synthetic_share` 1 learns from generated examples alone, and all of epsilon is the GAN's; 0 is `dp-fl`: there
    is no generator, and drawing from the result is refused. A client that does not send its generator is left out of the
    validation and of the mixture.
    """

    synthetic_share: float = 0.2
    budget_share: float = 0.5
    recipe: Literal["valid", "paper"] = "valid"
    rounds: int = 100
    batch_size: int = 512
    clip_norm: float = 0.3
    learning_rate: float = 0.2
    momentum: float = 0.9
    stop_accuracy: float = 0.0
    ema_decay: float = 0.95
    features: int = 4
    generator_steps: int = 150
    critic_steps: int = 5
    gan_batch_size: int = 128
    gan_clip_norm: float = 1.0
    critic_learning_rate: float = 1e-3
    gan_learning_rate: float = 1e-3

    facts: ClassVar[Facts] = Facts(
        name="genfl",
        line="classifier and GAN by DP-SGD",
        title="a classifier learned together from records and generated images, both by DP-SGD; record level (DP-GenFL)",
        paper="Li et al., Science China Information Sciences 2023; its generator and its ledger corrected",
        trust=("silo",),
        unit="record",
        kinds=("images",),
        traffic="a generator up once; a classifier down and its noised gradient up, per round",
    )
    renamed: ClassVar[Mapping[str, str]] = {
        **GanNetworks.renamed, "gamma": "synthetic_share", "gan_share": "budget_share", "target": "stop_accuracy",
        "turns": "rounds", "batch": "batch_size", "bound": "clip_norm", "rate": "learning_rate", "average": "ema_decay",
        "iterations": "generator_steps", "critics": "critic_steps", "gan_batch": "gan_batch_size",
        "gan_bound": "gan_clip_norm", "gan_rate": "gan_learning_rate", "critic_rate": "critic_learning_rate",
    }  # fmt: skip
    small: ClassVar[Mapping[str, object]] = {
        "synthetic_share": 0.5, "rounds": 2, "batch_size": 6, "features": 1, "generator_steps": 2, "critic_steps": 2,
        "gan_batch_size": 4, "hidden_size": 4, "critic_hidden_size": 4, "latent_size": 2, "basis_size": 3,
    }  # fmt: skip
    meanings: ClassVar[Mapping[str, str]] = {
        **GanNetworks.meanings,
        "epsilon": "privacy loss of one record over the whole run",
        "synthetic_share": "share of generated examples in a step of the classifier (gamma in the letter)",
        "budget_share": "share of epsilon that the GAN's stage alone would cost",
        "recipe": "valid: DP-SGD in both stages; paper: the GAN learns without noise, no guarantee",
        "rounds": "rounds, or steps, of the classifier",
        "batch_size": "examples expected in a batch of the classifier, generated ones included",
        "clip_norm": "L2 norm that the classifier's gradient of each example is clipped to",
        "learning_rate": "learning rate of the classifier at the server (Adam)",
        "momentum": "first decay of the classifier's Adam",
        "stop_accuracy": "accuracy on generated images at which the run ends; 0 runs all rounds",
        "ema_decay": "decay of the moving average of the classifier; 0 takes the last weights",
        "features": "windows in each direction that wavelet features are averaged over",
        "generator_steps": "steps of the generator at each client",
        "critic_steps": "steps of the critic for each step of the generator",
        "gan_batch_size": "records expected in a Poisson batch of the GAN",
        "gan_clip_norm": "L2 norm that the critic's gradient of each record is clipped to",
        "critic_learning_rate": "learning rate of the critic (Adam)",
        "gan_learning_rate": "learning rate of the generator (Adam)",
    }
    vectorises: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        self.check_networks()
        check_counts(
            rounds=self.rounds, batch_size=self.batch_size, generator_steps=self.generator_steps, features=self.features,
            critic_steps=self.critic_steps, gan_batch_size=self.gan_batch_size,
        )  # fmt: skip
        check_sizes(
            clip_norm=self.clip_norm, learning_rate=self.learning_rate, gan_clip_norm=self.gan_clip_norm,
            critic_learning_rate=self.critic_learning_rate, gan_learning_rate=self.gan_learning_rate,
        )  # fmt: skip
        check_shares(momentum=self.momentum, ema_decay=self.ema_decay, stop_accuracy=self.stop_accuracy)
        if not 0 <= self.synthetic_share <= 1:
            raise out_of_range("synthetic_share", "in [0, 1]", self.synthetic_share)
        if not 0 < self.budget_share < 1:
            raise out_of_range("budget_share", "in (0, 1)", self.budget_share)
        if self.stop_accuracy and not 0 < self.synthetic_share < 1:
            raise SpecError(
                "expected stop_accuracy 0 where synthetic_share is 0 or 1: no rounds to end, or nothing to try"
            )

    @property
    def gan_training(self) -> GanTraining:
        """How the GAN is trained at a client."""
        return GanTraining(
            recipe="valid" if self.recipe == "valid" else "open", critic_steps=self.critic_steps,
            batch_size=self.gan_batch_size, clip_norm=self.gan_clip_norm, critic_learning_rate=self.critic_learning_rate,
            learning_rate=self.gan_learning_rate,
        )  # fmt: skip

    @property
    def makes_data(self) -> bool:
        return self.synthetic_share > 0

    def compose(self, population: Population) -> Composition:
        """Both stages' noise is calibrated together."""
        shape, records, share = population.schema, population.records, self.synthetic_share
        gan = self.gan(population)
        if not (isinstance(shape, ImageShape) and isinstance(gan.generator, ImageVae)):
            raise SpecError(f"method {self.facts.name!r} takes images; `populace methods` lists what takes tables")
        scattering = Scattering(shape.shape, self.features)
        delta, chosen_delta = resolved_delta(self.delta, population.clients * records)
        private = self.recipe == "valid" or not share
        first = second = None
        if share:
            first = noised_steps(
                epsilon=self.epsilon * (self.budget_share if share < 1 else 1.0), delta=delta, each=self.critic_steps,
                probability=min(1.0, self.gan_batch_size / records), wanted=self.generator_steps * self.critic_steps,
                noise=0.0, size=gan.critic_size,
            )  # fmt: skip
        if share < 1:
            second = noised_steps(
                epsilon=self.epsilon, delta=delta, probability=min(1.0, (1 - share) * self.batch_size / records),
                wanted=self.rounds, each=1, noise=0.0, size=(scattering.size + 1) * shape.classes,
                before=first.whole if first and private else None,
            )  # fmt: skip
        release = two_stages(first, second, private=private, delta=delta, chosen_delta=chosen_delta)
        learner = GenFlLearner(
            settings=self, population=population, generator=gan.generator, scattering=scattering,
            bits=factor_bits(scattering.size + 1, records), release=release,
        )  # fmt: skip
        return Composition(Sampled(clients=population.clients, wanted=release.replies), release, learner)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DpFl(GenFl):
    """Guarantee: that of `genfl` without its first stage: no generated data.

    Edge cases: the result classifies; there is nothing to draw from.
    """

    synthetic_share: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.synthetic_share:
            raise SpecError(
                f"expected synthetic_share 0 for dp-fl, got {self.synthetic_share!r}; genfl mixes generated images in"
            )

    facts: ClassVar[Facts] = dataclasses.replace(
        GenFl.facts, name="dp-fl", page="genfl", line="classifier by DP-SGD",
        title="a classifier learned together from records by DP-SGD; record level (DP-FL)",
        traffic="a classifier down and its noised gradient up, per round",
    )  # fmt: skip
    small: ClassVar[Mapping[str, object]] = {**GenFl.small, "synthetic_share": 0.0}
