"""Which charges add up: those that bound the same loss, between the same pairs of data sets and against the same readers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from populace.errors import BudgetError
from populace.privacy import events
from populace.privacy.events import Event
from populace.privacy.guarantee import Guarantee

SEEN_WITHOUT_NOISE = ("central", "not-private")  # by the coordinator; all others add noise before anything leaves


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relation:
    """Neighbours and trust of a guarantee, in the words of the house list; empty where nobody wrote them down."""

    neighbours: str
    trust: str

    @property
    def kind(self) -> tuple[str, str]:
        """Equal for charges that add up: the neighbours, and whether the coordinator sees what has no noise yet."""
        seen = "central" if self.trust in SEEN_WITHOUT_NOISE else "apart" if self.trust else ""
        return self.neighbours, seen

    @property
    def in_words(self) -> str:
        return f"`{self.neighbours}` with trust `{self.trust}`" if self.neighbours else "a relation nobody wrote down"


UNKNOWN = Relation(neighbours="", trust="")


def relation_of(guarantee: Guarantee) -> Relation:
    return Relation(neighbours=guarantee.neighbours, trust=guarantee.trust)


def assumed(event: Event) -> Relation:
    """The relation of a charge that was booked without one.

    Every method with a pure event randomises what a client holds before it leaves: `replace`. Of others nothing is known.
    """
    return Relation(neighbours="replace", trust="silo") if events.is_pure(event) else UNKNOWN


def check_same_relation(kept: Relation | None, wanted: Relation, *, path: str | Path) -> None:
    """Raise BudgetError where a ledger with charges of one relation would be charged under another."""
    if kept is not None and kept.kind != wanted.kind:
        raise BudgetError(
            f"the ledger {path} holds charges under {kept.in_words}, and those of this run are under {wanted.in_words}: they "
            "do not add up. Agree to it in another folder, and lower its limit by what was spent here"
        )
