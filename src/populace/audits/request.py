"""What `populace audit` was asked to audit: a mechanism, a method, everything, a run, or the guesses about canaries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from populace.audits.document import document
from populace.audits.everything import GAUSSIAN, audit_all, audit_named
from populace.audits.messages import MECHANISMS, Effort
from populace.audits.methods import SAMPLES, Audits, Subject, audit_subject, audited_methods
from populace.errors import SpecError
from populace.evaluation.canaries import epsilon_from_guesses
from populace.methods.base import Kind
from populace.methods.blocks.generator import Generator
from populace.methods.registry import METHODS, parameters, protocol_class
from populace.privacy.guarantee import check_epsilon
from populace.runs.folder import RunFolder
from populace.runs.run import load_run
from populace.runs.spec import spec_from_file
from populace.runs.workers import cores
from populace.tables.files import write_json
from populace.tables.schema import Schema, load_schema
from populace.tables.table import read_table
from populace.types import JsonObject

Say = Callable[[str], None]

DEFAULT_EPSILON = 2.0
EXACT_SAMPLES = 2_000
ONE_RECORD = "the run's clients held several records each, those of the audit hold one; more might show more"
FEW_STEPS = "the run's method was audited on small invented shapes with few steps: the same code"
CANARY_NOTES = (
    "one training run, each canary in or out by a fair coin of its own (Steinke, Nasr and Jagielski 2023); neighbours: one "
    "record added or removed; the number of guesses must have been fixed before the coins were looked at",
    "a bound below the claim does not prove the claim: other canaries and other guesses might have shown more",
    "the claim is judged at the confidence given: with a delta above 0 one run can never be as sure as 1 - 1e-6",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """An audit as asked for. `what` is a mechanism, a method, `all`, `canaries`, or the folder of a run."""

    what: str
    epsilon: float | None = None
    schema: str | None = None
    images: bool = False
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    clients: int | None = None
    records: int | None = None
    size: int = 16
    samples: int | None = None
    confidence: float = 0.95
    exact: bool = False
    seed: int | None = None
    canaries: int = 0
    guesses: int = 0
    correct: int = 0
    delta: float = 0.0
    jobs: int = 0

    @property
    def effort(self) -> Effort:
        """The effort of an audit of a mechanism."""
        samples = SAMPLES if self.samples is None else self.samples
        return Effort(samples=samples, confidence=self.confidence, seed=self.seed)

    @property
    def claim(self) -> float:
        epsilon = DEFAULT_EPSILON if self.epsilon is None else self.epsilon
        check_epsilon(epsilon)
        return epsilon

    def subject(self, name: str, **given: Any) -> Subject:
        """A method as asked for; tables unless it takes images alone, or images are asked for."""
        kinds = protocol_class(name).facts.kinds
        kind: Kind = "images" if self.images else kinds[0]
        if kind not in kinds:
            raise SpecError(f"method {name!r} takes {' and '.join(kinds)} data; leave --images out")
        if self.schema is not None and kind == "images":
            raise SpecError("--schema is the shape of a table; images are invented, leave it out")
        if "epsilon" in self.settings:
            raise SpecError("give epsilon with --epsilon, not with --set")
        samples = EXACT_SAMPLES if self.exact and self.samples is None else self.samples
        subject = Subject(
            name=name, epsilon=self.claim, kind=kind, settings=dict(self.settings), schema=_schema(self.schema),
            clients=self.clients, records=self.records, samples=samples, confidence=self.confidence, seed=self.seed,
        )  # fmt: skip
        return dataclasses.replace(subject, **given)

    @property
    def is_run(self) -> bool:
        """Names of mechanisms and methods come first: a folder of such a name is given with a slash."""
        known = (*MECHANISMS, GAUSSIAN, *METHODS, "all", "canaries")
        return self.what not in known and Path(self.what).is_dir()


def perform(request: AuditRequest, *, command: str = "", say: Say = lambda _: None) -> JsonObject:
    """Perform an audit; return the content of audit.json."""
    if request.what == "canaries":
        return _canaries(request, command)
    if request.canaries or request.guesses or request.correct or request.delta:
        raise SpecError(
            "--canaries, --guesses, --correct and --delta belong to `populace audit canaries`; leave them out"
        )
    if request.is_run:
        return _run(request, command, say)
    if request.what == "all":
        return _all(request, command, say)
    if request.what in (*MECHANISMS, GAUSSIAN):
        if request.settings or request.schema or request.images:
            raise SpecError(f"{request.what} is a mechanism: it takes --size, neither --schema nor --set nor --images")
        return document(
            _mechanism(request.what, request), {"epsilon": request.claim, "of": request.what}, command=command
        )
    if request.what not in METHODS:
        raise SpecError(
            f"{request.what!r} is neither a method ({', '.join(METHODS)}) nor a mechanism "
            f"({', '.join((*MECHANISMS, GAUSSIAN))}) nor the folder of a run"
        )
    subject = request.subject(request.what)
    found = audit_subject(subject, exact=request.exact, say=say)
    return document(found, subject.claim.to_json(), command=command)


def _all(request: AuditRequest, command: str, say: Say) -> JsonObject:
    """Audit every mechanism and every method, in every way it can be run."""
    if request.settings or request.images or request.exact:
        raise SpecError("--set, --images and --exact belong to one method; leave it out with `all`")
    if request.jobs < 0:
        raise SpecError(f"expected jobs of at least 1, got {request.jobs}")
    subjects = [
        request.subject(name, kind=kind, settings={"trust": trust} if "trust" in parameters(name) else {})
        for name, trust, kind in audited_methods()
    ]
    found = audit_all(
        subjects, epsilon=request.claim, size=request.size, effort=request.effort, jobs=request.jobs or cores(), say=say
    )
    return document(found, {"epsilon": request.claim, "of": "every mechanism and method"}, command=command)


def _mechanism(name: str, request: AuditRequest) -> Audits:
    return audit_named(name, epsilon=request.claim, size=request.size, effort=request.effort)


def _schema(given: str | None) -> Schema | None:
    if given is None:
        return None
    return load_schema(given) if Path(given).suffix == ".toml" else read_table(given).schema


def _run(request: AuditRequest, command: str, say: Say) -> JsonObject:
    """Audit the method of a run with its settings; a local one also with the run's schema and number of clients."""
    given = (request.epsilon, request.schema, request.clients, request.records)
    if request.settings or request.images or any(value is not None for value in given):
        raise SpecError(
            "a run carries its own epsilon, schema, parameters and clients; leave --epsilon, --schema, --set, --clients, "
            "--records-per-client and --images out"
        )
    run = load_run(request.what)
    spec = spec_from_file(run.details["spec"])
    settings = {name: str(value) for name, value in spec.settings.items()}
    settings |= {"trust": run.guarantee.trust} if "trust" in parameters(spec.method_name) else {}
    settings |= {} if spec.person is None else {"unit": "person"}
    subject = dataclasses.replace(request, epsilon=spec.epsilon, settings=settings).subject(
        spec.method_name, hurried=True, kind="table" if isinstance(run.generator, Generator) else "images"
    )
    notes = [FEW_STEPS]
    if not subject.trained and isinstance(run.generator, Generator):
        subject = dataclasses.replace(
            subject, schema=run.generator.schema, clients=int(run.details["clients"]), records=spec.records_per_client
        )
        notes = [] if spec.client_column is None else [ONE_RECORD]
    found = document(audit_subject(subject, exact=request.exact, say=say), run.guarantee.to_json(), command=command)
    return {**found, "notes": [*found["notes"], *notes]}


