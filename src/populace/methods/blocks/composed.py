"""A method made of three parts: a schedule, a release, and a learner, which is all that a paper's author writes.

`ComposedMethod` derives from them what engines ask of a method: whom to ask, what a reply costs, guarantee, plan and bytes.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.base import Ask, Plan, Population, Protocol, Replies, Shard
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.releases import Release
from populace.methods.blocks.schedules import Schedule
from populace.privacy.events import Event
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.source import Source
from populace.types import Array, ArrayTree


class Learner(abc.ABC):
    """What is learned from whom. Built from settings and public facts, alike by both sides."""

    @abc.abstractmethod
    def begin(self, key: Array, warm: Any = None) -> ArrayTree:
        """The server's first state."""

    def question(self, state: ArrayTree) -> ArrayTree:
        """What everybody in a cohort is sent; nothing, unless a method sends more than that it is a client's turn."""
        del state
        return ()

    @abc.abstractmethod
    def answer(self, question: ArrayTree, own: ArrayTree, shard: Shard, source: Source) -> ArrayTree:
        """The reply of one client: the only function that sees records, and it sends only what the release lets out."""

    @abc.abstractmethod
    def absorb(self, state: ArrayTree, number: Array, replies: Replies, source: Source) -> ArrayTree:
        """The state after exchange `number`."""

    @abc.abstractmethod
    def finish(self, state: ArrayTree, key: Array) -> Synthesizer:
        """The generator."""

    @abc.abstractmethod
    def message_bytes(self) -> tuple[float, float]:
        """Mean bytes sent to and by one client in an exchange."""

    def predicted_errors(self) -> Mapping[str, float]:
        """Errors that follow from public facts alone; training has none in closed form."""
        return {}

    def notes(self) -> tuple[str, ...]:
        """What a plan says beside them."""
        return ()


@dataclasses.dataclass(frozen=True)
class Composition:
    """The three parts of a method for one population."""

    schedule: Schedule
    release: Release
    learner: Learner


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunState:
    """Where a run stands: how many exchanges there were, what the schedule keeps, and the learner's state."""

    round: Array
    order: Array
    learner: ArrayTree
    population: Population = dataclasses.field(metadata={"static": True})


class ComposedMethod(Protocol):
    """A method whose hooks follow from its parts. A subclass has settings, `facts` and `compose`."""

    @abc.abstractmethod
    def compose(self, population: Population) -> Composition:
        """The parts, from settings and public facts; called once for each population."""

    def parts(self, population: Population) -> Composition:
        return _composed(self, population)

    def round_count(self, population: Population) -> int:
        return self.parts(population).schedule.exchanges

    def begin(self, population: Population, key: Array, warm: Any = None) -> RunState:
        parts = self.parts(population)
        learner, order = jax.random.split(key)
        return RunState(
            round=np.zeros((), np.int32), order=parts.schedule.start(order), learner=parts.learner.begin(learner, warm),
            population=population,
        )  # fmt: skip

    def ask(self, state: RunState, population: Population, source: Source) -> Ask | None:
        parts = self.parts(population)
        if not isinstance(state.round, jax.core.Tracer) and int(state.round) >= parts.schedule.exchanges:
            return None
        cohort = parts.schedule.cohort(state.order, state.round, source)
        question = parts.learner.question(state.learner)
        return Ask(round=jnp.asarray(state.round), cohort=cohort.clients, common=question, own=cohort.own)

    def cohorts(self, population: Population, state: RunState, first: int, count: int) -> Array:
        return np.asarray(state.order)[first : first + count]

    def charge(self, ask: Ask, population: Population) -> Charge:
        release = self.parts(population).release
        return Charge(event=release.event(int(ask.round)), unit=release.unit)

    def spends(self, population: Population) -> Event:
        return self.parts(population).release.whole

    def calibrated_noise(self, population: Population) -> float:
        return self.parts(population).release.noise_multiplier

    def answer(
        self, common: ArrayTree, own: ArrayTree, shard: Shard, memory: ArrayTree, source: Source
    ) -> tuple[ArrayTree, ArrayTree]:
        return self.parts(shard.population).learner.answer(common, own, shard, source), memory

    def absorb(self, state: RunState, ask: Ask, replies: Replies, source: Source) -> RunState:
        parts = self.parts(state.population)
        learner = parts.learner.absorb(state.learner, state.round, replies, source)
        return dataclasses.replace(state, round=state.round + np.int32(1), learner=learner)

    def finish(self, state: RunState, population: Population, key: Array) -> Synthesizer:
        return self.parts(population).learner.finish(state.learner, key)

    def guarantee(self, population: Population) -> Guarantee:
        return self.parts(population).release.guarantee(population)

    def plan(self, population: Population) -> Plan:
        parts = self.parts(population)
        down, up = parts.learner.message_bytes()
        return Plan(
            guarantee=self.guarantee(population), rounds=parts.schedule.rounds, bytes_up=up, bytes_down=down,
            errors=dict(parts.learner.predicted_errors()), notes=parts.learner.notes(),
        )  # fmt: skip

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return self.parts(population).learner.message_bytes()


@functools.lru_cache(maxsize=64)
def _composed(method: ComposedMethod, population: Population) -> Composition:
    return method.compose(population)
