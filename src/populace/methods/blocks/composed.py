"""A method made of three parts: a schedule, a release, and a learner, which is all that a paper's author writes.

The object that draws the noise states its cost. A learner passes every sum that leaves through the release, which knows
whether the client or the server adds the noise; `populace audit` finds a learner that sends another.
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

from populace.errors import SpecError
from populace.methods.base import Ask, Costs, Plan, Population, Protocol, Replies, Shard
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.releases import GaussianRelease as GaussianRelease
from populace.methods.blocks.releases import LocalRelease as LocalRelease
from populace.methods.blocks.releases import Release as Release
from populace.methods.blocks.releases import Unprotected as Unprotected
from populace.methods.blocks.releases import Wording as Wording
from populace.methods.blocks.schedules import Cohort, Schedule
from populace.privacy.accounting import contains_non_private
from populace.privacy.events import Event
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.noise_shares import NoiseShares
from populace.privacy.source import Source
from populace.types import Array, ArrayTree


class Learner(abc.ABC):
    """What is learned from whom. Built from settings and public facts, alike by both sides."""

    def split(self, key: Array) -> tuple[Array, Array]:
        """The learner's key and the schedule's, from the run's: as the method's seeded results have it."""
        learner, order = jax.random.split(key)
        return learner, order

    @abc.abstractmethod
    def begin(self, key: Array, warm: Any = None) -> ArrayTree:
        """The server's first state."""

    def question(self, state: ArrayTree, number: Array) -> ArrayTree:
        """What everybody in a cohort is sent; nothing, unless a method sends more than that it is a client's turn."""
        del state, number
        return ()

    def own_questions(self, state: ArrayTree, number: Array, cohort: Cohort) -> ArrayTree:
        """What each in a cohort is sent beside it: what the schedule says, unless clients are asked different things."""
        del state, number
        return cohort.own

    def example(self, number: int) -> ArrayTree | None:
        """A question of exchange `number`, for its shape, where questions change theirs; None: the first stands for all."""
        del number
        return None

    def done(self, state: ArrayTree, number: int) -> bool:
        """Whether a run ends before exchange `number` although the schedule has more."""
        del state, number
        return False

    def remember(self) -> ArrayTree:
        """What a client keeps at home before its first round; most methods keep nothing."""
        return ()

    @abc.abstractmethod
    def answer(self, question: ArrayTree, own: ArrayTree, shard: Shard, source: Source) -> ArrayTree:
        """The reply of one client: the only function that sees records, and it sends only what the release lets out."""

    def answer_and_keep(
        self, question: ArrayTree, own: ArrayTree, shard: Shard, memory: ArrayTree, source: Source
    ) -> tuple[ArrayTree, ArrayTree]:
        """The same with what the client keeps at home, before and after."""
        return self.answer(question, own, shard, source), memory

    @abc.abstractmethod
    def absorb(self, state: ArrayTree, ask: Ask, replies: Replies, source: Source) -> ArrayTree:
        """The state after an exchange."""

    @abc.abstractmethod
    def finish(self, state: ArrayTree, key: Array) -> Synthesizer:
        """The generator."""

    @abc.abstractmethod
    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        """Mean bytes sent to and by one client in an exchange; without one, in all."""

    def predicted_errors(self) -> Mapping[str, float]:
        """Errors that follow from public facts alone; training has none in closed form."""
        return {}

    def notes(self) -> tuple[str, ...]:
        """What a plan says beside them."""
        return ()

    def costs(self) -> Costs | None:
        """Bytes and seconds, where they follow from public sizes; else a plan finds the seconds by a trial."""
        return None


class RememberingLearner(Learner):
    """A learner whose clients keep something at home from round to round: it has `remember` and `answer_and_keep`."""

    def answer(self, question: ArrayTree, own: ArrayTree, shard: Shard, source: Source) -> ArrayTree:
        return self.answer_and_keep(question, own, shard, self.remember(), source)[0]