def _canaries(request: AuditRequest, command: str) -> JsonObject:
    """The bound from one training run, in the form of audit.json."""
    if request.schema or request.settings or request.exact or request.images:
        raise SpecError("`populace audit canaries` takes --canaries, --guesses, --correct, --delta and --epsilon only")
    if request.canaries < 1:
        raise SpecError("expected --canaries of at least 1: how many records were put in or left out by a fair coin")
    measured = epsilon_from_guesses(
        canaries=request.canaries, guesses=request.guesses, correct=request.correct, delta=request.delta,
        confidence=request.confidence,
    )  # fmt: skip
    claim = None if request.epsilon is None else request.claim
    row = {
        "what": f"{request.correct} of {request.guesses} guesses right about {request.canaries} canaries",
        "claimed_epsilon": claim, "delta": request.delta, "measured_epsilon": measured, "confidence": request.confidence,
        "samples": request.canaries, "flagged": claim is not None and measured > claim, "certain_epsilon": None,
        "certain_confidence": None,
    }  # fmt: skip
    whole = document(Audits(), {"epsilon": claim, "delta": request.delta, "of": "a training run"}, command=command)
    return {**whole, "rows": [row], "flagged": row["flagged"], "notes": list(CANARY_NOTES)}


def write(found: JsonObject, request: AuditRequest, out: Path | None) -> Path | None:
    """Write the result into the run's own folder or the given file; return its path."""
    path = RunFolder(request.what) / "audit.json" if request.is_run and out is None else out
    if path is not None:
        if path.is_dir():
            path = path / "audit.json"
        write_json(path, found)
    return path
