"""The public shape of a table: columns, domains, and what no row may be.

A domain is public. It was either *declared* by somebody who knows it without looking at the private rows, or *read from
the data*; the second is marked on the column and travels into every statement made about a run.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tomli_w

from populace.errors import SchemaError
from populace.tables.constraints import NULL, Comparison, Forbidden
from populace.tables.files import write_text

Kind = Literal["categorical", "ordinal", "numeric"]
Dtype = Literal["string", "integer", "float", "boolean"]
Domain = Literal["declared", "read-from-data"]

KINDS: tuple[str, ...] = ("categorical", "ordinal", "numeric")
DTYPES: tuple[str, ...] = ("string", "integer", "float", "boolean")
DOMAINS: tuple[str, ...] = ("declared", "read-from-data")
FORMAT = 1
EXACT_INTEGERS = 2**53  # up to here a float holds every whole number, so bins of whole numbers have exact edges


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its kind, its public domain, and how its values are stored.

    A categorical or ordinal column lists `categories` (as text; `dtype` says how they are stored). A numeric column
    lists `edges`: bin i holds edges[i] <= value < edges[i + 1], the last bin its upper edge too. A nullable column has
    one more code, the last, for "no value".
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    dtype: Dtype = "string"
    nullable: bool = False
    domain: Domain = "declared"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not _is_text(self.name):
            raise SchemaError(f"expected a column name, got {self.name!r}; name every column")
        for field, allowed in (("kind", KINDS), ("dtype", DTYPES), ("domain", DOMAINS)):
            value = getattr(self, field)
            if value not in allowed:
                raise SchemaError(f"column {self.name!r}: expected {field} in {', '.join(allowed)}, got {value!r}")
        if self.kind == "numeric":
            self._check_edges()
        else:
            self._check_categories()

    def _check_edges(self) -> None:
        if self.categories:
            raise SchemaError(f"column {self.name!r}: a numeric column has edges, not categories; drop one of the two")
        if self.dtype not in ("integer", "float"):
            raise SchemaError(f"column {self.name!r}: expected dtype integer or float, got {self.dtype!r}")
        if len(self.edges) < 2:
            raise SchemaError(
                f"column {self.name!r}: expected at least two edges, got {len(self.edges)}; list the public bin edges"
            )
        if not all(math.isfinite(edge) for edge in self.edges):
            raise SchemaError(f"column {self.name!r}: expected finite edges, got {list(self.edges)}")
        if any(low >= high for low, high in itertools.pairwise(self.edges)):
            raise SchemaError(f"column {self.name!r}: expected rising edges, got {list(self.edges)}")
        if self.dtype == "integer":
            self._check_whole_bins()

    def _check_whole_bins(self) -> None:
        if max(abs(self.edges[0]), abs(self.edges[-1])) > EXACT_INTEGERS:
            raise SchemaError(
                f"column {self.name!r}: expected edges of whole numbers in -2^53 to 2^53, got {list(self.edges)}; "
                "drop the column if it is an identifier"
            )
        for index in range(len(self.edges) - 1):
            low, high = self.integer_range(index)
            if low > high:
                raise SchemaError(
                    f"column {self.name!r}: no whole number lies in the bin {self.edges[index]} to "
                    f"{self.edges[index + 1]}; merge it with a neighbour"
                )

    def _check_categories(self) -> None:
        if self.edges:
            raise SchemaError(f"column {self.name!r}: edges are for numeric columns; drop them or say kind = 'numeric'")
        if not self.categories:
            raise SchemaError(f"column {self.name!r}: expected at least one category, got none")
        for category in self.categories:
            if not isinstance(category, str) or not _is_text(category):
                raise SchemaError(f"column {self.name!r}: expected categories as text, got {category!r}; quote them")
            parse_category(category, self.dtype, self.name)
        if len(set(self.categories)) != len(self.categories):
            twice = next(c for i, c in enumerate(self.categories) if c in self.categories[:i])
            raise SchemaError(f"column {self.name!r}: category {twice!r} is listed twice")
        if self.nullable and NULL in self.categories:
            raise SchemaError(
                f"column {self.name!r}: {NULL!r} stands for null in a nullable column; rename the category"
            )

    @property
    def levels(self) -> int:
        """Number of codes without the null code."""
        return len(self.edges) - 1 if self.kind == "numeric" else len(self.categories)

    @property
    def size(self) -> int:
        """Number of codes, the null code included."""
        return self.levels + int(self.nullable)

    def integer_range(self, index: int) -> tuple[int, int]:
        """The smallest and largest whole number in bin `index`."""
        low = math.ceil(self.edges[index])
        last = index == len(self.edges) - 2
        high = math.floor(self.edges[index + 1]) if last else math.ceil(self.edges[index + 1]) - 1
        return low, high

    def labels(self) -> tuple[str, ...]:
        """One readable label per code."""
        if self.kind == "numeric":
            numbers = [_edge_text(edge) for edge in self.edges]
            last = len(numbers) - 2
            names = tuple(
                f"[{a}, {b}{']' if i == last else ')'}" for i, (a, b) in enumerate(itertools.pairwise(numbers))
            )
        else:
            names = self.categories
        return (*names, NULL) if self.nullable else names


def _is_text(value: str) -> bool:
    """Whether it can be written to a file: a lone surrogate cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _edge_text(edge: float) -> str:
    """Exact, because labels name bins and two bins must never share one; short where that is exact too."""
    if abs(edge) <= EXACT_INTEGERS and edge == int(edge):
        return str(int(edge))
    short = f"{edge:g}"
    return short if float(short) == edge else repr(edge)


