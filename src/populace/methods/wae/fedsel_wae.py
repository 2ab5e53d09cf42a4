"""`fedsel-wae`: the published autoencoder trained by FedSel, the baseline that SignDS improves on.

The network, the local training and the rounds are those of DP-Fed-WAE's published recipe (Jiang, Zhou and Grossklags, PoPETs
2022). What a client tells of its update follows FedSel (Liu, Cao, Yoshikawa and Chen, DASFAA 2020) instead: one coordinate of
the largest in size, with half of epsilon, and one bit of its value, with the other half.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import out_of_range
from populace.methods.base import Ask, Facts, Plan, Population, Replies, Shard
from populace.methods.blocks.networks import Blocks, Decoder, count_parameters, unpack
from populace.methods.wae.autoencoders import DenseAutoencoder
from populace.methods.wae.training import PassesOfReports, adam_update, pretrain
from populace.privacy.events import Event
from populace.privacy.guarantee import Guarantee
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.randomizers.fedsel import FedSel
from populace.privacy.source import Source
from populace.types import Array, ArrayTree


@dataclasses.dataclass(frozen=True)
class Design:
    """What both sides derive from the protocol's fields and the public schema."""

    net: DenseAutoencoder
    mechanism: FedSel

    @property
    def parameters(self) -> int:
        return count_parameters(self.net.shapes)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """The server's parameters, the public order of the clients, and the public coin of latents and ties."""

    round: Array
    coin: Array
    order: Array
    theta: Array
    design: Design = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedSelWae(PassesOfReports):
    """Guarantee: epsilon-LDP, pure, for everything a client holds: it sends `participations` reports of epsilon divided by
    that number, and its ledger refuses one more. Of each report the coordinate costs
    `selection_budget_share`, its value the rest.

    Edge cases: a client without records sends what a zero update gives. Values are clipped to what so many epochs of Adam can
    change, epochs times learning rate, and reported in units of it. A client keeps no residual of what it did not report: asked
    once it could not use it.
    """

    epsilon: float
    cohort_size: int = 10
    participations: int = 1
    top_share: float = 0.05
    selection_budget_share: float = 0.5
    server_learning_rate: float = 1.0
    hidden_size: int = 64
    latent_size: int = 16
    local_epochs: int = 10
    learning_rate: float = 1e-3
    pretraining_steps: int = 0

    renamed: ClassVar[Mapping[str, str]] = {
        "cohort": "cohort_size", "share": "top_share", "first": "selection_budget_share", "step": "server_learning_rate",
        "hidden": "hidden_size", "latent": "latent_size", "epochs": "local_epochs", "pretraining": "pretraining_steps",
    }  # fmt: skip
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The local privacy budget of everything one client holds.",
        "cohort_size": "How many clients a round asks.",
        "participations": "How many reports each client sends; they share epsilon.",
        "top_share": "The share of coordinates that count as the top (k/d).",
        "selection_budget_share": "The share of a report's epsilon that pays for the coordinate; the rest pays for its value.",
        "server_learning_rate": "The length of the server's step, in units of the largest change of local training.",
        "hidden_size": "The units of each hidden layer.",
        "latent_size": "The dimension of the Gaussian code.",
        "local_epochs": "How often a client goes through its records before it reports.",
        "learning_rate": "The learning rate of Adam at a client.",
        "pretraining_steps": "Steps on rows drawn evenly from the public domain, before the first round.",
    }
    small: ClassVar[Mapping[str, object]] = {"cohort_size": 15, "hidden_size": 6, "latent_size": 2, "local_epochs": 2}
    facts: ClassVar[Facts] = Facts(
        name="fedsel-wae",
        line="autoencoder, one value per client",
        title="the published autoencoder trained by one coordinate and one bit of its value per client (FedSel)",
        paper="Liu et al., DASFAA 2020, as the baseline of Jiang et al., PoPETs 2022",
        trust=("local",),
        unit="client",
        kinds=("table",),
        traffic="a model down, one index and one bit up, per client and participation",
    )
    compiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        for name in ("cohort_size", "participations", "hidden_size", "latent_size", "local_epochs"):
            if getattr(self, name) < 1:
                raise out_of_range(name, "at least 1", getattr(self, name))
        for name in ("pretraining_steps", "server_learning_rate"):
            if not 0 <= getattr(self, name) < math.inf:
                raise out_of_range(name, "at least 0", getattr(self, name))
        for name in ("top_share", "selection_budget_share"):
            if not 0 < getattr(self, name) < 1:
                raise out_of_range(name, "in (0, 1)", getattr(self, name))
        if not 0 < self.learning_rate < math.inf:
            raise out_of_range("learning_rate", "above 0", self.learning_rate)
        for part in (self.selection_budget_share, 1 - self.selection_budget_share):
            check_epsilon(self.epsilon * part / self.participations)

    def design(self, population: Population) -> Design:
        return design_of(self, population)

    def report_event(self, population: Population) -> Event:
        return self.design(population).mechanism.event

    def clients_per_round(self, population: Population) -> int:
        return min(self.cohort_size, population.clients)

    def begin(self, population: Population, key: Array, warm: object = None) -> State:
        del warm
        design = self.design(population)
        start, coin, order, random = jax.random.split(key, 4)
        theta = design.net.start(start)
        if self.pretraining_steps:
            theta = pretrain(
                design.net, theta, steps=self.pretraining_steps, learning_rate=self.learning_rate, key=random
            )
        cohorts = self.schedule(population).start(order)
        return State(round=jnp.int32(0), coin=coin, order=cohorts, theta=theta, design=design)

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        if not isinstance(state.round, jax.core.Tracer) and int(state.round) >= self.round_count(population):
            return None
        cohort = state.order[state.round]
        common = {"theta": state.theta, "coin": jax.random.key_data(state.coin), "round": state.round}
        return Ask(round=state.round, cohort=cohort, common=common, own=jnp.arange(len(cohort), dtype=jnp.int32))

    def answer(
        self, common: ArrayTree, own: Array, shard: Shard, memory: ArrayTree, source: Source
    ) -> tuple[Array, ArrayTree]:
        design = self.design(shard.population)
        root = jax.random.wrap_key_data(jnp.asarray(common["coin"]))
        ties, latents = jax.random.split(jax.random.fold_in(jax.random.fold_in(root, 1 + common["round"]), own))
        start = jax.random.randint(ties, (), 0, design.mechanism.size)
        x, mask = design.net.blocks.encode(shard.records), jnp.asarray(shard.mask, jnp.float32)
        update = adam_update(
            design.net, common["theta"], x, mask, latents, epochs=self.local_epochs, learning_rate=self.learning_rate
        )
        return design.mechanism.apply(update, source, start), memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        heard = jnp.maximum(jnp.sum(replies.present), 1)
        mean = state.design.mechanism.add_up(replies.values, replies.present) / heard
        return dataclasses.replace(state, round=state.round + 1, theta=state.theta + self.server_learning_rate * mean)

    def finish(self, state: State, population: Population, key: Array) -> Decoder:
        parts = unpack(state.design.net.shapes, state.theta)
        layers = {name: np.asarray(parts[name]) for name in ("up", "up_bias", "out", "out_bias")}
        return Decoder(schema=population.table_schema, layers=layers, arg_max=True)

    def guarantee(self, population: Population) -> Guarantee:
        mechanism = self.design(population).mechanism
        return self.claim(
            population,
            report="one index and one bit of an update's value (FedSel)",
            derivation=(
                f"each report: {mechanism.event}, of which the index costs {mechanism.parts[0]:g} "
                f"({mechanism.chosen} of {mechanism.size} coordinates being the top) and the value the rest",
                "cohorts, latents and ties are public coins",
            ),
        )

    def plan(self, population: Population) -> Plan:
        design = self.design(population)
        down, up = self._bytes(design)
        return Plan(
            guarantee=self.guarantee(population),
            rounds=self.round_count(population),
            bytes_up=up,
            bytes_down=down,
            errors={},
            notes=(
                f"{design.parameters:,} parameters; values told in units of {design.mechanism.bound:g}",
                "no error is predicted: training has no closed form",
                *self.shuffled(population),
            ),
        )

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return self._bytes(self.design(population))

    def _bytes(self, design: Design) -> tuple[float, float]:
        """Parameters as 32-bit floats, a seed, the number of the round; one report."""
        return 4.0 * design.parameters + 12.0, float(design.mechanism.wire_bytes)


@functools.lru_cache(maxsize=64)
def design_of(protocol: FedSelWae, population: Population) -> Design:
    """The network and the mechanism: from public facts alone."""
    net = DenseAutoencoder(Blocks(population.table_schema.sizes), protocol.hidden_size, protocol.latent_size)
    size = count_parameters(net.shapes)
    mechanism = FedSel(
        size=size,
        epsilon=protocol.epsilon / protocol.participations,
        chosen=min(max(1, size - 1), max(1, round(protocol.top_share * size))),
        bound=protocol.local_epochs * protocol.learning_rate,
        first=protocol.selection_budget_share,
    )
    return Design(net, mechanism)
