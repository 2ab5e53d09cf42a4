"""Protocols of the tests' own, for what the registry does not exercise yet: memory, several rounds, central noise."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.base import Ask, Facts, Plan, Protocol
from populace.methods.baselines.marginals import Marginals
from populace.privacy.events import NonPrivate
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DiaryState:
    round: Any
    order: Any
    total: Any
    replies: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diary(Protocol):
    """Each round asks a public random cohort; a client remembers how often it was asked and tells that and its first code.

    Cohorts have empty slots, the state is absorbed round by round, and clients keep memory: all an engine must handle.
    """

    cohort: int = 4
    total_rounds: int = 6
    facts: ClassVar[Facts] = Facts(
        name="diary", title="", paper="", trust=("not-private",), unit="client", kinds=("table",), traffic=""
    )
    compiles: ClassVar[bool] = True

    def round_count(self, population):
        return self.total_rounds

    def begin(self, population, key, warm=None):
        order = jax.vmap(lambda k: jax.random.permutation(k, population.clients)[: self.cohort])(
            jax.random.split(key, self.total_rounds)
        )
        order = order.at[:, -1].set(jnp.where(jnp.arange(self.total_rounds) % 2 == 0, -1, order[:, -1]))
        return DiaryState(jnp.int32(0), order, jnp.zeros(2), jnp.int32(0))

    def cohorts(self, population, state, first, count):
        return np.asarray(state.order)[first : first + count]

    def ask(self, state, population, source):
        if not isinstance(state.round, jax.core.Tracer) and int(state.round) >= self.total_rounds:
            return None
        cohort = state.order[state.round]
        return Ask(round=state.round, cohort=cohort, common=state.total, own=jnp.arange(self.cohort))

    def charge(self, ask, population):
        return Charge(event=NonPrivate("a test"), unit="client")

    def remember(self, population, key):
        return {"asked": jnp.int32(0), "salt": jax.random.uniform(key)}

    def answer(self, common, own, shard, memory, source):
        jitter = jax.random.uniform(source.key) + memory["salt"]
        first = jnp.sum(jnp.where(shard.mask, shard.records[:, 0], 0))
        value = jnp.stack([first + memory["asked"] + 0.0, jitter + common[0] * 0.01])
        return value, {"asked": memory["asked"] + 1, "salt": memory["salt"]}

    def absorb(self, state, ask, replies, source):
        noise = jax.random.normal(source.key) * 0.0
        total = state.total + jnp.sum(jnp.where(replies.present[:, None], replies.values, 0), axis=0) + noise
        count = state.replies + replies.present.sum()
        return dataclasses.replace(state, round=state.round + 1, total=total, replies=count)

    def finish(self, state, population, key):
        schema = population.table_schema
        return Marginals(schema=schema, tables=tuple(np.full(size, 1 / size) for size in schema.sizes))

    def guarantee(self, population):
        return Guarantee(
            epsilon=math.inf,
            reason="a test",
            unit="client",
            neighbours="replace",
            trust="not-private",
            mechanism="none",
        )

    def plan(self, population):
        return Plan(guarantee=self.guarantee(population), rounds=self.total_rounds, bytes_up=8, bytes_down=8, errors={})

    def reply_bytes(self, ask, population):
        return 8.0, 8.0
