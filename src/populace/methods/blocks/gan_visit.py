"""One visit of a GAN that travels: its critic's noised steps on a silo's records, the generator's on none.

Shared by the methods whose GANs learn at clients, because what is clipped, noised and released must be the same everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

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
from populace.methods.blocks.gan_networks import Gan, Parts
from populace.methods.blocks.gan_training import BETAS, generator_step, mean_slope, replayed, slope_of_row
from populace.privacy.events import Event
from populace.privacy.gaussian import GaussianSum, clip_tree
from populace.privacy.noised_steps import NoisedSteps
from populace.privacy.source import Keyed, Source
from populace.types import Array

Recipe = Literal["valid", "paper", "open"]

LEAST_SHARE = 0.1  # of the batch expected that a noisy count of records may lower the denominator to
AT_ONCE = 256  # records whose Fisher information is computed together


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manner:
    """How a visit is made; see `fl-gan` for what each means."""

    recipe: Recipe
    critics: int
    batch: int
    bound: float
    critic_rate: float
    rate: float
    average: float
    later: float = 1.0
    replay: float = 0.0
    ewc: float = 0.0


@dataclasses.dataclass(frozen=True)
class Design:
    """What both sides derive from public facts. Sums are in units of the bound."""

    gan: Gan
    delta: float
    said: tuple[str, ...]
    release: NoisedSteps
    labels: GaussianSum | None
    fisher: GaussianSum | None
    visit: Event
    reason: str

    @property
    def mechanism(self) -> GaussianSum:
        return self.release.mechanism


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Visit:
    """What happens at one silo. `counts` are its noisy label counts, not negative; empty where none are told."""

    manner: Manner = dataclasses.field(metadata={"static": True})
    design: Design = dataclasses.field(metadata={"static": True})
    common: dict[str, Array]
    seen: Examples
    counts: Array
    coin: Array

    def shares(self) -> tuple[Array, Array, Array]:
        """Weight of the replayed part; labels to replay; labels for the generator to make."""
        classes, strength = max(1, self.design.gan.maker.classes), self.manner.replay
        even = jnp.full(classes, 1.0 / classes)
        if self.design.labels is None:
            before = strength * self.common["visited"]
            return before / (before + 1), even, even
        past, now = strength * self.common["counts"], self.counts
        every = jnp.maximum(jnp.sum(past) + jnp.sum(now), 1.0)
        return jnp.sum(past) / every, past / jnp.maximum(jnp.sum(past), 1.0), (past + now + 1e-6) / every

    def denominator(self) -> Array:
        """Of a sum over a batch: what is expected of it, by the noisy count of records or the most that one silo holds."""
        most = jnp.float32(self.design.release.probability * len(self.seen.mask))
        if self.design.labels is None:
            return most
        return jnp.clip(self.design.release.probability * jnp.sum(self.counts), LEAST_SHARE * most, most)

    def train(self, source: Source) -> tuple[TrainState, TrainState, Array]:
        """Critic, generator and the generator's running mean after all steps: compiled whole, or drawn for one by one."""
        manner, common = self.manner, self.common
        critic = start_training(common["omega"], manner.critic_rate, BETAS)
        generator = start_training(common["theta"], manner.rate, BETAS)
        start = (critic, generator, common["theta"])
        if isinstance(source, Keyed):
            return _all_steps(self, start, source)  # type: ignore[no-any-return]
        for number in range(self.design.release.steps):
            start = _one_step(self, start, jnp.int32(number), self.draw(source))
        return start

    def draw(self, source: Source) -> dict[str, Array]:
        """What protects people in one step: who is in the batch, and the noise."""
        if self.manner.recipe != "valid":
            return {}
        batches, noises = source.split(2)
        drawn, noise = draw_batches(self.design.release, batches=batches, noises=noises, mask=self.seen.mask)
        return {"drawn": drawn, "noise": noise}

    def step(
        self, carry: tuple[TrainState, TrainState, Array], number: Array, drawn: dict[str, Array]
    ) -> tuple[TrainState, TrainState, Array]:
        """One of the critic; after every so many, one of the generator."""
        manner, gan = self.manner, self.design.gan
        critic, generator, average = carry
        coins = jax.random.split(jax.random.fold_in(self.coin, number), 4)
        weight, past, wanted = self.shares()
        pace = jnp.where(self.common["visited"] > 0, manner.later, 1.0)
        slope = self.slope_of_records(critic.parameters, generator.parameters, drawn, coins[0])
        if manner.replay:
            slope = (1 - weight) * slope + weight * self.slope_of_replay(
                critic.parameters, generator.parameters, past, coins[1], coins[2]
            )
        if manner.ewc:
            fisher = self.common["fisher"][jnp.asarray(gan.groups())]
            pull = 2 * manner.ewc * fisher * (critic.parameters - self.common["omega"])
            slope = slope + pull / manner.bound
        critic = shorten_step(critic, adam_step(critic, slope, manner.critic_rate, BETAS), pace)

        def step(_: Any) -> tuple[TrainState, Array]:
            after = generator_step(gan, generator, critic.parameters, wanted, manner.batch, coins[3], manner.rate)
            after = shorten_step(generator, after, pace)
            return after, update_ema(average, after.parameters, number // manner.critics, manner.average)

        due = number % manner.critics == manner.critics - 1
        generator, average = jax.lax.cond(due, step, lambda _: (generator, average), None)
        return critic, generator, average

    def slope_of_records(self, omega: Array, theta: Array, drawn: dict[str, Array], key: Array) -> Array:
        """In units of the bound: clipped, added up, noised and divided; or as published; or plain."""
        manner, seen = self.manner, self.seen
        rows, coin = jax.random.split(key)
        slope_of = slope_of_row(self.design.gan, omega, theta, seen, coin)
        if manner.recipe == "valid":
            return self.noised_sum(slope_of, drawn) / self.denominator()
        places = jax.random.categorical(rows, jnp.where(seen.mask, 0.0, -jnp.inf), shape=(manner.batch,))
        mean = jnp.any(seen.mask) * self.plain_mean(slope_of, places)  # of no records there is no slope
        if manner.recipe == "open":
            return mean
        return mean + jax.random.normal(coin, omega.shape) * self.design.release.noise_multiplier

    def noised_sum(self, slope_of: Callable[[Array], Parts], drawn: dict[str, Array]) -> Array:
        return noised_sum(
            slope_of, self.design.gan.flat, release=self.design.release, clip_norm=self.manner.bound, **drawn
        ).total

    def plain_mean(self, slope_of: Callable[[Array], Any], places: Array) -> Array:
        """Over these rows in units of the bound, each number clipped by itself as published, or none."""
        slopes = jax.tree.map(lambda leaf: leaf / self.manner.bound, jax.vmap(slope_of)(places))
        if self.manner.recipe == "paper":
            slopes = jax.tree.map(lambda leaf: jnp.clip(leaf, -1, 1), slopes)
        return self.design.gan.flat(jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), slopes))

    def slope_of_replay(self, omega: Array, theta: Array, shares: Array, samples: Array, key: Array) -> Array:
        """Of samples that were received, clipped the way records are, so that their weights mean the same."""
        manner, gan = self.manner, self.design.gan

        def some(_: Any) -> Array:
            again = replayed(gan, self.common["average"], shares, manner.batch, samples)
            if manner.recipe == "valid":
                return mean_slope(gan, omega, theta, again, key, manner.bound)
            return self.plain_mean(slope_of_row(gan, omega, theta, again, key), jnp.arange(manner.batch))

        return jax.lax.cond(self.common["visited"] > 0, some, lambda _: jnp.zeros_like(omega), None)

    def fisher(self, omega: Array, theta: Array, source: Source) -> Array:
        """For each group of parameters: the mean square of a clipped slope in it over the records, with noise."""
        design, groups = self.design, jnp.asarray(self.design.gan.groups())
        if design.fisher is None:
            raise AssertionError("no Fisher information is released")
        slope_of = slope_of_row(
            design.gan, omega, theta, self.seen, jax.random.fold_in(self.coin, design.release.steps)
        )
        total = fisher_sum(design, slope_of, self.manner.bound, self.seen.mask)
        told = jnp.maximum(design.fisher.release(total, jnp.asarray(design.fisher.noise(source))), 0)
        records = self.denominator() / design.release.probability
        return told * self.manner.bound**2 / (jnp.bincount(groups, length=design.fisher.size) * records)


