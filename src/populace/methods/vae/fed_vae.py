"""`fed-vae`: a conditional VAE by federated averaging, whole or its decoder alone. A baseline: NOT PRIVATE.

Pfitzner and Arnrich 2022: `shared="whole"` is their fVAE (both networks are averaged), `shared="decoder"` their DPD-fVAE
without noise (algorithm 1; the encoder and its optimizer stay with the client). `clip_norm` and `noise_deviation` are theirs of
section 5.3: how well training stands clipped updates, or noise of this deviation on the averaged one. They protect nobody.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

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
    check_rates,
    check_shares,
    check_sizes,
)
from populace.methods.blocks.composed import Composition, RememberingLearner, Unprotected
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.schedules import Subsets
from populace.methods.blocks.vae_generator import VaeGenerator, generator_of
from populace.methods.blocks.vae_networks import Net, Vae
from populace.methods.vae.training import NETWORK_MEANINGS, SMALL_NETWORK, LocallyTrained
from populace.privacy.gaussian import clip
from populace.privacy.source import Source
from populace.types import Array, ArrayTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class AveragedVae:
    """The server's parameters and momentum. `norms` are the medians of the updates' norms, by round."""

    phi: Array
    theta: Array
    momentum: Array
    norms: Array


@dataclasses.dataclass(frozen=True)
class FedVaeLearner(RememberingLearner):
    """Clients train both networks and keep the encoder, unless it is shared; the server averages their changes."""

    settings: FedVae
    population: Population
    vae: Vae

    def begin(self, key: Array, warm: Synthesizer | None = None) -> AveragedVae:
        phi, theta, _ = self.settings.starts(self.vae, key, warm)
        return AveragedVae(
            phi=phi, theta=theta, momentum=jnp.zeros(self.settings.shared_size(self.vae)),
            norms=jnp.zeros(self.settings.rounds),
        )  # fmt: skip

    def question(self, state: AveragedVae, number: Array) -> dict[str, Array]:
        return {"phi": state.phi, "theta": state.theta}

    def remember(self) -> ArrayTree:
        return self.settings.first_memory(self.vae)

    def answer_and_keep(
        self, question: ArrayTree, own: Array, shard: Shard, memory: ArrayTree, source: Source
    ) -> tuple[ArrayTree, ArrayTree]:
        change, memory = self.settings.train(self.vae, question, shard, memory, source)
        clipped = clip(change, self.settings.clip_norm) if self.settings.clip_norm else change
        return {"change": clipped, "norm": jnp.linalg.norm(change)}, memory

    def absorb(self, state: AveragedVae, ask: Ask, replies: Replies, source: Source) -> AveragedVae:
        settings, present = self.settings, replies.present
        total = jnp.sum(jnp.where(present[:, None], replies.values["change"], 0), axis=0)
        change = total / jnp.maximum(present.sum(), 1)
        if settings.noise_deviation:
            change = change + settings.noise_deviation * source.normal(change.shape)
        momentum = settings.momentum * state.momentum + change
        norms = jnp.where(present, replies.values["norm"], jnp.nan)
        phi, step = state.phi, momentum
        if settings.shared == "whole":
            phi, step = phi + momentum[: len(phi)], momentum[len(phi) :]
        return AveragedVae(
            phi=phi, theta=state.theta + step, momentum=momentum,
            norms=jnp.asarray(state.norms).at[ask.round].set(jnp.nan_to_num(jnp.nanmedian(norms))),
        )  # fmt: skip

    def finish(self, state: AveragedVae, key: Array) -> VaeGenerator:
        return generator_of(self.vae, state.theta, self.population)

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        whole = self.vae.encoder_size + self.vae.decoder_size
        return NUMBER * whole, NUMBER * (self.settings.shared_size(self.vae) + 1)

    def notes(self) -> tuple[str, ...]:
        sizes = f"{self.vae.encoder_size:,} parameters of the encoder, {self.vae.decoder_size:,} of the decoder"
        return sizes, "NOT PRIVATE: a baseline", NO_ERROR


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedVae(LocallyTrained):
    """Guarantee: none. `epsilon` is taken so that commands look alike, and is not used.

    Edge cases: at least one client takes part in a round.
    """

    epsilon: float = 1.0
    shared: Literal["decoder", "whole"] = "decoder"
    rounds: int = 100
    sampling_rate: float = 0.05
    local_epochs: int = 10
    batch_size: int = 20
    learning_rate: float = 3e-3
    momentum: float = 0.5
    clip_norm: float = 0.0
    noise_deviation: float = 0.0
    net: Net = "small"
    hidden_size: int = 0
    latent_size: int = 8
    beta: float = 0.01

    renamed: ClassVar[Mapping[str, str]] = {
        "turns": "rounds", "share": "sampling_rate", "epochs": "local_epochs", "batch": "batch_size",
        "rate": "learning_rate", "clip": "clip_norm", "noise": "noise_deviation", "width": "hidden_size",
        "latent": "latent_size",
    }  # fmt: skip
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "Taken so that commands look alike, and not used: nothing is guaranteed.",
        "shared": "Whether clients send updates of the decoder alone, or of both networks.",
        "rounds": "How many rounds there are.",
        "sampling_rate": "The share of the clients that takes part in a round.",
        "local_epochs": "How often a client goes through its records in a round.",
        "batch_size": "The records of one step at a client.",
        "learning_rate": "The learning rate of Adam at a client.",
        "momentum": "The momentum of the server's steps.",
        "clip_norm": "The L2 norm to which a client's update is clipped; 0: it is not clipped.",
        "noise_deviation": "The deviation of noise on the averaged update; 0: none. It protects nobody.",
        **NETWORK_MEANINGS,
    }
    small: ClassVar[Mapping[str, object]] = {
        "rounds": 2, "sampling_rate": 1.0, "local_epochs": 1, "batch_size": 2, **SMALL_NETWORK,
    }  # fmt: skip
    facts: ClassVar[Facts] = Facts(
        name="fed-vae",
        page="dpd-vae",
        line="federated VAE, NOT PRIVATE",
        title="conditional VAE by federated averaging, whole or its decoder alone; NOT PRIVATE, a baseline",
        paper="Pfitzner and Arnrich, arXiv 2022 (table 1, fVAE and DPD-fVAE without noise)",
        trust=("not-private",),
        unit="client",
        kinds=("table", "images"),
        traffic="a model down and an update up, per round taken part in",
    )
    vectorises: ClassVar[bool] = False
    compiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.check_vae()
        check_counts(rounds=self.rounds, local_epochs=self.local_epochs, batch_size=self.batch_size)
        check_sizes(learning_rate=self.learning_rate)
        check_shares(momentum=self.momentum)
        check_rates(sampling_rate=self.sampling_rate)
        check_not_negative(clip_norm=self.clip_norm, noise_deviation=self.noise_deviation)
        if self.shared not in ("decoder", "whole"):
            raise SpecError(f"expected shared in decoder, whole, got {self.shared!r}")

    def compose(self, population: Population) -> Composition:
        size = max(1, round(self.sampling_rate * population.clients))
        return Composition(
            Subsets(clients=population.clients, cohort_size=size, wanted=self.rounds),
            Unprotected(reason="updates leave the clients without noise; a baseline"),
            FedVaeLearner(self, population, self.vae(population)),
        )