def parse_category(text: str, dtype: Dtype, column: str) -> str | int | float | bool:
    """A category as stored: text, whole number, number or truth value."""
    if dtype == "string":
        return text
    if dtype == "boolean":
        if text in ("true", "false"):
            return text == "true"
    else:
        try:
            value = int(text) if dtype == "integer" else float(text)
        except ValueError:
            pass
        else:
            storable = math.isfinite(value) if dtype == "float" else -(2**63) <= value < 2**63
            if storable and category_text(value) == text:
                return value
    raise SchemaError(f"column {column!r}: category {text!r} is not a {dtype} in its plain form; set dtype = 'string'")


def category_text(value: object) -> str:
    """The plain text of a stored category; the inverse of `parse_category`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value + 0.0)  # minus zero is zero
    return str(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schema:
    """Columns in order, an optional target, and what no row may be."""

    columns: tuple[Column, ...]
    target: str | None = None
    forbidden: tuple[Forbidden, ...] = ()
    comparisons: tuple[Comparison, ...] = ()

    def __post_init__(self) -> None:
        names = self.names
        if not names:
            raise SchemaError("expected at least one column, got none")
        if len(set(names)) != len(names):
            twice = next(n for i, n in enumerate(names) if n in names[:i])
            raise SchemaError(f"column {twice!r} is declared twice")
        if self.target is not None and self.target not in names:
            raise SchemaError(f"the target {self.target!r} is not a column; columns are {', '.join(names)}")
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

    def column(self, name: str) -> Column:
        return self.columns[self.index(name)]

    def index(self, name: str) -> int:
        try:
            return self.names.index(name)
        except ValueError:
            raise SchemaError(f"no column {name!r}; columns are {', '.join(self.names)}") from None

    def with_target(self, target: str | None) -> Schema:
        return dataclasses.replace(self, target=target) if target is not None else self

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the public shape, for agreements and for resuming a run."""
        text = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.digest)

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"format": FORMAT}
        if self.target is not None:
            document["target"] = self.target
        document["column"] = [_column_to_dict(column) for column in self.columns]
        if self.forbidden:
            document["forbid"] = [rule.to_dict() for rule in self.forbidden]
        if self.comparisons:
            document["constraint"] = [rule.to_dict() for rule in self.comparisons]
        return document

    def save(self, path: str | Path) -> None:
        write_text(Path(path), tomli_w.dumps(self.to_dict()))


