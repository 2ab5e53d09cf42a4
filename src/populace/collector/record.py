"""One person's record: read from a file or a mapping, as codes, or what is wrong with it in the words of whoever answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from populace.border.documents import read_json
from populace.errors import DataError, InputError
from populace.tables import codec
from populace.tables.columns import Column
from populace.tables.dates import number_text
from populace.tables.reading import read_frame
from populace.tables.schema import Schema
from populace.tables.table import to_arrow
from populace.types import NumpyArray

MOST_CHOICES = 30
NOUNS = {
    "integer": "whole number", "decimal": "number", "date": "date", "datetime": "date with a time", "time": "time of day",
}  # fmt: skip


def encode_record(record: Mapping[str, object] | pa.Table | str | Path, schema: Schema) -> NumpyArray:
    """One record as codes; raises DataError unless it is exactly one and fits the schema."""
    frame = to_arrow(_frame(record))
    if frame.num_rows != 1:
        raise DataError(f"expected one record, got {frame.num_rows}; a device answers for one person")
    absent = [repr(name) for name in schema.names if name not in frame.column_names]
    if len(absent) > 1:
        raise DataError(f"there is no answer to {', '.join(absent[:-1])} and {absent[-1]} in your record; add them")
    problems = [said for column in schema.columns if (said := _problem(frame, column))]
    if problems:
        raise DataError(codec.listed(problems))
    made = codec.encode_table(frame, schema)
    broken, rule = codec.broken_rows(made.frame, made.codes, schema)
    if broken.any():
        raise DataError(f"your answers contradict a rule of this study, {rule!r}; correct them")
    codes: NumpyArray = made.codes[0].astype(np.int32)
    return codes


def _problem(frame: pa.Table, column: Column) -> str:
    """What is wrong with the answer to one question, and what would be right; empty where nothing is."""
    if column.name not in frame.column_names:
        return f"there is no answer to {column.name!r} in your record; {_choices(column)}"
    try:
        codec.encode_column(frame.column(column.name), column)
    except DataError:
        if not frame.column(column.name)[0].is_valid:
            return f"your answer to {column.name!r} is empty; {_choices(column)}"
        if column.is_scale:
            return f"your answer to {column.name!r} is none that the study can take; {_choices(column)}"
        return f"your answer to {column.name!r} is none of the choices; {_choices(column)}"
    return ""


def _choices(column: Column) -> str:
    """What may be answered."""
    empty = ", or leave it empty" if column.nullable else ""
    if column.is_scale:
        ends = (*column.edges[:1], *column.spikes, *column.edges[-1:])
        low, high = (number_text(end, column.kind) for end in (min(ends), max(ends)))
        return f"give a {NOUNS[column.kind]} from {low} to {high}{empty}"
    shown, more = ", ".join(column.categories[:MOST_CHOICES]), len(column.categories) - MOST_CHOICES
    return f"choose one of {shown}{f' and {more} more' if more > 0 else ''}{empty}"


def _frame(record: Mapping[str, object] | pa.Table | str | Path) -> pa.Table:
    if isinstance(record, pa.Table):
        return record
    if isinstance(record, Mapping):
        return pa.table({str(name): [value] for name, value in record.items()})
    path = Path(record)
    if path.suffix != ".json":
        return read_frame(str(path))
    if not path.exists():
        raise InputError(f"no file {path}")
    document = read_json(path, error=DataError)
    if not isinstance(document, dict):
        raise DataError(f'expected one record in {path}, as {{"column": value, ...}}')
    try:
        return pa.table({str(name): [value] for name, value in document.items()})
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise DataError(f"expected one value for each column in {path}: {error}") from error
