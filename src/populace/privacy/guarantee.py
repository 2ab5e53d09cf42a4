"""The statement an expert would sign: unit, neighbours, trust, epsilon and delta, always together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from decimal import ROUND_CEILING, Decimal
from typing import Literal

from populace.errors import out_of_range
from populace.types import JsonObject

Unit = Literal["client", "record", "person"]
Neighbours = Literal["replace", "zero-out", "add-remove"]
Trust = Literal["local", "silo", "secure-sum", "central", "not-private"]
Noise = Literal["", "system", "exact", "keyed"]

LEAST_EPSILON, MOST_EPSILON = 1e-6, 50.0
FORMAT = 2  # of privacy.json; files without a number are of version 0.1.0
UNITS: dict[str, str] = {
    "client": "everything one client holds",
    "record": "one record",
    "person": "one person, with all their rows at a silo",
}
NEIGHBOURS: dict[str, str] = {
    "replace": "data sets that differ in all of one unit's content, its presence being public",
    "zero-out": "data sets of which one has one unit's content replaced by nothing, its slot, and so the number of units, "
    "being public",
    "add-remove": "data sets of which one has one unit more",
}
PERSON_ZEROED = (
    "data sets of which one has all rows of one person at a silo replaced by nothing, their slots, and so the number of rows, "
    "being public"
)
TRUSTS: dict[str, str] = {
    "local": "local: each person's own device randomises what it sends; nobody else need be trusted",
    "silo": "silo: whoever already holds the records adds the noise before anything leaves; nobody else need be trusted, "
    "neither the server nor the other silos",
    "secure-sum": "secure-sum: the server sees only a noisy sum, under secure aggregation; each silo is trusted with its own "
    "records, and no more silos than stated may collude with the server",
    "central": "central: the server is trusted with clipped messages without noise, and to add the noise",
    "not-private": "NOT PRIVATE: a baseline without protection",
}
SIMULATED = (
    "simulated on one machine, which held all records and drew all noise: whoever ran it has to be trusted, and the bound is "
    "about what left that machine"
)
ONE_HOLDER = (
    "one silo: whoever holds all the records ran the method and added the noise before anything was released, which is central "
    "differential privacy in the hands of the records' holder; nobody else need be trusted"
)
REHEARSED = (
    "a rehearsal on one machine, which held all sites and all records: whoever has it has to be trusted, and the bound is "
    "about what left that machine"
)
NOISES: dict[str, str] = {
    "system": "noise, randomised reports and the coins that draw batches were drawn exactly, from the operating system's "
    "generator",
    "exact": "noise, randomised reports and the coins that draw batches were drawn exactly, from the operating system's "
    "generator, also inside compiled code; only public choices, starting points and latents come from a keyed generator",
    "keyed": "all noise comes from a generator with a key of 64 bits of the operating system's randomness: protected "
    "computationally, by that key; what Gaussian noise differs from its law is counted in delta, and probabilities of "
    "reports are rounded to 2^-24 or finer",
}
MOST_SHOWN = 7  # characters of a number that is shown as it is
LABEL = 13  # columns of a label and the space after it
NAMED = 8  # columns of one source that a statement names
REPRODUCIBLE = "reproducible, not private: the noise was drawn from a seed, and whoever knows the seed can remove it"
UNKNOWN_NOISE = "keyed from the operating system"


def check_epsilon(epsilon: float) -> None:
    """The house range: below it nothing can be learned, above it nothing is protected, and arithmetic ends."""
    if not isinstance(epsilon, int | float) or not LEAST_EPSILON <= epsilon <= MOST_EPSILON:
        raise out_of_range("epsilon", f"above 0 and finite, in [{LEAST_EPSILON:g}, {MOST_EPSILON:g}]", epsilon)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """A differential-privacy guarantee with everything needed to compare it, and nothing that lets it be misread.

    `protects` says what one unit is in this run ("one row of the table"), `units` how many there are at most, both public.
    `read_from_data` names the columns whose domain was read from the private rows, `domain_sources` who says the others:
    ("declared by: ward protocol", ("age", "sex")); `counts_read` names public numbers that were read from the records.
    `sampling_delta` is the part of delta owed to samplers whose law is not exact: epsilon belongs to the rest of delta.
    `simulated` runs had all records on one machine, which drew all noise, and in a `rehearsal` all sites stood on one machine:
    `trust` is then that of a deployment. A run of a `sole_holder`, one silo with all records, is no simulation of anything:
    whether the silo or the server adds the noise makes no difference to it.
    `claims` are sentences on what is claimed to whom, where that differs: of secure sums to the world and to a coalition.
    `shuffles` is true where each client reports once, in an order that the server draws and may keep secret.

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
    protects: str = ""
    units: int = 0
    sampling_delta: float = 0.0
    counts_read: tuple[str, ...] = ()
    shuffles: bool = False
    noise: Noise = ""
    simulated: bool = False
    rehearsal: bool = False
    sole_holder: bool = False
    seeded: bool = False
    reason: str = ""
    claims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise out_of_range("epsilon", "above 0", self.epsilon)
        if not 0 <= self.delta < 1:
            raise out_of_range("delta", "in [0, 1)", self.delta)
        if self.unit not in UNITS or self.neighbours not in NEIGHBOURS or self.trust not in TRUSTS:
            raise out_of_range(
                "unit, neighbours and trust", "from the house list", (self.unit, self.neighbours, self.trust)
            )
        if not 0 <= self.sampling_delta <= self.delta:
            raise out_of_range("sampling_delta", f"in [0, delta {self.delta:g}]", self.sampling_delta)
        if math.isinf(self.epsilon) and not self.reason:
            raise out_of_range("a reason", "where epsilon is infinite", self.reason)

    @property
    def pure(self) -> bool:
        return self.delta == 0 and math.isfinite(self.epsilon)

    @property
    def one_machine(self) -> bool:
        """Whether all records stood on one machine, whatever the method would need in a deployment."""
        return self.simulated or self.rehearsal

    @property
    def accounted_delta(self) -> float:
        """The delta that epsilon was computed at: all but what samplers may add."""
        return self.delta - self.sampling_delta

    @property
    def unit_in_words(self) -> str:
        """What one unit is in this run, or, where nobody said, in general."""
        return self.protects or UNITS[self.unit]

    @property
    def neighbours_in_words(self) -> str:
        """Between which data sets the bound holds."""
        zeroed = self.unit == "person" and self.neighbours == "zero-out"
        return PERSON_ZEROED if zeroed else NEIGHBOURS[self.neighbours]

    @property
    def randomness(self) -> str:
        """Where the noise came from, in words."""
        return REPRODUCIBLE if self.seeded else NOISES.get(self.noise, UNKNOWN_NOISE)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What of the public facts was read from the records, and is therefore outside the bound."""
        gaps = []
        if self.read_from_data:
            gaps.append(f"the domain of {', '.join(self.read_from_data)} (declare a schema to cover it)")
        gaps += [f"{name} (declare it to cover it)" for name in self.counts_read]
        return tuple(gaps)

    @property
    def bound(self) -> str:
        """The pair in the form the field writes it: `4-LDP`, `(8, 1e-05)-DP`, or `no guarantee (epsilon = inf)`."""
        if math.isinf(self.epsilon):
            return "no guarantee (epsilon = inf)"
        name = "LDP" if self.trust == "local" else "DP"
        if self.pure:
            return f"{upwards(self.epsilon)}-{name}"
        return f"({upwards(self.epsilon)}, {upwards(self.delta)})-{name}"

    @property
    def trust_in_words(self) -> str:
        """Who must be trusted for the claim; where nothing is claimed, that trusting nobody would not do."""
        if math.isinf(self.epsilon) and self.trust != "not-private":
            return f"{self.trust}: that is where the noise is added, and nothing is guaranteed by it"
        if self.sole_holder:
            return ONE_HOLDER
        if self.one_machine and self.trust != "not-private":
            return f"{SIMULATED if self.simulated else REHEARSED}. Deployed, the method is {TRUSTS[self.trust]}"
        return TRUSTS[self.trust]

    @property
    def headline(self) -> str:
        """The bound with the marks that must not get lost where it stands alone."""
        marks = []
        if self.one_machine and math.isfinite(self.epsilon):
            marks.append("simulated" if self.simulated else "rehearsal")
        if self.seeded:
            marks.append("reproducible, not private")
        if self.read_from_data:
            marks.append("domains read from the data, not covered")
        if self.counts_read:
            marks.append("counts read from the data, not covered")
        return self.bound + (f" ({'; '.join(marks)})" if marks else "")

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """All that belongs to the guarantee, a label and words each; numbers are rounded up to readable digits."""
        if math.isinf(self.epsilon):
            lines = [("guarantee", f"No guarantee (epsilon = inf): {self.reason}")]
        else:
            lines = [
                ("guarantee", f"{self.bound} for {self.unit_in_words} ({self.unit} level)"),
                ("epsilon", upwards(self.epsilon)),
                ("delta", "0: a pure guarantee" if self.pure else upwards(self.delta)),
            ]
        lines += [("claim", claim) for claim in self.claims]
        lines += [("trust", self.trust_in_words), ("neighbours", self.neighbours_in_words)]
        lines.append(("mechanism", self.mechanism))
        lines += [("NOT covered", f"read from the data: {what}") for what in self.not_covered]
        lines += [("domains", f"{_names(columns)}: {said}") for said, columns in self.domain_sources]
        lines += [("assumption", assumption) for assumption in self.assumptions]
        if self.seeded or self.noise:
            lines.append(("randomness", self.randomness))
        return tuple(lines)

    def __str__(self) -> str:
        return aligned(self.lines)

    @property
    def statement(self) -> str:
        """The same in the words of privacy.json, which `populace verify` makes again."""
        if math.isinf(self.epsilon):
            lines = [f"No guarantee (epsilon = inf): {self.reason}"]
        else:
            lines = [f"{self.bound} for {self.unit_in_words} ({self.unit} level)"]
        lines += [f"claim {claim}" for claim in self.claims]
        lines.append(f"trust: {self.trust_in_words}")
        lines.append(f"neighbours: {self.neighbours_in_words}")
        lines.append(f"mechanism: {self.mechanism}")
        lines += [f"NOT covered, because read from the data: {what}" for what in self.not_covered]
        lines += [f"domains of {_names(columns)} {said}" for said, columns in self.domain_sources]
        lines += [f"assumption: {assumption}" for assumption in self.assumptions]
        if self.seeded or self.noise:
            lines.append(f"randomness: {self.randomness}")
        return "\n".join(lines)

    def to_json(self) -> JsonObject:
        document: JsonObject = {
            "format": FORMAT,
            "statement": self.statement,
            "bound": self.bound,
            "headline": self.headline,
            "epsilon": "inf" if math.isinf(self.epsilon) else self.epsilon,
            "delta": self.delta,
            "sampling_delta": self.sampling_delta,
            "kind": "none" if math.isinf(self.epsilon) else "pure" if self.pure else "approximate",
            "unit": self.unit,
            "unit_in_words": self.unit_in_words,
            "protects": self.protects,
            "units": self.units,
            "neighbours": self.neighbours,
            "neighbours_in_words": self.neighbours_in_words,
            "trust": self.trust,
            "trust_in_words": self.trust_in_words,
            "mechanism": self.mechanism,
            "derivation": list(self.derivation),
            "assumptions": list(self.assumptions),
            "simulated": self.simulated,
            "rehearsal": self.rehearsal,
            "seeded": self.seeded,
            "noise": self.noise,
            "randomness": self.randomness,
        }
        if self.read_from_data:
            document["domains"] = dict.fromkeys(self.read_from_data, "read-from-data")
        if self.counts_read:
            document["counts_read"] = list(self.counts_read)
        if self.domain_sources:
            document["domain_sources"] = {said: list(columns) for said, columns in self.domain_sources}
        if self.sole_holder:
            document["sole_holder"] = True
        if self.reason:
            document["reason"] = self.reason
        if self.claims:
            document["claims"] = list(self.claims)
        return document


def aligned(lines: Iterable[tuple[str, str]]) -> str:
    """Labels on the left, their words beside them."""
    return "\n".join(f"{label:{LABEL}}{words}" for label, words in lines)


def best_guess(epsilon: float, delta: float) -> float:
    """How often the best test between two equally likely neighbours is right, at most: (e^eps + delta) / (1 + e^eps)."""
    return min(1.0, (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)))


def _names(columns: tuple[str, ...]) -> str:
    """Columns by name; of very many the first few and how many more. The JSON document lists them all."""
    if len(columns) <= NAMED:
        return ", ".join(columns)
    return f"{', '.join(columns[:NAMED])} and {len(columns) - NAMED} more"


def upwards(number: float) -> str:
    """A number in at most six digits, rounded up, so that no statement rounds in its own favour; to_json keeps all digits."""
    shown = repr(float(number)).removesuffix(".0")
    if len(shown) <= MOST_SHOWN:
        return shown
    exact = Decimal(float(number))
    return str(float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 4), rounding=ROUND_CEILING)))


def guarantee_from_json(document: JsonObject) -> Guarantee:
    """The guarantee in a privacy.json, of this version or of 0.1.0.

    Version 0.1.0 said "local" of every method whose noise is not the server's. Where a record is protected that is a silo's
    noise, and it is read as such; its numbers are the same.
    """
    old = int(document.get("format", 1)) < FORMAT
    trust = document["trust"]
    return Guarantee(
        epsilon=float(document["epsilon"]),
        delta=document["delta"],
        unit=document["unit"],
        neighbours=document["neighbours"],
        trust="silo" if old and trust == "local" and document["unit"] == "record" else trust,
        mechanism=document["mechanism"],
        assumptions=tuple(document["assumptions"]),
        read_from_data=tuple(document.get("domains", ())),
        domain_sources=tuple((said, tuple(names)) for said, names in document.get("domain_sources", {}).items()),
        derivation=tuple(document["derivation"]),
        protects=document.get("protects", ""),
        units=int(document.get("units", 0)),
        sampling_delta=float(document.get("sampling_delta", 0.0)),
        counts_read=tuple(document.get("counts_read", ())),
        noise=document.get("noise", ""),
        rehearsal=bool(document.get("rehearsal", False)),
        sole_holder=bool(document.get("sole_holder", False)),
        simulated=bool(document.get("simulated", any("simulated on" in line for line in document["assumptions"]))),
        seeded=bool(document.get("seeded", document["randomness"] == REPRODUCIBLE)),
        reason=document.get("reason", ""),
        claims=tuple(document.get("claims", ())),
    )
