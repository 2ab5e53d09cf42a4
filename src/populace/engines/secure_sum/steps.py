"""The five steps of a site: each takes what it keeps of a sum and one message, and returns what it keeps then and a reply.

Guarantee (Bonawitz et al. 2017, section 6.2, the active model): while at most `colluders` sites work together with the
coordinator, whatever it relays, it learns of the other sites' numbers one sum over at least `threshold` sites, or nothing.
That needs each step to be taken once in a sum, which `site` and its journal see to: a second list of survivors, or shares of
both kinds of secret of one site, would open its numbers.
With a sparse graph of masks all of this is among a site's neighbours, and the guarantee is that of `graph`: the coordinator has
to follow the protocol.
Edge cases: every refusal is a SecureSumError or a WireError, and leaves what is kept as it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
from collections.abc import Collection, Sequence

import numpy as np

from populace.border.documents import parse_json
from populace.border.models import interpreting
from populace.engines.secure_sum import primitives, shamir
from populace.engines.secure_sum.messages import SEALED_BYTES, Rows, SecureSumError
from populace.engines.secure_sum.primitives import KEY_BYTES, PrivateKey
from populace.engines.secure_sum.roster import Opening
from populace.engines.secure_sum.shamir import SHARE_BYTES
from populace.types import NumpyArray

KEYS = 3 * KEY_BYTES  # of what is advertised: all but the signature


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept:
    """What a site keeps of one sum. Private: with it, the site's masked numbers can be opened.

    `keys` are those that all sites advertised; `held` are shares of other sites' secrets and of its own, of the mask key
    first and of the self mask second; `survivors` is the one list that it confirmed.
    """

    sealing_key: bytes
    mask_key: bytes
    self_mask: bytes
    keys: Rows = dataclasses.field(default_factory=dict)
    held: Rows = dataclasses.field(default_factory=dict)
    masked: bool = False
    survivors: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        document = {
            "secrets": [self.sealing_key.hex(), self.mask_key.hex(), self.self_mask.hex()],
            "keys": {str(place): row.hex() for place, row in self.keys.items()},
            "held": {str(place): row.hex() for place, row in self.held.items()},
            "masked": self.masked,
            "survivors": list(self.survivors),
        }
        return json.dumps(document).encode()


KEPT = "what the site's ledger kept of a secure sum"


def kept_from_bytes(data: bytes) -> Kept:
    document = parse_json(data, where=KEPT)
    with interpreting(KEPT):
        sealing_key, mask_key, self_mask = (bytes.fromhex(text) for text in document["secrets"])
        rows = {
            name: {int(place): bytes.fromhex(text) for place, text in document[name].items()}
            for name in ("keys", "held")
        }
        return Kept(
            sealing_key=sealing_key, mask_key=mask_key, self_mask=self_mask, masked=bool(document["masked"]),
            survivors=tuple(document["survivors"]), **rows,
        )  # fmt: skip


def advertise(opening: Opening, *, place: int, signing_key: bytes) -> tuple[Kept, bytes]:
    """New secrets for this sum, and the signed public keys that belong to them."""
    sealing_key, mask_key, self_mask = (secrets.token_bytes(KEY_BYTES) for _ in range(3))
    kept = Kept(sealing_key=sealing_key, mask_key=mask_key, self_mask=self_mask)
    public = b"".join(
        (
            primitives.public_key(kept.sealing_key),
            primitives.public_key(kept.mask_key),
            commitment(opening, kept.self_mask),
        )
    )
    return kept, public + primitives.sign(signing_key, _advertised(opening, place, public))


def share(opening: Opening, kept: Kept, keys: Rows, *, place: int) -> tuple[Kept, dict[int, bytes]]:
    """Shares of the site's mask key and self mask among all that advertised, each sealed for its receiver."""
    check_keys(opening, keys, place=place)
    own = keys.get(place, b"")[:KEYS]
    if own != _own_keys(opening, kept):
        raise SecureSumError("expected this site's own keys among those relayed, got others or none")
    places = [other + 1 for other in keys]
    threshold = opening.shares_needed
    of_key = shamir.split_secret(kept.mask_key, threshold=threshold, places=places)
    of_mask = shamir.split_secret(kept.self_mask, threshold=threshold, places=places)
    both = {
        other: b"".join(shares[other + 1].to_bytes(SHARE_BYTES, "big") for shares in (of_key, of_mask))
        for other in keys
    }
    kept = dataclasses.replace(kept, keys=dict(keys), held={place: both[place]})
    receivers = [other for other in keys if other != place]
    boxes = sealing_keys(opening, kept, [(place, other) for other in receivers])
    sealed = {other: primitives.seal(boxes[place, other], both[other], bound_to=opening.context) for other in receivers}
    return kept, sealed


