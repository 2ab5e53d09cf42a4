"""`fedavg-gan`: a critic learns from clipped updates of all clients, noised at the server; the generator stays there.

Augenstein et al. 2020 (DP-FedAvg-GAN), the baseline of Xin et al. 2021. Client level: what is protected is all that one client
holds, which with a handful of silos costs far more noise than a record does. The server is trusted to add it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError, out_of_range
from populace.models.gan import Gan
from populace.models.gan_training import BETAS, generator_step, slope_of_row
from populace.models.generator import Synthesizer
from populace.models.steps import Examples, Half, fresh, moved
from populace.privacy.accounting import epsilon_of, resolved_delta
from populace.privacy.events import Event
from populace.privacy.gaussian import GaussianSum, clip
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.noised_steps import NoisedSteps, noised_steps, sampled_delta
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.source import Source
from populace.protocols.base import Ask, Facts, Plan, Population, Replies, Shard
from populace.protocols.gan_rounds import NUMBER, GanRounds, Net, coin_of, generator_of

Array = Any


@dataclasses.dataclass(frozen=True)
class Design:
    """What both sides derive from public facts. Sums are in units of the bound."""

    gan: Gan
    delta: float
    said: tuple[str, ...]
    release: NoisedSteps

    @property
    def mechanism(self) -> GaussianSum:
        return self.release.mechanism

    @property
    def step(self) -> Event:
        return self.release.event(1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """The critic everybody gets, the generator with its optimiser, and its running mean."""

    round: Array
    coin: Array
    omega: Array
    generator: Half
    average: Array
    design: Design = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAvgGan(GanRounds):
    """Guarantee: (epsilon, delta)-DP for everything one client holds, add or remove one client, for whoever sees the model and
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
        title="a GAN whose critic learns from clipped updates, noised at the server; client level (DP-FedAvg-GAN)",
        paper="Augenstein et al., ICLR 2020; the baseline of Xin et al. 2021",
        trust=("central",),
        unit="client",
        kinds=("table", "images"),
        traffic="critic and generator down and a clipped critic update up, per round taken part in",
    )
    vectorises: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        self.check_gan()
        for name in ("turns", "steps", "batch", "generations"):
            if getattr(self, name) < 1:
                raise out_of_range(name, "at least 1", getattr(self, name))
        for name in ("bound", "critic_rate", "server_rate", "rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise out_of_range(name, "above 0", getattr(self, name))
        for name in ("average", "delta"):
            if not 0 <= getattr(self, name) < 1:
                raise out_of_range(name, "in [0, 1)", getattr(self, name))
        if not 0 < self.share <= 1:
            raise out_of_range("share", "in (0, 1]", self.share)
        if not 0 <= self.noise < math.inf:
            raise out_of_range("noise", "at least 0", self.noise)

    def design(self, population: Population) -> Design:
        return design_of(self, population)

    def rounds(self, population: Population) -> int:
        return self.design(population).release.steps

    def begin(self, population: Population, key: Array, warm: Any = None) -> State:
        del warm
        design = self.design(population)
        start, coin = jax.random.split(key)
        omega, theta = design.gan.start(start)
        return State(
            round=jnp.int32(0),
            coin=coin,
            omega=omega,
            generator=fresh(theta, self.rate, BETAS),
            average=theta,
            design=design,
        )

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        if int(state.round) >= state.design.release.steps:
            return None
        everybody = jnp.arange(population.clients, dtype=jnp.int32)
        drawn = jnp.asarray(source.coins(self.share, population.clients) if self.share < 1 else everybody >= 0)
        common = {"omega": state.omega, "theta": state.generator.values}
        return Ask(round=state.round, cohort=everybody, common=common, own=drawn)

    @property
    def secret_cohorts(self) -> bool:
        return self.share < 1

    def working(self, ask: Ask) -> Array:
        return ask.own

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=self.design(population).step, unit="client")

    def answer(self, common: Any, own: Any, shard: Shard, memory: Any, source: Source) -> tuple[Any, Any]:
        design = self.design(shard.population)
        seen = Examples(*design.gan.read(shard.records), jnp.asarray(shard.mask))
        omega, theta = common["omega"], common["theta"]
        there = jnp.where(seen.mask, 0.0, -jnp.inf).at[0].max(-1e30)  # never all impossible

        def step(critic: Half, key: Array) -> tuple[Half, None]:
            rows, codes = jax.random.split(key)
            slope_of = slope_of_row(design.gan, critic.values, theta, seen, codes)
            slopes = jax.vmap(slope_of)(jax.random.categorical(rows, there, shape=(self.batch,)))
            slope = design.gan.flat(jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), slopes))
            return moved(critic, slope, self.critic_rate, BETAS), None

        after, _ = jax.lax.scan(
            step, fresh(omega, self.critic_rate, BETAS), jax.random.split(coin_of(source), self.steps)
        )
        change = clip((after.values - omega) / self.bound, 1.0)
        here = jnp.asarray(own) & jnp.any(seen.mask)
        return {"change": jnp.where(here, design.mechanism.on_grid(change), 0)}, memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        design = state.design
        total = jnp.sum(jnp.where(replies.present[:, None], replies.values["change"], 0), axis=0, dtype=jnp.int32)
        told = design.mechanism.apply(total, source) / (self.share * len(ask.cohort))
        omega = state.omega + self.server_rate * self.bound * told
        key = jax.random.fold_in(state.coin, state.round)
        generator = _generations(self, design.gan, state.generator, omega, key)
        kept = jnp.minimum(self.average, (1 + state.round) / (10 + state.round))
        average = kept * state.average + (1 - kept) * generator.values
        return dataclasses.replace(state, round=state.round + 1, omega=omega, generator=generator, average=average)

    def finish(self, state: State, population: Population, key: Array) -> Synthesizer:
        return generator_of(state.design.gan, state.average if self.average else state.generator.values, population)

    def guarantee(self, population: Population) -> Guarantee:
        design = self.design(population)
        epsilon = epsilon_of(design.release.whole, delta=design.delta)
        return Guarantee(
            epsilon=epsilon,
            delta=sampled_delta(design.delta, epsilon, design.release.draws),
            unit="client",
            neighbours="add-remove",
            trust="central",
            mechanism=f"{design.release.steps} sums of clipped client updates with Gaussian noise (DP-FedAvg of a critic)",
            read_from_data=population.read_from_data,
            derivation=(
                f"each round: {design.step}; {design.mechanism.size:,} numbers clipped together",
                f"composed over {design.release.steps} rounds by privacy loss distributions; every client pays for every round",
                "the generator is trained at the server against the noised critic: post-processing",
                "the sum is divided by the expected number of clients, which is public; rounding is in the sensitivity",
            ),
            assumptions=(
                "the number of clients and the most records one holds are public",
                *(("whom a round draws is kept secret by the server",) if self.share < 1 else ()),
                "a person's records sit at one client",
                *design.said,
            ),
        )

    def plan(self, population: Population) -> Plan:
        design = self.design(population)
        down, up = self._bytes(population)
        noise = design.mechanism.scale * math.sqrt(design.mechanism.size) / (self.share * population.clients)
        return Plan(
            guarantee=self.guarantee(population), rounds=design.release.steps, bytes_up=up, bytes_down=down, errors={},
            notes=(
                f"noise multiplier {design.release.noise_multiplier:.3g}; noise on the mean update is {noise:.2g} bounds long "
                f"in all {design.mechanism.size:,} parameters",
                "no error is predicted: training has no closed form",
            ),
        )  # fmt: skip

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return self._bytes(population)

    def _bytes(self, population: Population) -> tuple[float, float]:
        gan = self.gan(population)
        return NUMBER * (gan.critic_size + gan.generator_size), NUMBER * gan.critic_size


@functools.partial(jax.jit, static_argnums=(0, 1))
def _generations(protocol: FedAvgGan, gan: Gan, generator: Half, omega: Array, key: Array) -> Half:
    even = jnp.full(max(1, gan.maker.classes), 1.0 / max(1, gan.maker.classes))
    for one in jax.random.split(key, protocol.generations):
        generator = generator_step(gan, generator, omega, even, protocol.batch, one, protocol.rate)
    return generator


@functools.lru_cache(maxsize=64)
def design_of(protocol: FedAvgGan, population: Population) -> Design:
    gan = protocol.gan(population)
    delta, said = resolved_delta(protocol.delta, population.clients)
    release = noised_steps(
        epsilon=protocol.epsilon, delta=delta, probability=protocol.share, wanted=protocol.turns, each=1,
        noise=protocol.noise, size=gan.critic_size,
    )  # fmt: skip
    if population.clients * 2 > np.iinfo(np.int32).max * release.mechanism.grid:
        raise SpecError(
            f"{population.clients:,} updates of {gan.critic_size:,} numbers do not add up in 32 bits; choose a smaller net"
        )
    return Design(gan=gan, delta=delta, said=said, release=release)
