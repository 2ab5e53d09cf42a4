"""Rounds over live arrivals: what the coordinator of a study does between two of them, one step at a time.

A round is open while devices take places in it and answer. When all places are answered, or its time is over, it is sealed:
its answers are fixed. Then they are absorbed and the next round's questions follow. Everything a step needs is in the store,
so that whoever takes the next step, on whatever machine and after whatever crash, takes the same one.
"""

from __future__ import annotations

import dataclasses
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

from populace.collector.reports import Reports, reports_of
from populace.collector.store import Round, Store
from populace.collector.study import Study
from populace.engines import wire
from populace.engines.agreement import shapes_of
from populace.engines.wire import Message
from populace.errors import RunError
from populace.methods.base import Ask, Replies
from populace.methods.blocks.composed import ComposedMethod, RunState
from populace.methods.blocks.schedules import OneShot
from populace.privacy.source import Keyed
from populace.types import ArrayTree, NumpyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Questions:
    """What one round asks: `count` exchanges of the method from `first` on, none of which waits for another's answers.

    `cohort` and `own` hold all slots of all of them, one after the other; `places` are the slots that are somebody's.
    """

    first: int
    count: int
    cohort: NumpyArray
    common: ArrayTree
    own: ArrayTree

    @functools.cached_property
    def places(self) -> NumpyArray:
        return np.flatnonzero(self.cohort >= 0)

    @functools.cached_property
    def numbers(self) -> NumpyArray:
        """What each slot is asked, as a number; zeros where a method asks all the same."""
        (rows,) = jax.tree.leaves(self.own)
        return np.asarray(rows)

    def exchange(self, index: int) -> tuple[Ask, slice]:
        """One of the exchanges, and which slots are its."""
        size = len(self.cohort) // self.count
        part = slice(index * size, (index + 1) * size)
        own = jax.tree.map(lambda rows: jnp.asarray(rows[part]), self.own)
        ask = Ask(
            round=jnp.asarray(self.first + index, jnp.int32),
            cohort=jnp.asarray(self.cohort[part]),
            common=self.common,
            own=own,
        )
        return ask, part

    def pack(self) -> bytes:
        arrays = {"cohort": self.cohort} | wire.leaves(self.common, "common") | wire.leaves(self.own, "own")
        return wire.pack(Message(kind="round", fields={"first": self.first, "count": self.count}, arrays=arrays))


def read_questions(study: Study, content: bytes) -> Questions:
    """What a round asks, from the store."""
    message = wire.unpack(content)
    first, count = wire.take_fields(message, {"first": int, "count": int})
    like = shapes_of(study.protocol, study.population, first)
    cohort = message.arrays["cohort"]
    common = jax.tree.map(jnp.asarray, wire.fill(like.common, message.arrays, "common"))
    own = wire.fill(like.own, message.arrays, "own", rows=len(cohort))
    return Questions(first=first, count=count, cohort=np.asarray(cohort), common=common, own=own)


def asked_together(study: Study, number: int) -> int:
    """How many exchanges from this one on can be asked at once: blocks of one stage do not wait for each other's answers."""
    protocol, population = study.protocol, study.population
    schedule = protocol.parts(population).schedule if isinstance(protocol, ComposedMethod) else None
    if not isinstance(schedule, OneShot) or number >= schedule.exchanges:
        return 1
    ends = schedule.blocks[number:, 1]
    return int((ends == ends[0]).sum())


def next_questions(study: Study, state: RunState) -> Questions | None:
    """The questions of the round that begins in this state; None when the method has no more."""
    protocol, population, keys = study.protocol, study.population, study.keys
    first = int(state.round)
    asks = []
    for number in range(first, first + asked_together(study, first)):
        at = dataclasses.replace(state, round=np.asarray(number, np.int32))
        ask = protocol.ask(at, population, Keyed(keys.ask(number)))
        if ask is None:
            break
        asks.append(ask)
    if not asks:
        return None
    own = jax.tree.map(lambda *rows: np.concatenate([np.asarray(each) for each in rows]), *(ask.own for ask in asks))
    cohort = np.concatenate([np.asarray(ask.cohort) for ask in asks])
    return Questions(first=first, count=len(asks), cohort=cohort, common=asks[0].common, own=own)


