"""The public shape of a table: columns, domains, and what no row may be.

A domain is public. It was *declared* by somebody who knows it without looking at the private rows (`source` says who), read
from a *public* table, *released* by those who hold the rows, with noise that the bound covers, or *read from the data*; the
last is marked on the column and travels into every statement about a run.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import tomli_w

from populace.border.documents import MOST_TOML, parse_toml
from populace.border.regular import read_bytes
from populace.errors import SchemaError
from populace.tables.cells import Cell as Cell
from populace.tables.columns import Column as Column
from populace.tables.columns import Kind as Kind
from populace.tables.columns import Other as Other
from populace.tables.columns import category_text as category_text
from populace.tables.columns import parse_category as parse_category
from populace.tables.constraints import Comparison, Forbidden
from populace.tables.dates import moment, moment_number
from populace.tables.files import write_text
from populace.tables.reading import SUFFIXES
from populace.tables.schema_file import (
    MOMENTS,
    NOT_SAID,
    column_to_dict,
    entry_from_dict,
    folded,
    only_keys,
    other_to_dict,
)  # fmt: skip
from populace.types import JsonObject

FORMAT = 2
FORMATS = (1, 2)
RELEASED = "found in lists with noise, each silo's own, within the bound"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schema:
    """Modelled columns in order, an optional target, what no row may be, and the columns that are not modelled."""

    columns: tuple[Column, ...]
    target: str | None = None
    forbidden: tuple[Forbidden, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    others: tuple[Other, ...] = ()

    def __post_init__(self) -> None:
        names = (*self.names, *(other.name for other in self.others))
        if not self.columns:
            raise SchemaError("expected at least one column that is modelled, got none")
        if len(set(names)) != len(names):
            twice = next(n for i, n in enumerate(names) if n in names[:i])
            raise SchemaError(f"column {twice!r} is declared twice")
        if self.target is not None and self.target not in self.names:
            raise SchemaError(f"the target {self.target!r} is {self._what_else(self.target)}")
        rules: tuple[Forbidden | Comparison, ...] = (*self.forbidden, *self.comparisons)
        for rule in rules:
            rule.check({column.name: column for column in self.columns})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(column.size for column in self.columns)

    @property
    def read_from_data(self) -> tuple[str, ...]:
        """Columns whose domain was read from the private rows: not covered by any guarantee."""
        return tuple(column.name for column in self.columns if column.domain == "read-from-data")

    @property
    def domain_sources(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Who says the other domains, each with its columns: ("declared by: ward protocol", ("age", "sex"))."""
        groups: dict[str, list[str]] = {}
        for column in self.columns:
            if column.domain == "public-data":
                groups.setdefault(f"read from public data: {column.source or NOT_SAID}", []).append(column.name)
            elif column.domain == "released":
                groups.setdefault(RELEASED, []).append(column.name)
            elif column.domain == "declared":
                said = f"declared by: {column.source}" if column.source else "declared, not said by whom"
                groups.setdefault(said, []).append(column.name)
        return tuple((said, tuple(names)) for said, names in groups.items())

    @property
    def order(self) -> tuple[str, ...]:
        """All columns, in the order of the file: the modelled ones, and the others at their positions."""
        names = list(self.names)
        for other in sorted(self.others, key=lambda one: one.position):
            names.insert(other.position, other.name)
        return tuple(names)

    def column(self, name: str) -> Column:
        return self.columns[self.index(name)]

    def index(self, name: str) -> int:
        try:
            return self.names.index(name)
        except ValueError:
            if name in (other.name for other in self.others):
                raise SchemaError(f"column {name!r} is {self._what_else(name)}") from None
            raise SchemaError(f"no column {name!r}; columns are {', '.join(self.names)}") from None

    def _what_else(self, name: str) -> str:
        """What a name is that is no modelled column, and what to do."""
        kind = next((other.kind for other in self.others if other.name == name), None)
        if kind is None:
            return f"not a column; columns are {', '.join(self.names)}"
        return (
            f"of kind {kind}, which is not modelled; give it another kind in the schema, or choose one of "
            f"{', '.join(self.names)}"
        )

    def with_target(self, target: str | None) -> Schema:
        return dataclasses.replace(self, target=target) if target is not None else self

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the public shape, for agreements and for resuming a run."""
        text = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.digest)

    def to_dict(self) -> JsonObject:
        """The schema as JSON takes it: dates are ISO text."""
        document: JsonObject = {"format": FORMAT}
        if self.target is not None:
            document["target"] = self.target
        entries = {column.name: column_to_dict(column) for column in self.columns}
        entries |= {other.name: other_to_dict(other) for other in self.others}
        document["column"] = [entries[name] for name in self.order]
        if self.forbidden:
            document["forbid"] = [rule.to_dict() for rule in self.forbidden]
        if self.comparisons:
            document["constraint"] = [rule.to_dict() for rule in self.comparisons]
        return document

    def to_toml(self) -> str:
        """The schema as a file holds it: TOML's own dates, and one source for all where all share it."""
        document = self.to_dict()
        declared = [entry for entry in document["column"] if entry.get("domain") == "declared"]
        for entry in declared:
            entry.setdefault("source", NOT_SAID)
        sources = {entry["source"] for entry in declared}
        if len(declared) > 1 and len(sources) == 1:
            columns = document.pop("column")
            document = {"format": document.pop("format"), "source": sources.pop(), **document, "column": columns}
            for entry in declared:
                del entry["source"]
        for entry in document["column"]:
            if entry["kind"] in MOMENTS:
                for key in ("edges", "spikes"):
                    if key in entry:
                        entry[key] = [_toml_moment(text, entry["kind"]) for text in entry[key]]
        return folded(tomli_w.dumps(document))

    def save(self, path: str | Path) -> None:
        """Write the schema to a TOML file."""
        write_text(Path(path), self.to_toml())


