"""A coordinator that lies: what it asks of a site beyond what was agreed is refused, and nothing is charged for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from populace.engines import wire
from populace.engines.site import Site
from populace.engines.wire import Message
from populace.privacy.sqlite_ledger import SqliteLedger


def _changed(data: bytes, **fields: object) -> bytes:
    message = wire.unpack(data)
    return wire.pack(Message(kind=message.kind, fields={**message.fields, **fields}, arrays=message.arrays))


def _with_arrays(data: bytes, **arrays: np.ndarray) -> bytes:
    message = wire.unpack(data)
    return wire.pack(Message(kind=message.kind, fields=message.fields, arrays={**message.arrays, **arrays}))


def _other_terms(ask: bytes, **terms: object) -> bytes:
    fields = wire.unpack(ask).fields
    return _changed(ask, terms={**fields["terms"], **terms})


def _other_question(ask: bytes) -> bytes | None:
    """The same round with another question of the same shapes."""
    for name, array in wire.unpack(ask).arrays.items():
        if name.startswith(("own", "common")) and array.size and array.dtype.kind in "iuf":
            return _with_arrays(ask, **{name: (array + np.ones((), array.dtype)).astype(array.dtype)})
    return None


def hostile(ask: bytes, *, rounds: int) -> Iterator[tuple[str, bytes]]:
    """Requests that a site must refuse, made from one that it answered."""
    message = wire.unpack(ask)
    fields, arrays = message.fields, message.arrays
    parameters = fields["terms"]["parameters"]
    other = _other_question(ask)
    if other is not None:
        yield "another question in an answered round", other
    yield "the same question in another round", _changed(ask, round=(int(fields["round"]) + 1) % rounds)
    yield "a round after the last", _changed(ask, round=rounds)
    yield "a round far after the last", _changed(ask, round=2**31 - 1)
    yield "a negative round", _changed(ask, round=-1)
    yield "a larger epsilon", _other_terms(ask, parameters={**parameters, "epsilon": 50.0})
    yield "another version", _other_terms(ask, version="0.0.1")
    yield "another method", _other_terms(ask, method="fed-vae")
    yield "another schema", _other_terms(ask, schema="0" * 64)
    yield "more terms", _other_terms(ask, more="x" * 10_000)
    yield "more clients in all", _changed(ask, clients=int(fields["clients"]) + 1)
    yield "more records", _changed(ask, records=int(fields["records"]) + 1)
    yield "another seat", _changed(ask, first=int(fields["first"]) + 1)
    yield "others' clients", _with_arrays(ask, clients=arrays["clients"] + np.int32(10**6))
    yield "a client twice", _with_arrays(ask, **{
        name: np.concatenate([array, array]) if name in ("clients", "heard") or name.startswith("own") else array
        for name, array in arrays.items()
    })  # fmt: skip
    yield "half a request", ask[: len(ask) // 2]
    yield "no request", b"\x00" * 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heard:
    """What came of a lying coordinator's requests: how many there were, and the sentences of what went wrong."""

    requests: int
    wrong: tuple[str, ...]


def lie_to(site: Site, name: str, ask: bytes, reply: bytes, *, rounds: int) -> Heard:
    """Ask a site again, then what it must refuse; it answers the first as before, and charges nothing at all."""
    before = _charges(site)
    wrong, requests = [], 1
    if site.reply(ask) != reply:
        wrong.append(f"{name} answered the same question otherwise")
    for what, request in hostile(ask, rounds=rounds):
        requests += 1
        answer = wire.unpack(site.reply(request))
        if answer.kind != "refusal":
            wrong.append(f"{name} answered {what} with a {answer.kind}")
    if _charges(site) != before:
        wrong.append(f"{name} charged for lies")
    return Heard(requests=requests, wrong=tuple(wrong))


def _charges(site: Site) -> tuple[int, ...]:
    with SqliteLedger(site.ledger_path, site.budget, create=False) as ledger:
        return ledger.last, *(ledger.entries(account) for account in site.hosted.accounts)
