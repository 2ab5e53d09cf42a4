"""`c-dpd-vae`: a conditional VAE whose decoder is trained by clipped, centrally noised client updates (C-DPD-fVAE).

Pfitzner and Arnrich 2022, algorithm 1. Each round every client is drawn with probability `sampling_rate`; a drawn one
trains both networks on its records, keeps the encoder, and sends the change of the decoder, clipped to `clip_norm`. The server
adds Gaussian noise to the sum, divides by the expected number of clients, and steps with momentum. Empty rounds release noise
alone. Under trust `secure-sum` the clients add the noise in shares, and draw themselves (`blocks.client_updates`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from populace.errors import SpecError
from populace.methods.base import (
    NUMBER,
    Ask,
    Facts,
    Population,
    Replies,
    Shard,
    check_counts,
    check_shares,
    check_sizes,
)
from populace.methods.blocks.client_updates import TRUST_MEANINGS, ClientUpdates, UpdatesLearner
from populace.methods.blocks.composed import Composition, RememberingLearner
from populace.methods.blocks.dp_sgd import update_ema
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.vae_generator import VaeGenerator, generator_of
from populace.methods.blocks.vae_networks import Net, Vae
from populace.methods.vae.training import NETWORK_MEANINGS, SMALL_NETWORK, LocallyTrained
from populace.privacy.gaussian import quantile_step
from populace.privacy.source import Source
from populace.types import Array, ArrayTree

COUNT_NOISE = 20.0  # the count's noise: its deviation is a twentieth of the clients expected
QUANTILE_RATE = 0.2
HOW = {
    "decoder": "the encoder never leaves its client and enters the model only through the client's own clipped update",
    "whole": "the changes of both networks are clipped together, as one update",
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerVae:
    """The server's parameters, their momentum and moving average, and the clipping norm of updates."""

    phi: Array
    theta: Array
    momentum: Array
    average: Array
    clip_norm: Array


@dataclasses.dataclass(frozen=True)
class CDpdVaeLearner(UpdatesLearner, RememberingLearner):
    """Clients that are drawn train both networks and keep the encoder; the server steps by the noised mean of their changes."""

    settings: CDpdVae
    vae: Vae

    def begin(self, key: Array, warm: Synthesizer | None = None) -> ServerVae:
        phi, theta, _ = self.settings.starts(self.vae, key, warm)
        return ServerVae(
            phi=phi, theta=theta, momentum=jnp.zeros(self.parameters), average=theta,
            clip_norm=jnp.float32(self.settings.clip_norm),
        )  # fmt: skip

    def question(self, state: ServerVae, number: Array) -> dict[str, Array]:
        return {"phi": state.phi, "theta": state.theta, "clip_norm": state.clip_norm}

    def remember(self) -> ArrayTree:
        return self.settings.first_memory(self.vae)

    def answer_and_keep(
        self, question: ArrayTree, own: Array, shard: Shard, memory: ArrayTree, source: Source
    ) -> tuple[ArrayTree, ArrayTree]:
        drawn, source = self.takes_part(own, source)
        change, after = self.settings.train(self.vae, question, shard, memory, source)
        memory = jax.tree.map(lambda new, old: jnp.where(drawn, new, old), after, memory)
        change = change / question["clip_norm"]
        below = jnp.where(jnp.linalg.norm(change) <= 1, 0.5, -0.5)
        here = drawn & jnp.any(shard.mask)  # who has nothing adds nothing, to the count of short updates neither
        if self.release.sites is not None:
            weight = self.release.steps.count_weight
            return {"change": self.clipped(change, here, weight * below if weight else None)}, memory
        return {"change": self.clipped(change, here), "below": jnp.where(here, below, 0.0)}, memory

    @property
    def parameters(self) -> int:
        """How many parameters are shared; a secure sum may have a count after them."""
        return self.settings.shared_size(self.vae)

    def absorb(self, state: ServerVae, ask: Ask, replies: Replies, source: Source) -> ServerVae:
        vectors, counts = source.split(2)
        mean = self.mean_change(replies, vectors)
        momentum = self.settings.momentum * state.momentum + mean[: self.parameters] * state.clip_norm
        phi, step = state.phi, momentum
        if self.settings.shared == "whole":
            phi, step = phi + momentum[: len(phi)], momentum[len(phi) :]
        theta = state.theta + step
        return ServerVae(
            phi=phi, theta=theta, momentum=momentum,
            average=update_ema(state.average, theta, ask.round, self.settings.ema_decay),
            clip_norm=self._next_clip_norm(state.clip_norm, mean, replies, counts),
        )  # fmt: skip

    def _next_clip_norm(self, clip_norm: Array, mean: Array, replies: Replies, source: Source) -> Array:
        count, weight = self.release.steps.count, self.release.steps.count_weight
        if weight:
            fraction = 0.5 + mean[-1] / weight
        elif count is not None:
            below = jnp.sum(jnp.where(replies.present, replies.values["below"], 0.0))
            fraction = 0.5 + count.apply(below, source) / self.clients_expected
        else:
            return clip_norm
        return quantile_step(clip_norm, fraction, self.settings.clip_quantile, QUANTILE_RATE)

    def finish(self, state: ServerVae, key: Array) -> VaeGenerator:
        return generator_of(self.vae, state.average if self.settings.ema_decay else state.theta, self.population)

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        beside = 0.0 if self.release.sites is not None else NUMBER
        return NUMBER * (self.vae.encoder_size + self.vae.decoder_size + 1), self.sum_bytes + beside


