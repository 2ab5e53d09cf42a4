"""`c-dpd-vae`: a conditional VAE whose decoder is trained by clipped, centrally noised client updates (C-DPD-fVAE).

Pfitzner and Arnrich 2022, algorithm 1. Each round every client is drawn with probability `share`; a drawn one trains both
halves on its records, keeps the encoder, and sends the change of the decoder, clipped to `bound`. The server adds Gaussian
noise to the sum, divides by the expected number of clients, and steps with momentum. Empty rounds release noise alone.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from populace.errors import SpecError
from populace.methods.base import Ask, Facts, Population, Replies, Shard
from populace.methods.blocks.client_updates import ClientUpdates, Updates
from populace.methods.blocks.dp_sgd import update_ema
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.training import NUMBER, check_counts, check_shares, check_sizes, generator_of
from populace.methods.blocks.vae_networks import Net, Vae
from populace.methods.vae.rounds import Averaged
from populace.privacy.gaussian import clip, quantile_step
from populace.privacy.guarantee import Guarantee
from populace.privacy.source import Source
from populace.types import Array

COUNT_SHARE = 20.0  # the count's noise, as a share of the clients expected: its deviation is a twentieth of them
QUANTILE_RATE = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design(Updates):
    """With the network."""

    vae: Vae


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """The server's parameters, momentum, their running mean, and the bound on updates."""

    round: Array
    phi: Array
    theta: Array
    momentum: Array
    average: Array
    bound: Array
    design: Design = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class CDpdVae(ClientUpdates, Averaged):
    """Guarantee: (epsilon, delta)-DP for everything one client holds, zeroed out, for whoever sees the model and
    not the updates: the server is trusted. Every client is charged for every round, drawn or not.

    Edge cases: `noise` 0 is calibrated to `turns` rounds; with a noise multiplier given, only as many rounds take place as the
    budget allows. `quantile` above 0 moves the bound to that quantile of the updates' lengths, paid by a noisy count. `delta` 0
    is the house rule. A client without records sends no change.
    """

    epsilon: float
    delta: float = 0.0
    turns: int = 60
    share: float = 1.0
    bound: float = 0.5
    noise: float = 0.0
    quantile: float = 0.0
    epochs: int = 5
    batch: int = 20
    rate: float = 1e-3
    momentum: float = 0.5
    average: float = 0.8
    shared: Literal["decoder", "whole"] = "decoder"
    net: Net = "small"
    width: int = 0
    latent: int = 8
    beta: float = 0.01

    facts: ClassVar[Facts] = Facts(
        name="c-dpd-vae",
        page="dpd-vae",
        line="VAE decoder by DP-FedAvg",
        title="conditional VAE whose decoder learns from clipped updates, noised at the server; client level (C-DPD-fVAE)",
        paper="Pfitzner and Arnrich, arXiv 2022",
        trust=("central",),
        unit="client",
        kinds=("table", "images"),
        traffic="a model down and a clipped decoder update up, per round taken part in",
    )
    vectorises: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.check_updates()
        self.check_vae()
        check_counts(turns=self.turns, epochs=self.epochs, batch=self.batch)
        check_sizes(bound=self.bound, rate=self.rate)
        check_shares(momentum=self.momentum, average=self.average, quantile=self.quantile, delta=self.delta)
        if self.shared not in ("decoder", "whole"):
            raise SpecError(f"expected shared in decoder, whole, got {self.shared!r}")

    def design(self, population: Population) -> Design:
        return design_of(self, population)

    def begin(self, population: Population, key: Array, warm: Any = None) -> State:
        design = self.design(population)
        phi, theta, _ = self.starts(design.vae, key, warm)
        return State(
            round=jnp.int32(0), phi=phi, theta=theta, momentum=jnp.zeros(design.mechanism.size), average=theta,
            bound=jnp.float32(self.bound), design=design,
        )  # fmt: skip

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        if int(state.round) >= state.design.rounds:
            return None
        common = {"phi": state.phi, "theta": state.theta, "bound": state.bound}
        return self.ask_drawn(state.round, population, source, common)

    def remember(self, population: Population, key: Array) -> Any:
        return self.unbegun(population)

    def answer(self, common: Any, own: Any, shard: Shard, memory: Any, source: Source) -> tuple[Any, Any]:
        design = self.design(shard.population)
        change, after = self.trained(design.vae, common, shard, memory, source)
        memory = _kept(own, after, memory)
        change = change / common["bound"]
        drawn = jnp.asarray(own)
        below = jnp.where(jnp.linalg.norm(change) <= 1, 0.5, -0.5)
        return {
            "change": jnp.where(drawn, design.mechanism.on_grid(clip(change, 1.0)), 0),
            "below": jnp.where(drawn, below, 0.0),
        }, memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        vectors, counts = source.split(2)
        told = self.mean_change(state.design, ask, replies, vectors)
        momentum = self.momentum * state.momentum + told * state.bound
        phi, step = state.phi, momentum
        if self.shared == "whole":
            phi, step = phi + momentum[: len(phi)], momentum[len(phi) :]
        theta = state.theta + step
        return dataclasses.replace(
            state, round=state.round + 1, phi=phi, theta=theta, momentum=momentum,
            average=update_ema(state.average, theta, state.round, self.average),
            bound=self._next_bound(state, replies, self.share * len(ask.cohort), counts),
        )  # fmt: skip

    def _next_bound(self, state: State, replies: Replies, expected: float, source: Source) -> Array:
        count = state.design.count
        if count is None:
            return state.bound
        below = jnp.sum(jnp.where(replies.present, replies.values["below"], 0.0))
        fraction = 0.5 + count.apply(below, source) / expected
        return quantile_step(state.bound, fraction, self.quantile, QUANTILE_RATE)

    def finish(self, state: State, population: Population, key: Array) -> Synthesizer:
        return generator_of(state.design.vae, state.average if self.average else state.theta, population)

    def guarantee(self, population: Population) -> Guarantee:
        how = "the encoder never leaves its client and enters the model only through the client's own clipped update"
        return self.claim(population, "decoder", how)

    def traffic(self, population: Population) -> tuple[float, float]:
        vae, size = self.vae(population), self.design(population).mechanism.size
        return NUMBER * (vae.encoder_size + vae.decoder_size + 1), NUMBER * (size + 1)


def _kept(drawn: Array, after: Any, before: Any) -> Any:
    return jax.tree.map(lambda new, old: jnp.where(jnp.asarray(drawn), new, old), after, before)


@functools.lru_cache(maxsize=64)
def design_of(protocol: CDpdVae, population: Population) -> Design:
    vae = protocol.vae(population)
    size = vae.decoder_size + (vae.encoder_size if protocol.shared == "whole" else 0)
    counting = protocol.share * population.clients / COUNT_SHARE if protocol.quantile else 0.0
    return Design(vae=vae, **protocol.calibrated(population, size, counting))
