"""The rule: which method is used where none is asked for. `synthesize`, `plan`, `federation` and `advise` all ask here."""

from __future__ import annotations

import dataclasses

from populace.methods.facts import Kind
from populace.privacy.guarantee import Trust

#: The method for data of a kind under each trust, best first by the stored benchmarks (`populace advise` shows them).
METHODS: dict[tuple[Kind, Trust], str] = {
    ("table", "silo"): "census",
    ("table", "secure-sum"): "census",
    ("table", "central"): "census",
    ("table", "local"): "poll",
    ("images", "silo"): "moments",
    ("images", "secure-sum"): "moments",
    ("images", "central"): "moments",
    ("images", "local"): "dp-fed-wae",
}
#: Who adds the noise where nobody says it: whoever holds a file, or, of people with a record each, everybody.
OF_FILES: Trust = "silo"
OF_PEOPLE: Trust = "local"
REASONS: dict[Kind, str] = {
    "table": "each file is a silo, and the statement says who adds the noise and who is protected; --method poll asks every "
    "row as a person of its own, who trusts nobody",
    "images": "each file is a silo, which sends one noisy sum, and one image is protected",
}
REASONS_LOCAL: dict[Kind, str] = {
    "table": "each row is a person, whose own device sends one randomised answer and who trusts nobody",
    "images": "each image is a person's, whose own device sends one randomised gradient sign and who trusts nobody",
}
PLURAL: dict[Kind, str] = {"table": "tables", "images": "images"}
POINTER = "`populace advise` says what to expect of it, and what would do better"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """A method, under which trust, and why in one sentence."""

    method: str
    trust: Trust
    reason: str


def choose(kind: Kind, *, trust: str | None = None, people: bool = False) -> Choice:
    """The choice for data of a kind, held in files (or at silos), or by people with a record each.

    A trust that no method has is left to the method's own check, with its list of those that it works with.
    """
    asked: Trust = next((known for _, known in METHODS if known == trust), OF_PEOPLE if people else OF_FILES)
    reason = (REASONS_LOCAL if asked == "local" else REASONS)[kind]
    return Choice(method=METHODS[kind, asked], trust=asked, reason=reason)


def defaults() -> dict[Kind, str]:
    """The method for each kind of data held in files."""
    return {kind: choose(kind).method for kind in PLURAL}


def choice_in_words(kind: Kind, *, trust: str | None = None) -> str:
    """Which method is used where none was asked for, why, and where to read more."""
    choice = choose(kind, trust=trust)
    under = " under trust local" if choice.trust == "local" else ""
    return f"method: {choice.method}, the default for {PLURAL[kind]}{under}: {choice.reason} ({POINTER})"
