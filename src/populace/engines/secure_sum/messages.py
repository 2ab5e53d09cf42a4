"""What travels in the five steps of a secure sum: rows of bytes by the places of the sites, and one masked vector.

step        the coordinator sends a site               the site replies
advertise   nothing                                    its keys of this sum, signed
share       the keys of all sites that sent some       sealed shares of its secrets, one box for every other site
mask        the boxes sealed for it                    its numbers under masks
confirm     the list of sites whose numbers came       its signature on that list
reveal      the signatures of all who confirmed        one share for each site: of a survivor's self mask, a missing one's key

With a sparse graph of masks a site hears of its neighbours alone, there is no step `confirm`, and `reveal` comes with the list
of the neighbours whose numbers came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from populace.engines import wire
from populace.engines.secure_sum.primitives import KEY_BYTES, SIGNATURE_BYTES
from populace.engines.secure_sum.roster import MOST_MEMBERS, Opening
from populace.engines.secure_sum.shamir import SHARE_BYTES
from populace.engines.wire import Message
from populace.errors import PopulaceError, WireError
from populace.types import NumpyArray

Step = Literal["advertise", "share", "mask", "confirm", "reveal"]
STEPS: tuple[Step, ...] = get_args(Step)
Rows = Mapping[int, bytes]

ADVERTISED_BYTES = 3 * KEY_BYTES + SIGNATURE_BYTES
SEALED_BYTES = 2 * SHARE_BYTES + 16  # two shares and the tag of the seal
#: Bytes of one row of a request, and of one row of a reply; a reply to `mask` is a vector.
REQUEST_BYTES: dict[Step, int] = {
    "advertise": 0, "share": ADVERTISED_BYTES, "mask": SEALED_BYTES, "confirm": 0, "reveal": SIGNATURE_BYTES,
}  # fmt: skip
REPLY_BYTES: dict[Step, int] = {
    "advertise": ADVERTISED_BYTES,
    "share": SEALED_BYTES,
    "confirm": SIGNATURE_BYTES,
    "reveal": SHARE_BYTES,
}


class SecureSumError(PopulaceError):
    """A site does not take this step of a secure sum, or a sum cannot be opened; nothing was revealed."""


def steps_of(opening: Opening) -> tuple[Step, ...]:
    """The steps of one sum, in order."""
    return STEPS if opening.graph is None else tuple(step for step in STEPS if step != "confirm")


def row_arrays(rows: Rows) -> dict[str, NumpyArray]:
    """Rows as two arrays that travel, in the order of the places."""
    members = sorted(rows)
    width = len(rows[members[0]]) if members else 0
    joined = np.frombuffer(b"".join(rows[member] for member in members), np.uint8)
    return {"members": np.array(members, np.int32), "rows": joined.reshape(len(members), width)}


def read_rows(arrays: Mapping[str, NumpyArray], width: int, *, most: int = MOST_MEMBERS) -> dict[int, bytes]:
    """The rows in two arrays; raises WireError unless places rise and every row has so many bytes."""
    members, rows = arrays.get("members"), arrays.get("rows")
    if members is None or rows is None or members.dtype != np.int32 or rows.dtype != np.uint8:
        raise WireError("a step of a secure sum does not hold places and rows")
    if members.ndim != 1 or len(members) > most or (np.diff(members) <= 0).any() or (members < 0).any():
        raise WireError("the places in a step of a secure sum are not in order, each once")
    if rows.shape != (len(members), width if len(members) else rows.shape[-1]):
        raise WireError(f"the rows of a step of a secure sum are of shape {rows.shape}, expected {width} bytes each")
    return {int(member): row.tobytes() for member, row in zip(members, rows, strict=True)}


def pack_rows(kind: str, rows: Rows) -> bytes:
    return wire.pack(Message(kind=kind, arrays=row_arrays(rows)))


def unpack_rows(data: bytes, *, kind: str, width: int) -> dict[int, bytes]:
    message = wire.unpack(data)
    if message.kind != kind or message.fields or set(message.arrays) != {"members", "rows"}:
        raise WireError(f"expected a {kind!r} message of a secure sum, got {message.kind!r}")
    return read_rows(message.arrays, width)


def pack_numbers(numbers: NumpyArray) -> bytes:
    return wire.pack(Message(kind="mask", arrays={"numbers": numbers}))


def unpack_numbers(data: bytes, opening: Opening) -> NumpyArray:
    """A masked vector; raises WireError for another length or width than the sum's."""
    message = wire.unpack(data)
    numbers = message.arrays.get("numbers")
    if message.kind != "mask" or message.fields or set(message.arrays) != {"numbers"} or numbers is None:
        raise WireError(f"expected the masked numbers of a secure sum, got {message.kind!r}")
    if numbers.dtype != np.dtype(f"uint{opening.bits}") or numbers.shape != (opening.size,):
        raise WireError(
            f"masked numbers are {numbers.dtype} of shape {numbers.shape}, expected {opening.size} of {opening.bits} bits"
        )
    return numbers