def _toml_moment(text: str, kind: str) -> datetime.date | datetime.time:
    return moment(moment_number(text, kind), kind)


def schema_from_dict(document: JsonObject) -> Schema:
    """A schema from the parsed TOML or JSON document; names the key that is wrong."""
    if document.get("format", FORMAT) not in FORMATS:
        raise SchemaError(f"expected schema format 1 or {FORMAT}, got {document['format']!r}; update populace")
    only_keys(document, ("format", "target", "source", "column", "forbid", "constraint"), where="the schema")
    entries = _entries(document, "column")
    if not entries:
        raise SchemaError("expected at least one [[column]] entry, got none")
    source = document.get("source", "")
    made = [entry_from_dict(entry, position, source=source) for position, entry in enumerate(entries)]
    if document.get("format", FORMAT) == 1:
        made = [_of_format_1(column) for column in made]
    return Schema(
        columns=tuple(column for column in made if isinstance(column, Column)),
        others=tuple(other for other in made if isinstance(other, Other)),
        target=document.get("target"),
        forbidden=tuple(Forbidden.from_dict(entry) for entry in _entries(document, "forbid")),
        comparisons=tuple(Comparison.from_dict(entry) for entry in _entries(document, "constraint")),
    )


def _of_format_1(column: Column | Other) -> Column | Other:
    if isinstance(column, Column) and column.kind == "categorical" and column.dtype == "boolean":
        return dataclasses.replace(column, kind="boolean")
    return column


def _entries(document: JsonObject, key: str) -> list[JsonObject]:
    entries = document.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise SchemaError(
            f"expected [[{key}]] entries, got {entries!r}; write [[{key}]] above each, in double brackets"
        )
    return entries


def load_schema(path: str | Path) -> Schema:
    """Read a schema in TOML. (SDV metadata has no domains; `populace.tables.sdv.from_sdv` reads those.)

    A declared domain says who declared it; format 1 did not ask.
    """
    path = Path(path)
    if path.is_file() and path.suffix in (*SUFFIXES, ".json"):
        what = "SDV metadata, which has no domains" if path.suffix == ".json" else "a table"
        raise SchemaError(
            f"expected a schema in TOML, got {what}: {path}; `populace schema DATA -o NAME.toml` proposes one"
        )
    if not path.exists():
        raise SchemaError(f"no schema file {path}; `populace schema DATA -o {path.name}` proposes one")
    content = read_bytes(path, most=MOST_TOML, error=SchemaError, what="the schema ")
    document = parse_toml(content, where=f"the schema {path}", error=SchemaError)
    schema = schema_from_dict(document)
    if document.get("format", FORMAT) != 1 and not document.get("source"):
        unsaid = [
            entry["name"] for entry in document["column"]
            if entry.get("domain", "declared") == "declared" and entry.get("kind") not in ("id", "text")
            and not entry.get("source")
        ]  # fmt: skip
        if unsaid:
            raise SchemaError(
                f'{path}: the domain of {", ".join(unsaid)} is declared, but not by whom; add source = "who says so" to '
                "the column, or once at the top of the file for all"
            )
    return schema
