"""Proposing a schema by looking at the rows: convenient, covered by no guarantee, and so marked on every column."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from populace.errors import SchemaError
from populace.tables.codec import plain
from populace.tables.schema import Column, Dtype, Kind, Schema, category_text

Array = np.ndarray[Any, Any]

BINS = 16
MOST_CATEGORIES = 1_000
FEW_NUMBERS = 12  # a whole-number column with at most this many distinct values is ordinal rather than binned

SDV_KINDS: dict[str, Kind] = {"categorical": "categorical", "boolean": "categorical", "numerical": "numeric"}
SDV_LEFT_OUT = ("id", "unknown", "text")


def infer(frame: pa.Table, *, bins: int = BINS) -> Schema:
    """A schema whose domains are read from the rows; every column is marked so."""
    if frame.num_rows == 0:
        raise SchemaError("cannot infer a schema from a table without rows")
    return Schema(columns=tuple(infer_column(frame.column(n), n, bins=bins) for n in frame.column_names))


def infer_column(values: pa.ChunkedArray, name: str, *, kind: Kind | None = None, bins: int = BINS) -> Column:
    values = plain(values)
    nullable = values.null_count > 0
    present = values.drop_null()
    if len(present) == 0:
        raise SchemaError(f"column {name!r} has no value in any row; drop it")
    if _is_number(values.type) and kind != "categorical":
        return _number_column(present, name, nullable=nullable, bins=bins, numeric=kind == "numeric")
    if kind == "numeric":
        raise SchemaError(f"column {name!r} is called numerical, but holds {values.type} values")
    return _category_column(present, name, nullable=nullable)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _category_column(present: pa.Array, name: str, *, nullable: bool) -> Column:
    dtype = _category_dtype(present.type, name)
    distinct = sorted(set(present.unique().to_pylist()))
    if len(distinct) > MOST_CATEGORIES:
        raise SchemaError(
            f"column {name!r} has {len(distinct)} distinct values and looks like an identifier or free text; "
            "drop it, or declare its domain in a schema"
        )
    categories = tuple(category_text(value) for value in distinct)
    return Column(
        name=name, kind="categorical", categories=categories, dtype=dtype, nullable=nullable, domain="read-from-data"
    )


def _category_dtype(kind: pa.DataType, name: str) -> Dtype:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "float"
    raise SchemaError(
        f"column {name!r} holds {kind} values; expected text, truth values or numbers, so convert it first"
    )


def _number_column(present: pa.Array, name: str, *, nullable: bool, bins: int, numeric: bool) -> Column:
    numbers = present.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    if not np.isfinite(numbers).all():
        raise SchemaError(f"column {name!r} holds an infinite value; clean it, or declare edges")
    # pandas turns whole numbers with a missing one among them into floats
    integer = pa.types.is_integer(present.type) or (nullable and bool((numbers == np.floor(numbers)).all()))
    distinct = present.unique()  # not of `numbers`: floats cannot tell large whole numbers apart
    if integer and len(distinct) <= FEW_NUMBERS and not numeric:
        categories = tuple(str(value) for value in sorted({int(value) for value in distinct.to_pylist()}))
        return Column(
            name=name, kind="ordinal", categories=categories, dtype="integer", nullable=nullable,
            domain="read-from-data",
        )  # fmt: skip
    return Column(
        name=name, kind="numeric", edges=quantile_edges(numbers, bins, integer=integer),
        dtype="integer" if integer else "float", nullable=nullable, domain="read-from-data",
    )  # fmt: skip


def quantile_edges(numbers: Array, bins: int, *, integer: bool) -> tuple[float, ...]:
    """At most `bins` bins of about equal weight between the least and the greatest value."""
    cuts = np.quantile(numbers, np.linspace(0, 1, bins + 1))
    if integer:
        cuts = np.ceil(cuts)
    edges = np.unique(cuts)
    if len(edges) < 2:
        edges = np.array([edges[0], edges[0] + max(1.0, abs(edges[0]))])
    return tuple(float(edge) for edge in edges)


def from_sdv(path: str | Path, frame: pa.Table) -> Schema:
    """A schema from SDV metadata (JSON). SDV names kinds, not domains: those are read from the rows and marked."""
    columns = _sdv_columns(Path(path))
    unknown = [name for name in columns if name not in frame.column_names]
    if unknown:
        raise SchemaError(f"the metadata {path} names column {unknown[0]!r}, which is not in the table")
    kept = []
    for name, entry in columns.items():
        kind = entry.get("sdtype") if isinstance(entry, Mapping) else None
        if kind in SDV_LEFT_OUT:
            continue
        if kind not in list(SDV_KINDS):
            raise SchemaError(
                f"the metadata {path} gives column {name!r} the sdtype {kind!r}; expected one of "
                f"{', '.join((*SDV_KINDS, *SDV_LEFT_OUT))}, so convert the column first"
            )
        kept.append(infer_column(frame.column(name), name, kind=SDV_KINDS[kind]))
    return Schema(columns=tuple(kept))


def _sdv_columns(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SchemaError(f"no schema file {path}") from None
    except (OSError, ValueError) as error:
        raise SchemaError(f"cannot read the metadata {path}: {error}") from error
    tables = document.get("tables") if isinstance(document, Mapping) else None
    if isinstance(tables, Mapping):
        if len(tables) != 1:
            raise SchemaError(f"the metadata {path} describes {len(tables)} tables; expected one")
        document = next(iter(tables.values()))
    columns = document.get("columns") if isinstance(document, Mapping) else None
    if not isinstance(columns, Mapping) or not columns:
        raise SchemaError(f"the metadata {path} has no columns; expected SDV single-table metadata")
    return columns
