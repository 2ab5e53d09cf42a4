"""The code of one value that is asked for of a generator."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from populace.errors import DataError
from populace.tables import codec
from populace.tables.columns import Column
from populace.tables.schema import Schema
from populace.tables.universal import is_open


def condition_code(schema: Schema, name: str, value: str) -> int:
    """The code of `column=value`: a category, a cell's label, a number or date inside a cell, or how no value is written."""
    column = schema.column(name)
    if value in column.labels():
        return column.labels().index(value)
    strict = dataclasses.replace(column, clip=False, other="")
    try:
        return int(codec.encode_column(pa.array([value]), strict)[0])
    except DataError as error:
        if column.is_scale and np.isfinite(column.numbers(pa.array([value])))[0]:
            first, last = column.labels()[0], column.labels()[column.levels - 1]
            raise DataError(
                f"column {name!r} has no {value} in this model: its cells go from {first} to {last}{_may_be_lost(column)}"
            ) from error
    raise DataError(
        f"column {name!r} has no value {value!r}; its values are {', '.join(column.labels()[:12])}{_may_be_lost(column)}"
    )


def _may_be_lost(column: Column) -> str:
    """Why a model may lack values that the records have."""
    return "; values that few records have were not found under the noise: declare them in a schema" * is_open(column)
