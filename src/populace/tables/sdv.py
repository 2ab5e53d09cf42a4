"""SDV metadata (single table, JSON), in and out. It names kinds, not domains: those are read from the rows and marked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from populace.border.documents import parse_json
from populace.border.regular import read_bytes
from populace.errors import SchemaError
from populace.tables.proposal import Proposal, propose
from populace.tables.schema import Schema
from populace.types import JsonObject

LEFT_OUT = ("unknown", "text")
SDTYPES = {
    "categorical": "categorical", "ordinal": "categorical", "boolean": "boolean", "integer": "numerical",
    "decimal": "numerical", "date": "datetime", "datetime": "datetime", "time": "datetime",
}  # fmt: skip
FORMS = {"date": "%Y-%m-%d", "datetime": "%Y-%m-%d %H:%M:%S", "time": "%H:%M:%S"}
VERSION = "SINGLE_TABLE_V1"


def from_sdv(path: str | Path, frame: pa.Table) -> Schema:
    """The schema that SDV metadata and the rows give."""
    return propose_from_sdv(path, frame).schema


def propose_from_sdv(path: str | Path, *frames: pa.Table) -> Proposal:
    """The same with its notes: what was left out, and why."""
    columns = sdv_columns(Path(path))
    names = frames[0].column_names
    unknown = [name for name in columns if name not in names]
    if unknown:
        raise SchemaError(f"the metadata {path} names column {unknown[0]!r}, which is not in the table")
    kinds: dict[str, str] = {}
    notes, problems = [], []
    for name, entry in columns.items():
        sdtype = entry.get("sdtype") if isinstance(entry, Mapping) else None
        if not isinstance(sdtype, str):
            problems.append(f"the metadata {path} gives column {name!r} the sdtype {sdtype!r}; expected a word")
        elif sdtype in ("categorical", "boolean"):
            kinds[name] = sdtype
        elif sdtype == "numerical":
            kinds[name] = "number"
        elif sdtype == "datetime":
            kinds[name] = "moment"
        elif sdtype == "id":
            kinds[name] = "id"
        else:
            kinds[name] = "text"
            if sdtype not in LEFT_OUT:
                notes.append(f"{name}: personal data of the kind {sdtype!r}; left out")
    if problems:
        raise SchemaError("; ".join(problems))
    if not set(kinds.values()) - {"id", "text"}:
        raise SchemaError(f"the metadata {path} leaves no column to model; expected at least one column with values")
    found = propose(
        *frames,
        drop=[name for name in names if name not in columns],
        kinds={name: _kind(frames[0], name, kind) for name, kind in kinds.items()},
    )
    return Proposal(schema=found.schema, notes=(*notes, *found.notes))


def _kind(frame: pa.Table, name: str, wanted: str) -> str:
    """The kind of a numerical or datetime column: SDV does not tell whole numbers from others, or dates from times."""
    from populace.tables.recognition import recognise

    if wanted not in ("number", "moment"):
        return wanted
    seen = recognise(frame.column(name))
    if wanted == "number":
        return "integer" if seen.whole else "decimal"
    return seen.what if seen.what in FORMS else "datetime"


def sdv_columns(path: Path) -> JsonObject:
    """The columns of the one table the metadata describes."""
    if not path.exists():
        raise SchemaError(f"no schema file {path}")
    document = parse_json(
        read_bytes(path, error=SchemaError, what="the metadata "), where=f"the metadata {path}", error=SchemaError
    )
    tables = document.get("tables") if isinstance(document, Mapping) else None
    if isinstance(tables, Mapping):
        if len(tables) != 1:
            raise SchemaError(f"the metadata {path} describes {len(tables)} tables; expected one")
        document = next(iter(tables.values()))
    columns = document.get("columns") if isinstance(document, Mapping) else None
    if not isinstance(columns, Mapping) or not columns:
        raise SchemaError(f"the metadata {path} has no columns; expected SDV single-table metadata")
    return dict(columns)


def sdv_of_rows(schema: Schema) -> JsonObject:
    """SDV metadata of rows as they are written: without the columns that are left out; a single id is the primary key."""
    document = to_sdv(schema)
    ids = [other.name for other in schema.others if other.kind == "id"]
    written = {*schema.names, *ids}
    document["columns"] = {name: entry for name, entry in document["columns"].items() if name in written}
    return document | ({"primary_key": ids[0]} if len(ids) == 1 else {})


def to_sdv(schema: Schema) -> JsonObject:
    """SDV metadata of a schema: kinds alone, the domains are not kept.

    To SDV, boolean columns hold true and false; those with two other words are categorical.
    """
    entries: dict[str, JsonObject] = {}
    for column in schema.columns:
        words = column.kind == "boolean" and column.dtype != "boolean"
        entries[column.name] = {"sdtype": "categorical" if words else SDTYPES[column.kind]}
        if column.kind in FORMS:
            entries[column.name]["datetime_format"] = column.format or FORMS[column.kind]
    for other in schema.others:
        entries[other.name] = {"sdtype": "id" if other.kind == "id" else "unknown"}
    return {"METADATA_SPEC_VERSION": VERSION, "columns": {name: entries[name] for name in schema.order}}