def _column_to_dict(column: Column) -> dict[str, Any]:
    document: dict[str, Any] = {"name": column.name, "kind": column.kind, "dtype": column.dtype}
    if column.kind == "numeric":
        whole = all(edge == int(edge) and abs(edge) <= EXACT_INTEGERS for edge in column.edges)
        document["edges"] = [int(edge) if whole else float(edge) for edge in column.edges]
    else:
        document["categories"] = list(column.categories)
    if column.nullable:
        document["nullable"] = True
    document["domain"] = column.domain
    return document


def schema_from_dict(document: Mapping[str, Any]) -> Schema:
    """A schema from the parsed TOML document; names the key that is wrong."""
    if document.get("format", FORMAT) != FORMAT:
        raise SchemaError(f"expected schema format {FORMAT}, got {document['format']!r}; update populace")
    _only_keys(document, ("format", "target", "column", "forbid", "constraint"), where="the schema")
    columns = _entries(document, "column")
    if not columns:
        raise SchemaError("expected at least one [[column]] entry, got none")
    return Schema(
        columns=tuple(_column_from_dict(entry) for entry in columns),
        target=document.get("target"),
        forbidden=tuple(Forbidden.from_dict(entry) for entry in _entries(document, "forbid")),
        comparisons=tuple(Comparison.from_dict(entry) for entry in _entries(document, "constraint")),
    )


def _entries(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    entries = document.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise SchemaError(
            f"expected [[{key}]] entries, got {entries!r}; write [[{key}]] above each, in double brackets"
        )
    return entries


def _column_from_dict(entry: Mapping[str, Any]) -> Column:
    if "name" not in entry:
        raise SchemaError(f"expected a [[column]] with a name, got {entry!r}")
    name = entry["name"]
    _only_keys(entry, ("name", "kind", "dtype", "categories", "edges", "nullable", "domain"), where=f"column {name!r}")
    kind = entry.get("kind", "numeric" if "edges" in entry else "categorical")
    nullable = entry.get("nullable", False)
    if not isinstance(nullable, bool):
        raise SchemaError(f"column {name!r}: expected nullable = true or false, got {nullable!r}")
    return Column(
        name=name,
        kind=kind,
        categories=tuple(_listed(entry, "categories", name)),
        edges=_edges(entry, name),
        dtype=entry.get("dtype", "float" if kind == "numeric" else "string"),
        nullable=nullable,
        domain=entry.get("domain", "declared"),
    )


def _edges(entry: Mapping[str, Any], name: str) -> tuple[float, ...]:
    edges = _listed(entry, "edges", name)
    if not all(isinstance(edge, (int, float)) and not isinstance(edge, bool) for edge in edges):
        raise SchemaError(f"column {name!r}: expected numbers as edges, got {edges!r}")
    try:
        return tuple(float(edge) for edge in edges)
    except OverflowError:
        raise SchemaError(f"column {name!r}: expected edges a float can hold, got {edges!r}") from None


def _listed(entry: Mapping[str, Any], key: str, name: str) -> list[Any]:
    values = entry.get(key, [])
    if not isinstance(values, list):
        raise SchemaError(f"column {name!r}: expected a list of {key}, got {values!r}; put them in [ ]")
    return values


def _only_keys(entry: Mapping[str, Any], known: Sequence[str], *, where: str) -> None:
    unknown = [key for key in entry if key not in known]
    if unknown:
        raise SchemaError(f"{where}: unknown key {unknown[0]!r}; known keys are {', '.join(known)}")


def load_schema(path: str | Path) -> Schema:
    """Read a schema in TOML. (SDV metadata has no domains; `populace.tables.inference.from_sdv` reads those.)"""
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SchemaError(f"no schema file {path}; `populace schema DATA -o {path.name}` proposes one") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SchemaError(f"cannot read the schema {path}: {error}") from error
    return schema_from_dict(document)
