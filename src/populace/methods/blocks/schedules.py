"""Schedules: how many rounds there are, whom each asks, and whether that must stay secret.

OneShot   every client once, in blocks of public order
Passes    every client once a pass, in a public random order, a cohort at a time
Relay     every client once, one after the other, in a public random order
Sampled   every client in every round; who takes part is drawn with a public probability and kept secret
"""

from __future__ import annotations

import abc
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from populace.privacy.source import Source
from populace.types import Array, ArrayTree


@dataclasses.dataclass(frozen=True)
class Cohort:
    """Whom a round asks (-1 is an empty slot), and what each is sent beside the common part."""

    clients: Array
    own: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule(abc.ABC):
    """Who is asked when, from public facts."""

    clients: int

    @property
    @abc.abstractmethod
    def exchanges(self) -> int:
        """The most exchanges a run takes."""

    @property
    def rounds(self) -> int:
        """The rounds as a reader of a plan counts them: exchanges that build on one another."""
        return self.exchanges

    @property
    def participations(self) -> int:
        """How often the client that is asked most often is asked."""
        return 1

    @property
    def secret(self) -> bool:
        """Whether the claim needs that nobody learns whom a round asked."""
        return False

    @abc.abstractmethod
    def start(self, key: Array) -> ArrayTree:
        """What the run's state keeps of the schedule: the order of the cohorts, or nothing."""

    @abc.abstractmethod
    def cohort(self, order: ArrayTree, number: Array, source: Source) -> Cohort:
        """The cohort of one exchange."""

    def cohorts(self, order: ArrayTree, first: int, count: int) -> Array:
        """[count, cohort size]: the cohorts of exchanges from `first` on, where they are known ahead."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneShot(Schedule):
    """Every client is asked once and nothing is built on an answer: blocks exist for memory alone."""

    block: int

    @property
    def exchanges(self) -> int:
        return -(-self.clients // self.block)

    @property
    def rounds(self) -> int:
        return 1

    def start(self, key: Array) -> Array:
        return np.zeros(0, np.int32)

    def cohort(self, order: ArrayTree, number: Array, source: Source) -> Cohort:
        slots = int(number) * self.block + np.arange(self.block, dtype=np.int32)
        clients = jnp.asarray(np.where(slots < self.clients, slots, -1), jnp.int32)
        return Cohort(clients, clients)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passes(Schedule):
    """Every client is asked once a pass, in a random order that is public and new in every pass."""

    cohort_size: int
    passes: int = 1

    @property
    def exchanges(self) -> int:
        return self.passes * -(-self.clients // self.cohort_size)

    @property
    def participations(self) -> int:
        return self.passes

    def start(self, key: Array) -> Array:
        """[rounds, cohort size]: whom each round asks; -1 where a pass runs out of clients."""
        rounds = -(-self.clients // self.cohort_size)
        numbers = jnp.arange(self.clients, dtype=jnp.int32)
        padding = (0, rounds * self.cohort_size - self.clients)
        return jnp.concatenate(
            [
                jnp.pad(jax.random.permutation(one, numbers), padding, constant_values=-1).reshape(rounds, -1)
                for one in jax.random.split(key, self.passes)
            ]
        )

    def cohort(self, order: ArrayTree, number: Array, source: Source) -> Cohort:
        return Cohort(order[number], jnp.zeros(self.cohort_size, jnp.int32))

    def cohorts(self, order: ArrayTree, first: int, count: int) -> Array:
        return np.asarray(order)[first : first + count]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relay(Passes):
    """One client after the other: what one returns is what the next receives."""

    cohort_size: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled(Schedule):
    """Everybody is asked, so that who is drawn does not show; `own` tells each whether it is."""

    wanted: int
    sampling_rate: float = 1.0

    @property
    def exchanges(self) -> int:
        return self.wanted

    @property
    def participations(self) -> int:
        return self.wanted

    @property
    def secret(self) -> bool:
        return self.sampling_rate < 1

    def start(self, key: Array) -> Array:
        return np.zeros(0, np.int32)

    def cohort(self, order: ArrayTree, number: Array, source: Source) -> Cohort:
        everybody = jnp.arange(self.clients, dtype=jnp.int32)
        drawn = source.coins(self.sampling_rate, self.clients) if self.secret else everybody >= 0
        return Cohort(everybody, jnp.asarray(drawn))
