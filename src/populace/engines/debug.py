"""One client at a time, uncompiled: slow, and every error names the client and the step.

It also takes the operating system's randomness instead of keys, and then makes the very replies a deployed client would.
Secure sums are opened under their real masks, by a site for every client.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from populace.engines.runtime import (
    Keys,
    Outcome,
    Progress,
    Report,
    Traffic,
    check_kind,
    check_persons,
    new_ledger,
    padded_shard,
    population_of,
)
from populace.engines.sums import check_everybody, open_in_process
from populace.errors import PopulaceError
from populace.methods.base import Ask, Population, Protocol, Replies
from populace.privacy.source import Keyed, Source, System
from populace.tables.partition import Clients
from populace.types import Array, ArrayTree


class StepError(PopulaceError):
    """A protocol failed; the message names round, client and step."""


@contextlib.contextmanager
def step(name: str, round_id: int, client: int | None = None) -> Iterator[None]:
    try:
        yield
    except PopulaceError:
        raise
    except Exception as error:
        who = f", client {client}" if client is not None else ""
        raise StepError(f"round {round_id}{who}, step {name}: {type(error).__name__}: {error}") from error


def run(
    protocol: Protocol, clients: Clients, *, root: Array, exact: bool = False, progress: Report | None = None
) -> Outcome:
    """Run a protocol one client at a time. With `exact`, clients draw from the operating system, and so does the server
    what protects them; starting points and what a client keeps at home come from `root`."""
    population = population_of(clients)
    check_kind(protocol, population)
    check_persons(protocol, clients)
    keys = Keys(root, exact=exact)
    ledger = new_ledger(protocol, population)
    traffic = Traffic()
    memories: dict[int, ArrayTree] = {}
    state = protocol.begin(population, keys.begin())
    rounds = 0
    while (ask := protocol.ask(state, population, keys.source(keys.ask(rounds)))) is not None:
        members = np.asarray(ask.cohort)
        ledger.book(members[members >= 0], protocol.charge(ask, population), round_id=rounds)
        replies = answer_one_by_one(protocol, ask, clients, population, keys, rounds, memories, exact=exact)
        if (shares := protocol.sum_shares(ask, population)) is not None:
            check_everybody(ask, population)
            share_of = functools.partial(_share_source, keys, rounds)
            with step("secure sum", rounds):
                replies = open_in_process(replies, shares, share_of, round_id=rounds)
        with step("absorb", rounds):
            state = protocol.absorb(state, ask, replies, keys.source(keys.absorb(rounds)))
        traffic = traffic.plus(*protocol.reply_bytes(ask, population), int(working_slots(protocol, ask).sum()))
        rounds += 1
        if progress:
            progress(Progress(done=rounds, total=protocol.round_count(population), clients=ledger.spent()["charges"]))
    generator = protocol.finish(state, population, keys.finish())
    return Outcome(
        generator=generator, guarantee=protocol.guarantee(population), ledger=ledger, traffic=traffic, rounds=rounds,
        state=state, noise=keys.noise,
    )  # fmt: skip


def _share_source(keys: Keys, round_id: int, client: int) -> Source:
    return System() if keys.exact else Keyed(keys.share(round_id, client))


def answer_one_by_one(
    protocol: Protocol,
    ask: Ask,
    clients: Clients,
    population: Population,
    keys: Keys,
    round_id: int,
    memories: dict[int, ArrayTree],
    *,
    exact: bool,
) -> Replies:
    """The replies of one exchange; `memories` is changed in place. Empty slots are left out."""
    members = [int(client) for client in np.asarray(ask.cohort)]
    working = working_slots(protocol, ask)
    values: list[ArrayTree] = []
    for slot, client in enumerate(members):
        if not working[slot]:
            values.append(None)
            continue
        shard = padded_shard(clients, client, population)
        own = jax.tree.map(lambda x, slot=slot: x[slot], ask.own)
        source: Source = System() if exact else Keyed(keys.answer(round_id, client))
        with step("answer", round_id, client), jax.disable_jit():
            if client not in memories:
                memories[client] = protocol.remember(population, keys.memory(client))
            reply, memories[client] = protocol.answer(ask.common, own, shard, memories[client], source)
        values.append(reply)
    blank = next((value for value in values if value is not None), None)
    if blank is None:
        blank = _blank_reply(protocol, ask, clients, population, keys)
    filled = [value if value is not None else jax.tree.map(jnp.zeros_like, blank) for value in values]
    return Replies(
        clients=jnp.asarray(members),
        present=jnp.asarray([client >= 0 for client in members]),
        values=jax.tree.map(lambda *each: jnp.stack([jnp.asarray(one) for one in each]), *filled),
    )


def working_slots(protocol: Protocol, ask: Ask) -> Array:
    """Which slots hold a client that has anything to compute."""
    there = np.asarray(ask.cohort) >= 0
    work = protocol.working(ask)
    return there if work is None else there & np.asarray(work)


def _blank_reply(protocol: Protocol, ask: Ask, clients: Clients, population: Population, keys: Keys) -> ArrayTree:
    """Zeros shaped like a reply, for an exchange in which nobody had anything to compute."""
    shard = padded_shard(clients, 0, population)
    own = jax.tree.map(lambda x: x[0], ask.own)
    shape, _ = jax.eval_shape(
        protocol.answer, ask.common, own, shard, protocol.remember(population, keys.memory(0)), Keyed(keys.answer(0, 0))
    )
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
