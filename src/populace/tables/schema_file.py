"""One [[column]] entry of a schema file, read and written; format 1, of earlier versions, is read too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from populace.errors import SchemaError
from populace.tables.cells import EXACT
from populace.tables.columns import KINDS, LISTED, OTHER_KINDS, STEPS, STORED, Column, Other
from populace.tables.dates import moment_number, number_text
from populace.types import JsonObject

KEYS = (
    "name", "kind", "dtype", "categories", "edges", "spikes", "law", "step", "nullable", "missing", "clip", "other",
    "format", "domain", "source",
)  # fmt: skip
NOT_SAID = "not said"
WIDEST_LIST = 1_000  # a column of whole numbers becomes categories where it spans at most so many
LINE = 120
MOMENTS = ("date", "datetime", "time")


def column_to_dict(column: Column) -> JsonObject:
    """The entry of a column, with everything that differs from the default; dates as ISO text."""
    document: JsonObject = {"name": column.name, "kind": column.kind}
    if column.is_scale:
        if column.edges:
            document["edges"] = _written(column.edges, column)
        if column.spikes:
            document["spikes"] = _written(column.spikes, column)
        if len(set(column.laws)) > 1:
            document["law"] = list(column.laws)
        elif "log" in column.laws:
            document["law"] = "log"
        if column.step != STEPS[column.kind]:
            document["step"] = _number(column.step)
    else:
        document["dtype"] = column.dtype
        document["categories"] = list(column.categories)
    for key in ("nullable", "clip", "other", "format"):
        if getattr(column, key):
            document[key] = getattr(column, key)
    if column.missing:
        document["missing"] = list(column.missing)
    document["domain"] = column.domain
    if column.source:
        document["source"] = column.source
    return document


def other_to_dict(other: Other) -> JsonObject:
    document: JsonObject = {"name": other.name, "kind": other.kind}
    return document if other.dtype == "string" else {**document, "dtype": other.dtype}


def _written(numbers: Sequence[float], column: Column) -> list[Any]:
    if column.kind in MOMENTS:
        return [number_text(number, column.kind) for number in numbers]
    whole = all(number == int(number) and abs(number) <= EXACT for number in numbers)
    return [int(number) if whole else float(number) for number in numbers]


def _number(number: float) -> int | float:
    return int(number) if number == int(number) else number


def entry_from_dict(entry: JsonObject, position: int, *, source: str = "") -> Column | Other:
    """A column from its entry; `source` is the schema's own, for a declared domain that names none."""
    if "name" not in entry:
        raise SchemaError(f"expected a [[column]] with a name, got {entry!r}")
    name = entry["name"]
    only_keys(entry, KEYS, where=f"column {name!r}")
    kind = _kind(entry)
    if kind in OTHER_KINDS:
        dtype = entry.get("dtype", "integer" if "edges" in entry else "string")
        return Other(name=name, kind=cast(Any, kind), position=position, dtype=dtype)
    fields = (_scale_fields if kind in STORED else _listed_fields)(entry, kind, name)
    for key in ("nullable", "clip"):
        if not isinstance(entry.get(key, False), bool):
            raise SchemaError(f"column {name!r}: expected {key} = true or false, got {entry[key]!r}")
    domain = entry.get("domain", "declared")
    said = entry.get("source", source if domain == "declared" else "")
    return Column(
        name=name, kind=cast(Any, kind), nullable=entry.get("nullable", False), clip=entry.get("clip", False),
        missing=tuple(_listed(entry, "missing", name)), format=entry.get("format", ""), domain=domain,
        source="" if said == NOT_SAID else said, **fields,
    )  # fmt: skip


def _kind(entry: JsonObject) -> str:
    """The entry's kind; `numeric`, and a categorical truth value, are how format 1 wrote integer, decimal and boolean."""
    kind = entry.get("kind", "numeric" if "edges" in entry else "categorical")
    if kind == "numeric":
        return "integer" if entry.get("dtype") == "integer" else "decimal"
    if kind not in (*KINDS, *OTHER_KINDS):
        raise SchemaError(
            f"column {entry['name']!r}: expected kind in {', '.join((*KINDS, *OTHER_KINDS))}, got {kind!r}"
        )
    return str(kind)


