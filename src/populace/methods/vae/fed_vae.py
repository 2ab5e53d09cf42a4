"""`fed-vae`: a conditional VAE by federated averaging, whole or its decoder alone. A baseline: NOT PRIVATE.

Pfitzner and Arnrich 2022: `shared="whole"` is their fVAE (both halves are averaged), `shared="decoder"` their DPD-fVAE without
noise (algorithm 1; the encoder and its optimiser stay with the client). `clip` and `noise` are theirs of section 5.3: how well
training stands a bound on the updates, or noise of this deviation on the averaged one. They protect nobody.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from populace.errors import SpecError
from populace.methods.base import Ask, Facts, Plan, Population, Replies, Shard
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.training import (
    NO_ERROR,
    NUMBER,
    check_counts,
    check_not_negative,
    check_shares,
    check_sizes,
    check_some,
    generator_of,
    not_private,
)
from populace.methods.blocks.vae_networks import Net, Vae
from populace.methods.vae.rounds import Averaged
from populace.privacy.events import NonPrivate
from populace.privacy.gaussian import clip
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.source import Source
from populace.types import Array

REASON = "updates leave the clients without noise; a baseline"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """The server's parameters and momentum, and the coin of cohorts. `norms` are the medians of the updates' lengths."""

    round: Array
    coin: Array
    phi: Array
    theta: Array
    momentum: Array
    norms: Array
    vae: Vae = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedVae(Averaged):
    """Guarantee: none. `epsilon` is taken so that commands look alike, and is not used.

    Edge cases: `clip` 0 and `noise` 0 leave them out; `share` of the clients, at least one, takes part in a round.
    """

    epsilon: float = 1.0
    shared: Literal["decoder", "whole"] = "decoder"
    turns: int = 100
    share: float = 0.05
    epochs: int = 10
    batch: int = 20
    rate: float = 3e-3
    momentum: float = 0.5
    clip: float = 0.0
    noise: float = 0.0
    net: Net = "small"
    width: int = 0
    latent: int = 8
    beta: float = 0.01

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
        check_counts(turns=self.turns, epochs=self.epochs, batch=self.batch)
        check_sizes(rate=self.rate)
        check_shares(momentum=self.momentum)
        check_some(self.share)
        check_not_negative(clip=self.clip, noise=self.noise)
        if self.shared not in ("decoder", "whole"):
            raise SpecError(f"expected shared in decoder, whole, got {self.shared!r}")

    def round_count(self, population: Population) -> int:
        return self.turns

    def begin(self, population: Population, key: Array, warm: Any = None) -> State:
        start, coin = jax.random.split(key)
        vae = self.vae(population)
        phi, theta, _ = self.starts(vae, start, warm)
        return State(
            round=jnp.int32(0), coin=coin, phi=phi, theta=theta, momentum=jnp.zeros(self._size(vae)),
            norms=jnp.zeros(self.turns), vae=vae,
        )  # fmt: skip

    def _size(self, vae: Vae) -> int:
        return vae.decoder_size + (vae.encoder_size if self.shared == "whole" else 0)

    def _cohort(self, population: Population, coin: Array, round_id: Array) -> Array:
        size = max(1, round(self.share * population.clients))
        numbers = jnp.arange(population.clients, dtype=jnp.int32)
        return jax.random.permutation(jax.random.fold_in(coin, round_id), numbers)[:size]

    def cohorts(self, population: Population, state: State, first: int, count: int) -> Array:
        return jax.vmap(lambda round_id: self._cohort(population, state.coin, round_id))(
            jnp.arange(first, first + count)
        )

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        if not isinstance(state.round, jax.core.Tracer) and int(state.round) >= self.turns:
            return None
        cohort = self._cohort(population, state.coin, state.round)
        return Ask(round=state.round, cohort=cohort, common={"phi": state.phi, "theta": state.theta}, own=cohort)

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=NonPrivate(REASON), unit="client")

    def remember(self, population: Population, key: Array) -> Any:
        return self.unbegun(population)

    def answer(self, common: Any, own: Any, shard: Shard, memory: Any, source: Source) -> tuple[Any, Any]:
        change, memory = self.trained(self.vae(shard.population), common, shard, memory, source)
        return {"change": clip(change, self.clip) if self.clip else change, "norm": jnp.linalg.norm(change)}, memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        present = replies.present
        change = jnp.sum(jnp.where(present[:, None], replies.values["change"], 0), axis=0) / jnp.maximum(
            present.sum(), 1
        )
        if self.noise:
            change = change + self.noise * source.normal(change.shape)
        momentum = self.momentum * state.momentum + change
        norms = jnp.where(present, replies.values["norm"], jnp.nan)
        phi, step = state.phi, momentum
        if self.shared == "whole":
            phi, step = phi + momentum[: len(phi)], momentum[len(phi) :]
        return dataclasses.replace(
            state, round=state.round + 1, phi=phi, theta=state.theta + step, momentum=momentum,
            norms=state.norms.at[state.round].set(jnp.nan_to_num(jnp.nanmedian(norms))),
        )  # fmt: skip

    def finish(self, state: State, population: Population, key: Array) -> Synthesizer:
        return generator_of(state.vae, state.theta, population)

    def guarantee(self, population: Population) -> Guarantee:
        return not_private(population, REASON)

    def plan(self, population: Population) -> Plan:
        down, up = self._bytes(population)
        vae = self.vae(population)
        return Plan(
            guarantee=self.guarantee(population), rounds=self.turns, bytes_up=up, bytes_down=down, errors={},
            notes=(
                f"{vae.encoder_size:,} parameters of the encoder, {vae.decoder_size:,} of the decoder",
                "NOT PRIVATE: a baseline", NO_ERROR,
            ),
        )  # fmt: skip

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return self._bytes(population)

    def _bytes(self, population: Population) -> tuple[float, float]:
        vae = self.vae(population)
        return NUMBER * (vae.encoder_size + vae.decoder_size), NUMBER * (self._size(vae) + 1)
