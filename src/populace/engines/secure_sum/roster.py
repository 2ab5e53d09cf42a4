"""Who is in a sum, by agreement and not by hearsay, and which sum it is."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from typing import Literal

from populace.engines.secure_sum.graph import MaskGraph
from populace.engines.secure_sum.primitives import KEY_BYTES
from populace.errors import SpecError, out_of_range
from populace.types import JsonObject

Bits = Literal[32, 64]
VERSION = "populace secure sum 1"
MOST_MEMBERS = 1_000  # of a sum with masks between all sites
MOST_GRAPH_MEMBERS = 100_000  # of one with a sparse graph of masks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """A site and its Ed25519 public key in hexadecimal digits: 32 bytes, which are their own fingerprint."""

    site: str
    key: str

    def __post_init__(self) -> None:
        digits = set(self.key) <= set("0123456789abcdef")
        if not digits or len(self.key) != 2 * KEY_BYTES:
            raise SpecError(
                f"expected the signing key of site {self.site!r} as 64 hexadecimal digits, got {self.key!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SumRoster:
    """All sites that may be in a sum, how many it takes to open it, and how many may collude with the coordinator.

    Guarantee: of `members` sites, at least `threshold` are in an opened sum, of whom at least `least_honest` do not collude.
    2 threshold > members + colluders, so that a coordinator cannot have two lists of survivors confirmed: two sets of
    `threshold` sites share more sites than may collude, and an honest one confirms a single list (Bonawitz et al. 2017, the
    active model).
    Edge cases: `threshold` = number of members tolerates no absence; a sum of fewer than two sites hides nothing, and is
    refused.
    """

    members: tuple[Member, ...]
    threshold: int
    colluders: int = 0

    def __post_init__(self) -> None:
        count = len(self.members)
        if not 2 <= count <= MOST_GRAPH_MEMBERS:
            raise out_of_range("the number of sites of a secure sum", f"in 2 to {MOST_GRAPH_MEMBERS:,}", count)
        for name in ("site", "key"):
            if len({getattr(member, name) for member in self.members}) != count:
                raise SpecError(f"expected every site of a secure sum once, got a {name} twice")
        if self.colluders < 0:
            raise out_of_range("colluders", "at least 0", self.colluders)
        if not (2 * self.threshold > count + self.colluders and self.threshold <= count):
            raise out_of_range(
                "threshold",
                f"above half of {count} sites and {self.colluders} colluders, and at most {count}",
                self.threshold,
                advice="with less, a coordinator could open the same messages for two sets of sites",
            )

    def check_all_pairs(self) -> None:
        """Raise SpecError where there are too many sites for masks between all of them."""
        if len(self.members) > MOST_MEMBERS:
            raise out_of_range(
                "the number of sites of a secure sum with masks between all sites",
                f"at most {MOST_MEMBERS:,}",
                len(self.members),
                advice="real sites have no sparse graph of masks: it is for a coordinator that follows the protocol alone",
            )

    @property
    def least_honest(self) -> int:
        """The fewest sites of an opened sum that do not collude: whose noise alone must carry the claim."""
        return self.threshold - self.colluders

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def place(self, site: str) -> int:
        """The place of a site in the roster, from 0 on."""
        for place, member in enumerate(self.members):
            if member.site == site:
                return place
        raise SpecError(f"expected a site of the roster, got {site!r}")

    def key(self, place: int) -> bytes:
        return bytes.fromhex(self.members[place].key)

    def to_json(self) -> JsonObject:
        return {
            "members": [{"site": member.site, "key": member.key} for member in self.members],
            "threshold": self.threshold,
            "colluders": self.colluders,
        }


def sum_roster_from_json(document: object) -> SumRoster:
    try:
        if not isinstance(document, dict) or set(document) != {"members", "threshold", "colluders"}:
            raise TypeError("other parts than members, threshold and colluders")
        members = tuple(Member(site=str(each["site"]), key=str(each["key"])) for each in document["members"])
        roster = SumRoster(members=members, threshold=int(document["threshold"]), colluders=int(document["colluders"]))
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError(f"expected the roster of a secure sum, got one that is damaged: {error!r}") from error
    roster.check_all_pairs()
    return roster


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opening:
    """One sum: of which run and round, over which roster, of how many numbers modulo 2^bits, in answer to which question.

    `question` is a digest of all that the sites were asked. Keys, seals and signatures of one opening fit no other. Without a
    `graph` all pairs of sites have masks, and the coordinator may lie; with one, neighbours have, and it must not (`graph`).
    """

    run: str
    round: int
    roster: SumRoster
    size: int
    bits: Bits = 64
    question: str = ""
    graph: MaskGraph | None = None

    def __post_init__(self) -> None:
        if self.graph is None:
            self.roster.check_all_pairs()
        elif self.graph.clients != len(self.roster.members):
            raise out_of_range("the clients of a graph", f"the {len(self.roster.members)} sites", self.graph.clients)
        if self.size < 1:
            raise out_of_range("the numbers of a sum", "at least 1", self.size)
        if self.bits not in (32, 64):
            raise out_of_range("bits", "32 or 64", self.bits)

    @property
    def shares_needed(self) -> int:
        """How many shares give back a secret."""
        return self.roster.threshold if self.graph is None else self.graph.threshold

    @functools.cached_property
    def context(self) -> bytes:
        """32 bytes that differ between any two openings."""
        facts = [VERSION, self.run, self.round, self.roster.digest, self.size, self.bits, self.question]
        if self.graph is not None:
            facts += ["graph", self.graph.degree, self.graph.threshold]
        return hashlib.sha256(json.dumps(facts).encode()).digest()
