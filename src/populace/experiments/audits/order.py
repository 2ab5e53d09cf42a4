"""What `populace audit` was asked to audit: a mechanism, a method, everything local, a run, or the canaries of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from populace.errors import SpecError
from populace.evaluation.audit import Finding
from populace.evaluation.canaries import epsilon_from_guesses
from populace.experiments.audits.messages import (
    FACES,
    MECHANISMS,
    Effort,
    audit_mechanism,
    audit_method,
    audit_part,
    document,
    make_mechanism,
)
from populace.experiments.folder import RunFolder
from populace.experiments.run import load_run
from populace.experiments.spec import RunSpec, make_method, make_spec
from populace.models.generator import load_table_generator
from populace.privacy.randomizers.base import check_epsilon
from populace.protocols.base import Population, Protocol
from populace.protocols.registry import METHODS, protocol_class
from populace.tables.embedded import harbour_schema
from populace.tables.files import write_json
from populace.tables.schema import Schema, load_schema
from populace.tables.table import read_table

Say = Callable[[str], None]

DEFAULT_EPSILON, DEFAULT_CLIENTS = 2.0, 10_000
SAMPLES, EXACT_SAMPLES = 100_000, 2_000
ONE_RECORD = "the run's clients held several records each, those of the audit hold one; more might show more"
CANARY_NOTES = (
    "one training run, each canary in or out by a fair coin of its own (Steinke, Nasr and Jagielski 2023); neighbours: one "
    "record added or removed; the number of guesses must have been fixed before the coins were looked at",
    "a bound below the claim does not prove the claim: other canaries and other guesses might have shown more",
    "the claim is judged at the confidence given: with a delta above 0 one run can never be as sure as 1 - 1e-6",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """An audit as asked for. `what` is a mechanism, a method, `all`, `canaries`, or the folder of a run."""

    what: str
    epsilon: float | None = None
    schema: str | None = None
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
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

    @property
    def effort(self) -> Effort:
        samples = self.samples if self.samples is not None else EXACT_SAMPLES if self.exact else SAMPLES
        return Effort(samples=samples, confidence=self.confidence, seed=self.seed)

    @property
    def claim(self) -> float:
        epsilon = DEFAULT_EPSILON if self.epsilon is None else self.epsilon
        check_epsilon(epsilon)
        return epsilon

    def population(self, schema: Schema) -> Population:
        """Whom a method is audited on, when it is not a run that says so."""
        clients = DEFAULT_CLIENTS if self.clients is None else self.clients
        return Population(schema=schema, clients=clients, records=1 if self.records is None else self.records)

    @property
    def is_run(self) -> bool:
        """Names of mechanisms and methods come first: a folder of such a name is given with a slash."""
        known = (*MECHANISMS, *METHODS, "all", "canaries")
        return self.what not in known and Path(self.what).is_dir()


def perform(order: Order, *, command: str = "", say: Say = lambda _: None) -> dict[str, Any]:
    """audit.json of what was asked for."""
    if order.what == "canaries":
        return _canaries(order, command)
    if order.canaries or order.guesses or order.correct or order.delta:
        raise SpecError(
            "--canaries, --guesses, --correct and --delta belong to `populace audit canaries`; leave them out"
        )
    if order.is_run:
        return _run(order, command, say)
    if order.what == "all":
        if order.settings:
            raise SpecError("--set names a parameter of one method; leave it out with `all`")
        claims = {"epsilon": order.claim, "of": "every local mechanism and method"}
        found = [finding for name in MECHANISMS for finding in _mechanism(name, order)]
        schema = _schema(order)
        found += [finding for name in local_methods() for finding in _method(name, order, schema, say)]
        return document(found, claims, command=command)
    if order.what in MECHANISMS:
        if order.settings or order.schema:
            raise SpecError(f"{order.what} is a mechanism: it takes --size, neither --schema nor --set")
        return document(_mechanism(order.what, order), {"epsilon": order.claim, "of": order.what}, command=command)
    if order.what not in METHODS:
        raise SpecError(
            f"{order.what!r} is neither a method ({', '.join(METHODS)}) nor a mechanism ({', '.join(MECHANISMS)}) nor the "
            "folder of a run"
        )
    schema = _schema(order)
    findings = _method(order.what, order, schema, say)
    claim = make_method(_spec(order.what, order)).guarantee(order.population(schema))
    return document(findings, claim.to_json(), command=command)


def _mechanism(name: str, order: Order) -> list[Finding]:
    oracle = make_mechanism(name, epsilon=order.claim, size=order.size)
    return [
        audit_mechanism(oracle, effort=order.effort, face=face, what=f"{name}, {order.size} values, {face}")
        for face in FACES
    ]


def _method(name: str, order: Order, schema: Schema, say: Say) -> list[Finding]:
    return _whole_and_part(make_method(_spec(name, order)), order.population(schema), order, say)


def _whole_and_part(protocol: Protocol, population: Population, order: Order, say: Say) -> list[Finding]:
    """The whole message, and, where epsilon is split evenly over its parts, the most telling of them."""
    found = [audit_method(protocol, population, effort=order.effort, exact=order.exact, say=say)]
    part = None if order.exact else audit_part(protocol, population, effort=order.effort)
    return found if part is None else [*found, part]


def local_methods() -> list[str]:
    """Methods for tables whose clients randomise what they send."""
    facts = {name: protocol_class(name).facts for name in METHODS}
    return [name for name, fact in facts.items() if "local" in fact.trust and "table" in fact.kinds]


def _spec(name: str, order: Order) -> RunSpec:
    """A method that offers other trust too is audited as a local one."""
    choice = protocol_class(name).facts.trust
    trust = "local" if len(choice) > 1 and "local" in choice else None
    return make_spec(data="none.parquet", epsilon=order.claim, method=name, settings=dict(order.settings), trust=trust)


def _schema(order: Order) -> Schema:
    if order.schema is None:
        return harbour_schema()
    if Path(order.schema).suffix == ".toml":
        return load_schema(order.schema)
    return read_table(order.schema).schema


def _run(order: Order, command: str, say: Say) -> dict[str, Any]:
    """The method of a run, with its parameters, its schema and its number of clients."""
    given = (order.epsilon, order.schema, order.settings or None, order.clients, order.records)
    if any(value is not None for value in given):
        raise SpecError(
            "a run carries its own epsilon, schema, parameters and clients; leave --epsilon, --schema, --set, --clients and "
            "--records-per-client out"
        )
    run = load_run(order.what)
    spec = make_spec(**run.details["spec"])
    schema = load_table_generator(Path(order.what)).schema
    population = Population(schema=schema, clients=int(run.details["clients"]), records=spec.records_per_client)
    findings = _whole_and_part(make_method(spec), population, order, say)
    found = document(findings, run.guarantee.to_json(), command=command)
    notes = [] if spec.client_column is None else [ONE_RECORD]
    return {**found, "notes": [*found["notes"], *notes]}


def _canaries(order: Order, command: str) -> dict[str, Any]:
    """The bound from one training run, in the same form."""
    if order.schema or order.settings or order.exact:
        raise SpecError("`populace audit canaries` takes --canaries, --guesses, --correct, --delta and --epsilon only")
    if order.canaries < 1:
        raise SpecError("expected --canaries of at least 1: how many records were put in or left out by a fair coin")
    measured = epsilon_from_guesses(
        canaries=order.canaries, guesses=order.guesses, correct=order.correct, delta=order.delta,
        confidence=order.confidence,
    )  # fmt: skip
    claim = None if order.epsilon is None else order.claim
    row = {
        "what": f"{order.correct} of {order.guesses} guesses right about {order.canaries} canaries",
        "claimed_epsilon": claim, "delta": order.delta, "measured_epsilon": measured, "confidence": order.confidence,
        "samples": order.canaries, "flagged": claim is not None and measured > claim, "certain_epsilon": None,
        "certain_confidence": None,
    }  # fmt: skip
    whole = document([], {"epsilon": claim, "delta": order.delta, "of": "a training run"}, command=command)
    return {**whole, "rows": [row], "flagged": row["flagged"], "notes": list(CANARY_NOTES)}


def write(found: dict[str, Any], order: Order, out: Path | None) -> Path | None:
    """Where the result goes: a run's own folder, or the file named."""
    path = RunFolder(order.what) / "audit.json" if order.is_run and out is None else out
    if path is not None:
        if path.is_dir():
            path = path / "audit.json"
        write_json(path, found)
    return path
