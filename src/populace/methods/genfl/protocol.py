"""`genfl` and `dp-fl`: a classifier learned together from records and generated data (DP-GenFL), and from records alone.

Li et al. 2023. First each client trains a conditional GAN on its own records; then all learn one classifier, each step on a
mixture with a share gamma of the client's generated examples. Here both stages are DP-SGD in one ledger: the GAN's critic is
noised (`fl-gan`'s visit), and in the second stage only records are clipped, noised and counted: each enters a step with
probability (1 - gamma) batch / records, while generated examples are post-processing of the first. The classifier is linear on
public wavelet features. Validation is on generated images at the server.

`recipe` valid is that; `paper` trains the GAN without noise, as published, and reports inf.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError, out_of_range
from populace.methods.base import Ask, Facts, Plan, Population, Replies, Shard
from populace.methods.blocks.dp_sgd import Examples, sum_over_blocks, update_ema
from populace.methods.blocks.gan_rounds import GanRounds, Net
from populace.methods.blocks.gan_visit import Manner, Visit
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.training import NO_ERROR, NUMBER, check_counts, check_shares, check_sizes, training_key
from populace.methods.blocks.vae_networks import ImageVae
from populace.methods.blocks.whole_numbers import on_grid
from populace.methods.genfl.classifier_images import ClassifierImages
from populace.methods.genfl.design import Design, design_of
from populace.methods.genfl.linear import (
    generated_slope,
    in_whole,
    learn_alone,
    optimiser_of,
    pairs,
    restored,
    validated_on,
)
from populace.privacy.accounting import epsilon_of
from populace.privacy.events import Event
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.noised_steps import AT_A_SILO, sampled_delta
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.source import Source
from populace.types import Array

MOST_MADE = 128  # generated examples of one client in one step: they carry no noise, so that few tell their mean slope


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """The classifier with its optimiser and running mean, and every client's generator once it has told it."""

    round: Array
    coin: Array
    start: Array
    thetas: Array
    told: Array
    weights: Array
    optimiser: Any
    average: Array
    validated: Array
    design: Design = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenFl(GanRounds):
    """Guarantee: (epsilon, delta)-DP for one record zeroed out, against everybody, the server included: noise is added
    at the client, in both stages, which are composed. With `recipe` paper nothing is guaranteed.

    `gan_share` of epsilon is what the GAN's stage alone would cost; the rest follows by composition. Half was chosen on public
    images (`docs/methods/genfl.md`).
    Edge cases: `gamma` 1 learns from generated examples alone, and all of epsilon is the GAN's; `gamma` 0 is `dp-fl`: there is
    no generator, and drawing from the result is refused. `target` above 0 ends the run when the classifier is right for that
    share of the generators' images, tried after each round. A client that does not tell its generator is left out of the
    validation and of the mixture.
    """

    epsilon: float
    delta: float = 0.0
    gamma: float = 0.2
    gan_share: float = 0.5
    recipe: Literal["valid", "paper"] = "valid"
    turns: int = 100
    batch: int = 512
    bound: float = 0.3
    rate: float = 0.2
    momentum: float = 0.9
    target: float = 0.0
    average: float = 0.95
    features: int = 4
    iterations: int = 150
    critics: int = 5
    gan_batch: int = 128
    gan_bound: float = 1.0
    critic_rate: float = 1e-3
    gan_rate: float = 1e-3
    net: Net = "basis"
    width: int = 128
    critic_width: int = 64
    latent: int = 16
    waves: int = 10
    penalty: float = 10.0

    facts: ClassVar[Facts] = Facts(
        name="genfl",
        line="classifier and GAN by DP-SGD",
        title="a classifier learned together from records and generated images, both by DP-SGD; record level (DP-GenFL)",
        paper="Li et al., Science China Information Sciences 2023; its generator and its ledger corrected",
        trust=("silo",),
        unit="record",
        kinds=("images",),
        traffic="a generator up once; a classifier down and its noised slope up, per round",
    )
    vectorises: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        self.check_gan()
        if self.recipe not in ("valid", "paper"):
            raise SpecError(f"expected recipe in valid, paper, got {self.recipe!r}")
        check_counts(
            turns=self.turns, batch=self.batch, iterations=self.iterations, critics=self.critics,
            gan_batch=self.gan_batch, features=self.features,
        )  # fmt: skip
        check_sizes(
            bound=self.bound,
            rate=self.rate,
            gan_bound=self.gan_bound,
            critic_rate=self.critic_rate,
            gan_rate=self.gan_rate,
        )
        check_shares(momentum=self.momentum, average=self.average, delta=self.delta, target=self.target)
        if not 0 <= self.gamma <= 1:
            raise out_of_range("gamma", "in [0, 1]", self.gamma)
        if not 0 < self.gan_share < 1:
            raise out_of_range("gan_share", "in (0, 1)", self.gan_share)
        if self.target and not 0 < self.gamma < 1:
            raise SpecError(
                "expected target 0 where gamma is 0 or 1: there are no rounds to end, or no generated images to try"
            )

    @property
    def manner(self) -> Manner:
        """Of the GAN's training at a client."""
        return Manner(
            recipe="valid" if self.recipe == "valid" else "open", critics=self.critics, batch=self.gan_batch,
            bound=self.gan_bound, critic_rate=self.critic_rate, rate=self.gan_rate, average=0.99,
        )  # fmt: skip

    @property
    def makes_data(self) -> bool:
        return self.gamma > 0

    def design(self, population: Population) -> Design:
        return design_of(self, population)

    def _openings(self) -> int:
        return 1 if self.gamma else 0

    def _asked(self) -> int:
        """Rounds of the second stage; where no record enters it, the server learns alone."""
        return self.turns if self.gamma < 1 else 0

    def round_count(self, population: Population) -> int:
        return self._openings() + self._asked()

    def begin(self, population: Population, key: Array, warm: Any = None) -> State:
        del warm
        design = self.design(population)
        coin, start = jax.random.split(key)
        weights = jnp.zeros(design.weights)
        generators = population.clients if self.gamma else 0
        return State(
            round=jnp.int32(0), coin=coin, start=jnp.concatenate(design.gan.start(start)),
            thetas=jnp.zeros((generators, design.gan.generator_size)), told=jnp.zeros(generators, bool), weights=weights,
            optimiser=optimiser_of(self.rate, self.momentum).init(weights), average=weights,
            validated=jnp.zeros(self.turns), design=design,
        )  # fmt: skip

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        done = int(state.round) - self._openings()
        if done >= self._asked() or (self.target and done > 0 and float(state.validated[done - 1]) >= self.target):
            return None
        cohort = jnp.arange(population.clients, dtype=jnp.int32)
        common = {"start": state.start} if done < 0 else {"weights": state.weights}
        return Ask(round=state.round, cohort=cohort, common=common, own=jnp.zeros(len(cohort), jnp.int32))

    def question(self, population: Population, round_id: int) -> tuple[Any, Any]:
        design = self.design(population)
        if round_id < self._openings():
            return {"start": jnp.zeros(design.gan.critic_size + design.gan.generator_size)}, jnp.int32(0)
        return {"weights": jnp.zeros(design.weights)}, jnp.int32(0)

    def remember(self, population: Population, key: Array) -> Any:
        """The client's generator, once it has one."""
        if not self.gamma or self.gamma == 1:
            return ()
        return {"theta": jnp.zeros(self.design(population).gan.generator_size), "told": jnp.asarray(False)}

    def charge(self, ask: Ask, population: Population) -> Charge:
        design = self.design(population)
        event = design.opening if int(ask.round) < self._openings() else design.step
        if event is None:
            raise AssertionError("no record is read in this round")
        return Charge(event=event, unit="record")

    def answer(self, common: Any, own: Any, shard: Shard, memory: Any, source: Source) -> tuple[Any, Any]:
        design = self.design(shard.population)
        if "start" in common:
            theta = self._generator(design, common["start"], shard, source)
            return {"theta": theta}, {"theta": theta, "told": jnp.asarray(True)} if memory else memory
        return {"slope": self._slope(design, common["weights"], memory, shard, source)}, memory

    def _generator(self, design: Design, start: Array, shard: Shard, source: Source) -> Array:
        """Stage 1: a GAN on the client's records, from a public start."""
        if design.first is None:
            raise AssertionError("no generator is trained")
        gan = design.gan
        omega, theta = start[: gan.critic_size], start[gan.critic_size :]
        common = {"visited": jnp.int32(0), "omega": omega, "theta": theta, "average": theta, "fisher": (), "counts": ()}
        steps, coins = source.split(2)
        seen = Examples(*gan.read(shard.records), jnp.asarray(shard.mask))
        visit = Visit(self.manner, design.first, common, seen, jnp.zeros(0), training_key(coins))
        return visit.train(steps)[2]

    def _slope(self, design: Design, weights: Array, memory: Any, shard: Shard, source: Source) -> Array:
        """Stage 2: of a batch's mean loss, in units of the bound: records clipped and noised, generated examples clipped."""
        batches, noises, coins = source.split(3)
        classes = design.gan.maker.classes
        slope = jnp.zeros(design.weights)
        if design.release is not None:
            x = jnp.asarray(shard.records["x"]).reshape(-1, *design.features.shape)
            y = jax.nn.one_hot(shard.records["y"], classes)
            drawn = jnp.asarray(batches.coins(design.release.probability, len(x))) & jnp.asarray(shard.mask)
            noise = jnp.asarray(design.release.mechanism.noise(noises))
            # Of a batch, what is expected: fewer than it asks for where a client holds fewer.
            expected = design.release.probability * len(x)
            slope = noised_sum(self, design, weights, x, y, drawn, noise) * (1 - self.gamma) / expected
        if self.gamma:
            slope = slope + self.gamma * self._generated(
                design, weights, memory["theta"], memory["told"], training_key(coins)
            )
        return slope

    def _generated(self, design: Design, weights: Array, theta: Array, told: Array, key: Array) -> Array:
        """The mean clipped slope of generated examples; 0 at a client that has no generator."""
        count = min(MOST_MADE, max(1, round(self.gamma * self.batch)))
        return jnp.where(
            told, generated_slope(design.gan, design.features, weights, theta, count, self.bound, key), 0.0
        )

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        present = replies.present
        if int(state.round) < self._openings():
            place = jnp.where(present, replies.clients, len(state.told))
            thetas = state.thetas.at[place].set(replies.values["theta"], mode="drop")
            told = state.told.at[place].set(True, mode="drop")
            return dataclasses.replace(state, round=state.round + 1, thetas=thetas, told=told)
        done = state.round - self._openings()
        heard = jnp.maximum(jnp.sum(present), 1)
        slope = jnp.sum(jnp.where(present[:, None], replies.values["slope"], 0), axis=0) / heard
        change, optimiser = optimiser_of(self.rate, self.momentum).update(slope, state.optimiser)
        weights = state.weights + change
        average = update_ema(state.average, weights, done, self.average)
        validated = state.validated
        if self.target:
            coin = jax.random.fold_in(state.coin, state.round)
            right = validated_on(state.design.gan, state.design.features, average, state.thetas, state.told, coin)
            validated = validated.at[done].set(right)
        return dataclasses.replace(
            state, round=state.round + 1, weights=weights, optimiser=optimiser, average=average, validated=validated
        )

    def finish(self, state: State, population: Population, key: Array) -> Synthesizer:
        design, maker = state.design, state.design.gan.maker
        if not isinstance(maker, ImageVae):
            raise AssertionError("images are made by an image network")
        told = (
            np.asarray(state.thetas)[np.asarray(state.told)]
            if self.gamma
            else np.zeros((0, maker.decoder_size), np.float32)
        )
        learned = state.average if self.average else state.weights
        if self.gamma == 1:
            learned = learn_alone(
                design.gan, design.features, state.thetas, state.told, key, steps=self.turns, batch=min(MOST_MADE, self.batch),
                bound=self.bound, rate=self.rate, momentum=self.momentum, average=self.average,
            )  # fmt: skip
        weights = np.asarray(learned).reshape(-1, maker.classes)
        return ClassifierImages(vae=maker, thetas=told, weights=weights, cells=design.features.cells)

    def guarantee(self, population: Population) -> Guarantee:
        design = self.design(population)
        valid = not design.reason
        epsilon = epsilon_of(design.whole, delta=design.delta)
        draws = sum(each.draws for each in (design.first.release if design.first else None, design.release) if each)
        delta = sampled_delta(design.delta, epsilon, draws) if valid else 0.0
        lines = []
        if design.first:
            lines.append(f"a generator at each client: {design.opening}")
            lines.append("generated examples, the generators and the validation on them are post-processing of it")
        if design.release:
            lines.append(f"the classifier, {self.turns} rounds, each: {design.step}")
            lines.append(
                "records enter a step with a public probability, (1 - gamma) batch / records, and are clipped and counted"
            )
        lines.append("all composed by privacy loss distributions; the claim is that of every client")
        return Guarantee(
            epsilon=epsilon,
            delta=delta if valid else 0.0,
            sampling_delta=delta - design.delta if valid else 0.0,
            unit="record",
            units=population.clients * population.records,
            neighbours="zero-out",
            trust="silo",
            mechanism=design.mechanism,
            read_from_data=population.read_from_data,
            domain_sources=population.domain_sources,
            derivation=tuple(lines) if valid else (),
            assumptions=(
                "the number of clients, who takes part, and the most records one holds are public",
                *AT_A_SILO,
                *design.said,
            ),
            reason=design.reason,
        )

    def spends(self, population: Population) -> Event:
        return self.design(population).whole

    def plan(self, population: Population) -> Plan:
        design = self.design(population)
        notes = [
            f"noise multiplier {each.noise_multiplier:.3g} at sampling rate {each.probability:.3g} ({name})"
            for name, each in (("GAN", design.first.release if design.first else None), ("classifier", design.release))
            if each
        ]
        weights, theta = design.weights, design.gan.generator_size if self.gamma else 0
        start = design.gan.critic_size + theta if self.gamma else 0
        turns = self._asked() / self.round_count(population)
        return Plan(
            guarantee=self.guarantee(population), rounds=self.round_count(population),
            bytes_up=NUMBER * (turns * weights + (1 - turns) * theta),
            bytes_down=NUMBER * (turns * weights + (1 - turns) * start), errors={},
            notes=(*notes, NO_ERROR),
        )  # fmt: skip

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        design = self.design(population)
        theta = design.gan.generator_size if self.gamma else 0
        if int(ask.round) < self._openings():
            return NUMBER * (design.gan.critic_size + theta), NUMBER * theta
        return NUMBER * design.weights, NUMBER * design.weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class DpFl(GenFl):
    """Guarantee: that of `genfl` without its first stage: no generated data.

    Edge cases: the result classifies; there is nothing to draw from.
    """

    gamma: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma:
            raise SpecError(f"expected gamma 0 for dp-fl, got {self.gamma!r}; genfl mixes generated images in")

    facts: ClassVar[Facts] = dataclasses.replace(
        GenFl.facts, name="dp-fl", page="genfl", line="classifier by DP-SGD",
        title="a classifier learned together from records by DP-SGD; record level (DP-FL)",
        traffic="a classifier down and its noised slope up, per round",
    )  # fmt: skip


