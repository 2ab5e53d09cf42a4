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
import functools
from collections.abc import Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError, out_of_range
from populace.methods.base import (
    NO_ERROR,
    NUMBER,
    Ask,
    Facts,
    ImageShape,
    Plan,
    Population,
    Replies,
    Shard,
    check_counts,
    check_shares,
    check_sizes,
)
from populace.methods.blocks.dp_sgd import draw_batches, factor_bits, training_key, update_ema
from populace.methods.blocks.gan_training import GanNetworks, GanTraining, Visit, VisitDesign
from populace.methods.blocks.vae_networks import ImageVae
from populace.methods.genfl.classifier import (
    ClassifierImages,
    Scattering,
    accuracy_on_generated,
    generated_gradient,
    optimizer_of,
    train_on_generated,
)
from populace.methods.genfl.design import Design, State
from populace.privacy.accounting import resolved_delta
from populace.privacy.events import Event
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.noised_steps import noised_steps
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.source import Source
from populace.types import Array, ArrayTree

MOST_GENERATED = 128  # examples of one client in one step: they carry no noise, so that few give their mean gradient


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenFl(GanNetworks):
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

    def design(self, population: Population) -> Design:
        return design_of(self, population)

    @property
    def _gan_rounds(self) -> int:
        return 1 if self.synthetic_share else 0

    @property
    def _classifier_rounds(self) -> int:
        """Rounds of the second stage; where no record enters it, the server learns alone."""
        return self.rounds if self.synthetic_share < 1 else 0

    def round_count(self, population: Population) -> int:
        return self._gan_rounds + self._classifier_rounds

    def begin(self, population: Population, key: Array, warm: object = None) -> State:
        del warm
        design = self.design(population)
        coin, start = jax.random.split(key)
        weights = jnp.zeros(design.weights)
        generators = population.clients if self.synthetic_share else 0
        return State(
            round=jnp.int32(0), coin=coin, start=jnp.concatenate(self.gan(population).start(start)),
            thetas=jnp.zeros((generators, design.generator.decoder_size)), known=jnp.zeros(generators, bool),
            weights=weights, optimizer_state=optimizer_of(self.learning_rate, self.momentum).init(weights), average=weights,
            validated=jnp.zeros(self.rounds), design=design,
        )  # fmt: skip

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        done = int(state.round) - self._gan_rounds
        reached = self.stop_accuracy and done > 0 and float(state.validated[done - 1]) >= self.stop_accuracy
        if done >= self._classifier_rounds or reached:
            return None
        cohort = jnp.arange(population.clients, dtype=jnp.int32)
        common = {"start": state.start} if done < 0 else {"weights": state.weights}
        return Ask(round=state.round, cohort=cohort, common=common, own=jnp.zeros(len(cohort), jnp.int32))

    def question(self, population: Population, round_id: int) -> tuple[dict[str, Array], Array]:
        if round_id < self._gan_rounds:
            gan = self.gan(population)
            return {"start": jnp.zeros(gan.critic_size + gan.generator_size)}, jnp.int32(0)
        return {"weights": jnp.zeros(self.design(population).weights)}, jnp.int32(0)

    def remember(self, population: Population, key: Array) -> ArrayTree:
        """The client's generator, once it is trained."""
        if not 0 < self.synthetic_share < 1:
            return ()
        return {"theta": jnp.zeros(self.design(population).generator.decoder_size), "trained": jnp.asarray(False)}

    def charge(self, ask: Ask, population: Population) -> Charge:
        design = self.design(population)
        event = design.gan_event if int(ask.round) < self._gan_rounds else design.step_event
        if event is None:
            raise AssertionError("no record is read in this round")
        return Charge(event=event, unit="record")

    def answer(
        self, common: dict[str, Array], own: Array, shard: Shard, memory: ArrayTree, source: Source
    ) -> tuple[dict[str, Array], ArrayTree]:
        design = self.design(shard.population)
        if "start" in common:
            theta = self._train_gan(design, common["start"], shard, source)
            return {"theta": theta}, {"theta": theta, "trained": jnp.asarray(True)} if memory else memory
        return {"gradient": self._gradient(design, common["weights"], memory, shard, source)}, memory

    def _train_gan(self, design: Design, start: Array, shard: Shard, source: Source) -> Array:
        """The first stage: a GAN on the client's records, from a public start."""
        if design.visit is None:
            raise AssertionError("no generator is trained")
        gan = design.visit.gan
        omega, theta = start[: gan.critic_size], start[gan.critic_size :]
        nothing = jnp.zeros(0)
        received = {"visited": jnp.int32(0), "omega": omega, "theta": theta, "average": theta}
        steps, coins = source.split(2)
        examples = gan.read(shard.records, shard.mask)
        visit = Visit(self.gan_training, design.visit, received, examples, nothing, training_key(coins))
        return visit.train(steps)[2]

    def _gradient(self, design: Design, weights: Array, memory: ArrayTree, shard: Shard, source: Source) -> Array:
        """The second stage: the gradient of a batch's mean loss, in units of the clipping norm: records clipped and noised,
        generated examples clipped."""
        batches, noises, coins = source.split(3)
        gradient: Array = jnp.zeros(design.weights)
        if design.release is not None:
            x = jnp.asarray(shard.records["x"]).reshape(-1, *design.scattering.shape)
            y = jax.nn.one_hot(shard.records["y"], design.generator.classes)
            drawn, noise = draw_batches(design.release, batches=batches, noises=noises, mask=jnp.asarray(shard.mask))
            # Of a batch, what is expected: fewer than it asks for where a client holds fewer.
            expected = design.release.probability * len(x)
            total = design.noised_gradient(weights, x, y, clip_norm=self.clip_norm, drawn=drawn, noise=noise)
            gradient = total * (1 - self.synthetic_share) / expected
        if self.synthetic_share:
            gradient = gradient + self.synthetic_share * self._generated(
                design, weights, memory["theta"], memory["trained"], training_key(coins)
            )
        return gradient

    def _generated(self, design: Design, weights: Array, theta: Array, trained: Array, key: Array) -> Array:
        """The mean clipped gradient of generated examples; 0 at a client that has no generator."""
        count = min(MOST_GENERATED, max(1, round(self.synthetic_share * self.batch_size)))
        mean = generated_gradient(design.generator, design.scattering, weights, theta, count, self.clip_norm, key)
        return jnp.where(trained, mean, 0.0)

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        present = replies.present
        if int(state.round) < self._gan_rounds:
            whose = jnp.where(present, replies.clients, len(state.known))
            thetas = jnp.asarray(state.thetas).at[whose].set(replies.values["theta"], mode="drop")
            known = jnp.asarray(state.known).at[whose].set(True, mode="drop")
            return dataclasses.replace(state, round=state.round + 1, thetas=thetas, known=known)
        done = state.round - self._gan_rounds
        heard = jnp.maximum(jnp.sum(present), 1)
        gradient = jnp.sum(jnp.where(present[:, None], replies.values["gradient"], 0), axis=0) / heard
        change, optimizer_state = optimizer_of(self.learning_rate, self.momentum).update(
            gradient, state.optimizer_state
        )
        weights = state.weights + change
        average = update_ema(state.average, weights, done, self.ema_decay)
        validated = jnp.asarray(state.validated)
        if self.stop_accuracy:
            coin, design = jax.random.fold_in(state.coin, state.round), state.design
            accuracy = accuracy_on_generated(
                design.generator, design.scattering, average, state.thetas, state.known, coin
            )
            validated = validated.at[done].set(accuracy)
        return dataclasses.replace(
            state, round=state.round + 1, weights=weights, optimizer_state=optimizer_state, average=average,
            validated=validated,
        )  # fmt: skip

    def finish(self, state: State, population: Population, key: Array) -> ClassifierImages:
        design, generator = state.design, state.design.generator
        thetas = np.zeros((0, generator.decoder_size), np.float32)
        if self.synthetic_share:
            thetas = np.asarray(state.thetas)[np.asarray(state.known)]
        learned = state.average if self.ema_decay else state.weights
        if self.synthetic_share == 1:
            learned = train_on_generated(
                generator, design.scattering, state.thetas, state.known, key, steps=self.rounds,
                batch_size=min(MOST_GENERATED, self.batch_size), clip_norm=self.clip_norm, learning_rate=self.learning_rate,
                momentum=self.momentum, ema_decay=self.ema_decay,
            )  # fmt: skip
        weights = np.asarray(learned).reshape(-1, generator.classes)
        return ClassifierImages(vae=generator, thetas=thetas, weights=weights, cells=design.scattering.cells)

    def guarantee(self, population: Population) -> Guarantee:
        return self.design(population).guarantee(population)

    def spends(self, population: Population) -> Event:
        return self.design(population).whole

    def plan(self, population: Population) -> Plan:
        rounds = self.round_count(population)
        down, up = (
            (self._gan_rounds * gan + self._classifier_rounds * classifier) / rounds
            for gan, classifier in zip(*self._bytes(population), strict=True)
        )
        return Plan(
            guarantee=self.guarantee(population), rounds=rounds, bytes_up=up, bytes_down=down, errors={},
            notes=(*self.design(population).notes(), NO_ERROR),
        )  # fmt: skip

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return self._bytes(population)[0 if int(ask.round) < self._gan_rounds else 1]

    def _bytes(self, population: Population) -> tuple[tuple[float, float], tuple[float, float]]:
        """Bytes down and up in a round of the first stage, and of the second."""
        gan, weights = self.gan(population), self.design(population).weights
        return (
            (NUMBER * (gan.critic_size + gan.generator_size), NUMBER * gan.generator_size),
            (NUMBER * weights, NUMBER * weights),
        )


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


