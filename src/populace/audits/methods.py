"""The audits of one method, by who adds its noise.

local     messages about two contents of a client; recorded releases
silo      messages with and without a record; canaries in one run; recorded releases
central   canaries in one run; recorded releases
secure-sum  the same, of the sums that are opened: to the world, and to a coalition that knows its shares of the noise

Silo and central methods train: they are audited on small invented shapes with few steps, because what protects records is the
same code at every size. Everything runs through `answer` and `absorb` by the engines that run the method.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax

from populace.audits import shapes
from populace.audits.grey_box import GreyBox, audit_grey_box
from populace.audits.messages import Effort, audit_as_gaussian, audit_method, audit_part
from populace.audits.release_canaries import audit_canaries
from populace.engines.runtime import make_key
from populace.errors import SpecError
from populace.evaluation.audit import Finding
from populace.methods.base import ImageShape, Kind, Population, Protocol
from populace.methods.registry import BUILT_IN, make_protocol, protocol_class
from populace.privacy.guarantee import Guarantee
from populace.tables.embedded import harbour_schema
from populace.tables.schema import Schema

Say = Callable[[str], None]

CLIENTS = 10_000  # of a local method, with one record each
SILOS, RECORDS = 2, 4
SUM_SILOS = 3
SUMS_AUDITED = (
    "census",
    "moments",
)  # under secure-sum: methods without coins of the clients' own, all of whose rounds are sums
#: Messages about each of two inputs. A message of a method that trains is a training.
SAMPLES, TRAINED_SAMPLES, RELAYED_SAMPLES = 100_000, 8_000, 2_000
RELAYED = ("fl-gan", "ufl-gan", "genfl", "chain")  # one client after the other, or two stages
TRAINED_CLIENTS = ("dp-fed-wae", "fedsel-wae")  # clients that train before they answer, each by itself


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A method to audit: with what settings, on what kind of data, for how many clients; None is left to the audit."""

    name: str
    epsilon: float
    kind: Kind
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    schema: Schema | ImageShape | None = None
    clients: int | None = None
    records: int | None = None
    samples: int | None = None
    confidence: float = 0.95
    seed: int | None = None
    hurried: bool = False  # few steps whatever the settings: those of a run

    @property
    def trust(self) -> str:
        """What the method is audited as, where it offers several: what is asked for, or the first it offers."""
        offered = protocol_class(self.name).facts.trust
        return str(self.settings.get("trust", offered[0]))

    @property
    def trained(self) -> bool:
        """Whether the method trains, and is audited on small shapes with few steps."""
        return self.trust != "local"

    @property
    def label(self) -> str:
        several = len(protocol_class(self.name).facts.trust) > 1
        return ", ".join(
            [self.name, *([self.trust] if several else []), *(["images"] if self.kind == "images" else [])]
        )

    def protocol(self, *, wide: bool = False, few: bool = False) -> Protocol:
        """The method; with small networks and few steps where it trains, or where `few` are asked for."""
        small = {**shapes.FEW_STEPS.get(self.name, {}), **(shapes.WIDE.get(self.name, {}) if wide else {})}
        small = small if self.trained or few or self.name in TRAINED_CLIENTS else {}
        settings = {**self.settings, **small} if self.hurried else {**small, **self.settings}
        return make_protocol(self.name, {**settings, "epsilon": self.epsilon})

    def shape(self, *, wide: bool = False) -> Schema | ImageShape:
        """The public shape of the data: the one given; else the embedded survey's, or a smaller one where methods train."""
        if self.schema is not None:
            return self.schema
        large = self.kind == "table" and (wide or not (self.trained or self.name in TRAINED_CLIENTS))
        return harbour_schema() if large else shapes.shape_for(self.kind)

    @property
    def silos(self) -> int:
        """The silos of a method that trains; of a secure sum, enough for the colluders and dropouts that it allows for."""
        if self.trust != "secure-sum":
            return SILOS
        colluders, dropouts = (int(str(self.settings.get(name, 0))) for name in ("colluders", "dropouts"))
        return max(SUM_SILOS, colluders + 2 * dropouts + 2)

    @property
    def population(self) -> Population:
        clients, records = (self.silos, RECORDS) if self.trained else (CLIENTS, 1)
        clients = TRAINED_SAMPLES if self.name in TRAINED_CLIENTS else clients
        return Population(
            schema=self.shape(), clients=clients if self.clients is None else self.clients,
            records=records if self.records is None else self.records,
        )  # fmt: skip

    @property
    def effort(self) -> Effort:
        cheap = self.name == "moments" or not (self.trained or self.name in TRAINED_CLIENTS)
        usual = SAMPLES if cheap else TRAINED_SAMPLES
        usual = RELAYED_SAMPLES if self.name in RELAYED else usual
        return Effort(
            samples=usual if self.samples is None else self.samples, confidence=self.confidence, seed=self.seed
        )

    @property
    def claim(self) -> Guarantee:
        return self.protocol().guarantee(self.population)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audits:
    """The results of audits: bounds on epsilon, tests of noise, and what the recorder observed."""

    findings: tuple[Finding, ...] = ()
    recorded: tuple[Any, ...] = ()

    def __add__(self, other: Audits) -> Audits:
        return Audits(findings=self.findings + other.findings, recorded=self.recorded + other.recorded)


