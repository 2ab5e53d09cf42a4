"""What of some rows does not fit a schema: counted and said, before anybody is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from populace.tables import conversion
from populace.tables.columns import Column, parse_category
from populace.tables.schema import Schema


def misfits(schema: Schema, *frames: pa.Table) -> tuple[str, ...]:
    """One sentence for every column of which values lie outside the domain, would be moved, or are missing."""
    said = []
    for column in schema.columns:
        parts = [frame.column(column.name) for frame in frames if column.name in frame.column_names]
        absent = len(frames) - len(parts)
        if absent:
            said.append(f"{column.name}: not in {'the data' if absent == len(frames) else f'{absent} of the tables'}")
        outside, gaps = np.sum([[0, 0], *(_counts(values, column) for values in parts)], axis=0).astype(int)
        rows = sum(len(values) for values in parts)
        if outside:
            fate = "moved into it" if column.clip or column.other else "refused (--clip moves them)"
            said.append(f"{column.name}: {outside:,} of {rows:,} values lie outside the domain and will be {fate}")
        if gaps and not column.nullable:
            said.append(
                f"{column.name}: {gaps:,} of {rows:,} values are missing and will be refused (say nullable = true)"
            )
    return tuple(said)


def _counts(values: Any, column: Column) -> tuple[int, int]:
    """How many values lie outside the domain, and how many are missing."""
    if column.is_scale:
        read = conversion.to_numbers(values, column)
        return int(((column.scale.codes(read.numbers) < 0) & ~read.null).sum()), int(read.null.sum())
    made, bad = conversion.to_categories(values, column)
    domain = pa.array([parse_category(c, column.dtype, column.name) for c in column.categories], made.type)
    known = pc.is_in(made, value_set=domain).to_numpy(zero_copy_only=False)
    null = made.is_null().to_numpy(zero_copy_only=False) & ~bad
    return int((~known & ~null).sum()), int(null.sum())
