"""Protocols of the tests' own, for what the registry does not exercise: cohorts of one, memory at home, central noise."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.engines import debug
from populace.engines.runtime import Keys, population_of
from populace.errors import SpecError
from populace.methods.base import Ask, Facts, Plan, Protocol, choose_record
from populace.methods.baselines.marginals import Marginals
from populace.privacy import events
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.randomizers.subset import SubsetPanel
from populace.privacy.source import Keyed


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    round: Any
    total: Any
    heard: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relay(Protocol):
    """One client after the other: each gets the tally so far and hands it on with its own randomised report added.

    A client remembers how often it was asked, and says so in its reply.
    """

    epsilon: float
    passes: int = 1

    facts: ClassVar[Facts] = Facts(
        name="relay", title="", paper="", trust=("local",), unit="client", kinds=("table",), traffic=""
    )

    def __post_init__(self):
        if self.passes < 1:
            raise SpecError(f"expected passes of at least 1, got {self.passes}")

    def panel(self, schema):
        return SubsetPanel(sizes=(schema.sizes[0],), epsilon=self.epsilon / self.passes)

    def round_count(self, population):
        return self.passes * population.clients

    def begin(self, population, key, warm=None):
        size = population.table_schema.sizes[0]
        return State(round=jnp.int32(0), total=jnp.zeros(size, jnp.int32), heard=jnp.int32(0))

    def ask(self, state, population, source):
        if int(state.round) >= self.round_count(population):
            return None
        cohort = jnp.asarray([int(state.round) % population.clients], jnp.int32)
        return Ask(round=state.round, cohort=cohort, common={"tally": state.total}, own=jnp.zeros(1, jnp.int32))

    def charge(self, ask, population):
        return Charge(event=self.panel(population.table_schema).event, unit="client")

    def remember(self, population, key):
        return {"asked": jnp.int32(0)}

    def answer(self, common, own, shard, memory, source):
        which, noise = source.split(2)
        record, _ = choose_record(shard, which)
        report = self.panel(shard.table_schema).apply(jnp.asarray(record)[0], own, noise)
        after = {"asked": memory["asked"] + 1}
        return {"tally": common["tally"] + jnp.asarray(report).astype(jnp.int32), "asked": after["asked"]}, after

    def absorb(self, state, ask, replies, source):
        total = jnp.where(replies.present[0], replies.values["tally"][0], state.total)
        heard = state.heard + jnp.where(replies.present[0], replies.values["asked"][0], 0)
        return dataclasses.replace(state, round=state.round + 1, total=total, heard=heard)

    def finish(self, state, population, key):
        schema = population.table_schema
        tables = [np.full(size, 1 / size) for size in schema.sizes]
        tables[0] = (np.asarray(state.total) + 1) / (np.asarray(state.total) + 1).sum()
        return Marginals(schema=schema, tables=tuple(tables))

    def guarantee(self, population):
        return Guarantee(
            epsilon=self.epsilon, unit="client", neighbours="replace", trust="local", mechanism="one report a pass"
        )

    def plan(self, population):
        return Plan(
            guarantee=self.guarantee(population),
            rounds=self.round_count(population),
            bytes_up=8,
            bytes_down=8,
            errors={},
        )

    def reply_bytes(self, ask, population):
        return 8.0, 8.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CentralMean(Protocol):
    """Everybody sends a clipped number; the server adds Gaussian noise to the sum, and divides by a public constant.

    Every round asks the same, so the question says which round it is: a site answers a question in one round only.
    """

    epsilon: float
    delta: float = 1e-5
    noise_multiplier: float = 8.0
    total_rounds: int = 1
    quorum_share: float = 0.5

    facts: ClassVar[Facts] = Facts(
        name="central-mean", title="", paper="", trust=("central",), unit="client", kinds=("table",), traffic=""
    )

    def round_count(self, population):
        return self.total_rounds

    def begin(self, population, key, warm=None):
        return State(round=jnp.int32(0), total=jnp.float32(0), heard=jnp.int32(0))

    def ask(self, state, population, source):
        if int(state.round) >= self.total_rounds:
            return None
        clients = jnp.arange(population.clients, dtype=jnp.int32)
        return Ask(round=state.round, cohort=clients, common={"round": state.round}, own=jnp.zeros_like(clients))

    def quorum(self, ask, population):
        return math.ceil(self.quorum_share * population.clients)

    def charge(self, ask, population):
        return Charge(event=events.Gaussian(self.noise_multiplier), unit="client")

    def answer(self, common, own, shard, memory, source):
        return jnp.clip(jnp.sum(jnp.where(jnp.asarray(shard.mask), shard.records[:, 0], 0)), 0, 1).astype(
            jnp.float32
        ), memory

    def absorb(self, state, ask, replies, source):
        total = jnp.sum(jnp.where(replies.present, replies.values, 0))
        if isinstance(source, Keyed):
            noise = jax.random.normal(source.key)
        else:  # the sum of many fair coins of the operating system, scaled: a test's stand-in for an exact sampler
            coins = np.array([int(source.below(2)) for _ in range(400)])
            noise = (coins.sum() - 200) / 10
        total = (total + self.noise_multiplier * noise) / len(ask.cohort)
        return dataclasses.replace(
            state, round=state.round + 1, total=total.astype(jnp.float32), heard=state.heard + replies.present.sum()
        )

    def finish(self, state, population, key):
        schema = population.table_schema
        return Marginals(schema=schema, tables=tuple(np.full(size, 1 / size) for size in schema.sizes))

    def guarantee(self, population):
        return Guarantee(
            epsilon=self.epsilon, delta=self.delta, unit="client", neighbours="add-remove", trust="central",
            mechanism="a noisy sum",
        )  # fmt: skip

    def plan(self, population):
        return Plan(guarantee=self.guarantee(population), rounds=1, bytes_up=4, bytes_down=4, errors={})

    def reply_bytes(self, ask, population):
        return 4.0, 4.0


def debug_state(protocol, clients, root):
    """State and number of charges after all rounds of the debug engine; no generator is made."""
    population, keys, memories, charges, rounds = population_of(clients), Keys(root), {}, 0, 0
    state = protocol.begin(population, keys.begin())
    while (ask := protocol.ask(state, population, Keyed(keys.ask(rounds)))) is not None:
        replies = debug.answer_one_by_one(protocol, ask, clients, population, keys, rounds, memories, exact=False)
        state = protocol.absorb(state, ask, replies, Keyed(keys.absorb(rounds)))
        charges += int((np.asarray(ask.cohort) >= 0).sum())
        rounds += 1
    return state, charges
