"""`l-dpd-vae`: a conditional VAE whose decoder is trained by DP-SGD at every client (L-DPD-fVAE), with a claim that holds.

Pfitzner and Arnrich 2022, algorithm 2. A client draws a Poisson batch, clips each record's gradient by the decoder, adds
Gaussian noise to the sum, and steps; the server averages the changes. As published the encoder is trained on the same records
without noise and kept: then one record, through the encoder, changes every other record's gradient, and the sum by more than
the clipping norm. `encoder` says how its codes are made instead:

`sleep`    trained by the server on the decoder's own samples: post-processing of what was released
`frozen`   never trained on records: public and random, or fitted to samples of the release it begins from
`joint`    trained at the client, its gradients clipped and noised together with the decoder's; it still stays at home
`paper`    as published; epsilon is inf
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import optax

from populace.methods.base import (
    NO_ERROR,
    NUMBER,
    Ask,
    Facts,
    Plan,
    Population,
    Replies,
    Shard,
    check_counts,
    check_not_negative,
    check_shares,
    check_sizes,
)
from populace.methods.blocks.dp_sgd import (
    Examples,
    TrainState,
    draw_batches,
    examples_at_once,
    start_training,
    update_ema,
)
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.schedules import Passes
from populace.methods.blocks.vae_generator import CodeLaw, VaeGenerator, generator_of, make_standard_law
from populace.methods.blocks.vae_networks import Net, Vae
from populace.methods.vae.training import (
    NETWORK_MEANINGS,
    SLEEP_LEARNING_RATE,
    SMALL_NETWORK,
    ClientEncoder,
    EncoderTraining,
    NoisedTraining,
    VaeMethod,
    blank_encoder,
    encoder_of,
    measure_codes,
    server_optimizer,
    train_on_own_samples,
)
from populace.privacy.accounting import epsilon_of, resolved_delta
from populace.privacy.events import Event, NonPrivate
from populace.privacy.gaussian import GaussianSum, quantile_step
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.noised_steps import AT_A_SILO, NoisedSteps, noised_steps, sampled_delta
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.source import Source
from populace.types import Array, ArrayTree

REASON = (
    "the published encoder is trained on the records without noise and stays: one record changes every other record's slope, "
    "so that the clipped sum can change by more than the bound"
)
PUBLIC = "the number of clients, who takes part, and the most records one holds are public"
COUNT_NOISE = 4.0  # the noise of the count of short gradients: a quarter of the batch expected at one client
QUANTILE_RATE = 0.2
MOST_GRADIENTS_AT_ONCE = 2**28  # numbers


@dataclasses.dataclass(frozen=True)
class Design:
    """What both sides derive from public facts. Sums are in units of the clipping norm, so that it may change."""

    vae: Vae
    delta: float
    said: tuple[str, ...]
    release: NoisedSteps
    schedule: Passes
    reply: Event
    whole: Event

    @property
    def mechanism(self) -> GaussianSum:
        return self.release.mechanism

    @property
    def count(self) -> GaussianSum | None:
        return self.release.count


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """The server's decoder with optimizer and moving average, the public encoder and its code law, and the order of clients."""

    round: Array
    coin: Array
    order: Array
    encoder: TrainState
    law: CodeLaw
    theta: Array
    optimizer_state: optax.OptState
    average: Array
    clip_norm: Array
    design: Design = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class LDpdVae(VaeMethod):
    """Guarantee: (epsilon, delta)-DP for one record zeroed out, against everybody, the server included: the noise is added at
    the client. A client answers `participations` times, `local_steps` noised steps each, and its ledger refuses one more. With
    `encoder="paper"` nothing is guaranteed.

    Edge cases: a client with fewer records draws fewer. With a noise multiplier given, only as many participations take place
    as the budget allows. Begun from another method's generator (`chain`), the network is fitted to its samples and codes are
    drawn from where those of the samples lie: post-processing. A `clip_quantile` is paid by a noisy count.
    """

    epsilon: float
    delta: float = 0.0
    encoder: EncoderTraining = "sleep"
    participations: int = 300
    cohort_size: int = 0
    local_steps: int = 1
    batch_size: int = 20
    clip_norm: float = 1e-3
    noise_multiplier: float = 0.0
    clip_quantile: float = 0.0
    local_optimizer: Literal["sgd", "adam"] = "sgd"
    local_learning_rate: float = 1.0
    encoder_learning_rate: float = 1e-3
    server_optimizer: Literal["adam", "sgd"] = "adam"
    server_learning_rate: float = 0.02
    momentum: float = 0.9
    sleep_steps: int = 8
    codes_per_example: int = 2
    fitting_steps: int = 8_000
    ema_decay: float = 0.99
    net: Net = "basis"
    hidden_size: int = 8
    latent_size: int = 4
    basis_size: int = 8
    beta: float = 0.01

    renamed: ClassVar[Mapping[str, str]] = {
        "cohort": "cohort_size", "steps": "local_steps", "batch": "batch_size", "bound": "clip_norm",
        "noise": "noise_multiplier", "quantile": "clip_quantile", "local": "local_optimizer", "asleep": "sleep_steps",
        "local_rate": "local_learning_rate", "encoder_rate": "encoder_learning_rate", "server": "server_optimizer",
        "rate": "server_learning_rate", "codes": "codes_per_example", "fitting": "fitting_steps",
        "average": "ema_decay", "width": "hidden_size", "latent": "latent_size", "waves": "basis_size",
    }  # fmt: skip
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The privacy budget of one record.",
        "delta": "The probability with which epsilon may fail; 0: from the number of records, by a public rule.",
        "encoder": "How the encoder is trained: on the decoder's samples, not at all, with noise, or without (not private).",
        "participations": "How often each client takes part, unless the budget ends before.",
        "cohort_size": "How many clients a round asks; 0: all.",
        "local_steps": "The noised steps of one participation.",
        "batch_size": "The size expected of a Poisson batch.",
        "clip_norm": "The L2 norm to which each record's gradient is clipped.",
        "noise_multiplier": "The noise on a sum of gradients, in units of the clipping norm; 0: calibrated to the budget.",
        "clip_quantile": "The quantile of the gradients' norms that the clipping norm follows; 0: it stays as it is.",
        "local_optimizer": "The optimizer of the noised steps at a client.",
        "local_learning_rate": "The learning rate of the noised steps at a client.",
        "encoder_learning_rate": "The learning rate of an encoder that is trained at the client (joint, paper).",
        "server_optimizer": "Whether the server takes mean changes as gradients (adam), or adds them up with momentum (sgd).",
        "server_learning_rate": "The learning rate of the server's steps.",
        "momentum": "The momentum of the server's steps.",
        "sleep_steps": "The encoder's steps on the decoder's own samples, after each round (sleep).",
        "codes_per_example": "How many codes are drawn for each record; their gradients are averaged.",
        "fitting_steps": "Steps on the samples of the generator the method is begun from (in a chain).",
        "ema_decay": "The decay of the moving average of the parameters that is the result; 0: the last parameters are.",
        "basis_size": "The cosines in each direction, of which an image is a sum (basis); 0: the network's own.",
        **NETWORK_MEANINGS,
    }
    small: ClassVar[Mapping[str, object]] = {"participations": 2, "batch_size": 1, "sleep_steps": 1, **SMALL_NETWORK}
    facts: ClassVar[Facts] = Facts(
        name="l-dpd-vae",
        page="dpd-vae",
        line="VAE decoder by DP-SGD at the silos",
        title="conditional VAE whose decoder learns by DP-SGD at each client; record level (L-DPD-fVAE)",
        paper="Pfitzner and Arnrich, arXiv 2022; its encoder corrected",
        trust=("silo",),
        unit="record",
        kinds=("table", "images"),
        traffic="a model down and a noised decoder update up, per round taken part in",
    )
    compiles: ClassVar[bool] = True
    begins_warm: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        self.check_vae()
        check_counts(
            participations=self.participations, local_steps=self.local_steps, batch_size=self.batch_size,
            sleep_steps=self.sleep_steps, codes_per_example=self.codes_per_example, fitting_steps=self.fitting_steps,
        )  # fmt: skip
        check_sizes(
            clip_norm=self.clip_norm, local_learning_rate=self.local_learning_rate,
            encoder_learning_rate=self.encoder_learning_rate, server_learning_rate=self.server_learning_rate,
        )  # fmt: skip
        check_shares(
            momentum=self.momentum, ema_decay=self.ema_decay, clip_quantile=self.clip_quantile, delta=self.delta
        )
        check_not_negative(
            basis_size=self.basis_size, cohort_size=self.cohort_size, noise_multiplier=self.noise_multiplier
        )

    def together(self, ask: Ask, population: Population) -> bool:
        """Unless the gradients of every record of every client at once would not fit; those of convolutions never do."""
        release = self.design(population).release
        rows = examples_at_once(population.records, release.probability)
        return self.net == "basis" and len(ask.cohort) * rows * release.mechanism.size <= MOST_GRADIENTS_AT_ONCE

    def design(self, population: Population) -> Design:
        return design_of(self, population)

    def training(self, design: Design) -> NoisedTraining:
        """The noised steps of one client."""
        return NoisedTraining(
            vae=design.vae, release=design.release, encoder=self.encoder, batch_size=self.batch_size,
            optimizer=self.local_optimizer, learning_rate=self.local_learning_rate,
            encoder_learning_rate=self.encoder_learning_rate,
        )  # fmt: skip

    def round_count(self, population: Population) -> int:
        return self.design(population).schedule.exchanges

    def begin(self, population: Population, key: Array, warm: Synthesizer | None = None) -> State:
        design = self.design(population)
        start, coin, order, sleep = jax.random.split(key, 4)
        phi, theta, samples = self.starts(design.vae, start, warm)
        law = make_standard_law(design.vae.classes, design.vae.latent)
        if samples is not None:
            law = measure_codes(design.vae, phi, samples, sleep)
        encoder = start_training(phi, SLEEP_LEARNING_RATE)
        if self.encoder == "sleep" and warm is None:
            encoder = train_on_own_samples(design.vae, encoder, theta, law, sleep, steps=20 * self.sleep_steps)
        return State(
            round=jnp.int32(0), coin=coin, order=design.schedule.start(order), encoder=encoder, law=law, theta=theta,
            average=theta, optimizer_state=self._optimizer(self.round_count(population)).init(theta),
            clip_norm=jnp.float32(self.clip_norm), design=design,
        )  # fmt: skip

    def _optimizer(self, rounds: int) -> optax.GradientTransformation:
        return server_optimizer(
            self.server_optimizer, learning_rate=self.server_learning_rate, momentum=self.momentum, rounds=rounds
        )

    def cohorts(self, population: Population, state: State, first: int, count: int) -> Array:
        return state.order[first : first + count]

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        if not isinstance(state.round, jax.core.Tracer) and int(state.round) >= len(state.order):
            return None
        cohort = state.order[state.round]
        common = {"phi": state.encoder.parameters, "theta": state.theta, "clip_norm": state.clip_norm}
        return Ask(round=state.round, cohort=cohort, common=common, own=jnp.arange(len(cohort), dtype=jnp.int32))

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=self.design(population).reply, unit="record")

    def remember(self, population: Population, key: Array) -> ArrayTree:
        if self.encoder not in ("joint", "paper"):
            return ()
        return blank_encoder(self.vae(population), self.encoder_learning_rate)

    def answer(
        self, common: ArrayTree, own: Array, shard: Shard, memory: ArrayTree, source: Source
    ) -> tuple[ArrayTree, ArrayTree]:
        design, steps = self.design(shard.population), (self.local_steps,)
        examples = Examples(*design.vae.read(shard.records), jnp.asarray(shard.mask))
        batches, noises, counts, codes = source.split(4)
        drawn, noise = draw_batches(design.release, batches=batches, noises=noises, mask=examples.mask, steps=steps)
        shape = (*steps, len(examples.mask), self.codes_per_example, design.vae.latent)
        draws = {"drawn": drawn, "noise": noise, "codes": jnp.asarray(codes.normal(shape))}
        if design.count is not None:
            draws["count"] = jnp.asarray(design.count.noise(counts, (*steps, 1)))
        encoder = encoder_of(memory, common["phi"], self.encoder_learning_rate)
        training = self.training(design)
        encoder, change, short = training.steps(encoder, common["theta"], common["clip_norm"], examples, draws)
        if isinstance(memory, ClientEncoder):
            memory = ClientEncoder(begun=jnp.asarray(True), train_state=encoder)
        return {"change": change, "below": short}, memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        design, present = state.design, replies.present
        heard = jnp.maximum(jnp.sum(present), 1)
        change = jnp.sum(jnp.where(present[:, None], replies.values["change"], 0), axis=0) / heard
        step, optimizer_state = self._optimizer(len(state.order)).update(-change, state.optimizer_state)
        theta = state.theta + step
        encoder = state.encoder
        if self.encoder == "sleep":
            coin = jax.random.fold_in(state.coin, state.round)
            encoder = train_on_own_samples(design.vae, encoder, theta, state.law, coin, steps=self.sleep_steps)
        clip_norm = state.clip_norm
        if design.count is not None:
            short = jnp.sum(jnp.where(present, replies.values["below"], 0.0)) / heard
            fraction = 0.5 + short / (self.local_steps * self.batch_size)
            clip_norm = quantile_step(clip_norm, fraction, self.clip_quantile, QUANTILE_RATE)
        return dataclasses.replace(
            state, round=state.round + 1, theta=theta, optimizer_state=optimizer_state, encoder=encoder, clip_norm=clip_norm,
            average=update_ema(state.average, theta, state.round, self.ema_decay),
        )  # fmt: skip

    def finish(self, state: State, population: Population, key: Array) -> VaeGenerator:
        theta = state.average if self.ema_decay else state.theta
        return generator_of(state.design.vae, theta, population, None if state.law.is_standard else state.law)

    def guarantee(self, population: Population) -> Guarantee:
        design = self.design(population)
        valid = self.encoder != "paper"
        replies = design.schedule.passes
        epsilon = epsilon_of(design.whole, delta=design.delta)
        delta = sampled_delta(design.delta, epsilon, design.release.draws) if valid else 0.0
        how = {
            "sleep": "the encoder is trained on the decoder's own samples: post-processing",
            "frozen": "the encoder is never trained on records: public and random, or fitted to samples of an earlier release",
            "joint": "the encoder's slopes are clipped and noised with the decoder's; it stays at the client",
            "paper": REASON,
        }[self.encoder]
        return Guarantee(
            epsilon=epsilon if valid else math.inf,
            delta=delta,
            sampling_delta=delta - design.delta if valid else 0.0,
            unit="record",
            units=population.clients * population.records,
            neighbours="zero-out",
            trust="silo",
            mechanism=f"DP-SGD at the client, {replies} times {self.local_steps} noised steps",
            read_from_data=population.read_from_data,
            domain_sources=population.domain_sources,
            derivation=(
                f"each reply: {design.reply}; {design.mechanism.size:,} numbers clipped together for each record",
                f"composed over {replies} replies by privacy loss distributions, for the client asked most often",
                how,
                "batches are Poisson at a public rate, sums are divided by the batch expected, rounding is in the sensitivity",
            ),
            assumptions=(PUBLIC, *AT_A_SILO, *design.said),
            reason="" if valid else REASON,
        )

    def plan(self, population: Population) -> Plan:
        design = self.design(population)
        (down, up), mechanism = self._bytes(population), design.mechanism
        noise = mechanism.scale * math.sqrt(mechanism.size / design.schedule.cohort_size) / self.batch_size
        return Plan(
            guarantee=self.guarantee(population), rounds=design.schedule.rounds, bytes_up=up, bytes_down=down, errors={},
            notes=(
                f"noise multiplier {design.release.noise_multiplier:.3g} at sampling rate {design.release.probability:.3g}; "
                f"noise on the mean gradient of a round is {noise:.2g} clipping norms in all {mechanism.size:,} parameters",
                NO_ERROR,
            ),
        )  # fmt: skip

    def spends(self, population: Population) -> Event:
        return self.design(population).whole

    def calibrated_noise(self, population: Population) -> float:
        return self.design(population).release.noise_multiplier

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return self._bytes(population)

    def _bytes(self, population: Population) -> tuple[float, float]:
        vae = self.design(population).vae
        return NUMBER * (vae.encoder_size + vae.decoder_size + 1), NUMBER * (vae.decoder_size + 1)


@functools.lru_cache(maxsize=64)
def design_of(protocol: LDpdVae, population: Population) -> Design:
    vae, steps, clients = protocol.vae(population), protocol.local_steps, population.clients
    delta, said = resolved_delta(protocol.delta, clients * population.records)
    release = noised_steps(
        epsilon=protocol.epsilon, delta=delta, probability=min(1.0, protocol.batch_size / population.records),
        wanted=protocol.participations * steps, each=steps, noise=protocol.noise_multiplier,
        size=vae.decoder_size + (vae.encoder_size if protocol.encoder == "joint" else 0),
        counting=protocol.batch_size / COUNT_NOISE if protocol.clip_quantile else 0.0,
    )  # fmt: skip
    cohort_size = min(protocol.cohort_size or clients, clients)
    valid = protocol.encoder != "paper"
    return Design(
        vae=vae, delta=delta, said=said, release=release,
        schedule=Passes(clients=clients, cohort_size=cohort_size, passes=release.steps // steps),
        reply=release.event(steps) if valid else NonPrivate(REASON),
        whole=release.event(release.steps) if valid else NonPrivate(REASON),
    )  # fmt: skip