@dataclasses.dataclass(frozen=True, kw_only=True)
class CDpdVae(ClientUpdates, LocallyTrained):
    """Guarantee: (epsilon, delta)-DP for everything one client holds, zeroed out: `central`, for whoever sees the model and
    not the updates: the server is trusted; `secure-sum`, for the server with as many clients as may collude. Every client is
    charged for every round, drawn or not.

    Edge cases: with a noise multiplier given, only as many rounds take place as the budget allows. A `clip_quantile` is paid by
    a noisy count. A client without records sends no change.
    """

    epsilon: float
    delta: float = 0.0
    trust: Literal["central", "secure-sum"] = "central"
    colluders: int = 0
    dropouts: int = 0
    rounds: int = 60
    sampling_rate: float = 1.0
    clip_norm: float = 0.5
    noise_multiplier: float = 0.0
    clip_quantile: float = 0.0
    local_epochs: int = 5
    batch_size: int = 20
    learning_rate: float = 1e-3
    momentum: float = 0.5
    ema_decay: float = 0.8
    shared: Literal["decoder", "whole"] = "decoder"
    net: Net = "small"
    hidden_size: int = 0
    latent_size: int = 8
    beta: float = 0.01

    renamed: ClassVar[Mapping[str, str]] = {
        "turns": "rounds", "share": "sampling_rate", "bound": "clip_norm", "noise": "noise_multiplier",
        "quantile": "clip_quantile", "epochs": "local_epochs", "batch": "batch_size", "rate": "learning_rate",
        "average": "ema_decay", "width": "hidden_size", "latent": "latent_size",
    }  # fmt: skip
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The privacy budget of everything one client holds.",
        "delta": "The probability with which epsilon may fail; 0: from the number of clients, by a public rule.",
        **TRUST_MEANINGS,
        "rounds": "How many rounds there are, unless the budget ends before.",
        "sampling_rate": "The probability with which a round draws each client.",
        "clip_norm": "The L2 norm to which a client's update is clipped.",
        "noise_multiplier": "The noise on the sum of updates, in units of the clipping norm; 0: calibrated to the rounds.",
        "clip_quantile": "The quantile of the updates' norms that the clipping norm follows; 0: it stays as it is.",
        "local_epochs": "How often a client goes through its records in a round.",
        "batch_size": "The records of one step at a client.",
        "learning_rate": "The learning rate of Adam at a client.",
        "momentum": "The momentum of the server's steps.",
        "ema_decay": "The decay of the moving average of the parameters that is the result; 0: the last parameters are.",
        "shared": "Whether clients send updates of the decoder alone, or of both networks.",
        **NETWORK_MEANINGS,
    }
    small: ClassVar[Mapping[str, object]] = {
        "rounds": 2, "sampling_rate": 0.5, "local_epochs": 1, "batch_size": 2, **SMALL_NETWORK,
    }  # fmt: skip
    facts: ClassVar[Facts] = Facts(
        name="c-dpd-vae",
        page="dpd-vae",
        line="VAE decoder by DP-FedAvg",
        title="conditional VAE whose decoder learns from clipped updates in noisy sums; client level (C-DPD-fVAE)",
        paper="Pfitzner and Arnrich, arXiv 2022",
        trust=("central", "secure-sum"),
        unit="client",
        kinds=("table", "images"),
        traffic="a model down and a clipped decoder update up, per round taken part in",
    )
    vectorises: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.check_updates()
        self.check_vae()
        check_counts(rounds=self.rounds, local_epochs=self.local_epochs, batch_size=self.batch_size)
        check_sizes(clip_norm=self.clip_norm, learning_rate=self.learning_rate)
        check_shares(
            momentum=self.momentum, ema_decay=self.ema_decay, clip_quantile=self.clip_quantile, delta=self.delta
        )
        if self.shared not in ("decoder", "whole"):
            raise SpecError(f"expected shared in decoder, whole, got {self.shared!r}")

    def compose(self, population: Population) -> Composition:
        vae = self.vae(population)
        release = self.release(
            population, self.shared_size(vae), what="decoder",
            how=HOW[self.shared],
            counting=self.sampling_rate * population.clients / COUNT_NOISE if self.clip_quantile else 0.0,
        )  # fmt: skip
        return self.composed_of(CDpdVaeLearner(population, release, self, vae))
