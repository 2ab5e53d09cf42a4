"""The statement an expert would sign: unit, neighbours, trust, epsilon and delta, always together."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from populace.errors import out_of_range

Unit = Literal["client", "record"]
Neighbours = Literal["replace", "add-remove"]
Trust = Literal["local", "secure-sum", "central", "not-private"]

UNITS: dict[str, str] = {"client": "everything one client holds", "record": "one record"}
NEIGHBOURS: dict[str, str] = {
    "replace": "data sets that differ in all of one unit's content, its presence being public",
    "add-remove": "data sets of which one has one unit more",
}
TRUSTS: dict[str, str] = {
    "local": "local: nobody need be trusted, each client randomises its own message",
    "secure-sum": "secure-sum: the server sees only a noisy sum, under secure aggregation",
    "central": "central: the server is trusted with clipped, un-noised updates and adds the noise",
    "not-private": "NOT PRIVATE: a baseline without protection",
}
NAMED = 8  # columns of one source that a statement names
REPRODUCIBLE = "reproducible, not private: the noise was drawn from a seed, and whoever knows the seed can remove it"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """A differential-privacy guarantee with everything needed to compare it, and nothing that lets it be misread.

    `read_from_data` names the columns whose domain was read from the private rows, `domain_sources` who says the others:
    ("declared by: ward protocol", ("age", "sex")).

    Edge cases: epsilon is inf when nothing is guaranteed, and `reason` then says why; delta 0 means pure.
    """

    epsilon: float
    delta: float = 0.0
    unit: Unit
    neighbours: Neighbours
    trust: Trust
    mechanism: str
    assumptions: tuple[str, ...] = ()
    read_from_data: tuple[str, ...] = ()
    domain_sources: tuple[tuple[str, tuple[str, ...]], ...] = ()
    derivation: tuple[str, ...] = ()
    seeded: bool = False
    reason: str = ""

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise out_of_range("epsilon", "above 0", self.epsilon)
        if not 0 <= self.delta < 1:
            raise out_of_range("delta", "in [0, 1)", self.delta)
        if self.unit not in UNITS or self.neighbours not in NEIGHBOURS or self.trust not in TRUSTS:
            raise out_of_range(
                "unit, neighbours and trust", "from the house list", (self.unit, self.neighbours, self.trust)
            )
        if math.isinf(self.epsilon) and not self.reason:
            raise out_of_range("a reason", "where epsilon is infinite", self.reason)

    @property
    def pure(self) -> bool:
        return self.delta == 0 and math.isfinite(self.epsilon)

    @property
    def bound(self) -> str:
        """The pair in the form the field writes it: `4-LDP`, `(8, 1e-05)-DP`, or `no guarantee (epsilon = inf)`."""
        if math.isinf(self.epsilon):
            return "no guarantee (epsilon = inf)"
        name = "LDP" if self.trust == "local" else "DP"
        if self.pure:
            return f"{_exact(self.epsilon)}-{name}"
        return f"({_exact(self.epsilon)}, {_exact(self.delta)})-{name}"

    @property
    def trust_in_words(self) -> str:
        """Who must be trusted for the claim; where nothing is claimed, that trusting nobody would not do."""
        if math.isinf(self.epsilon) and self.trust != "not-private":
            return f"{self.trust}: that is where the noise is added, and nothing is guaranteed by it"
        return TRUSTS[self.trust]

    @property
    def headline(self) -> str:
        """The bound with the marks that must not get lost where it stands alone."""
        marks = []
        if self.seeded:
            marks.append("reproducible, not private")
        if self.read_from_data:
            marks.append("domains read from the data, not covered")
        return self.bound + (f" ({'; '.join(marks)})" if marks else "")

    def __str__(self) -> str:
        """One paragraph."""
        if math.isinf(self.epsilon):
            parts = [f"No guarantee (epsilon = inf): {self.reason}"]
        else:
            parts = [f"{self.bound} for {UNITS[self.unit]}"]
        parts.append(f"trust: {self.trust_in_words}")
        parts.append(f"neighbours: {NEIGHBOURS[self.neighbours]}")
        parts.append(f"mechanism: {self.mechanism}")
        if self.read_from_data:
            parts.append(
                "NOT covered, because read from the data: the domain of "
                + ", ".join(self.read_from_data)
                + " (declare a schema to cover it)"
            )
        parts += [f"domains of {_names(columns)} {said}" for said, columns in self.domain_sources]
        parts += [f"assumption: {assumption}" for assumption in self.assumptions]
        if self.seeded:
            parts.append(REPRODUCIBLE)
        return "; ".join(parts) + "."

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "statement": str(self),
            "bound": self.bound,
            "headline": self.headline,
            "epsilon": "inf" if math.isinf(self.epsilon) else self.epsilon,
            "delta": self.delta,
            "kind": "none" if math.isinf(self.epsilon) else "pure" if self.pure else "approximate",
            "unit": self.unit,
            "unit_in_words": UNITS[self.unit],
            "neighbours": self.neighbours,
            "neighbours_in_words": NEIGHBOURS[self.neighbours],
            "trust": self.trust,
            "trust_in_words": self.trust_in_words,
            "mechanism": self.mechanism,
            "derivation": list(self.derivation),
            "assumptions": list(self.assumptions),
            "randomness": REPRODUCIBLE if self.seeded else "keyed from the operating system",
        }
        if self.read_from_data:
            document["domains"] = dict.fromkeys(self.read_from_data, "read-from-data")
        if self.domain_sources:
            document["domain_sources"] = {said: list(columns) for said, columns in self.domain_sources}
        if self.reason:
            document["reason"] = self.reason
        return document


def best_guess(epsilon: float, delta: float) -> float:
    """How often the best test between two equally likely neighbours is right, at most: (e^eps + delta) / (1 + e^eps)."""
    return min(1.0, (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)))


def _names(columns: tuple[str, ...]) -> str:
    """Columns by name; of very many the first few and how many more. The JSON document lists them all."""
    if len(columns) <= NAMED:
        return ", ".join(columns)
    return f"{', '.join(columns[:NAMED])} and {len(columns) - NAMED} more"


def _exact(number: float) -> str:
    """All digits of a number, so that no statement rounds in its own favour."""
    return repr(float(number)).removesuffix(".0")


def guarantee_from_json(document: dict[str, Any]) -> Guarantee:
    return Guarantee(
        epsilon=float(document["epsilon"]),
        delta=document["delta"],
        unit=document["unit"],
        neighbours=document["neighbours"],
        trust=document["trust"],
        mechanism=document["mechanism"],
        assumptions=tuple(document["assumptions"]),
        read_from_data=tuple(document.get("domains", ())),
        domain_sources=tuple((said, tuple(names)) for said, names in document.get("domain_sources", {}).items()),
        derivation=tuple(document["derivation"]),
        seeded=document["randomness"] == REPRODUCIBLE,
        reason=document.get("reason", ""),
    )