@functools.lru_cache(maxsize=64)
def design_of(method: GenFl, population: Population) -> Design:
    """Both stages' noise, calibrated together."""
    shape, records, share = population.schema, population.records, method.synthetic_share
    gan = method.gan(population)
    if not (isinstance(shape, ImageShape) and isinstance(gan.generator, ImageVae)):
        raise SpecError(f"method {method.facts.name!r} takes images; `populace methods` lists what takes tables")
    scattering = Scattering(shape.shape, method.features)
    delta, chosen_delta = resolved_delta(method.delta, population.clients * records)
    private = method.recipe == "valid" or not share
    visit = release = before = None
    if share:
        steps = noised_steps(
            epsilon=method.epsilon * (method.budget_share if share < 1 else 1.0), delta=delta, each=method.critic_steps,
            probability=min(1.0, method.gan_batch_size / records), wanted=method.generator_steps * method.critic_steps,
            noise=0.0, size=gan.critic_size,
        )  # fmt: skip
        visit, before = VisitDesign(gan, steps), steps.whole if private else None
    if share < 1:
        release = noised_steps(
            epsilon=method.epsilon, delta=delta, probability=min(1.0, (1 - share) * method.batch_size / records),
            wanted=method.rounds, each=1, noise=0.0, size=(scattering.size + 1) * shape.classes, before=before,
        )  # fmt: skip
    return Design(
        generator=gan.generator, scattering=scattering, delta=delta, chosen_delta=chosen_delta, visit=visit, release=release,
        bits=factor_bits(scattering.size + 1, records), private=private,
    )  # fmt: skip