def noised_sum(
    protocol: GenFl, design: Design, weights: Array, x: Array, y: Array, drawn: Array, noise: Array
) -> Array:
    """Clipped slopes of the records drawn, added up, with noise; in units of the bound.

    Guarantee: a record changes the sum by at most 1 in L2, rounding to the grid apart: it adds the product of two vectors of
    whole numbers, each at most 1 long, and products are added without error, `at_once` of them in float32 and all in 32 bits.
    """
    release, bits = design.release, design.bits
    if release is None:
        raise AssertionError("no record enters the classifier")

    def factors(row: Array) -> tuple[Array, Array]:
        seen, off = pairs(design.features, weights, x[row][None], y[row][None], protocol.bound)
        return in_whole(seen, bits.seen)[0], in_whole(off, bits.off)[0]

    def block(places: Array, there: Array) -> Array:
        # One record after the other, by the same code: its floats do not depend on who else is in the batch.
        seen, off = jax.lax.map(factors, places)
        return jnp.matmul(seen.T, off * there[:, None], precision="highest").astype(jnp.int32)

    total = sum_over_blocks(block, drawn, bits.at_once).reshape(-1)
    shift = round(math.log2(release.mechanism.grid)) + bits.both
    return release.mechanism.release(on_grid(total, shift), noise) * restored(bits)