@jax.jit
def _all_steps(visit: Visit, start: Any, source: Keyed) -> Any:
    def step(carry: Any, item: tuple[Array, Array]) -> tuple[Any, None]:
        number, key = item
        return visit.step(carry, number, visit.draw(Keyed(key, exact=source.exact))), None

    steps = visit.design.release.steps
    return jax.lax.scan(step, start, (jnp.arange(steps, dtype=jnp.int32), jax.random.split(source.key, steps)))[0]


@jax.jit
def _one_step(visit: Visit, carry: Any, number: Array, drawn: dict[str, Array]) -> Any:
    return visit.step(carry, number, drawn)


def fisher_sum(design: Design, slope_of: Any, bound: float, mask: Array) -> Array:
    """Squares of clipped slopes, added up within groups of parameters and over the records; in units of the bound's square.

    Guarantee: a record changes it by at most 1 in L2: squares that add up to at most 1 have, in any grouping, a length of at
    most 1.
    """
    fisher = design.fisher
    if fisher is None:
        raise AssertionError("no Fisher information is released")

    def squares(row: Array) -> Array:
        clipped = clip_tree(jax.tree.map(lambda leaf: leaf / bound, slope_of(row)), 1.0)
        return fisher.on_grid(design.gan.grouped(jax.tree.map(jnp.square, clipped)))

    return sum_over_batch(squares, mask, min(AT_ONCE, len(mask)))