def absorb_round(study: Study, state: RunState, questions: Questions, replies: list[tuple[int, bytes]]) -> RunState:
    """The state after a round: its exchanges one after the other, each with the answers that came."""
    reports = study_reports(study)
    slots = questions.places[np.array([place for place, _ in replies], np.int64)]
    contents = [report for _, report in replies]
    for index in range(questions.count):
        ask, part = questions.exchange(index)
        mine = np.flatnonzero((slots >= part.start) & (slots < part.stop))
        like = shapes_of(study.protocol, study.population, questions.first + index).reply
        values = reports.read([contents[i] for i in mine], slots[mine] - part.start, questions.numbers[part], like)
        present = np.zeros(part.stop - part.start, bool)
        present[slots[mine] - part.start] = True
        gathered = Replies(clients=ask.cohort, present=jnp.asarray(present), values=jnp.asarray(values))
        source = Keyed(study.keys.absorb(questions.first + index))
        state = study.protocol.absorb(state, ask, gathered, source)
    return state


@functools.lru_cache(maxsize=8)
def _reports(digest: str, study: Study) -> Reports:
    return reports_of(study.protocol, study.population, study.survey)


def study_reports(study: Study) -> Reports:
    return _reports(study.digest, study)


def pack_state(state: RunState) -> bytes:
    return wire.pack(Message(kind="state", arrays=wire.leaves(state, "state")))


def read_state(study: Study, content: bytes) -> RunState:
    """The coordinator's state, from the store."""
    template = study.protocol.begin(study.population, study.keys.begin())
    filled = wire.fill(wire.shapes(template), wire.unpack(content).arrays, "state")
    on_host = jax.tree.map(lambda leaf: not isinstance(leaf, jax.Array), template)
    state: RunState = jax.tree.map(lambda leaf, host: leaf if host else jnp.asarray(leaf), filled, on_host)
    return state


def begin(study: Study, store: Store) -> None:
    """Open the first round, unless there is one."""
    with store.transaction(lock="alone"):
        if store.fact("state") is not None:
            return
        state = study.protocol.begin(study.population, study.keys.begin())
        questions = next_questions(study, state)
        if questions is None:
            raise RunError(f"method {study.method!r} asks nothing of {study.clients} clients")
        store.keep_fact("state", pack_state(state))
        _open(study, store, 0, questions)


def _open(study: Study, store: Store, number: int, questions: Questions) -> None:
    now = time.time()
    last = questions.first + questions.count >= study.protocol.round_count(study.population)
    closes = None if last else now + study.timing.round
    store.open_round(number, questions.pack(), size=len(questions.places), now=now, closes=closes, last=last)


def due(study: Study, at: Round, now: float) -> bool:
    """Whether a round is over: all its places answered, or its time past and at least one answer in."""
    if at.answered >= at.size:
        return True
    return at.closes is not None and at.answered > 0 and now >= at.closes + study.timing.grace


def step(study: Study, store: Store) -> bool:
    """Do the next thing there is to do, if any; returns whether something was done."""
    rounds = store.rounds()
    if not rounds:
        begin(study, store)
        return True
    at = rounds[0]
    if at.state == "open":
        return due(study, at, time.time()) and store.seal(at.number)
    if at.state != "sealed":
        return False
    state, questions = read_position(study, store, at)
    state = absorb_round(study, state, questions, store.replies(at.number))
    following = None if store.fact("closed") is not None else next_questions(study, state)
    with store.transaction(lock="alone"):
        if not store.absorbed(at.number):
            return True  # another process was faster, and did the same
        store.keep_fact("state", pack_state(state))
        if following is None and store.fact("closed") is None:
            store.keep_fact("closed", b"every question of the method has been asked")
        elif following is not None:
            _open(study, store, at.number + 1, following)
    store.forget_order()
    return True


def read_position(study: Study, store: Store, at: Round) -> tuple[RunState, Questions]:
    """The state in which a round was opened, and what it asks."""
    kept, content = store.fact("state"), store.ask(at.number)
    if kept is None or content is None:
        raise RunError("the store has lost the state of its rounds; restore it")
    return read_state(study, kept), read_questions(study, content)


def close_study(store: Store) -> None:
    """Take no more answers: the round under way is sealed, nobody gets a place, and the order of answers is forgotten."""
    with store.transaction(lock="alone"):
        store.run("UPDATE round SET state = 'sealed' WHERE state = 'open'")
        store.forget_places()
        if store.fact("closed") is None:
            store.keep_fact("closed", b"by the organiser")
    store.forget_order()
