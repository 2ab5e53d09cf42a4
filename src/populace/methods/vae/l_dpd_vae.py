"""`l-dpd-vae`: a conditional VAE whose decoder is trained by DP-SGD at every client (L-DPD-fVAE), with a claim that holds.

Pfitzner and Arnrich 2022, algorithm 2. A client draws a Poisson batch, clips each record's slope by the decoder, adds Gaussian
noise to the sum, and steps; the server averages the changes. As published the encoder is trained on the same records without
noise and kept: then one record, through the encoder, changes every other record's slope, and the sum by more than the bound.
`encoder` says how its codes are made instead:

`sleep`    trained by the server on the decoder's own samples: post-processing of what was released
`frozen`   never trained on records: public and random, or fitted to samples of the release it begins from
`joint`    trained at the client, its slopes clipped and noised together with the decoder's; it still stays at home
`paper`    as published; epsilon is inf
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax

from populace.errors import SpecError
from populace.methods.base import Ask, Facts, Plan, Population, Replies, Shard
from populace.methods.blocks.code_law import CodeLaw, make_standard_law
from populace.methods.blocks.cohort_schedule import order_of_passes, rounds_of_pass
from populace.methods.blocks.dp_sgd import (
    Examples,
    NoisedSum,
    TrainState,
    adam_step,
    draw_batches,
    examples_at_once,
    noised_sum,
    start_training,
    update_ema,
)
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.training import (
    NO_ERROR,
    NUMBER,
    check_counts,
    check_not_negative,
    check_shares,
    check_sizes,
    generator_of,
)
from populace.methods.blocks.vae_networks import Net, Vae
from populace.methods.vae.rounds import Encoders, VaeRounds, encoder_of
from populace.methods.vae.training import (
    mean_loss,
    measure_codes,
    packed_slope,
    server_optimiser,
    slope_of_both,
    slope_of_decoder,
    train_asleep,
)
from populace.privacy.accounting import epsilon_of, resolved_delta
from populace.privacy.events import Event, NonPrivate
from populace.privacy.gaussian import GaussianSum, quantile_step
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.noised_steps import AT_A_SILO, NoisedSteps, noised_steps, sampled_delta
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.source import Source
from populace.types import Array

REASON = (
    "the published encoder is trained on the records without noise and stays: one record changes every other record's slope, "
    "so that the clipped sum can change by more than the bound"
)
COUNT_SHARE = 4.0  # the noise of the count of short slopes: a quarter of the batch expected at one client
QUANTILE_RATE = 0.2
ASLEEP_RATE = 1e-3
MOST_SLOPES_AT_ONCE = 2**28  # numbers


@dataclasses.dataclass(frozen=True)
class Design:
    """What both sides derive from public facts. Sums are in units of the bound, so that it may change."""

    vae: Vae
    delta: float
    said: tuple[str, ...]
    release: NoisedSteps
    participations: int
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
    """The server's decoder with its optimiser and running mean, the public encoder and where its codes lie, the bound, and
    the order of clients."""

    round: Array
    coin: Array
    order: Array
    encoder: TrainState
    law: CodeLaw
    theta: Array
    optimiser: Any
    average: Array
    bound: Array
    design: Design = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class LDpdVae(VaeRounds):
    """Guarantee: (epsilon, delta)-DP for one record zeroed out, against everybody, the server included: the noise is
    added at the client. A client answers `participations` times, `steps` noised steps each, and its ledger refuses one more.
    With `encoder="paper"` nothing is guaranteed.

    Edge cases: `batch` is what is expected of a Poisson batch; the rate is that over the public number of records per client,
    so a client with fewer draws fewer. `noise` 0 is calibrated to the participations; with a noise multiplier given, only as
    many participations take place as the budget allows: clients drop out before the step that would overspend. `cohort` 0 asks
    everybody in every round. `server` adam takes the clients' changes as slopes; sgd adds them up with momentum, as published.
    `codes` are drawn for each record and their slopes averaged before clipping, which costs nothing. `fitting` steps
    adapt the network to the samples of a generator it is begun from (`chain`), and codes are then drawn from where those of the
    samples lie: post-processing. `quantile` above 0 moves the bound to that quantile of the lengths, paid by a noisy count.
    """

    epsilon: float
    delta: float = 0.0
    encoder: Literal["sleep", "frozen", "joint", "paper"] = "sleep"
    participations: int = 300
    cohort: int = 0
    steps: int = 1
    batch: int = 20
    bound: float = 1e-3
    noise: float = 0.0
    quantile: float = 0.0
    local: Literal["sgd", "adam"] = "sgd"
    local_rate: float = 1.0
    encoder_rate: float = 1e-3
    server: Literal["adam", "sgd"] = "adam"
    rate: float = 0.02
    momentum: float = 0.9
    asleep: int = 8
    codes: int = 2
    fitting: int = 8_000
    average: float = 0.99
    net: Net = "basis"
    width: int = 8
    latent: int = 4
    waves: int = 8
    beta: float = 0.01

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

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        self.check_vae()
        check_counts(
            participations=self.participations, steps=self.steps, batch=self.batch, asleep=self.asleep, codes=self.codes,
            fitting=self.fitting,
        )  # fmt: skip
        check_sizes(bound=self.bound, local_rate=self.local_rate, encoder_rate=self.encoder_rate, rate=self.rate)
        check_shares(momentum=self.momentum, average=self.average, quantile=self.quantile, delta=self.delta)
        check_not_negative(waves=self.waves, cohort=self.cohort, noise=self.noise)
        for name, known in (
            ("encoder", ("sleep", "frozen", "joint", "paper")), ("local", ("sgd", "adam")), ("server", ("adam", "sgd")),
        ):  # fmt: skip
            if getattr(self, name) not in known:
                raise SpecError(f"expected {name} in {', '.join(known)}, got {getattr(self, name)!r}")

    def together(self, ask: Ask, population: Population) -> bool:
        """Unless the slopes of every record of every client at once would not fit; those of convolutions never do."""
        release = self.design(population).release
        rows = examples_at_once(population.records, release.probability)
        return self.net == "basis" and len(ask.cohort) * rows * release.mechanism.size <= MOST_SLOPES_AT_ONCE

    def design(self, population: Population) -> Design:
        return design_of(self, population)

    def clients_per_round(self, population: Population) -> int:
        return min(self.cohort or population.clients, population.clients)

    def round_count(self, population: Population) -> int:
        return self.design(population).participations * rounds_of_pass(
            population.clients, self.clients_per_round(population)
        )

    def begin(self, population: Population, key: Array, warm: Any = None) -> State:
        design = self.design(population)
        start, coin, order, asleep = jax.random.split(key, 4)
        phi, theta, samples = self.starts(design.vae, start, warm)
        law = make_standard_law(design.vae.classes, design.vae.latent)
        if samples is not None:
            law = measure_codes(design.vae, phi, samples, asleep)
        encoder = start_training(phi, ASLEEP_RATE)
        if self.encoder == "sleep" and warm is None:
            encoder = _asleep(design.vae, encoder, theta, law, asleep, 20 * self.asleep)
        return State(
            round=jnp.int32(0), coin=coin,
            order=order_of_passes(
                clients=population.clients, cohort=self.clients_per_round(population), passes=design.participations, key=order
            ),
            encoder=encoder, law=law, theta=theta, average=theta,
            optimiser=self._optimiser(self.round_count(population)).init(theta), bound=jnp.float32(self.bound), design=design,
        )  # fmt: skip

    def _optimiser(self, rounds: int) -> optax.GradientTransformation:
        return server_optimiser(self.server, rate=self.rate, momentum=self.momentum, rounds=rounds)

    def cohorts(self, population: Population, state: State, first: int, count: int) -> Array:
        return state.order[first : first + count]

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        if not isinstance(state.round, jax.core.Tracer) and int(state.round) >= len(state.order):
            return None
        cohort = state.order[state.round]
        common = {"phi": state.encoder.parameters, "theta": state.theta, "bound": state.bound}
        return Ask(round=state.round, cohort=cohort, common=common, own=jnp.arange(len(cohort), dtype=jnp.int32))

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=self.design(population).reply, unit="record")

    def remember(self, population: Population, key: Array) -> Any:
        if self.encoder not in ("joint", "paper"):
            return ()
        blank = jnp.zeros(self.vae(population).encoder_size)
        return Encoders(begun=jnp.asarray(False), train_state=start_training(blank, self.encoder_rate))

    def answer(self, common: Any, own: Any, shard: Shard, memory: Any, source: Source) -> tuple[Any, Any]:
        design = self.design(shard.population)
        examples = Examples(*design.vae.read(shard.records), jnp.asarray(shard.mask))
        rows = len(examples.mask)
        batches, noises, counts, codes = source.split(4)
        drawn, noise = draw_batches(
            design.release, batches=batches, noises=noises, mask=examples.mask, steps=(self.steps,)
        )
        draws = {
            "drawn": drawn,
            "noise": noise,
            "codes": jnp.asarray(codes.normal((self.steps, rows, self.codes, design.vae.latent))),
        }
        if design.count is not None:
            draws["count"] = jnp.asarray(design.count.noise(counts, (self.steps, 1)))
        encoder = encoder_of(memory, common["phi"], self.encoder_rate)
        encoder, change, below = _train(self, design, encoder, common["theta"], common["bound"], examples, draws)
        if isinstance(memory, Encoders):
            memory = Encoders(begun=jnp.asarray(True), train_state=encoder)
        return {"change": change, "below": below}, memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        design, present = state.design, replies.present
        heard = jnp.maximum(jnp.sum(present), 1)
        change = jnp.sum(jnp.where(present[:, None], replies.values["change"], 0), axis=0) / heard
        step, optimiser = self._optimiser(len(state.order)).update(-change, state.optimiser)
        theta = state.theta + step
        encoder = state.encoder
        if self.encoder == "sleep":
            coin = jax.random.fold_in(state.coin, state.round)
            encoder = _asleep(design.vae, encoder, theta, state.law, coin, self.asleep)
        bound = state.bound
        if design.count is not None:
            below = jnp.sum(jnp.where(present, replies.values["below"], 0.0)) / heard
            bound = quantile_step(bound, 0.5 + below / (self.steps * self.batch), self.quantile, QUANTILE_RATE)
        return dataclasses.replace(
            state, round=state.round + 1, theta=theta, optimiser=optimiser, encoder=encoder, bound=bound,
            average=update_ema(state.average, theta, state.round, self.average),
        )  # fmt: skip

    def finish(self, state: State, population: Population, key: Array) -> Synthesizer:
        theta = state.average if self.average else state.theta
        return generator_of(state.design.vae, theta, population, None if state.law.is_standard else state.law)

    def guarantee(self, population: Population) -> Guarantee:
        design = self.design(population)
        valid = self.encoder != "paper"
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
            delta=delta if valid else 0.0,
            sampling_delta=delta - design.delta if valid else 0.0,
            unit="record",
            units=population.clients * population.records,
            neighbours="zero-out",
            trust="silo",
            mechanism=f"DP-SGD at the client, {design.participations} times {self.steps} noised steps",
            read_from_data=population.read_from_data,
            domain_sources=population.domain_sources,
            derivation=(
                f"each reply: {design.reply}; {design.mechanism.size:,} numbers clipped together for each record",
                f"composed over {design.participations} replies by privacy loss distributions, for the client asked most often",
                how,
                "batches are Poisson at a public rate, sums are divided by the batch expected, rounding is in the sensitivity",
            ),
            assumptions=(
                "the number of clients, who takes part, and the most records one holds are public",
                *AT_A_SILO,
                *design.said,
            ),
            reason="" if valid else REASON,
        )

    def plan(self, population: Population) -> Plan:
        design = self.design(population)
        down, up = self._bytes(population)
        clients = self.clients_per_round(population)
        noise = design.mechanism.scale * math.sqrt(design.mechanism.size / clients) / self.batch
        return Plan(
            guarantee=self.guarantee(population), rounds=self.round_count(population), bytes_up=up, bytes_down=down, errors={},
            notes=(
                f"noise multiplier {design.release.noise_multiplier:.3g} at sampling rate {design.release.probability:.3g}; "
                f"noise on the mean slope of a round is {noise:.2g} bounds long in all {design.mechanism.size:,} parameters",
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


@functools.partial(jax.jit, static_argnums=(0, 5))
def _asleep(vae: Vae, encoder: TrainState, theta: Array, law: CodeLaw, key: Array, steps: int) -> TrainState:
    return train_asleep(vae, encoder, theta, law, key, steps=steps, rate=ASLEEP_RATE)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _train(
    protocol: LDpdVae, design: Design, encoder: TrainState, theta: Array, bound: Array, examples: Examples, draws: Any
) -> tuple[TrainState, Array, Array]:
    """The noised steps of one reply: the encoder after them, the decoder's change, and the noisy count of short slopes."""

    def step(carry: tuple[TrainState, TrainState], item: Any) -> tuple[tuple[TrainState, TrainState], Array]:
        encoder, decoder = carry
        total, below = noised_gradient(protocol, design, encoder.parameters, decoder.parameters, bound, examples, item)
        slope = total * bound / protocol.batch
        after = encoder
        if protocol.encoder == "joint":
            after = adam_step(encoder, slope[: len(encoder.parameters)], protocol.encoder_rate)
            slope = slope[len(encoder.parameters) :]
        elif protocol.encoder == "paper":
            some = dataclasses.replace(examples, mask=item["drawn"])
            codes = item["codes"].reshape(len(examples.mask), -1, design.vae.latent)[:, 0]
            own = jax.grad(functools.partial(mean_loss, design.vae))(
                encoder.parameters, decoder.parameters, some, codes
            )
            after = adam_step(encoder, own, protocol.encoder_rate)
        if protocol.local == "adam":
            decoder = adam_step(decoder, slope, protocol.local_rate)
        else:
            decoder = dataclasses.replace(decoder, parameters=decoder.parameters - protocol.local_rate * slope)
        return (after, decoder), below

    (encoder, decoder), below = jax.lax.scan(step, (encoder, start_training(theta, protocol.local_rate)), draws)
    return encoder, decoder.parameters - theta, jnp.sum(below)


