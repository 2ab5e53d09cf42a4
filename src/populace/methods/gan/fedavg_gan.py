"""`fedavg-gan`: a critic learns from clipped updates of all clients, noised at the server; the generator stays there.

Augenstein et al. 2020 (DP-FedAvg-GAN), the baseline of Xin et al. 2021. Client level: what is protected is all that one client
holds, which with a handful of silos costs far more noise than a record does. The server is trusted to add it.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from populace.methods.base import Ask, Facts, Population, Replies, Shard
from populace.methods.blocks.client_updates import ClientUpdates, Updates
from populace.methods.blocks.dp_sgd import Examples, TrainState, adam_step, start_training, update_ema
from populace.methods.blocks.gan_networks import Gan
from populace.methods.blocks.gan_rounds import GanRounds, Net
from populace.methods.blocks.gan_training import BETAS, generator_step, slope_of_row
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.training import NUMBER, check_counts, check_shares, check_sizes, generator_of, training_key
from populace.privacy.gaussian import clip
from populace.privacy.guarantee import Guarantee
from populace.privacy.source import Source
from populace.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design(Updates):
    """With the network."""

    gan: Gan


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """The critic everybody gets, the generator with its optimiser, and its running mean."""

    round: Array
    coin: Array
    omega: Array
    generator: TrainState
    average: Array
    design: Design = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAvgGan(ClientUpdates, GanRounds):
    """Guarantee: (epsilon, delta)-DP for everything one client holds, zeroed out, for whoever sees the model and
    not the updates: the server is trusted. Every client is charged for every round, drawn or not.

    Edge cases: `noise` 0 is calibrated to `turns` rounds; with a noise multiplier given, as many take place as the budget
    allows. A client without records sends no change.
    """

    epsilon: float
    delta: float = 0.0
    turns: int = 200
    share: float = 1.0
    steps: int = 5
    batch: int = 64
    generations: int = 1
    bound: float = 0.1
    noise: float = 0.0
    critic_rate: float = 1e-3
    server_rate: float = 1.0
    rate: float = 1e-3
    average: float = 0.99
    net: Net = "basis"
    width: int = 128
    critic_width: int = 64
    latent: int = 16
    waves: int = 10
    penalty: float = 10.0
    conditional: bool = True

    facts: ClassVar[Facts] = Facts(
        name="fedavg-gan",
        page="fl-gan",
        line="GAN by DP-FedAvg",
        title="a GAN whose critic learns from clipped updates, noised at the server; client level (DP-FedAvg-GAN)",
        paper="Augenstein et al., ICLR 2020; the baseline of Xin et al. 2021",
        trust=("central",),
        unit="client",
        kinds=("table", "images"),
        traffic="critic and generator down and a clipped critic update up, per round taken part in",
    )
    vectorises: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.check_updates()
        self.check_gan()
        check_counts(turns=self.turns, steps=self.steps, batch=self.batch, generations=self.generations)
        check_sizes(bound=self.bound, critic_rate=self.critic_rate, server_rate=self.server_rate, rate=self.rate)
        check_shares(average=self.average, delta=self.delta)

    def design(self, population: Population) -> Design:
        return design_of(self, population)

    def begin(self, population: Population, key: Array, warm: Any = None) -> State:
        del warm
        design = self.design(population)
        start, coin = jax.random.split(key)
        omega, theta = design.gan.start(start)
        return State(
            round=jnp.int32(0),
            coin=coin,
            omega=omega,
            generator=start_training(theta, self.rate, BETAS),
            average=theta,
            design=design,
        )

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        if int(state.round) >= state.design.rounds:
            return None
        common = {"omega": state.omega, "theta": state.generator.parameters}
        return self.ask_drawn(state.round, population, source, common)

    def answer(self, common: Any, own: Any, shard: Shard, memory: Any, source: Source) -> tuple[Any, Any]:
        design = self.design(shard.population)
        seen = Examples(*design.gan.read(shard.records), jnp.asarray(shard.mask))
        omega, theta = common["omega"], common["theta"]
        there = jnp.where(seen.mask, 0.0, -jnp.inf).at[0].max(-1e30)  # never all impossible

        def step(critic: TrainState, key: Array) -> tuple[TrainState, None]:
            rows, codes = jax.random.split(key)
            slope_of = slope_of_row(design.gan, critic.parameters, theta, seen, codes)
            slopes = jax.vmap(slope_of)(jax.random.categorical(rows, there, shape=(self.batch,)))
            slope = design.gan.flat(jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), slopes))
            return adam_step(critic, slope, self.critic_rate, BETAS), None

        after, _ = jax.lax.scan(
            step, start_training(omega, self.critic_rate, BETAS), jax.random.split(training_key(source), self.steps)
        )
        change = clip((after.parameters - omega) / self.bound, 1.0)
        here = jnp.asarray(own) & jnp.any(seen.mask)
        return {"change": jnp.where(here, design.mechanism.on_grid(change), 0)}, memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        told = self.mean_change(state.design, ask, replies, source)
        omega = state.omega + self.server_rate * self.bound * told
        key = jax.random.fold_in(state.coin, state.round)
        generator = _generations(self, state.design.gan, state.generator, omega, key)
        average = update_ema(state.average, generator.parameters, state.round, self.average)
        return dataclasses.replace(state, round=state.round + 1, omega=omega, generator=generator, average=average)

    def finish(self, state: State, population: Population, key: Array) -> Synthesizer:
        return generator_of(
            state.design.gan.maker, state.average if self.average else state.generator.parameters, population
        )

    def guarantee(self, population: Population) -> Guarantee:
        how = "the generator is trained at the server against the noised critic: post-processing"
        return self.claim(population, "critic", how)

    def traffic(self, population: Population) -> tuple[float, float]:
        gan = self.gan(population)
        return NUMBER * (gan.critic_size + gan.generator_size), NUMBER * gan.critic_size


@functools.partial(jax.jit, static_argnums=(0, 1))
def _generations(protocol: FedAvgGan, gan: Gan, generator: TrainState, omega: Array, key: Array) -> TrainState:
    even = jnp.full(max(1, gan.maker.classes), 1.0 / max(1, gan.maker.classes))
    for one in jax.random.split(key, protocol.generations):
        generator = generator_step(gan, generator, omega, even, protocol.batch, one, protocol.rate)
    return generator


@functools.lru_cache(maxsize=64)
def design_of(protocol: FedAvgGan, population: Population) -> Design:
    gan = protocol.gan(population)
    return Design(gan=gan, **protocol.calibrated(population, gan.critic_size))
