"""Schedules: how many rounds there are, whom each asks, and whether that must stay secret.

OneShot   every client once, in blocks of a public order; later stages may build on the answers of earlier ones
Stages    every client once in each stage; a stage builds on the one before
Passes    every client once a pass, in a public random order, a cohort at a time
Relay     every client once, one after the other, in a public random order
Subsets   as many clients in every round, drawn by a public coin anew each time
Sampled   every client in every round; who takes part is drawn with a public probability and kept secret, by the server
          or, with coins of their own, by the clients
"""

from __future__ import annotations

import abc
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from populace.privacy.source import Source
from populace.types import Array, ArrayTree, NumpyArray

ARRIVAL = 2**32 - 1  # sets the draw of the order apart from other draws by the same coin, which count from 0


@dataclasses.dataclass(frozen=True)
class Cohort:
    """Whom a round asks (-1 is an empty slot), what each is sent beside the common part, and each one's place in the order
    of all clients, where the schedule has one."""

    clients: Array
    own: Array
    slots: Array = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))


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
    def answers(self) -> int:
        """How many answers all clients give together, at most."""
        return self.clients * self.participations

    @property
    def secret(self) -> bool:
        """Whether the claim needs that nobody learns whom a round asked."""
        return False

    @property
    def samples(self) -> bool:
        """Whether each client is in a round by a coin that stays secret: the server's, or the client's own."""
        return self.secret

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
    """Every client is asked once, at most `block` at a time.

    Blocks exist for memory alone; what is built on answers is a new stage, and `stages` says how many clients each has. Where
    `shuffled`, clients come in an order drawn by the public coin: in the order of a file kept by time, early and late clients
    would be asked different things, and all estimates would lean.
    """

    block: int
    stages: tuple[int, ...] = ()
    shuffled: bool = False

    @functools.cached_property
    def blocks(self) -> NumpyArray:
        """[exchanges, 2]: the first slot of each block, and the slot at which its stage ends."""
        ends = np.cumsum(self.stages or (self.clients,)).tolist()
        size, begins = self._size, [0, *ends]
        pairs = [(slot, end) for begin, end in zip(begins, ends, strict=False) for slot in range(begin, end, size)]
        return np.array(pairs, np.int32)

    @property
    def _size(self) -> int:
        return min(self.block, self.clients)

    @property
    def exchanges(self) -> int:
        return len(self.blocks)

    @property
    def rounds(self) -> int:
        return max(1, len(self.stages))

    def start(self, key: Array) -> ArrayTree:
        if not self.shuffled:
            return ()
        seed = np.asarray(jax.random.key_data(jax.random.fold_in(key, ARRIVAL)))
        return np.random.default_rng(seed).permutation(self.clients).astype(np.int32)

    def cohort(self, order: ArrayTree, number: Array, source: Source) -> Cohort:
        clients, slots = _seat_block(self, order, number)
        return Cohort(clients, jnp.zeros_like(slots), slots)

    def cohorts(self, order: ArrayTree, first: int, count: int) -> Array:
        blocks = self.blocks[first : first + count]
        slots = blocks[:, :1] + np.arange(self._size, dtype=np.int32)
        return np.asarray(self._seated(order, slots, blocks[:, 1:]))

    def _seated(self, order: ArrayTree, slots: Array, end: Array) -> Array:
        """The client in each slot; -1 behind the last of a stage."""
        return jnp.where(slots < end, jnp.asarray(order)[slots] if self.shuffled else slots, -1)


@functools.partial(jax.jit, static_argnums=0)
def _seat_block(schedule: OneShot, order: ArrayTree, number: Array) -> tuple[Array, Array]:
    """The clients of one block and their slots: one program, also where rounds are not compiled."""
    first, end = jnp.asarray(schedule.blocks)[number]
    slots = first + jnp.arange(schedule._size, dtype=jnp.int32)
    return schedule._seated(order, slots, end), slots


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stages(Schedule):
    """Every client is asked once in each stage, at most `block` at a time; a stage builds on what the one before released."""

    block: int
    stages: int

    @property
    def blocks(self) -> int:
        """Exchanges of one stage."""
        return -(-self.clients // self.block)

    @property
    def exchanges(self) -> int:
        return self.stages * self.blocks

    @property
    def rounds(self) -> int:
        return self.stages

    @property
    def participations(self) -> int:
        return self.stages

    def stage(self, number: int) -> tuple[int, int]:
        """The stage of an exchange, and which of its blocks it asks."""
        return divmod(number, self.blocks)

    def start(self, key: Array) -> ArrayTree:
        return ()

    def cohort(self, order: ArrayTree, number: Array, source: Source) -> Cohort:
        slots = self.stage(int(number))[1] * self.block + np.arange(self.block, dtype=np.int32)
        clients = np.where(slots < self.clients, slots, -1).astype(np.int32)
        return Cohort(jnp.asarray(clients), jnp.asarray(np.zeros_like(clients)), jnp.asarray(slots))


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
class Subsets(Schedule):
    """A random subset of the clients in each round, all of one size; the coin is public, and so is who is asked."""

    cohort_size: int
    wanted: int

    @property
    def exchanges(self) -> int:
        return self.wanted

    @property
    def participations(self) -> int:
        return self.wanted

    @property
    def answers(self) -> int:
        return self.cohort_size * self.wanted

    def start(self, key: Array) -> Array:
        return key

    def cohort(self, order: ArrayTree, number: Array, source: Source) -> Cohort:
        clients = self._drawn(order, number)
        return Cohort(clients, jnp.zeros_like(clients))

    def cohorts(self, order: ArrayTree, first: int, count: int) -> Array:
        return jax.vmap(functools.partial(self._drawn, order))(jnp.arange(first, first + count))

    def _drawn(self, coin: Array, number: Array) -> Array:
        numbers = jnp.arange(self.clients, dtype=jnp.int32)
        return jax.random.permutation(jax.random.fold_in(coin, number), numbers)[: self.cohort_size]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled(Schedule):
    """Everybody is asked, so that who is drawn does not show; `own` tells each whether it is.

    With `own_coins` the server draws nobody, and `own` tells nothing: each client draws for itself when it answers, and tells
    nobody.
    """

    wanted: int
    sampling_rate: float = 1.0
    own_coins: bool = False

    @property
    def exchanges(self) -> int:
        return self.wanted

    @property
    def participations(self) -> int:
        return self.wanted

    @property
    def secret(self) -> bool:
        return self.samples and not self.own_coins

    @property
    def samples(self) -> bool:
        return self.sampling_rate < 1

    def start(self, key: Array) -> ArrayTree:
        return ()

    def cohort(self, order: ArrayTree, number: Array, source: Source) -> Cohort:
        everybody = jnp.arange(self.clients, dtype=jnp.int32)
        drawn = source.coins(self.sampling_rate, self.clients) if self.secret else everybody >= 0
        return Cohort(everybody, jnp.asarray(drawn))