def mask(opening: Opening, kept: Kept, sealed: Rows, numbers: NumpyArray, *, place: int) -> tuple[Kept, NumpyArray]:
    """The site's numbers under its self mask and one mask with every site whose shares it holds now."""
    if kept.masked:
        raise SecureSumError("expected one vector in a sum, got a second")
    others = set(sealed) - {place}
    if len(others) != len(sealed) or not others <= set(kept.keys):
        raise SecureSumError("expected sealed shares of other sites that sent keys, got some of others")
    _check_enough(opening, {*others, place}, "shares")
    if numbers.dtype != np.dtype(f"uint{opening.bits}") or numbers.shape != (opening.size,):
        raise SecureSumError(
            f"expected {opening.size} numbers of {opening.bits} bits, got {numbers.dtype} of shape {numbers.shape}"
        )
    held = dict(kept.held)
    keys = sealing_keys(opening, kept, [(other, place) for other in sealed])
    for other, box in sealed.items():
        if len(box) != SEALED_BYTES:
            raise SecureSumError(f"expected a sealed box of {SEALED_BYTES} bytes, got {len(box)}")
        held[other] = primitives.unseal(keys[other, place], box, bound_to=opening.context)
    masked = numbers.copy()
    own = primitives.private_key(kept.mask_key)
    pairs = [
        (pair_mask_key(opening, own, mask_public(kept.keys[other]), (place, other)), place > other)
        for other in sorted(others)
    ]
    primitives.add_masks(masked, [(self_mask_key(opening, kept.self_mask), False), *pairs])
    return dataclasses.replace(kept, held=held, masked=True), masked


def confirm(
    opening: Opening, kept: Kept, survivors: Sequence[int], *, place: int, signing_key: bytes
) -> tuple[Kept, bytes]:
    """The site's signature on the one list of survivors that it will ever confirm in this sum."""
    if not kept.masked:
        raise SecureSumError("expected a list of survivors after this site's numbers, got it before")
    if kept.survivors and tuple(survivors) != kept.survivors:
        raise SecureSumError("this site has confirmed another list of survivors in this sum, and confirms one only")
    _check_survivors(kept, survivors, place)
    if len(survivors) < opening.roster.threshold:
        raise SecureSumError(f"expected at least {opening.roster.threshold} survivors, as agreed, got {len(survivors)}")
    kept = dataclasses.replace(kept, survivors=tuple(survivors))
    return kept, primitives.sign(signing_key, confirmed(opening, kept.keys, kept.survivors))


def reveal(opening: Opening, kept: Kept, signatures: Rows) -> dict[int, bytes]:
    """One share of each site's secrets: of the self mask of a survivor, of the mask key of a site that is missing.

    Guarantee: only with valid signatures of at least `threshold` sites on the very list that this site has confirmed.
    """
    if not kept.survivors:
        raise SecureSumError("expected signatures after this site has confirmed a list of survivors, got them before")
    content = confirmed(opening, kept.keys, kept.survivors)
    if not set(signatures) <= set(kept.survivors):
        raise SecureSumError("expected signatures of survivors, got one of another site")
    for place, signature in signatures.items():
        if not primitives.is_signed(opening.roster.key(place), signature, content):
            raise SecureSumError(
                f"site {opening.roster.members[place].site} has not confirmed this list of survivors: nothing is revealed"
            )
    if len(signatures) < opening.roster.threshold:
        raise SecureSumError(
            f"expected confirmations of at least {opening.roster.threshold} sites, as agreed, got {len(signatures)}"
        )
    return _one_of_both(kept, kept.survivors)


def reveal_listed(opening: Opening, kept: Kept, survivors: Sequence[int], *, place: int) -> dict[int, bytes]:
    """The same with a sparse graph of masks, of the site's neighbours and itself, on the coordinator's word who survived."""
    if not kept.masked:
        raise SecureSumError("expected a list of survivors after this site's numbers, got it before")
    _check_survivors(kept, survivors, place)
    _check_enough(opening, survivors, "numbers")
    return _one_of_both(kept, survivors)


def _one_of_both(kept: Kept, survivors: Sequence[int]) -> dict[int, bytes]:
    """Of each site whose shares are held, the share of its self mask where it survived, and of its mask key elsewhere."""
    return {
        place: both[SHARE_BYTES:] if place in survivors else both[:SHARE_BYTES] for place, both in kept.held.items()
    }