def _scale_fields(entry: JsonObject, kind: str, name: str) -> JsonObject:
    edges, spikes = (_numbers(entry, key, kind, name) for key in ("edges", "spikes"))
    categories = _listed(entry, "categories", name)
    if (
        categories and "edges" not in entry
    ):  # overruled by one word: each category becomes a value with a cell of its own
        try:
            spikes = tuple(sorted({*spikes, *(float(category) for category in categories)}))
        except (TypeError, ValueError):
            raise SchemaError(
                f"column {name!r}: kind = {kind!r}, but its categories are no numbers; list edges, or say 'categorical'"
            ) from None
        categories = []
    dtype = entry.get("dtype", STORED[kind])
    if dtype not in (STORED[kind], "integer", "float", "string"):
        raise SchemaError(f"column {name!r}: expected dtype integer or float, got {dtype!r}")
    law, step = entry.get("law", "linear"), entry.get("step", STEPS[kind])
    if not isinstance(step, int | float) or isinstance(step, bool):
        raise SchemaError(f"column {name!r}: expected a number as step, got {step!r}")
    laws = tuple(law) if isinstance(law, list) else (law,) * max(0, len(edges) - 1)
    return {"categories": tuple(categories), "edges": edges, "spikes": spikes, "laws": laws, "step": float(step)}


def _listed_fields(entry: JsonObject, kind: str, name: str) -> JsonObject:
    categories = _listed(entry, "categories", name)
    dtype = entry.get("dtype", "string")
    if "edges" in entry and "categories" not in entry and kind in LISTED:
        return {"categories": _whole_numbers(entry, name), "dtype": "integer"}
    if "edges" in entry:
        raise SchemaError(f"column {name!r}: a column of kind {kind} lists categories; edges are for numeric columns")
    other = entry.get("other", "")
    if other and other not in categories:
        categories = [*categories, other]
    return {"categories": tuple(categories), "dtype": dtype, "other": other}


def _whole_numbers(entry: JsonObject, name: str) -> tuple[str, ...]:
    """All whole numbers between the edges, and the spikes: a column of numbers overruled to be categories."""
    edges, spikes = (_numbers(entry, key, "integer", name) for key in ("edges", "spikes"))
    if not edges or max(edges) - min(edges) >= WIDEST_LIST:
        raise SchemaError(
            f"column {name!r}: its edges span more than {WIDEST_LIST:,} whole numbers; list its categories, or say 'integer'"
        )
    numbers = {*range(math.ceil(min(edges)), math.floor(max(edges)) + 1), *(int(spike) for spike in spikes)}
    return tuple(str(number) for number in sorted(numbers))


def _numbers(entry: JsonObject, key: str, kind: str, name: str) -> tuple[float, ...]:
    values = _listed(entry, key, name)
    try:
        if kind in MOMENTS:
            return tuple(moment_number(value, kind) for value in values)
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            raise SchemaError(f"column {name!r}: expected numbers as {key}, got {values!r}")
        return tuple(float(value) for value in values)
    except OverflowError:
        raise SchemaError(f"column {name!r}: expected {key} a float can hold, got {values!r}") from None
    except ValueError:
        raise SchemaError(f"column {name!r}: expected each of its {key} to be a {kind}, got {values!r}") from None


def _listed(entry: JsonObject, key: str, name: str) -> list[Any]:
    values = entry.get(key, [])
    if not isinstance(values, list):
        raise SchemaError(f"column {name!r}: expected a list of {key}, got {values!r}; put them in [ ]")
    return values


def folded(text: str) -> str:
    """TOML with its lists on few lines instead of one line per entry."""
    lines: list[str] = []
    inside = False
    for line in text.removesuffix("\n").split("\n"):
        if not inside:
            inside = line.endswith(" = [")
            lines.append(line)
        elif line == "]":
            lines[-1] = lines[-1].removesuffix(",") + line
            inside = False
        else:
            entry = line.strip()
            opening = lines[-1].endswith(" = [")
            if len(lines[-1]) + len(entry) < LINE:
                lines[-1] += entry if opening else f" {entry}"
            else:
                lines.append(f"    {entry}")
    return "\n".join(lines) + "\n"


def only_keys(entry: JsonObject, known: Sequence[str], *, where: str) -> None:
    unknown = [key for key in entry if key not in known]
    if unknown:
        raise SchemaError(f"{where}: unknown key {unknown[0]!r}; known keys are {', '.join(known)}")
