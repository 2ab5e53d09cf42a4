"""Exchanges of which only a sum is seen: each client's numbers with its share of the noise, and what becomes of the sum.

Engines agree bit for bit: a client's share depends on the run's key, round and client alone, and masks cancel. A simulation
adds the very shares that sites would draw, without masks; the debug engine and real sites open the sum under masks: between all
sites, or, in the debug engine with many clients, along a sparse graph (`secure_sum.graph`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from populace.engines.secure_sum.graph import graph_of_claim
from populace.engines.secure_sum.journal import MemoryJournal
from populace.engines.secure_sum.messages import Rows, Step
from populace.engines.secure_sum.opening import open_sum
from populace.engines.secure_sum.primitives import KEY_BYTES, signing_public
from populace.engines.secure_sum.roster import Member, Opening, SumRoster
from populace.engines.secure_sum.site import SumSite
from populace.errors import SpecError
from populace.methods.base import Ask, Population, Replies
from populace.privacy.noise_shares import NoiseShares
from populace.privacy.source import Source
from populace.types import ArrayTree, NumpyArray

SPARSE_ABOVE = 100  # clients in one process; up to here all pairs have masks

ShareSource = Callable[[int], Source]  # of a client's share of the noise


def numbers_of(reply: ArrayTree) -> NumpyArray:
    """A client's reply as one vector of whole numbers, 64 bits wide."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(reply)]
    if not leaves or any(leaf.dtype.kind not in "iu" for leaf in leaves):
        raise SpecError("expected replies of whole numbers for a secure sum, got others")
    return np.concatenate([leaf.reshape(-1).astype(np.int64) for leaf in leaves])


def with_share(reply: ArrayTree, shares: NoiseShares, source: Source) -> NumpyArray:
    """A client's numbers with its share of the noise, modulo 2^bits: what it masks.

    Guarantee: one share, drawn here and now from the client's source; called once for a client and round.
    """
    numbers = numbers_of(reply)
    if numbers.shape != (shares.mechanism.size,):
        raise SpecError(f"expected {shares.mechanism.size} numbers in a reply, got {len(numbers)}")
    noised = (numbers + np.asarray(shares.draw(source), np.int64)).view(np.uint64)
    return noised if shares.bits == 64 else noised.astype(np.uint32)


def opened_replies(
    total: NumpyArray, like: ArrayTree, *, clients: Sequence[int] | NumpyArray, present: Sequence[bool] | NumpyArray
) -> Replies:
    """An opened sum as what is absorbed: in the shape of one reply, 64 bits wide and signed."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])
    signed = total.view(np.int32).astype(np.int64) if total.dtype == np.uint32 else total.view(np.int64)
    parts = np.split(signed, ends[:-1])
    values = jax.tree.unflatten(structure, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)])
    return Replies(clients=np.asarray(clients, np.int32), present=np.asarray(present, bool), values=values, opened=True)


def add_up(replies: Replies, shares: NoiseShares, source_of: ShareSource) -> Replies:
    """The sum of simulated clients' replies and shares, as it would be opened; nothing is masked, on one machine."""
    clients, present = np.asarray(replies.clients), np.asarray(replies.present)
    values = jax.tree.map(np.asarray, replies.values)
    total = np.zeros(shares.mechanism.size, f"uint{shares.bits}")
    for slot in np.flatnonzero(present):
        one = jax.tree.map(lambda rows, slot=slot: rows[slot], values)
        total += with_share(one, shares, source_of(int(clients[slot])))
    like = jax.tree.map(lambda rows: rows[0], values)
    return opened_replies(total, like, clients=clients[present], present=np.ones(int(present.sum()), bool))


def open_in_process(replies: Replies, shares: NoiseShares, source_of: ShareSource, *, round_id: int) -> Replies:
    """The same under the real masks, with a site in this process for every client.

    Edge cases: above `SPARSE_ABOVE` clients have masks with few neighbours each. Sums over a network never have: that form
    holds for a coordinator that follows the protocol, as this process does.
    """
    clients = [int(client) for client in np.asarray(replies.clients)]
    values = jax.tree.map(np.asarray, replies.values)
    keys = [secrets.token_bytes(KEY_BYTES) for _ in clients]
    members = tuple(
        Member(site=f"client {client}", key=signing_public(key).hex())
        for client, key in zip(clients, keys, strict=True)
    )
    roster = SumRoster(members=members, threshold=shares.least_survivors, colluders=shares.colluders)
    graph = (
        graph_of_claim(clients=len(clients), colluders=shares.colluders, dropouts=shares.dropouts)
        if len(clients) > SPARSE_ABOVE
        else None
    )
    opening = Opening(
        run="debug", round=round_id, roster=roster, size=shares.mechanism.size, bits=shares.bits, graph=graph
    )
    sites = [
        SumSite(opening=opening, place=place, signing_key=key, journal=MemoryJournal())
        for place, key in enumerate(keys)
    ]

    def numbers(place: int) -> NumpyArray:
        one = jax.tree.map(lambda rows: rows[place], values)
        return with_share(one, shares, source_of(clients[place]))

    def exchange(step: Step, requests: Mapping[int, Rows]) -> Iterable[tuple[int, bytes]]:
        for place, request in requests.items():
            yield place, sites[place].answer(step, request, lambda place=place: numbers(place))  # type: ignore[misc]

    opened = open_sum(opening, exchange)
    like = jax.tree.map(lambda rows: jnp.asarray(rows[0]), values)
    survived = [place in opened.survivors for place in range(len(clients))]
    return opened_replies(opened.total, like, clients=clients, present=survived)


def check_everybody(ask: Ask, population: Population) -> None:
    """Raise SpecError for an exchange whose sum is opened over a part of the clients: their noise would not carry the claim."""
    cohort = np.asarray(ask.cohort)
    if (cohort >= 0).sum() != population.clients:
        raise SpecError(
            f"a secure sum is opened over all {population.clients} clients at once, and this exchange asks "
            f"{int((cohort >= 0).sum())}; ask all in one exchange (moments: clients_per_batch)"
        )