def noised_gradient(
    protocol: LDpdVae, design: Design, phi: Array, theta: Array, bound: Array, examples: Examples, item: Any
) -> NoisedSum:
    """The noised sum of the batch's clipped gradients by the decoder, or by both networks."""
    gradient_of = slope_of_both if protocol.encoder == "joint" else slope_of_decoder

    def gradient_of_row(row: Array) -> Any:
        return gradient_of(design.vae, phi, theta, examples.x[row], examples.y[row], item["codes"][row])

    return noised_sum(
        gradient_of_row, functools.partial(packed_slope, design.vae), release=design.release, clip_norm=bound,
        drawn=item["drawn"], noise=item["noise"], count_noise=None if design.count is None else item["count"][0],
    )  # fmt: skip


@functools.lru_cache(maxsize=64)
def design_of(protocol: LDpdVae, population: Population) -> Design:
    vae = protocol.vae(population)
    delta, said = resolved_delta(protocol.delta, population.clients * population.records)
    release = noised_steps(
        epsilon=protocol.epsilon, delta=delta, probability=min(1.0, protocol.batch / population.records),
        wanted=protocol.participations * protocol.steps, each=protocol.steps, noise=protocol.noise,
        size=vae.decoder_size + (vae.encoder_size if protocol.encoder == "joint" else 0),
        counting=protocol.batch / COUNT_SHARE if protocol.quantile else 0.0,
    )  # fmt: skip
    valid = protocol.encoder != "paper"
    return Design(
        vae=vae, delta=delta, said=said, release=release, participations=release.steps // protocol.steps,
        reply=release.event(protocol.steps) if valid else NonPrivate(REASON),
        whole=release.event(release.steps) if valid else NonPrivate(REASON),
    )  # fmt: skip
