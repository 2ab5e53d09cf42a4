"""Which question each client is asked by the public coin, for any client numbers, in chunks that are drawn once."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError
from populace.methods.base import Population
from populace.methods.poll.protocol import Poll
from populace.types import Array, NumpyArray

CHUNK = 2**14
#: What a collection takes for granted: all questions are known before the first answer.
ONE_STAGE = {"stages": 1}


class Assignment:
    """The assignment of questions by the public coin of one poll: client numbers in, question numbers out."""

    def __init__(self, protocol: Poll, population: Population, coin: Array) -> None:
        self.protocol, self.population = protocol, population
        self.state = protocol.begin(population, coin)
        self._chunk = functools.lru_cache(maxsize=8)(self._drawn)

    def questions(self, clients: Array) -> NumpyArray:
        """The question of each client; numbers in any order."""
        clients = np.asarray(clients, np.int64)
        order = np.argsort(clients, kind="stable")
        questions = np.empty(len(clients), np.int64)
        if not len(clients):
            return questions
        chunks, begin = np.unique(clients[order] // CHUNK, return_index=True)
        for chunk, rows in zip(chunks.tolist(), np.split(order, begin[1:]), strict=True):
            questions[rows] = self._chunk(chunk)[clients[rows] - chunk * CHUNK]
        return questions

    def _drawn(self, chunk: int) -> NumpyArray:
        slots = (chunk * CHUNK + np.arange(CHUNK)).astype(np.int32)
        return np.asarray(_first_questions(self.protocol, self.population, self.state.learner.coin, slots))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _first_questions(protocol: Poll, population: Population, coin: Array, slots: Array) -> Array:
    return protocol.learner(population).first_questions(coin, jnp.asarray(slots))


def check_one_stage(protocol: Poll) -> None:
    """A poll whose later questions follow from earlier answers is not collected in one go."""
    if protocol.stages != 1:
        raise SpecError(
            f"poll with stages={protocol.stages} asks some clients only after others have answered, so its answers cannot be "
            "collected in one go; leave stages out, or use `populace synthesize`"
        )
