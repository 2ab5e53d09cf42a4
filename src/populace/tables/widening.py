"""A schema's domains extended by what some rows hold, so that evaluation can encode them all."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa

from populace.tables import conversion
from populace.tables.cells import Grid
from populace.tables.columns import Column, category_text
from populace.tables.schema import Schema

FEW = 16  # values between spikes that become spikes; of more an interval is made


def widened(schema: Schema, *frames: pa.Table) -> Schema:
    """The schema with unseen categories appended, outermost edges moved, and gaps allowed where there are some.

    Cells between the outermost edges stay. What is no value of the column's kind at all is still refused when encoding.
    """
    columns = [_widened(column, [f.column(column.name) for f in frames if column.name in f.column_names])
               for column in schema.columns]  # fmt: skip
    return dataclasses.replace(schema, columns=tuple(columns), forbidden=(), comparisons=())


def _widened(column: Column, parts: list[Any]) -> Column:
    for values in parts:
        column = _with_numbers(column, values) if column.is_scale else _with_categories(column, values)
    return column


def _with_categories(column: Column, values: Any) -> Column:
    made, _ = conversion.to_categories(values, column)
    found = [category_text(value) for value in made.drop_null().unique().to_pylist()]
    listed = (*column.categories, *sorted(set(found) - set(column.categories)))
    kind = "categorical" if column.kind == "boolean" and len(listed) > 2 else column.kind
    return dataclasses.replace(
        column, kind=kind, categories=listed, other="", nullable=column.nullable or made.null_count > 0
    )


def _with_numbers(column: Column, values: Any) -> Column:
    read = conversion.to_numbers(values, column)
    column = dataclasses.replace(column, clip=False, nullable=column.nullable or bool(read.null.any()))
    numbers = read.numbers[np.isfinite(read.numbers)]
    outside = np.unique(numbers[column.scale.codes(numbers) < 0])
    if not len(outside):
        return column
    grid = Grid(column.step, down=column.scale.grid.down)
    outside = np.unique(grid.values(grid.ticks(outside)))
    if not column.edges and len(outside) <= FEW:
        return dataclasses.replace(column, spikes=tuple(sorted({*column.spikes, *outside.tolist()})))
    if not column.edges:
        ends = (float(outside[0]), float(outside[-1]))
        return dataclasses.replace(column, edges=ends, laws=("linear",))
    edges = list(column.edges)
    edges[0], edges[-1] = min(edges[0], float(outside[0])), max(edges[-1], float(outside[-1]))
    return dataclasses.replace(column, edges=tuple(edges))
