"""The coordinator's side of a secure sum: it relays what sites send each other, decides who survived, and takes off the masks.

All it ever computes is the sum of the survivors' numbers. What it has decided (whose keys, whose shares, who survived) is saved
before it is sent, so that a coordinator that was killed goes on with the same: sites answer nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from populace.engines import wire
from populace.engines.secure_sum import primitives, shamir, steps
from populace.engines.secure_sum.graph import drawn_order
from populace.engines.secure_sum.messages import (
    ADVERTISED_BYTES,
    REPLY_BYTES,
    SEALED_BYTES,
    Rows,
    SecureSumError,
    Step,
    read_rows,
    row_arrays,
    unpack_numbers,
    unpack_rows,
)
from populace.engines.secure_sum.roster import MOST_GRAPH_MEMBERS, Opening
from populace.engines.secure_sum.steps import KEYS
from populace.engines.wire import Message
from populace.errors import SpecError, WireError
from populace.types import NumpyArray

T = TypeVar("T")
#: Sends each site, by its place, its request of a step, and returns the replies that came, in any order.
Exchange = Callable[[Step, Mapping[int, Rows]], Iterable[tuple[int, bytes]]]
#: Told of a reply that is not used: step, place, and why.
Note = Callable[[Step, int, str], None]


class TooFewSitesError(SecureSumError):
    """Fewer sites than the threshold took a step; the same can be asked again later, and sites send their stored bytes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opened:
    """The sum of the survivors' numbers modulo 2^bits, and who they are, by place."""

    total: NumpyArray
    survivors: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decided:
    """How far a sum is: whose keys count, the boxes of those who shared, who survived with the sum of their masked numbers.

    Nothing in it is secret: the coordinator has seen it, and masks are still on.
    """

    order: tuple[int, ...] = ()  # in which sites stand in the circle of a sparse graph of masks
    keys: Rows = dataclasses.field(default_factory=dict)
    boxes: Mapping[int, Rows] = dataclasses.field(default_factory=dict)
    survivors: tuple[int, ...] = ()
    masked: NumpyArray | None = None

    def to_bytes(self) -> bytes:
        arrays = {f"keys/{name}": array for name, array in row_arrays(self.keys).items()}
        for sender, rows in self.boxes.items():
            arrays |= {f"boxes/{sender}/{name}": array for name, array in row_arrays(rows).items()}
        if self.masked is not None:
            arrays["masked"] = self.masked
        if self.order:
            arrays["order"] = np.array(self.order, np.int32)
        fields = {"survivors": list(self.survivors), "senders": sorted(self.boxes)}
        return wire.pack(Message(kind="decided", fields=fields, arrays=arrays))


def decided_from_bytes(data: bytes) -> Decided:
    message = wire.unpack(data)
    survivors, senders = wire.take_fields(message, {"survivors": list, "senders": list})

    def rows(prefix: str, width: int) -> dict[int, bytes]:
        arrays = {name: message.arrays[f"{prefix}/{name}"] for name in ("members", "rows")}
        return read_rows(arrays, width, most=MOST_GRAPH_MEMBERS)

    return Decided(
        keys=rows("keys", ADVERTISED_BYTES), boxes={sender: rows(f"boxes/{sender}", SEALED_BYTES) for sender in senders},
        survivors=tuple(survivors), masked=message.arrays.get("masked"),
        order=tuple(message.arrays["order"].tolist()) if "order" in message.arrays else (),
    )  # fmt: skip


def open_sum(
    opening: Opening,
    exchange: Exchange,
    *,
    decided: Decided | None = None,
    save: Callable[[Decided], None] = lambda _: None,
    note: Note = lambda *_: None,
) -> Opened:
    """The steps of a sum that are still to take. Sites that miss one are left out of those after it, while enough are left.

    Guarantee: the total is the sum of the survivors' numbers modulo 2^bits, bit for bit, or an error: secrets that were put
    together are checked against what their sites advertised.
    Edge cases: `TooFewSitesError` where a step has to wait for more sites; called again with what was decided, it goes on.
    """
    decided = decided or Decided()
    if opening.graph is not None and not decided.order:
        decided = dataclasses.replace(decided, order=drawn_order(opening.graph.clients))
    relay = _Relay(opening, exchange, note, _neighbours(opening, decided))
    if not decided.keys:
        decided = dataclasses.replace(decided, keys=relay.keys())
        save(decided)
    if not decided.boxes:
        decided = dataclasses.replace(decided, boxes=relay.boxes(decided.keys))
        save(decided)
    if decided.masked is None:
        survivors, masked = relay.masked(decided.boxes)
        decided = dataclasses.replace(decided, survivors=survivors, masked=masked)
        save(decided)
    if opening.graph is None:
        revealed = relay.revealed(dict.fromkeys(signatures := relay.signatures(decided), signatures), decided.boxes)
    else:
        listed = dict.fromkeys(decided.survivors, b"")
        revealed = relay.revealed({place: relay.near(place, listed) for place in listed}, decided.boxes)
    return Opened(total=unmasked(opening, decided, revealed), survivors=decided.survivors)