def audited_methods() -> list[tuple[str, str, Kind]]:
    """(name, trust, kind of data) of everything built in that claims anything, in every way it can be run."""
    found: list[tuple[str, str, Kind]] = []
    for name in BUILT_IN:
        facts = protocol_class(name).facts
        trusts = [trust for trust in facts.trust if trust != "not-private" and is_audited(name, trust)]
        found += [(name, trust, kind) for trust in trusts for kind in facts.kinds]
    return found


def audit_subject(subject: Subject, *, exact: bool = False, quick: bool = False, say: Say = lambda _: None) -> Audits:
    """All audits of one method; `quick` leaves out what others in a list of all methods show as well."""
    check(subject)
    if exact and subject.trained:
        raise SpecError(
            f"--exact is for methods whose clients randomise answers; {subject.name!r} trains, and the recorder tests the "
            "noise of both sources; leave it out"
        )
    found = Audits()
    if subject.trained:
        say(f"{subject.label}: canaries in one run")
        found += Audits(findings=tuple(canaries(subject)))
    if subject.trust in ("local", "silo") and not (quick and _left_out(subject)):
        found += Audits(findings=tuple(messages(subject, exact=exact, say=say)))
    say(f"{subject.label}: recorded on neighbouring data sets")
    claim = subject.claim
    findings = tuple(
        dataclasses.replace(finding, unit=claim.unit, neighbours=claim.neighbours, trust=claim.trust)
        for finding in found.findings
    )
    return Audits(findings=findings, recorded=(grey_box(subject, quick=quick),))


def _left_out(subject: Subject) -> bool:
    """Messages of trainings, whose releases canaries show better, and of images whose randomiser is that of tables."""
    repeated = subject.kind == "images" and subject.trust == "local"
    return repeated or (subject.trained and subject.name != "moments")


def is_audited(name: str, trust: str) -> bool:
    """Whether an audit exists: of secure sums not where clients draw themselves, or where some rounds are no sums."""
    return trust != "secure-sum" or name in SUMS_AUDITED or name not in BUILT_IN


def check(subject: Subject) -> None:
    claim = subject.claim
    if math.isinf(claim.epsilon) or claim.trust == "not-private":
        raise SpecError(f"method {subject.name!r} claims nothing with these settings; there is no claim to refute")
    if not is_audited(subject.name, claim.trust):
        raise SpecError(
            f"method {subject.name!r} has no audit under trust secure-sum (those that have: {', '.join(SUMS_AUDITED)}): the "
            "recorder does not know coins of the clients' own, or rounds that are no sums; audit its other trust"
        )


def messages(subject: Subject, *, exact: bool = False, say: Say = lambda _: None) -> list[Finding]:
    """Whole messages about two inputs; one part, where parts share epsilon; one Gaussian release by its whole curve."""
    protocol, population, effort = subject.protocol(), subject.population, subject.effort
    found = [
        audit_method(
            protocol, population, effort=effort, exact=exact, say=say,
            what=f"{subject.label}, whole message" + (", exact" if exact else ""),
        )
    ]  # fmt: skip
    if exact:
        return found
    more = [
        audit_part(protocol, population, effort=effort)
        if subject.trust == "local"
        else audit_as_gaussian(protocol, population, effort=effort, what=f"{subject.label}, message, as Gaussian")
    ]
    return found + [finding for finding in more if finding is not None]


def canaries(subject: Subject) -> list[Finding]:
    """Audit one run with canaries, of one silo or of a few clients."""
    protocol, shape = subject.protocol(wide=True), subject.shape(wide=True)
    records = RECORDS if subject.records is None else subject.records
    several = subject.trust == "secure-sum" or protocol_class(subject.name).facts.unit != "record"
    silos = subject.clients or subject.silos if several else 1
    held = [shapes.some_records(shape, records, seed=n) for n in range(silos)]
    clients = shapes.clients_of(shape, held, persons=protocol.protected_unit == "person")
    population = Population(schema=shape, clients=silos, records=records)
    key = jax.random.fold_in(make_key(subject.seed), 1)
    return audit_canaries(protocol, clients, population, key=key, confidence=subject.confidence, what=subject.label)


def grey_box(subject: Subject, *, quick: bool = False) -> GreyBox:
    """Record runs on pairs of neighbours, by the debug engine; `quick` takes one pair of a method that trains."""
    alone = (
        quick
        and subject.trust != "secure-sum"
        and subject.name
        in (
            "fl-gan",
            "chain",
            "genfl",
            "dp-fl",
        )
    )  # other silos add nothing that ufl-gan has not
    clients = subject.clients or (1 if alone else subject.silos) if subject.trained else SILOS
    records = subject.records if subject.trained and subject.records else RECORDS
    shape = shapes.shape_for(subject.kind) if subject.schema is None else subject.schema
    small = dataclasses.replace(subject, schema=shape, clients=clients, records=records)
    protocol = small.protocol(few=True)
    claim = protocol.guarantee(small.population)
    found, population = shapes.neighbouring_clients(
        shape, unit=claim.unit, neighbours=claim.neighbours, clients=clients, records=records
    )
    key = jax.random.fold_in(make_key(subject.seed), 2)
    return audit_grey_box(
        protocol, found[: 1 if quick and subject.trained else None], population, key=key, what=subject.label
    )
