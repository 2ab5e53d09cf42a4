"""What is to be run, checked before any data is touched."""

from __future__ import annotations

import hashlib
import json
import typing
from typing import Any

import numpy as np
import pydantic

from populace.errors import SpecError
from populace.methods.base import Protocol
from populace.methods.blocks.settings import in_words
from populace.methods.registry import DEFAULTS, make_protocol, parameters, protocol_class, settings_from_file
from populace.privacy.randomizers.base import check_epsilon
from populace.types import JsonObject
from populace.version import __version__

DEFAULT_ROWS = 10_000
#: What `data` says of rows that were given in Python and stand in no file.
TABLE_IN_MEMORY, IMAGES_IN_MEMORY = "memory:table", "memory:images"


def default_method(data: str) -> str:
    """The method for data of this kind, where none is asked for."""
    return DEFAULTS["images" if data.endswith(".npz") or data == IMAGES_IN_MEMORY else "table"]


class RunSpec(pydantic.BaseModel):
    """Everything that decides a run's result; two runs with the same spec and seed are the same run."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

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
    silos: int | None = None
    settings: JsonObject = {}
    rows: int = DEFAULT_ROWS
    seed: int | None = None

    @property
    def method_name(self) -> str:
        return default_method(self.data) if self.method is None else self.method

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
        name = str(first["loc"][0])
        if name not in RunSpec.model_fields:
            raise SpecError(f"a run has no option {name!r}") from None
        if first["type"] == "missing":
            raise SpecError(f"a run needs {name}") from None
        wanted = in_words(typing.get_type_hints(RunSpec)[name])
        raise SpecError(f"expected {name.replace('_', '-')} as {wanted}, got {first.get('input')!r}") from None
    check_epsilon(spec.epsilon)
    if spec.delta is not None and not 0 <= spec.delta < 1:
        raise SpecError(f"expected delta in [0, 1), got {spec.delta}")
    for name in ("rows", "silos", "records_per_client", "most_records"):
        if (count := getattr(spec, name)) is not None:
            check_count(name.replace("_", "-"), count)
    if spec.client_column is not None and spec.records_per_client != 1:
        raise SpecError("give --records-per-client or --client-column, not both")
    if spec.most_records is not None and spec.client_column is None and spec.silos is None:
        raise SpecError(
            "--most-records is for the clients of a --client-column; --records-per-client says it otherwise"
        )
    check_seed(spec.seed)
    make_method(spec)
    return spec


def check_count(name: str, count: object) -> None:
    """One sentence for what is no number of things."""
    if not isinstance(count, int | np.integer) or isinstance(count, bool):
        raise SpecError(f"expected {name} as a whole number, got {count!r}")
    if count < 1:
        raise SpecError(f"expected {name} of at least 1, got {count}")


def check_seed(seed: object) -> None:
    """One sentence for what is no seed; None is one, from the operating system."""
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if seed is not None and not (whole and 0 <= seed < 2**63):  # type: ignore[operator]
        raise SpecError(f"expected a seed in [0, 2^63), got {seed!r}")


def spec_from_file(document: JsonObject) -> RunSpec:
    """The specification in a run.json of this or an earlier version, with settings under their present names."""
    method = document.get("method") or default_method(str(document.get("data")))
    return make_spec(**{**document, "settings": settings_from_file(method, document.get("settings", {}))})


def make_method(spec: RunSpec) -> Protocol:
    """The method this specification asks for, with its privacy parameters."""
    name = spec.method_name
    facts = protocol_class(name).facts
    fields = parameters(name)
    settings: JsonObject = {**spec.settings, "epsilon": spec.epsilon}
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
