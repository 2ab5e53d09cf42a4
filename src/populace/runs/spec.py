"""What is to be run, checked before any data is touched."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pydantic

from populace.errors import SpecError
from populace.methods.base import Protocol
from populace.methods.registry import DEFAULTS, make_protocol, parameters, protocol_class
from populace.privacy.randomizers.base import check_epsilon
from populace.version import __version__

DEFAULT_ROWS = 10_000


class RunSpec(pydantic.BaseModel):
    """Everything that decides a run's result; two runs with the same spec and seed are the same run."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=False)

    data: str
    epsilon: float
    method: str | None = None
    delta: float | None = None
    schema_file: str | None = None
    target: str | None = None
    trust: str | None = None
    records_per_client: int = 1
    client_column: str | None = None
    most_records: int | None = None
    settings: dict[str, Any] = {}
    rows: int = DEFAULT_ROWS
    seed: int | None = None

    @property
    def method_name(self) -> str:
        if self.method is not None:
            return self.method
        kind = "images" if self.data.endswith(".npz") else "table"
        if kind not in DEFAULTS:
            raise SpecError(f"no method for {kind} is built in yet; `populace methods` lists what there is")
        return DEFAULTS[kind]  # type: ignore[index]

    def digest(self) -> str:
        """A hash of the specification and of the version, to recognise an unfinished run: other code makes other replies."""
        text = json.dumps({"version": __version__, **self.model_dump()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def make_spec(**values: Any) -> RunSpec:
    """A checked specification; what is wrong is one sentence."""
    try:
        spec = RunSpec(**values)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SpecError(f"{where}: {first['msg'].lower()}, got {first.get('input')!r}") from None
    check_epsilon(spec.epsilon)
    if spec.delta is not None and not 0 <= spec.delta < 1:
        raise SpecError(f"expected delta in [0, 1), got {spec.delta}")
    if spec.rows < 1:
        raise SpecError(f"expected rows of at least 1, got {spec.rows}")
    if spec.records_per_client < 1:
        raise SpecError(f"expected records-per-client of at least 1, got {spec.records_per_client}")
    if spec.client_column is not None and spec.records_per_client != 1:
        raise SpecError("give --records-per-client or --client-column, not both")
    if spec.most_records is not None and spec.client_column is None:
        raise SpecError(
            "--most-records is for the clients of a --client-column; --records-per-client says it otherwise"
        )
    if spec.most_records is not None and spec.most_records < 1:
        raise SpecError(f"expected most-records of at least 1, got {spec.most_records}")
    if spec.seed is not None and not 0 <= spec.seed < 2**63:
        raise SpecError(f"expected a seed in [0, 2^63), got {spec.seed}")
    make_method(spec)
    return spec


def make_method(spec: RunSpec) -> Protocol:
    """The method this specification asks for, with its privacy parameters."""
    name = spec.method_name
    facts = protocol_class(name).facts
    fields = parameters(name)
    settings: dict[str, Any] = {**spec.settings, "epsilon": spec.epsilon}
    if "epsilon" in spec.settings:
        raise SpecError("give epsilon with --epsilon, not with --set")
    if spec.delta is not None:
        if "delta" not in fields:
            raise SpecError(f"method {name!r} gives a pure guarantee (delta 0); leave --delta out")
        settings["delta"] = spec.delta
    if spec.trust is not None:
        if spec.trust not in facts.trust:
            raise SpecError(f"method {name!r} works with trust {' or '.join(facts.trust)}, not {spec.trust!r}")
        if "trust" in fields:
            settings["trust"] = spec.trust
    method = make_protocol(name, settings)
    if not method.makes_data:
        raise SpecError(
            f"method {name!r} with these settings learns a classifier and makes no data; see `populace benchmark`"
        )
    return method