def _check_survivors(kept: Kept, survivors: Sequence[int], place: int) -> None:
    if list(survivors) != sorted(set(survivors)) or not set(survivors) <= set(kept.held):
        raise SecureSumError("expected survivors among the sites that shared their secrets, each once, got others")
    if place not in survivors:
        raise SecureSumError("expected this site among the survivors: its numbers were sent")


def _check_enough(opening: Opening, places: Collection[int], what: str) -> None:
    """Raise SecureSumError unless so many sites are there; with a graph, so many neighbours beside the site itself."""
    if opening.graph is None:
        if len(places) < opening.roster.threshold:
            raise SecureSumError(
                f"expected {what} of at least {opening.roster.threshold} sites, as agreed, got {len(places)}; the sum waits "
                "for them"
            )
    elif not opening.graph.threshold <= len(places) - 1 <= opening.graph.degree:
        raise SecureSumError(
            f"expected {what} of {opening.graph.threshold} to {opening.graph.degree} neighbours in the graph of masks, got "
            f"{len(places) - 1}"
        )


def check_keys(opening: Opening, keys: Rows, *, place: int) -> None:
    """Raise SecureSumError unless enough sites of the roster signed these keys for this sum, all different."""
    roster = opening.roster
    for other, row in keys.items():
        if not 0 <= other < len(roster.members):
            raise SecureSumError(f"expected keys of sites of the agreed roster, got those of a site at place {other}")
        if not is_advertised(opening, other, row):
            raise SecureSumError(
                f"the keys of site {roster.members[other].site} are not signed for this sum with the key that was agreed"
            )
    publics = [row[start : start + KEY_BYTES] for row in keys.values() for start in (0, KEY_BYTES)]
    if len(set(publics)) != len(publics):
        raise SecureSumError("expected keys that are all different, got one twice")
    _check_enough(opening, {*keys, place}, "keys")


def is_advertised(opening: Opening, place: int, row: bytes) -> bool:
    """Whether the agreed key of a site signed these keys for this sum."""
    return primitives.is_signed(opening.roster.key(place), row[KEYS:], _advertised(opening, place, row[:KEYS]))


def commitment(opening: Opening, self_mask: bytes) -> bytes:
    """What a site shows of its self mask's seed beforehand, so that a changed share is noticed."""
    return primitives.derived(self_mask, b"commitment", opening.context)


def self_mask_key(opening: Opening, self_mask: bytes) -> bytes:
    return primitives.derived(self_mask, b"self mask", opening.context)


def pair_mask_key(opening: Opening, private: PrivateKey, public: bytes, pair: tuple[int, int]) -> bytes:
    """The key of the mask between two sites, which either of them can make."""
    low, high = sorted(pair)
    return primitives.agreed(private, public, b"pair mask", opening.context, _number(low), _number(high))


def mask_public(row: bytes) -> bytes:
    """The public mask key in what a site advertised."""
    return row[KEY_BYTES : 2 * KEY_BYTES]


def confirmed(opening: Opening, keys: Rows, survivors: Sequence[int]) -> bytes:
    """What is signed to confirm a list of survivors: the sum, the keys that the site was shown, and the list."""
    return b"survivors" + opening.context + _view(opening, keys) + b"".join(map(_number, survivors))


def _advertised(opening: Opening, place: int, public: bytes) -> bytes:
    return b"keys" + opening.context + _number(place) + public


def _own_keys(opening: Opening, kept: Kept) -> bytes:
    publics = (primitives.public_key(key) for key in (kept.sealing_key, kept.mask_key))
    return b"".join((*publics, commitment(opening, kept.self_mask)))


def _view(opening: Opening, keys: Rows) -> bytes:
    """A digest of all keys that a site was shown: sites that were shown different ones cannot open each other's boxes."""
    found = hashlib.sha256(opening.context)
    for place in sorted(keys):
        found.update(_number(place) + keys[place])
    return found.digest()


def sealing_keys(opening: Opening, kept: Kept, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
    """The keys of boxes by sender and receiver, of which this site is one. With a graph, sites are shown different keys, and a
    box is bound to those of its two."""
    mine = primitives.public_key(kept.sealing_key)
    view = _view(opening, kept.keys) if opening.graph is None else b""
    own, found = primitives.private_key(kept.sealing_key), {}
    for pair in pairs:
        rows = {place: kept.keys[place] for place in pair}
        sender, receiver = (row[:KEY_BYTES] for row in rows.values())
        purpose = (b"shares", opening.context, view or _view(opening, rows), *map(_number, pair))
        found[pair] = primitives.agreed(own, receiver if sender == mine else sender, *purpose)
    return found


def _number(value: int) -> bytes:
    return value.to_bytes(4, "big")
