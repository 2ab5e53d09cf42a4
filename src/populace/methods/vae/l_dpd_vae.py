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
    Population,
    Replies,
    Shard,
    check_counts,
    check_not_negative,
    check_shares,
    check_sizes,
)
from populace.methods.blocks.composed import Composition, RememberingLearner, Wording
from populace.methods.blocks.dp_sgd import (
    Examples,
    StepsRelease,
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
from populace.privacy.accounting import resolved_delta
from populace.privacy.events import NonPrivate
from populace.privacy.gaussian import quantile_step
from populace.privacy.guarantee import check_epsilon
from populace.privacy.noised_steps import AT_A_SILO, NoisedSteps, noised_steps
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


HOW_ENCODED = {
    "sleep": "the encoder is trained on the decoder's own samples: post-processing",
    "frozen": "the encoder is never trained on records: public and random, or fitted to samples of an earlier release",
    "joint": "the encoder's slopes are clipped and noised with the decoder's; it stays at the client",
    "paper": REASON,
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerVae:
    """The server's decoder with optimizer and moving average, the public encoder, the law of its codes, and a coin for them."""

    coin: Array
    encoder: TrainState
    law: CodeLaw
    theta: Array
    optimizer_state: optax.OptState
    average: Array
    clip_norm: Array


@dataclasses.dataclass(frozen=True)
class LDpdVaeLearner(RememberingLearner):
    """Noised steps of the decoder at each client; the server averages what they change. Sums are in units of the clipping norm,
    so that it may change."""

    settings: LDpdVae
    population: Population
    vae: Vae
    schedule: Passes
    release: StepsRelease

    @property
    def steps(self) -> NoisedSteps:
        return self.release.steps

    @property
    def training(self) -> NoisedTraining:
        """The noised steps of one client."""
        settings = self.settings
        return NoisedTraining(
            vae=self.vae, release=self.steps, encoder=settings.encoder, batch_size=settings.batch_size,
            optimizer=settings.local_optimizer, learning_rate=settings.local_learning_rate,
            encoder_learning_rate=settings.encoder_learning_rate,
        )  # fmt: skip

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """The server's."""
        return server_optimizer(
            self.settings.server_optimizer, learning_rate=self.settings.server_learning_rate,
            momentum=self.settings.momentum, rounds=self.schedule.exchanges,
        )  # fmt: skip

    def split(self, key: Array) -> tuple[Array, Array]:
        return key, jax.random.split(key, 4)[2]

    def begin(self, key: Array, warm: Synthesizer | None = None) -> ServerVae:
        start, coin, _, sleep = jax.random.split(key, 4)
        phi, theta, samples = self.settings.starts(self.vae, start, warm)
        law = make_standard_law(self.vae.classes, self.vae.latent)
        if samples is not None:
            law = measure_codes(self.vae, phi, samples, sleep)
        encoder = start_training(phi, SLEEP_LEARNING_RATE)
        if self.settings.encoder == "sleep" and warm is None:
            encoder = train_on_own_samples(self.vae, encoder, theta, law, sleep, steps=20 * self.settings.sleep_steps)
        return ServerVae(
            coin=coin, encoder=encoder, law=law, theta=theta, optimizer_state=self.optimizer.init(theta), average=theta,
            clip_norm=jnp.float32(self.settings.clip_norm),
        )  # fmt: skip

    def question(self, state: ServerVae, number: Array) -> dict[str, Array]:
        return {"phi": state.encoder.parameters, "theta": state.theta, "clip_norm": state.clip_norm}

    def remember(self) -> ArrayTree:
        if self.settings.encoder not in ("joint", "paper"):
            return ()
        return blank_encoder(self.vae, self.settings.encoder_learning_rate)

    def answer_and_keep(
        self, question: ArrayTree, own: ArrayTree, shard: Shard, memory: ArrayTree, source: Source
    ) -> tuple[ArrayTree, ArrayTree]:
        steps = (self.settings.local_steps,)
        examples = Examples(*self.vae.read(shard.records), jnp.asarray(shard.mask))
        batches, noises, counts, codes = source.split(4)
        drawn, noise = draw_batches(self.steps, batches=batches, noises=noises, mask=examples.mask, steps=steps)
        shape = (*steps, len(examples.mask), self.settings.codes_per_example, self.vae.latent)
        draws = {"drawn": drawn, "noise": noise, "codes": jnp.asarray(codes.normal(shape))}
        if self.steps.count is not None:
            draws["count"] = jnp.asarray(self.steps.count.noise(counts, (*steps, 1)))
        encoder = encoder_of(memory, question["phi"], self.settings.encoder_learning_rate)
        encoder, change, short = self.training.steps(encoder, question["theta"], question["clip_norm"], examples, draws)
        if isinstance(memory, ClientEncoder):
            memory = ClientEncoder(begun=jnp.asarray(True), train_state=encoder)
        return {"change": change, "below": short}, memory

    def absorb(self, state: ServerVae, ask: Ask, replies: Replies, source: Source) -> ServerVae:
        settings, present = self.settings, replies.present
        heard = jnp.maximum(jnp.sum(present), 1)
        change = jnp.sum(jnp.where(present[:, None], replies.values["change"], 0), axis=0) / heard
        step, optimizer_state = self.optimizer.update(-change, state.optimizer_state)
        theta = state.theta + step
        encoder, clip_norm = state.encoder, state.clip_norm
        if settings.encoder == "sleep":
            coin = jax.random.fold_in(state.coin, ask.round)
            encoder = train_on_own_samples(self.vae, encoder, theta, state.law, coin, steps=settings.sleep_steps)
        if self.steps.count is not None:
            short = jnp.sum(jnp.where(present, replies.values["below"], 0.0)) / heard
            fraction = 0.5 + short / (settings.local_steps * settings.batch_size)
            clip_norm = quantile_step(clip_norm, fraction, settings.clip_quantile, QUANTILE_RATE)
        return dataclasses.replace(
            state, theta=theta, optimizer_state=optimizer_state, encoder=encoder, clip_norm=clip_norm,
            average=update_ema(state.average, theta, ask.round, settings.ema_decay),
        )  # fmt: skip

    def finish(self, state: ServerVae, key: Array) -> VaeGenerator:
        theta = state.average if self.settings.ema_decay else state.theta
        return generator_of(self.vae, theta, self.population, None if state.law.is_standard else state.law)

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        decoder = self.vae.decoder_size
        return NUMBER * (self.vae.encoder_size + decoder + 1), NUMBER * (decoder + 1)

    def notes(self) -> tuple[str, ...]:
        steps, mechanism = self.steps, self.steps.mechanism
        noise = mechanism.scale * math.sqrt(mechanism.size / self.schedule.cohort_size) / self.settings.batch_size
        return (
            f"noise multiplier {steps.noise_multiplier:.3g} at sampling rate {steps.probability:.3g}; "
            f"noise on the mean gradient of a round is {noise:.2g} clipping norms in all {mechanism.size:,} parameters",
            NO_ERROR,
        )


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
        rows = examples_at_once(population.records, self._probability(population))
        numbers = len(ask.cohort) * rows * self._noised_size(self.vae(population))
        return self.net == "basis" and numbers <= MOST_GRADIENTS_AT_ONCE

    def _probability(self, population: Population) -> float:
        """With which a record is in a batch."""
        return min(1.0, self.batch_size / population.records)

    def _noised_size(self, vae: Vae) -> int:
        """How many parameters' gradients are clipped and noised together."""
        return vae.decoder_size + (vae.encoder_size if self.encoder == "joint" else 0)

    def compose(self, population: Population) -> Composition:
        vae, clients, each = self.vae(population), population.clients, self.local_steps
        delta, chosen_delta = resolved_delta(self.delta, clients * population.records)
        steps = noised_steps(
            epsilon=self.epsilon, delta=delta, probability=self._probability(population),
            wanted=self.participations * each, each=each, noise=self.noise_multiplier, size=self._noised_size(vae),
            counting=self.batch_size / COUNT_NOISE if self.clip_quantile else 0.0,
        )  # fmt: skip
        replies, reason = steps.steps // each, REASON if self.encoder == "paper" else ""
        reply = NonPrivate(reason) if reason else steps.event(each)
        wording = Wording(
            mechanism=f"DP-SGD at the client, {replies} times {each} noised steps",
            derivation=(
                f"each reply: {reply}; {steps.mechanism.size:,} numbers clipped together for each record",
                f"composed over {replies} replies by privacy loss distributions, for the client asked most often",
                HOW_ENCODED[self.encoder],
                "batches are Poisson at a public rate, sums are divided by the batch expected, rounding is in the sensitivity",
            ),
            assumptions=(PUBLIC, *AT_A_SILO, *chosen_delta),
            reason=reason,
        )  # fmt: skip
        release = StepsRelease(
            unit="record", trust="silo", delta=delta, wording=wording, steps=steps, reply=reply,
            run=reply if reason else steps.whole, most_replies=replies,
        )  # fmt: skip
        schedule = Passes(clients=clients, cohort_size=min(self.cohort_size or clients, clients), passes=replies)
        return Composition(schedule, release, LDpdVaeLearner(self, population, vae, schedule, release))