@dataclasses.dataclass(frozen=True)
class Composition:
    """The three parts of a method for one population."""

    schedule: Schedule
    release: Release
    learner: Learner

    def __post_init__(self) -> None:
        if contains_non_private(self.release.whole):
            return
        if self.schedule.participations > self.release.replies:
            raise SpecError(
                f"a client may be asked {self.schedule.participations:,} times, and the release covers "
                f"{self.release.replies:,} replies"
            )
        if self.schedule.samples != self.release.amplified:
            raise SpecError("the schedule and the release disagree on whether clients are drawn in secret")
        if self.schedule.secret and self.release.sites is not None:
            raise SpecError("a secure sum shows the server whom it asks: clients are drawn by coins of their own")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunState:
    """Where a run stands: how many exchanges there were, what the schedule keeps, and the learner's state."""

    round: Array
    order: ArrayTree
    learner: ArrayTree
    population: Population = dataclasses.field(metadata={"static": True})


class ComposedMethod(Protocol):
    """A method whose hooks follow from its parts. A subclass has settings, `facts` and `compose`."""

    @property
    def draws_clients(self) -> bool:
        """Whether the server draws clients (`Sampled`): `own` tells each whether it is drawn, the others' replies are zeros."""
        return False

    @abc.abstractmethod
    def compose(self, population: Population) -> Composition:
        """The parts, from settings and public facts; called once for each population."""

    def parts(self, population: Population) -> Composition:
        return _composed(self, population)

    def round_count(self, population: Population) -> int:
        return self.parts(population).schedule.exchanges

    def answer_count(self, population: Population) -> int:
        return self.parts(population).schedule.answers

    def begin(self, population: Population, key: Array, warm: Any = None) -> RunState:
        parts = self.parts(population)
        learner, order = parts.learner.split(key)
        return RunState(
            round=np.zeros((), np.int32), order=parts.schedule.start(order), learner=parts.learner.begin(learner, warm),
            population=population,
        )  # fmt: skip

    def ask(self, state: RunState, population: Population, source: Source) -> Ask | None:
        parts = self.parts(population)
        if not isinstance(state.round, jax.core.Tracer):
            number = int(state.round)
            if number >= parts.schedule.exchanges or parts.learner.done(state.learner, number):
                return None
        cohort = parts.schedule.cohort(state.order, state.round, source)
        return Ask(
            round=jnp.asarray(state.round), cohort=cohort.clients,
            common=parts.learner.question(state.learner, state.round),
            own=parts.learner.own_questions(state.learner, state.round, cohort),
        )  # fmt: skip

    def question(self, population: Population, round_id: int) -> tuple[ArrayTree, ArrayTree]:
        common, own = super().question(population, round_id)
        example = self.parts(population).learner.example(round_id)
        return common if example is None else example, own

    def cohorts(self, population: Population, state: RunState, first: int, count: int) -> Array:
        return self.parts(population).schedule.cohorts(state.order, first, count)

    def working(self, ask: Ask) -> Array | None:
        return ask.own if self.draws_clients else None

    def charge(self, ask: Ask, population: Population) -> Charge:
        release = self.parts(population).release
        return Charge(event=release.event(int(ask.round)), unit=release.unit)

    def sum_shares(self, ask: Ask, population: Population) -> NoiseShares | None:
        return self.parts(population).release.shares(int(ask.round))

    def secret_cohorts(self, population: Population) -> bool:
        return self.parts(population).schedule.secret

    def spends(self, population: Population) -> Event:
        return self.parts(population).release.whole

    def spends_to(self, population: Population, shares: int) -> Event:
        release = self.parts(population).release
        return release.whole if release.sites is None else release.known(shares)

    def calibrated_noise(self, population: Population) -> float:
        return self.parts(population).release.noise_multiplier

    def answer(
        self, common: ArrayTree, own: ArrayTree, shard: Shard, memory: ArrayTree, source: Source
    ) -> tuple[ArrayTree, ArrayTree]:
        return self.parts(shard.population).learner.answer_and_keep(common, own, shard, memory, source)

    def remember(self, population: Population, key: Array) -> ArrayTree:
        return self.parts(population).learner.remember()

    def absorb(self, state: RunState, ask: Ask, replies: Replies, source: Source) -> RunState:
        parts = self.parts(state.population)
        learner = parts.learner.absorb(state.learner, dataclasses.replace(ask, round=state.round), replies, source)
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
            costs=parts.learner.costs(),
        )  # fmt: skip

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return self.parts(population).learner.message_bytes(ask)


@functools.lru_cache(maxsize=64)
def _composed(method: ComposedMethod, population: Population) -> Composition:
    return method.compose(population)
