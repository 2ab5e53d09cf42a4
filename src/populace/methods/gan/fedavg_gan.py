"""`fedavg-gan`: a critic learns from clipped updates of all clients in noisy sums; the generator stays at the server.

Augenstein et al. 2020 (DP-FedAvg-GAN), the baseline of Xin et al. 2021. Client level: what is protected is all that one client
holds, which with a handful of silos costs far more noise than a record does. The server is trusted to add it, or the clients
add it in shares and draw themselves (`secure-sum`; `blocks.client_updates`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

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
from populace.methods.blocks.composed import Composition
from populace.methods.blocks.dp_sgd import TrainState, adam_step, start_training, training_key, update_ema
from populace.methods.blocks.gan_networks import Gan
from populace.methods.blocks.gan_training import BETAS, GanNetworks, generator_step, row_gradient
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.vae_generator import generator_of
from populace.privacy.source import Source
from populace.types import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerGan:
    """The critic everybody gets, the generator with its optimizer, the generator's moving average, and a coin for codes."""

    coin: Array
    omega: Array
    generator: TrainState
    average: Array


@dataclasses.dataclass(frozen=True)
class FedAvgGanLearner(UpdatesLearner):
    """Clients train the critic against the generator they were sent, the server trains the generator against the critic."""

    settings: FedAvgGan
    gan: Gan

    def begin(self, key: Array, warm: Synthesizer | None = None) -> ServerGan:
        del warm
        start, coin = jax.random.split(key)
        omega, theta = self.gan.start(start)
        generator = start_training(theta, self.settings.learning_rate, BETAS)
        return ServerGan(coin=coin, omega=omega, generator=generator, average=theta)

    def question(self, state: ServerGan, number: Array) -> dict[str, Array]:
        return {"omega": state.omega, "theta": state.generator.parameters}

    def answer(self, question: dict[str, Array], own: Array, shard: Shard, source: Source) -> dict[str, Array]:
        settings, gan = self.settings, self.gan
        drawn, source = self.takes_part(own, source)
        examples = gan.read(shard.records, shard.mask)
        omega, theta = question["omega"], question["theta"]
        logits = jnp.where(examples.mask, 0.0, -jnp.inf).at[0].max(-1e30)  # never all impossible

        def step(critic: TrainState, key: Array) -> tuple[TrainState, None]:
            rows, codes = jax.random.split(key)
            gradient_of = row_gradient(gan, critic.parameters, theta, examples, codes)
            gradients = jax.vmap(gradient_of)(jax.random.categorical(rows, logits, shape=(settings.batch_size,)))
            gradient = gan.flatten(jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), gradients))
            return adam_step(critic, gradient, settings.critic_learning_rate, BETAS), None

        start = start_training(omega, settings.critic_learning_rate, BETAS)
        after, _ = jax.lax.scan(step, start, jax.random.split(training_key(source), settings.local_steps))
        here = drawn & jnp.any(examples.mask)
        return {"change": self.clipped((after.parameters - omega) / settings.clip_norm, here)}

    def absorb(self, state: ServerGan, ask: Ask, replies: Replies, source: Source) -> ServerGan:
        settings = self.settings
        omega = state.omega + settings.server_learning_rate * settings.clip_norm * self.mean_change(replies, source)
        key = jax.random.fold_in(state.coin, ask.round)
        generator = _train_generator(settings, self.gan, state.generator, omega, key)
        average = update_ema(state.average, generator.parameters, ask.round, settings.ema_decay)
        return dataclasses.replace(state, omega=omega, generator=generator, average=average)

    def finish(self, state: ServerGan, key: Array) -> Synthesizer:
        theta = state.average if self.settings.ema_decay else state.generator.parameters
        return generator_of(self.gan.generator, theta, self.population)

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        return NUMBER * (self.gan.critic_size + self.gan.generator_size), self.sum_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAvgGan(ClientUpdates, GanNetworks):
    """Guarantee: (epsilon, delta)-DP for everything one client holds, zeroed out: `central`, for whoever sees the model and
    not the updates: the server is trusted; `secure-sum`, for the server with as many clients as may collude. Every client is
    charged for every round, drawn or not.

    Edge cases: `noise_multiplier` 0 is calibrated to `rounds`; with one given, as many rounds take place as the budget allows.
    A client without records sends no change.
    """

    trust: Literal["central", "secure-sum"] = "central"
    colluders: int = 0
    dropouts: int = 0
    rounds: int = 200
    sampling_rate: float = 1.0
    local_steps: int = 5
    batch_size: int = 64
    generator_steps: int = 1
    clip_norm: float = 0.1
    noise_multiplier: float = 0.0
    critic_learning_rate: float = 1e-3
    server_learning_rate: float = 1.0
    learning_rate: float = 1e-3
    ema_decay: float = 0.99
    conditional: bool = True

    facts: ClassVar[Facts] = Facts(
        name="fedavg-gan",
        page="fl-gan",
        line="GAN by DP-FedAvg",
        title="a GAN whose critic learns from clipped updates in noisy sums; client level (DP-FedAvg-GAN)",
        paper="Augenstein et al., ICLR 2020; the baseline of Xin et al. 2021",
        trust=("central", "secure-sum"),
        unit="client",
        kinds=("table", "images"),
        traffic="critic and generator down and a clipped critic update up, per round taken part in",
    )
    renamed: ClassVar[Mapping[str, str]] = {
        **GanNetworks.renamed, "turns": "rounds", "share": "sampling_rate", "steps": "local_steps", "batch": "batch_size",
        "generations": "generator_steps", "bound": "clip_norm", "noise": "noise_multiplier",
        "critic_rate": "critic_learning_rate", "server_rate": "server_learning_rate", "rate": "learning_rate",
        "average": "ema_decay",
    }  # fmt: skip
    small: ClassVar[Mapping[str, object]] = {
        "rounds": 2, "sampling_rate": 0.5, "local_steps": 1, "batch_size": 1, "hidden_size": 4, "critic_hidden_size": 3,
        "latent_size": 2, "basis_size": 3,
    }  # fmt: skip
    meanings: ClassVar[Mapping[str, str]] = {
        **GanNetworks.meanings,
        "epsilon": "privacy loss of everything one client holds, over the whole run",
        **TRUST_MEANINGS,
        "rounds": "rounds of training",
        "sampling_rate": "probability with which a client takes part in a round",
        "local_steps": "steps of the critic at a client in one round",
        "batch_size": "records in a batch at a client, and generated examples in a batch at the server",
        "generator_steps": "steps of the generator at the server in one round",
        "clip_norm": "L2 norm that the update of each client is clipped to",
        "noise_multiplier": "noise of the sum of updates in units of the clipping norm; 0 calibrates it to epsilon",
        "critic_learning_rate": "learning rate of the critic at a client (Adam)",
        "server_learning_rate": "what the mean update is multiplied by at the server",
        "learning_rate": "learning rate of the generator (Adam)",
        "ema_decay": "decay of the moving average of the generator; 0 takes the last generator",
        "conditional": "whether both networks are given the labels of images",
    }
    vectorises: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.check_updates()
        self.check_networks()
        check_counts(
            rounds=self.rounds, local_steps=self.local_steps, batch_size=self.batch_size, generator_steps=self.generator_steps
        )  # fmt: skip
        check_sizes(
            clip_norm=self.clip_norm, critic_learning_rate=self.critic_learning_rate,
            server_learning_rate=self.server_learning_rate, learning_rate=self.learning_rate,
        )  # fmt: skip
        check_shares(ema_decay=self.ema_decay)

    def compose(self, population: Population) -> Composition:
        gan = self.gan(population, conditional=self.conditional)
        how = "the generator is trained at the server against the noised critic: post-processing"
        release = self.release(population, gan.critic_size, what="critic", how=how)
        return self.composed_of(FedAvgGanLearner(population, release, self, gan))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _train_generator(method: FedAvgGan, gan: Gan, generator: TrainState, omega: Array, key: Array) -> TrainState:
    classes = max(1, gan.generator.classes)
    even = jnp.full(classes, 1.0 / classes)
    for one in jax.random.split(key, method.generator_steps):
        generator = generator_step(gan, generator, omega, even, method.batch_size, one, method.learning_rate)
    return generator
