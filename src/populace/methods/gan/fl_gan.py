"""`fl-gan` and `ufl-gan`: a GAN that travels from silo to silo and learns by DP-SGD at each (private FL-GAN, and universal).

Xin et al. 2021, algorithms 1 and 2, with a guarantee that holds: the whole slope of each record's loss is clipped in L2, noise
is added to the sum over a Poisson batch, and the batch expected is the denominator. The generator never sees a record. What
travels, critic and generator, is covered. The universal form adds two things against forgetting:

replay   part of each critic step is taken on samples of the generator received: clipped alike, not noised, not counted
ewc      a pull towards the critic received, by its Fisher information, which is released with noise; added after the noise

`recipe` valid is that; `paper` clips each coordinate and adds noise to the mean, as published, and reports inf; `open` leaves
the slopes of records as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from populace.errors import SpecError
from populace.methods.base import Ask, Facts, Plan, Population, Replies, Shard
from populace.methods.blocks.cohort_schedule import order_of_passes
from populace.methods.blocks.dp_sgd import Examples
from populace.methods.blocks.gan_rounds import GanRounds, Net
from populace.methods.blocks.gan_visit import Design, Manner, Recipe, Visit
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.training import (
    NO_ERROR,
    NUMBER,
    check_counts,
    check_not_negative,
    check_shares,
    check_sizes,
    generator_of,
    training_key,
)
from populace.privacy.accounting import epsilon_of, resolved_delta
from populace.privacy.events import Event, NonPrivate
from populace.privacy.gaussian import GaussianSum, gaussian_epsilon
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.noised_steps import AT_A_SILO, NoisedSteps, noised_steps, sampled_delta
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.source import Source
from populace.types import Array

MOST_VISITS = 1_000


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """The model that travels, how many it has visited, and what it was told on the way; `order` is public.

    `trail` is the generator after each visit, where it is kept.
    """

    round: Array
    visited: Array
    order: Array
    omega: Array
    theta: Array
    average: Array
    fisher: Array
    counts: Array
    trail: Array
    design: Design = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlGan(GanRounds):
    """Guarantee: (epsilon, delta)-DP for one record zeroed out, against everybody, the server and the next silos
    included: noise is added at the silo. Each silo is visited once and charged once; what holds for the worst holds for all.
    With `recipe` paper or open nothing is guaranteed.

    Edge cases: `batch` is what is expected of a Poisson batch at the silo with the most records. `noise` 0 is calibrated to
    `iterations` steps of the generator; with a noise multiplier given, as many take place as the budget allows, at most
    `iterations`. `beside` is the noise multiplier of label counts and Fisher information, which are released once each, and
    only where they are used. `replay` is how many times a record seen before counts as one seen now. `trail` keeps the
    generator after each visit. `later` is the pace of all silos but the first. A silo that does not answer is asked again, and
    a federation waits for it; a simulation in which it is absent passes it over.
    """

    epsilon: float
    delta: float = 0.0
    recipe: Recipe = "valid"
    iterations: int = 1_000
    critics: int = 5
    batch: int = 128
    noise: float = 0.0
    bound: float = 1.0
    replay: float = 0.0
    ewc: float = 0.0
    beside: float = 10.0
    critic_rate: float = 1e-3
    rate: float = 1e-3
    later: float = 1.0
    average: float = 0.99
    net: Net = "basis"
    width: int = 128
    critic_width: int = 64
    latent: int = 16
    waves: int = 10
    penalty: float = 10.0
    conditional: bool = True
    trail: bool = False

    facts: ClassVar[Facts] = Facts(
        name="fl-gan",
        line="GAN passed on from silo to silo",
        title="a GAN that travels from silo to silo and learns by DP-SGD at each; record level (private FL-GAN)",
        paper="Xin et al., Neurocomputing 2021; clipping, sampling and accounting corrected",
        trust=("silo",),
        unit="record",
        kinds=("table", "images"),
        traffic="critic and generator down and up, once per silo",
    )
    vectorises: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        self.check_gan()
        if self.recipe not in ("valid", "paper", "open"):
            raise SpecError(f"expected recipe in valid, paper, open, got {self.recipe!r}")
        check_counts(iterations=self.iterations, critics=self.critics, batch=self.batch)
        check_sizes(
            bound=self.bound, critic_rate=self.critic_rate, rate=self.rate, later=self.later, beside=self.beside
        )
        check_not_negative(noise=self.noise, replay=self.replay, ewc=self.ewc)
        check_shares(average=self.average, delta=self.delta)

    @property
    def manner(self) -> Manner:
        return Manner(
            recipe=self.recipe, critics=self.critics, batch=self.batch, bound=self.bound, critic_rate=self.critic_rate,
            rate=self.rate, average=self.average, later=self.later, replay=self.replay, ewc=self.ewc,
        )  # fmt: skip

    def design(self, population: Population) -> Design:
        return design_of(self, population)

    def round_count(self, population: Population) -> int:
        return population.clients

    def begin(self, population: Population, key: Array, warm: Any = None) -> State:
        del warm
        design = self.design(population)
        start, order = jax.random.split(key)
        omega, theta = design.gan.start(start)
        return State(
            round=jnp.int32(0), visited=jnp.int32(0), omega=omega, theta=theta, average=theta,
            order=order_of_passes(clients=population.clients, cohort=1, passes=1, key=order),
            fisher=jnp.zeros(design.fisher.size if design.fisher else 0),
            counts=jnp.zeros(design.gan.maker.classes if design.labels else 0),
            trail=jnp.zeros((population.clients if self.trail else 0, len(theta))), design=design,
        )  # fmt: skip

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        if int(state.round) >= len(state.order):
            return None
        names = ("visited", "omega", "theta", "average", "fisher", "counts")
        common = {name: getattr(state, name) for name in names}
        return Ask(round=state.round, cohort=state.order[state.round], common=common, own=jnp.zeros(1, jnp.int32))

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=self.design(population).visit, unit="record")

    def answer(self, common: Any, own: Any, shard: Shard, memory: Any, source: Source) -> tuple[Any, Any]:
        design = self.design(shard.population)
        labels, steps, fisher, coins = source.split(4)
        seen = Examples(*design.gan.read(shard.records), jnp.asarray(shard.mask))
        counts = jnp.zeros(0)
        if design.labels is not None:
            held = jnp.sum(design.labels.on_grid(seen.y) * seen.mask[:, None], axis=0)
            counts = design.labels.release(held, design.labels.noise(labels))
        visit = Visit(self.manner, design, common, seen, jnp.maximum(counts, 0), training_key(coins))
        critic, generator, average = visit.train(steps)
        found = {"omega": critic.parameters, "theta": generator.parameters, "average": average, "counts": counts}
        found["fisher"] = jnp.zeros(0) if design.fisher is None else visit.fisher(critic.parameters, average, fisher)
        return found, memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        here = jnp.any(replies.present)
        told = jax.tree.map(lambda rows: rows[jnp.argmax(replies.present)], replies.values)
        counts = state.counts + jnp.where(here, jnp.maximum(told.pop("counts"), 0), 0)
        new: dict[str, Any] = {name: jnp.where(here, value, getattr(state, name)) for name, value in told.items()}
        trail = state.trail.at[state.round].set(new["average"]) if self.trail else state.trail
        return dataclasses.replace(
            state, round=state.round + 1, visited=state.visited + here, counts=counts, trail=trail, **new
        )

    def finish(self, state: State, population: Population, key: Array) -> Synthesizer:
        return generator_of(state.design.gan.maker, state.average if self.average else state.theta, population)

    def guarantee(self, population: Population) -> Guarantee:
        design = self.design(population)
        valid = self.recipe == "valid"
        epsilon = epsilon_of(design.visit, delta=design.delta)
        delta = sampled_delta(design.delta, epsilon, design.release.draws) if valid else 0.0
        extra = [
            name for name, made in (("label counts", design.labels), ("Fisher information", design.fisher)) if made
        ]
        return Guarantee(
            epsilon=epsilon,
            delta=delta if valid else 0.0,
            sampling_delta=delta - design.delta if valid else 0.0,
            unit="record",
            units=population.clients * population.records,
            neighbours="zero-out",
            trust="not-private" if self.recipe == "open" else "silo",
            mechanism=f"DP-SGD of a critic at the silo, {design.release.steps:,} noised steps" if valid else "none that holds",
            read_from_data=population.read_from_data,
            domain_sources=population.domain_sources,
            derivation=(
                f"one visit: {design.visit}; {design.mechanism.size:,} numbers clipped together for each record",
                *([f"{' and '.join(extra)}: released once, with noise of their own, in the same ledger"] if extra else []),
                "each silo is visited once; the claim is that of the worst, which is that of all",
                "it covers critic and generator, both of which the server and the next silos see",
                "generator steps, replay and the pull of EWC use what was released before: post-processing",
                "batches are Poisson at a public rate, rounding is in the sensitivity",
            ) if valid else (),
            assumptions=(
                "the number of silos, their order, and the most records one holds are public",
                *AT_A_SILO,
                *design.said,
            ),
            reason=design.reason,
        )  # fmt: skip

    def spends(self, population: Population) -> Event:
        return self.design(population).visit

    def plan(self, population: Population) -> Plan:
        design = self.design(population)
        down, up = self._bytes(population)
        noise = design.mechanism.scale * math.sqrt(design.mechanism.size) / self.batch
        return Plan(
            guarantee=self.guarantee(population), rounds=population.clients, bytes_up=up, bytes_down=down, errors={},
            notes=(
                f"{design.release.steps // self.critics:,} steps of the generator, {self.critics} of the critic for each",
                f"noise multiplier {design.release.noise_multiplier:.3g} at sampling rate {design.release.probability:.3g}; "
                f"noise on the mean slope is {noise:.2g} bounds long in all {design.mechanism.size:,} parameters",
                NO_ERROR,
            ),
        )  # fmt: skip

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return self._bytes(population)

    def _bytes(self, population: Population) -> tuple[float, float]:
        design = self.design(population)
        numbers = design.gan.critic_size + 2 * design.gan.generator_size
        numbers += design.gan.maker.classes if design.labels else 0
        numbers += design.fisher.size if design.fisher else 0
        return NUMBER * (numbers + 1), NUMBER * numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class UflGan(FlGan):
    """`fl-gan` with replay and EWC, for silos whose records are not alike.

    Guarantee: that of `fl-gan`; replayed samples and the pull towards the critic received are post-processing.
    """

    replay: float = 1.0
    ewc: float = 50.0

    facts: ClassVar[Facts] = dataclasses.replace(
        FlGan.facts,
        name="ufl-gan",
        page="fl-gan",
        line="fl-gan for silos that differ",
        title="fl-gan for silos that are not alike: samples are replayed and the critic is held back (universal FL-GAN)",
    )


@functools.lru_cache(maxsize=64)
def design_of(protocol: FlGan, population: Population) -> Design:
    if population.clients > MOST_VISITS:
        raise SpecError(
            f"a model would travel through {population.clients:,} clients one after the other; this method is for at most "
            f"{MOST_VISITS:,} silos of many records (--records-per-client or --client-column)"
        )
    gan = protocol.gan(population)
    delta, said = resolved_delta(protocol.delta, population.clients * population.records)
    labels = fisher = None
    if protocol.replay and population.kind == "images" and protocol.conditional:
        labels = GaussianSum(bound=1.0, noise_multiplier=protocol.beside, size=gan.maker.classes)
    if protocol.ewc:
        fisher = GaussianSum(bound=1.0, noise_multiplier=protocol.beside, size=int(gan.groups().max()) + 1)
    beside = tuple(sums for sums in (labels, fisher) if sums is not None)
    most = min((sums.capacity for sums in beside), default=population.records)
    if population.records > most:
        raise SpecError(
            f"sums over {population.records:,} records of one silo do not fit into 32 bits; at most {most:,} do"
        )
    release = noised_steps(
        epsilon=protocol.epsilon, delta=delta, probability=min(1.0, protocol.batch / population.records),
        wanted=protocol.iterations * protocol.critics, each=protocol.critics, noise=protocol.noise, size=gan.critic_size,
        beside=beside,
    )  # fmt: skip
    reason = ""
    if protocol.recipe == "open":
        reason = "nothing is clipped and no noise is added"
    elif protocol.recipe == "paper":
        reason = as_published(release, protocol.batch, delta)
    visit = release.whole if protocol.recipe == "valid" else NonPrivate(reason)
    return Design(
        gan=gan, delta=delta, said=said, release=release, labels=labels, fisher=fisher, visit=visit, reason=reason
    )


def as_published(release: NoisedSteps, batch: int, delta: float) -> str:
    """What follows from the published arithmetic: coordinates clipped apart, noise on the mean, batches of a shuffled pass."""
    size, sigma = release.mechanism.size, release.noise_multiplier
    times = math.ceil(release.steps * release.probability)
    on_mean, on_sum = (gaussian_epsilon(factor * sigma / math.sqrt(size * times), delta) for factor in (batch, 1.0))
    return (
        f"clipping each of {size:,} coordinates by itself bounds the slope by sqrt({size:,}) bounds, not by one, and batches "
        f"of shuffled records are not amplified by sampling: a record enters {times:,} of {release.steps:,} steps, which "
        f"costs epsilon {on_mean:.3g} with the noise on the mean, {on_sum:.3g} with it on the sum"
    )
