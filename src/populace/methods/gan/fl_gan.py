"""`fl-gan` and `ufl-gan`: a GAN that travels from silo to silo and learns by DP-SGD at each (private FL-GAN, and universal).

Xin et al. 2021, algorithms 1 and 2, with a guarantee that holds: the whole gradient of each record's loss is clipped in L2,
noise is added to the sum over a Poisson batch, and the batch expected is the denominator. The generator never sees a record.
What travels, critic and generator, is covered. The universal form adds two things against forgetting:

replay   part of each critic step is taken on samples of the generator received: clipped alike, not noised, not counted
EWC      a pull towards the critic received, by its Fisher information, which is released with noise; added after the noise
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from populace.errors import SpecError
from populace.methods.base import (
    NO_ERROR,
    NUMBER,
    Ask,
    Facts,
    Population,
    Replies,
    Shard,
    check_counts,
    check_not_negative,
    check_sizes,
)
from populace.methods.blocks.composed import ComposedMethod, Composition, Learner, Wording
from populace.methods.blocks.dp_sgd import StepsRelease, training_key
from populace.methods.blocks.gan_training import GanNetworks, GanTraining, Visit, VisitDesign
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.schedules import Relay
from populace.methods.blocks.vae_generator import generator_of
from populace.privacy.accounting import resolved_delta
from populace.privacy.events import Event, NonPrivate
from populace.privacy.gaussian import GaussianSum, gaussian_epsilon
from populace.privacy.guarantee import check_epsilon
from populace.privacy.noised_steps import AT_A_SILO, NoisedSteps, noised_steps
from populace.privacy.source import Source
from populace.types import Array, ArrayTree

MOST_VISITS = 1_000


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TravellingGan:
    """The model that travels, how many silos it has visited, and what was released on the way.

    `average` is the moving average of the generator; `history` is that average after each visit, where it is kept.
    """

    visited: Array
    omega: Array
    theta: Array
    average: Array
    fisher: Array
    counts: Array
    history: Array
    design: VisitDesign = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class FlGanLearner(Learner):
    """The model is sent to the next silo, trained there, and replaced by what comes back."""

    training: GanTraining
    population: Population
    design: VisitDesign
    keep_history: bool

    def begin(self, key: Array, warm: Synthesizer | None = None) -> TravellingGan:
        del warm
        omega, theta = self.design.gan.start(key)
        return TravellingGan(
            visited=jnp.int32(0), omega=omega, theta=theta, average=theta,
            fisher=jnp.zeros(self.design.fisher.size if self.design.fisher else 0),
            counts=jnp.zeros(self.design.gan.generator.classes if self.design.labels else 0),
            history=jnp.zeros((self.population.clients if self.keep_history else 0, len(theta))), design=self.design,
        )  # fmt: skip

    def question(self, state: TravellingGan, number: Array) -> dict[str, Array]:
        names = ("visited", "omega", "theta", "average", "fisher", "counts")
        return {name: getattr(state, name) for name in names}

    def answer(self, question: dict[str, Array], own: Array, shard: Shard, source: Source) -> dict[str, Array]:
        design = self.design
        labels, steps, fisher, coins = source.split(4)
        examples = design.gan.read(shard.records, shard.mask)
        counts: Array = jnp.zeros(0)
        if design.labels is not None:
            held = jnp.sum(design.labels.on_grid(examples.y) * examples.mask[:, None], axis=0)
            counts = design.labels.release(held, design.labels.noise(labels))
        visit = Visit(self.training, design, question, examples, jnp.maximum(counts, 0), training_key(coins))
        critic, generator, mean = visit.train(steps)
        information: Array = jnp.zeros(0)
        if design.fisher is not None:
            information = visit.fisher_information(critic.parameters, mean, fisher)
        return {
            "omega": critic.parameters, "theta": generator.parameters, "average": mean, "counts": counts,
            "fisher": information,
        }  # fmt: skip

    def absorb(self, state: TravellingGan, ask: Ask, replies: Replies, source: Source) -> TravellingGan:
        here = jnp.any(replies.present)
        reply = jax.tree.map(lambda rows: rows[jnp.argmax(replies.present)], replies.values)
        counts = state.counts + jnp.where(here, jnp.maximum(reply.pop("counts"), 0), 0)
        after: ArrayTree = {name: jnp.where(here, value, getattr(state, name)) for name, value in reply.items()}
        history = jnp.asarray(state.history)
        if self.keep_history:
            history = history.at[ask.round].set(after["average"])
        return dataclasses.replace(state, visited=state.visited + here, counts=counts, history=history, **after)

    def finish(self, state: TravellingGan, key: Array) -> Synthesizer:
        theta = state.average if self.training.ema_decay else state.theta
        return generator_of(self.design.gan.generator, theta, self.population)

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        gan, fisher = self.design.gan, self.design.fisher
        numbers = gan.critic_size + 2 * gan.generator_size
        numbers += gan.generator.classes if self.design.labels else 0
        numbers += fisher.size if fisher else 0
        return NUMBER * (numbers + 1), NUMBER * numbers

    def notes(self) -> tuple[str, ...]:
        steps, critic_steps = self.design.steps, self.training.critic_steps
        noise = steps.mechanism.scale * math.sqrt(steps.mechanism.size) / self.training.batch_size
        return (
            f"{steps.steps // critic_steps:,} steps of the generator, {critic_steps} of the critic for each",
            f"noise multiplier {steps.noise_multiplier:.3g} at sampling rate {steps.probability:.3g}; noise on the mean "
            f"gradient is {noise:.2g} clipping norms long in all {steps.mechanism.size:,} parameters",
            NO_ERROR,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlGan(GanTraining, ComposedMethod, GanNetworks):
    """Guarantee: (epsilon, delta)-DP for one record zeroed out, against everybody, the server and the next silos
    included: noise is added at the silo. Each silo is visited once and charged once; what holds for the worst holds for all.
    With `recipe` paper or open nothing is guaranteed.

    Edge cases: `batch_size` is what is expected of a Poisson batch at the silo with the most records. `noise_multiplier` 0 is
    calibrated to `generator_steps`; with one given, as many steps take place as the budget allows, at most `generator_steps`.
    Label counts and Fisher information are released once each, only where they are used. A silo that does not answer is asked
    again, and a federation waits for it until it is passed over (`populace federation skip`): the next silo then goes on
    from the model as it was. A simulation in which it is absent passes it over too.
    """

    generator_steps: int = 1_000
    noise_multiplier: float = 0.0
    side_noise_multiplier: float = 10.0
    conditional: bool = True
    keep_history: bool = False

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
    renamed: ClassVar[Mapping[str, str]] = {
        **GanNetworks.renamed, "iterations": "generator_steps", "critics": "critic_steps", "batch": "batch_size",
        "noise": "noise_multiplier", "bound": "clip_norm", "beside": "side_noise_multiplier",
        "critic_rate": "critic_learning_rate", "rate": "learning_rate", "later": "later_pace", "average": "ema_decay",
        "trail": "keep_history", "replay": "replay_weight", "ewc": "ewc_weight",
    }  # fmt: skip
    small: ClassVar[Mapping[str, object]] = {
        "generator_steps": 1, "critic_steps": 2, "batch_size": 1, "hidden_size": 4, "critic_hidden_size": 3, "latent_size": 2,
        "basis_size": 3,
    }  # fmt: skip
    meanings: ClassVar[Mapping[str, str]] = {
        **GanNetworks.meanings,
        "epsilon": "privacy loss of one record over the whole run",
        "recipe": "valid: DP-SGD; paper: clipping as published, no guarantee; open: no clipping, no noise, no guarantee",
        "generator_steps": "steps of the generator at each silo",
        "critic_steps": "steps of the critic for each step of the generator",
        "batch_size": "records expected in a Poisson batch at the silo with the most records",
        "clip_norm": "L2 norm that the gradient of each record is clipped to",
        "noise_multiplier": "noise of the gradients in units of the clipping norm; 0 calibrates it to epsilon",
        "side_noise_multiplier": "noise of the label counts and of the Fisher information",
        "critic_learning_rate": "learning rate of the critic (Adam)",
        "learning_rate": "learning rate of the generator (Adam)",
        "later_pace": "share of a step that is taken at every silo but the first",
        "ema_decay": "decay of the moving average of the generator; 0 takes the last generator",
        "replay_weight": "how many times a record seen before counts as one seen now; 0 replays nothing",
        "ewc_weight": "strength of the pull towards the critic received (elastic weight consolidation)",
        "conditional": "whether both networks are given the labels of images",
        "keep_history": "whether the generator after each visit is kept in the state",
    }
    vectorises: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        self.check_networks()
        self.check_training()
        check_counts(generator_steps=self.generator_steps)
        check_sizes(side_noise_multiplier=self.side_noise_multiplier)
        check_not_negative(noise_multiplier=self.noise_multiplier)

    def compose(self, population: Population) -> Composition:
        delta, chosen_delta = resolved_delta(self.delta, population.clients * population.records)
        design = self.design(population)
        reason = ""
        if self.recipe == "open":
            reason = "nothing is clipped and no noise is added"
        elif self.recipe == "paper":
            reason = cost_as_published(design.steps, self.batch_size, delta)
        visit = design.steps.whole if self.recipe == "valid" else NonPrivate(reason)
        release = StepsRelease(
            unit="record", trust="not-private" if self.recipe == "open" else "silo", delta=delta, steps=design.steps,
            reply=visit, wording=self._wording(design, visit, reason, chosen_delta),
        )  # fmt: skip
        return Composition(
            Relay(clients=population.clients), release, FlGanLearner(self, population, design, self.keep_history)
        )

    def design(self, population: Population) -> VisitDesign:
        """The networks and the noise of one visit."""
        if population.clients > MOST_VISITS:
            raise SpecError(
                f"a model would travel through {population.clients:,} clients one after the other; this method is for at most "
                f"{MOST_VISITS:,} silos of many records (--records-per-client or --client-column)"
            )
        gan = self.gan(population, conditional=self.conditional)
        labels = fisher = None
        if self.replay_weight and population.kind == "images" and self.conditional:
            labels = GaussianSum(bound=1.0, noise_multiplier=self.side_noise_multiplier, size=gan.generator.classes)
        if self.ewc_weight:
            groups = int(gan.groups().max()) + 1
            fisher = GaussianSum(bound=1.0, noise_multiplier=self.side_noise_multiplier, size=groups)
        beside = tuple(sums for sums in (labels, fisher) if sums is not None)
        most = min((sums.capacity for sums in beside), default=population.records)
        if population.records > most:
            raise SpecError(
                f"sums over {population.records:,} records of one silo do not fit into 32 bits; at most {most:,} do"
            )
        steps = noised_steps(
            epsilon=self.epsilon, delta=resolved_delta(self.delta, population.clients * population.records)[0],
            probability=min(1.0, self.batch_size / population.records), wanted=self.generator_steps * self.critic_steps,
            each=self.critic_steps, noise=self.noise_multiplier, size=gan.critic_size, beside=beside,
        )  # fmt: skip
        return VisitDesign(gan, steps, labels, fisher)

    def _wording(self, design: VisitDesign, visit: Event, reason: str, chosen_delta: tuple[str, ...]) -> Wording:
        sums = (("label counts", design.labels), ("Fisher information", design.fisher))
        beside = " and ".join(name for name, mechanism in sums if mechanism)
        return Wording(
            mechanism="none that holds" if reason else f"DP-SGD of a critic at the silo, {design.steps.steps:,} noised steps",
            derivation=() if reason else (
                f"one visit: {visit}; {design.steps.mechanism.size:,} numbers clipped together for each record",
                *([f"{beside}: released once, with noise of their own, in the same ledger"] if beside else []),
                "each silo is visited once; the claim is that of the worst, which is that of all",
                "it covers critic and generator, both of which the server and the next silos see",
                "generator steps, replay and the pull of EWC use what was released before: post-processing",
                "batches are Poisson at a public rate, rounding is in the sensitivity",
            ),
            assumptions=(
                "the number of silos, their order, and the most records one holds are public",
                *AT_A_SILO,
                *chosen_delta,
            ),
            reason=reason,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class UflGan(FlGan):
    """`fl-gan` with replay and EWC, for silos whose records are not alike.

    Guarantee: that of `fl-gan`; replayed samples and the pull towards the critic received are post-processing.
    """

    replay_weight: float = 1.0
    ewc_weight: float = 50.0

    facts: ClassVar[Facts] = Facts(
        name="ufl-gan",
        page="fl-gan",
        line="fl-gan for silos that differ",
        title="fl-gan for silos that are not alike: samples are replayed and the critic is held back (universal FL-GAN)",
        paper="Xin et al., Neurocomputing 2021; clipping, sampling and accounting corrected",
        trust=("silo",),
        unit="record",
        kinds=("table", "images"),
        traffic="critic and generator down and up, once per silo",
    )


def cost_as_published(steps: NoisedSteps, batch_size: int, delta: float) -> str:
    """What follows from the published arithmetic: coordinates clipped apart, noise on the mean, batches of a shuffled pass."""
    size, sigma = steps.mechanism.size, steps.noise_multiplier
    times = math.ceil(steps.steps * steps.probability)
    on_mean, on_sum = (
        gaussian_epsilon(factor * sigma / math.sqrt(size * times), delta) for factor in (batch_size, 1.0)
    )
    return (
        f"clipping each of {size:,} coordinates by itself bounds the slope by sqrt({size:,}) bounds, not by one, and batches "
        f"of shuffled records are not amplified by sampling: a record enters {times:,} of {steps.steps:,} steps, which "
        f"costs epsilon {on_mean:.3g} with the noise on the mean, {on_sum:.3g} with it on the sum"
    )
