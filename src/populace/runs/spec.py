"""What is to be run, checked before any data is touched."""

from __future__ import annotations

import hashlib
import json
import typing
from collections.abc import Mapping
from typing import Any

import pydantic

from populace.border.databases.address import is_database, parse_address
from populace.border.models import interpreting
from populace.errors import SpecError
from populace.methods.base import Facts, Kind, Protocol
from populace.methods.blocks.settings import in_words
from populace.methods.registry import make_protocol, parameters, protocol_class, settings_from_file
from populace.privacy.guarantee import check_epsilon
from populace.runs.advise.rule import choice_in_words, choose
from populace.runs.named import Files, check_count, check_named_once, check_seed, files_of, kind_of
from populace.types import JsonObject
from populace.version import __version__

DEFAULT_ROWS = 10_000

#: The person column of a plan, or of a proposal to sites that each have their own.
ANY_COLUMN = "any"

#: The defaults up to version 0.2.0, whose run folders leave a default method unnamed.
FORMER_DEFAULTS: dict[Kind, str] = {"table": "poll", "images": "moments"}

#: Why rows of a database are not dealt out by their numbers.
NO_ROW_NUMBERS = (
    "rows of a database have no order that stays, so that rows which follow one another make no client: say which column names "
    "the client of each row, with --client-column"
)


def default_method(data: Files, *, trust: str | None = None) -> str:
    """The method for data of this kind, where none is asked for: the rule that `populace advise` explains."""
    return choose(kind_of(data), trust=trust).method


def default_in_words(data: Files, *, trust: str | None = None) -> str:
    """Which method is used where none was asked for, and why."""
    return choice_in_words(kind_of(data), trust=trust)


def silos_of(
    silos: int, facts: Facts, *, listed: bool, records_per_client: int | None, client_column: str | None
) -> int | None:
    """How many silos these rows are dealt to, a client each; None where they are dealt to clients otherwise.

    Several files, or a list of tables, are as many silos, and so is one table under a method that protects records. Local
    methods protect persons: each row is a client of its own, whichever table it stands in.
    """
    chosen = records_per_client is not None or client_column is not None
    if not listed:
        return 1 if facts.unit == "record" and not chosen else None
    local = facts.trust == ("local",)
    if records_per_client not in (None, 1) or (chosen and not local):
        raise SpecError(
            "a list of tables, or several files, is a list of silos, a client each (a client per row under local methods); "
            "leave records-per-client and client-column out, or give one table"
        )
    return None if local else silos


class RunSpec(pydantic.BaseModel):
    """Everything that decides a run's result; two runs with the same spec and seed are the same run."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    data: str | tuple[str, ...]
    epsilon: float
    method: str | None = None
    delta: float | None = None
    schema_file: str | None = None
    target: str | None = None
    trust: str | None = None
    records_per_client: int = 1
    client_column: str | None = None
    most_records: int | None = None
    person: str | None = None
    silos: int | None = None
    settings: JsonObject = {}
    rows: int = DEFAULT_ROWS
    seed: int | None = None

    @pydantic.field_validator("data", mode="before")
    @classmethod
    def _one_or_several(cls, data: object) -> object:
        """A list of one file is that file."""
        if not isinstance(data, list | tuple):
            return data
        return data[0] if len(data) == 1 else tuple(data)

    @property
    def method_name(self) -> str:
        return default_method(self.data, trust=self.trust) if self.method is None else self.method

    @property
    def files(self) -> tuple[str, ...]:
        """The files, a silo each where the rows are dealt to silos."""
        return files_of(self.data)

    def digest(self) -> str:
        """A hash of the specification and of the version, to recognise an unfinished run: other code makes other replies."""
        said = {name: value for name, value in self.model_dump().items() if name != "person" or value is not None}
        text = json.dumps({"version": __version__, **said}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def make_spec(**values: Any) -> RunSpec:
    """A checked specification; what is wrong is one sentence.

    Without a method it names the default one. Without `records_per_client`, `client_column` and `silos`, each file is a silo
    where the method protects records, and each row a client where it protects clients.
    """
    given = {name: value for name, value in values.items() if name != "records_per_client" or value is not None}
    if given.get("person") is not None and isinstance(given.get("settings"), Mapping):  # the column says the unit
        given["settings"] = {name: value for name, value in given["settings"].items() if name != "unit"}
    try:
        spec = RunSpec(**given)
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
    check_seed(spec.seed)
    spec = _resolved(spec, given.get("records_per_client"))
    if spec.most_records is not None and spec.client_column is None and spec.silos is None:
        raise SpecError(
            "--most-records is for the clients of a --client-column, or for silos; --records-per-client says it otherwise"
        )
    make_method(spec)
    return spec


def _resolved(spec: RunSpec, records_per_client: int | None) -> RunSpec:
    """The specification with its method named, and with silos where the rows are dealt to such."""
    method, files = spec.method_name, spec.files
    if not files:
        raise SpecError("a run needs data: a file, or several")
    for file in filter(is_database, files):
        parse_address(file)  # refuses a password before anything is written
    if spec.records_per_client != 1 and any(map(is_database, files)):
        raise SpecError(NO_ROW_NUMBERS)
    check_named_once(files)
    silos = spec.silos
    if silos is None:
        silos = silos_of(
            len(files), protocol_class(method).facts, listed=len(files) > 1, records_per_client=records_per_client,
            client_column=spec.client_column,
        )  # fmt: skip
    return spec.model_copy(update={"method": method, "silos": silos})


def spec_from_file(document: JsonObject) -> RunSpec:
    """The specification in a run.json of this or an earlier version, with settings under their present names."""
    with interpreting("the specification in run.json"):
        data = document.get("data")
        method = document.get("method") or FORMER_DEFAULTS[kind_of(data if isinstance(data, str | list) else "")]
        settings = settings_from_file(method, document.get("settings", {}))
        dealt = {
            "records_per_client": document.get("records_per_client") or 1
        }  # silos are in the document, or were not meant
        return make_spec(**{**document, **dealt, "method": method, "settings": settings})


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
    if spec.person is not None:
        if not facts.persons:
            raise SpecError(
                f"method {name!r} protects one {facts.unit}, and does not tell a person's rows together; leave --person out, "
                "or use census"
            )
        settings["unit"] = "person"
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
