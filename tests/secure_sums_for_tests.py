"""Sites of a secure sum in one process, some of which are away from a step on."""

from __future__ import annotations

import hashlib

import numpy as np

from populace.engines.secure_sum.journal import MemoryJournal
from populace.engines.secure_sum.messages import STEPS
from populace.engines.secure_sum.opening import Decided, open_sum
from populace.engines.secure_sum.primitives import signing_public
from populace.engines.secure_sum.roster import Member, Opening, SumRoster
from populace.engines.secure_sum.site import SumSite


def signing_key(place: int) -> bytes:
    return hashlib.sha256(place.to_bytes(4, "big")).digest()


def make_roster(count: int, threshold: int, colluders: int = 0) -> SumRoster:
    members = tuple(Member(site=f"site-{i}", key=signing_public(signing_key(i)).hex()) for i in range(count))
    return SumRoster(members=members, threshold=threshold, colluders=colluders)


def make_opening(count: int = 3, threshold: int = 2, **other) -> Opening:
    facts = {"run": "r", "round": 0, "size": 5, "bits": 64, "question": "q"} | other
    return Opening(roster=make_roster(count, threshold), **facts)


class Sites:
    """Sites in this process. `gone` says from which step on a site does not answer any more."""

    def __init__(self, opening: Opening, vectors, gone=None, journals=None) -> None:
        self.opening, self.vectors, self.gone = opening, vectors, gone or {}
        self.journals = journals or [MemoryJournal() for _ in opening.roster.members]
        self.sites = [
            SumSite(opening=opening, place=i, signing_key=signing_key(i), journal=journal)
            for i, journal in enumerate(self.journals)
        ]
        self.sent: dict[tuple[str, int], bytes] = {}
        self.asked: dict[tuple[str, int], object] = {}

    def exchange(self, step, requests):
        for place, request in requests.items():
            if place in self.gone and STEPS.index(step) >= STEPS.index(self.gone[place]):
                continue
            self.asked[step, place] = request
            reply = self.sites[place].answer(step, request, lambda place=place: self.vectors[place])
            self.sent[step, place] = reply
            yield place, reply

    def open(self, **other):
        return open_sum(self.opening, self.exchange, **other)


def vectors_of(opening: Opening, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    dtype = f"uint{opening.bits}"
    return rng.integers(0, 2**opening.bits, (len(opening.roster.members), opening.size), dtype=dtype)


def plain_sum(vectors, survivors) -> np.ndarray:
    return np.add.reduce(vectors[list(survivors)], axis=0, dtype=vectors.dtype)


__all__ = ["Decided", "Sites", "make_opening", "make_roster", "plain_sum", "signing_key", "vectors_of"]
