"""What a site is asked: one request, checked against the shapes of its method, and a hash of each client's question."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from populace.engines import wire
from populace.engines.agreement import Shapes
from populace.engines.messages import RefusedError, Request
from populace.errors import WireError
from populace.types import ArrayTree, NumpyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """One request, checked: which clients, by their numbers in the run and among this site's, with which questions.

    `heard` is how many replies the coordinator says it has had of each.
    """

    clients: NumpyArray
    numbers: NumpyArray
    heard: NumpyArray
    common: ArrayTree
    own: ArrayTree
    questions: Sequence[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch(Asked):
    """A request whose clients are known: their places in the data, and their accounts."""

    places: NumpyArray
    accounts: Sequence[str]


def is_permutation(order: NumpyArray, size: int) -> bool:
    if len(order) != size or order.min() < 0 or order.max() >= size:
        return False
    return bool(np.bincount(order, minlength=size).max() == 1)


def common_digest(common: ArrayTree) -> str:
    """A hash of what all sites of a sum are asked."""
    found = hashlib.sha256()
    for name, array in wire.leaves(common, "common").items():
        found.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def read_ask(request: Request, shapes: Shapes, *, hosted: int) -> Asked:
    """Read the content of an ask for a site with `hosted` clients; raises WireError or RefusedError for anything else."""
    arrays = request.message.arrays
    clients, heard = (arrays.get(name) for name in ("clients", "heard"))
    if clients is None or heard is None or clients.ndim != 1 or heard.shape != clients.shape or not len(clients):
        raise WireError("an ask does not say whom it asks")
    if clients.dtype != np.int32 or heard.dtype != np.int32 or len(np.unique(clients)) != len(clients):
        raise WireError("an ask names a client twice, or not by whole numbers")
    numbers = clients - request.first
    if numbers.min() < 0 or numbers.max() >= hosted:
        raise RefusedError("population", "the request asks clients that this site does not host")
    common = wire.fill(shapes.common, arrays, "common")
    own = wire.fill(shapes.own, arrays, "own", rows=len(clients))
    if set(arrays) != {"clients", "heard", *wire.leaves(common, "common"), *wire.leaves(own, "own")}:
        raise WireError("an ask holds more arrays than the method sends")
    return Asked(
        clients=clients, numbers=numbers, heard=heard, common=jax.tree.map(jnp.asarray, common), own=own,
        questions=_digests(request, common, own, clients),
    )  # fmt: skip


def _digests(request: Request, common: ArrayTree, own: ArrayTree, clients: NumpyArray) -> list[str]:
    """A hash of what each client is asked: equal questions have equal hashes in every round."""
    shared = hashlib.sha256(json.dumps([request.run, request.terms], sort_keys=True).encode())
    for name, array in wire.leaves(common, "common").items():
        shared.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    rows = wire.leaves(own, "own")
    found = []
    for slot, client in enumerate(clients):
        one = shared.copy()
        one.update(str(int(client)).encode())
        for name, array in rows.items():
            one.update(name.encode() + np.ascontiguousarray(array[slot]).tobytes())
        found.append(one.hexdigest())
    return found