def unmasked(opening: Opening, decided: Decided, revealed: Mapping[int, Rows]) -> NumpyArray:
    """The sum of the survivors' masked numbers without their masks, from the shares that sites revealed.

    Masks between two survivors cancel. The self mask of a survivor is put together from its seed's shares; the masks between
    survivors and a site that shared and then was missing, from the shares of its mask key.
    """
    if decided.masked is None:
        raise SecureSumError("expected masked numbers to open, got none")
    masks: list[tuple[bytes, bool]] = []
    neighbours, survived = _neighbours(opening, decided), set(decided.survivors)
    for place in sorted(decided.boxes):
        holders = revealed if neighbours is None else (place, *neighbours[place])
        shares = {other + 1: revealed[other][place] for other in holders if other in revealed}
        secret, keys = _joined(opening, place, shares), decided.keys[place]
        if place in survived:
            if steps.commitment(opening, secret) != keys[KEYS - len(secret) : KEYS]:
                raise _changed(opening, place)
            masks.append((steps.self_mask_key(opening, secret), True))
            continue
        if primitives.public_key(secret) != steps.mask_public(keys):
            raise _changed(opening, place)
        private = primitives.private_key(secret)
        for survivor in decided.survivors if neighbours is None else sorted(neighbours[place] & survived):
            public = steps.mask_public(decided.keys[survivor])
            key = steps.pair_mask_key(opening, private, public, (place, survivor))
            masks.append((key, survivor < place))  # the site with the lower place added it
    total = decided.masked.copy()
    primitives.add_masks(total, masks)
    return total


def _neighbours(opening: Opening, decided: Decided) -> Mapping[int, frozenset[int]] | None:
    return None if opening.graph is None else opening.graph.neighbours(decided.order)


def _joined(opening: Opening, place: int, shares: Rows) -> bytes:
    """A secret of one site, from as many revealed shares as it takes."""
    if len(shares) < opening.shares_needed:
        raise TooFewSitesError(
            f"expected {opening.shares_needed} shares of a secret of site {opening.roster.members[place].site}, got "
            f"{len(shares)}: too many of its neighbours are missing; ask again when more are back"
        )
    try:
        enough = sorted(shares.items())[: opening.shares_needed]
        return shamir.join_secret({where: int.from_bytes(row, "big") for where, row in enough})
    except SpecError as error:
        raise _changed(opening, place) from error


def _changed(opening: Opening, place: int) -> SecureSumError:
    return SecureSumError(
        f"the shares revealed of site {opening.roster.members[place].site} do not give the secret it committed to: a site "
        "sent a changed one, and the sum is not opened"
    )


@dataclasses.dataclass(frozen=True)
class _Relay:
    """The steps as the coordinator sees them; replies that are not what they should be count as missing."""

    opening: Opening
    exchange: Exchange
    note: Note
    neighbours: Mapping[int, frozenset[int]] | None = None  # in a sparse graph of masks

    def near(self, place: int, rows: Mapping[int, T]) -> Mapping[int, T]:
        """What concerns a site of the rows of all: all of it, or its own and its neighbours' in a sparse graph."""
        if self.neighbours is None:
            return rows
        return {other: rows[other] for other in sorted((place, *self.neighbours[place])) if other in rows}

    def keys(self) -> Rows:
        rows = self._rows("advertise", {place: {} for place in range(len(self.opening.roster.members))})
        found: dict[int, bytes] = {}
        for place, reply in rows.items():
            if set(reply) == {place} and steps.is_advertised(self.opening, place, reply[place]):
                found[place] = reply[place]
            else:
                self.note("advertise", place, "keys that the agreed key has not signed")
        return self._enough("advertise", found)

    def boxes(self, keys: Rows) -> Mapping[int, Rows]:
        requests = {place: self.near(place, keys) for place in keys}
        rows = self._rows("share", requests)
        return self._enough(
            "share", {place: row for place, row in rows.items() if set(row) == set(requests[place]) - {place}}
        )

    def masked(self, boxes: Mapping[int, Rows]) -> tuple[tuple[int, ...], NumpyArray]:
        requests = {
            place: {other: boxes[other][place] for other in self.near(place, boxes) if other != place}
            for place in boxes
        }
        total = np.zeros(self.opening.size, f"uint{self.opening.bits}")
        survivors: dict[int, bool] = {}
        for place, reply in self.exchange("mask", requests):
            try:
                total += unpack_numbers(reply, self.opening)
                survivors[place] = True
            except WireError as error:
                self.note("mask", place, str(error))
        return tuple(sorted(self._enough("mask", survivors))), total

    def signatures(self, decided: Decided) -> Rows:
        content = steps.confirmed(self.opening, decided.keys, decided.survivors)
        listed = dict.fromkeys(decided.survivors, b"")
        found: dict[int, bytes] = {}
        for place, reply in self._rows("confirm", dict.fromkeys(decided.survivors, listed)).items():
            key = self.opening.roster.key(place)
            if set(reply) == {place} and primitives.is_signed(key, reply[place], content):
                found[place] = reply[place]
            else:
                self.note("confirm", place, "a signature on another list of survivors")
        return self._enough("confirm", found)

    def revealed(self, requests: Mapping[int, Rows], boxes: Mapping[int, Rows]) -> Mapping[int, Rows]:
        rows = self._rows("reveal", requests)
        return self._enough(
            "reveal", {place: row for place, row in rows.items() if set(row) == set(self.near(place, boxes))}
        )

    def _rows(self, step: Step, requests: Mapping[int, Rows]) -> dict[int, dict[int, bytes]]:
        found = {}
        for place, reply in self.exchange(step, requests):
            try:
                found[place] = unpack_rows(reply, kind=step, width=REPLY_BYTES[step])
            except WireError as error:
                self.note(step, place, str(error))
        return found

    def _enough(self, step: Step, found: Mapping[int, T]) -> Mapping[int, T]:
        if len(found) < self.opening.roster.threshold:
            raise TooFewSitesError(
                f"expected at least {self.opening.roster.threshold} sites to take step {step!r} of a secure sum, got "
                f"{len(found)}; ask again when more are back"
            )
        return found
