"""Between an Arrow table, integer codes and one-hot rows.

Encoding is strict: a value outside the public domain is an error, unless the column says that it is moved (`clip`, `other`),
and then it is counted. All problems of a table are said together. Decoding a cell draws a value inside it, and encoding
that value gives the cell back, so `encode(decode(codes)) == codes` for every schema.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from populace.errors import DataError
from populace.tables import conversion
from populace.tables.columns import Column, parse_category
from populace.tables.conversion import arrow_type
from populace.tables.conversion import plain as plain
from populace.tables.dates import number_text
from populace.tables.schema import Schema
from populace.types import NumpyArray

NOUNS = {"integer": "whole number", "decimal": "number"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoded:
    """One column: its values in the type it declares, their codes, and how many were moved into the domain."""

    values: pa.Array
    codes: NumpyArray
    moved: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedTable:
    """The same of all columns of a schema."""

    frame: pa.Table
    codes: NumpyArray
    clipped: Mapping[str, int]


def encode_table(frame: pa.Table, schema: Schema) -> EncodedTable:
    """The schema's columns as values and codes; other columns are left out. Raises one error for all problems."""
    if frame.num_rows == 0:
        raise DataError("the table has no rows; expected at least one")
    absent = [name for name in schema.names if name not in frame.column_names]
    problems = [f"column {name!r} is not in the table, which has {_some(tuple(frame.column_names))}" for name in absent]
    if absent and len(schema.names) - len(absent) == 0:
        problems = [f"none of the schema's columns ({_some(schema.names)}) is in the table, which has "
                    f"{_some(tuple(frame.column_names))}"]  # fmt: skip
    done = {}
    for column in schema.columns:
        if column.name not in absent:
            try:
                done[column.name] = encode_values(frame.column(column.name), column)
            except DataError as error:
                problems.append(str(error))
    if problems:
        raise DataError(listed(problems))
    return EncodedTable(
        frame=pa.table([done[name].values for name in schema.names], names=list(schema.names)),
        codes=np.stack([done[name].codes for name in schema.names], axis=1),
        clipped={name: one.moved for name, one in done.items() if one.moved},
    )


def listed(problems: list[str]) -> str:
    """One sentence of several problems."""
    return problems[0] if len(problems) == 1 else f"{len(problems)} problems: " + "; ".join(
        f"({number}) {problem}" for number, problem in enumerate(problems, start=1)
    )  # fmt: skip


def store(frame: pa.Table, schema: Schema) -> pa.Table:
    """The schema's columns in the types it declares, null where there is no value; other columns are left out."""
    return encode_table(frame, schema).frame


def encode(frame: pa.Table, schema: Schema) -> NumpyArray:
    """Integer codes, one row per record, one column per schema column; other columns of the frame are left out."""
    return encode_table(frame, schema).codes


def store_column(values: pa.ChunkedArray | pa.Array, column: Column) -> pa.Array:
    return encode_values(values, column).values


def encode_column(values: pa.ChunkedArray | pa.Array, column: Column) -> NumpyArray:
    return encode_values(values, column).codes


def encode_values(values: pa.ChunkedArray | pa.Array, column: Column) -> Encoded:
    """One column; a value outside its domain is an error, or moved and counted where the column says so.

    Of text, each distinct value is looked at once; where one of them is wrong or moved, all values are looked at again, so
    that rows are named and counted.
    """
    coded = conversion.distinct_text(values)
    if coded is not None:
        with contextlib.suppress(DataError):
            listed = _encode_all(coded.dictionary, column)
            if not listed.moved:
                places = coded.indices.to_numpy(zero_copy_only=False)
                return Encoded(values=listed.values.take(coded.indices), codes=listed.codes[places])
    return _encode_all(values, column)


def _encode_all(values: pa.ChunkedArray | pa.Array, column: Column) -> Encoded:
    if column.is_scale:
        return _encode_scale(values, column)
    made, bad = conversion.to_categories(values, column)
    if bad.any():
        raise DataError(
            f"column {column.name!r} holds {_first(values, bad)}, which is no {column.dtype} as the schema says; "
            "correct the schema or the values"
        )
    null = made.is_null().to_numpy(zero_copy_only=False)
    _check_nulls(null, column)
    domain = pa.array([parse_category(c, column.dtype, column.name) for c in column.categories], made.type)
    found = pc.index_in(made, value_set=domain)
    unknown = found.is_null().to_numpy(zero_copy_only=False) & ~null
    if unknown.any():
        if not column.other:
            row = int(np.flatnonzero(unknown)[0])
            raise DataError(
                f"column {column.name!r} has the unknown category {made[row].as_py()!r} in row {row + 1}"
                f"{_more(unknown)}; the schema lists {_some(column.categories)}"
            )
        place = column.categories.index(column.other)
        found = pc.if_else(pa.array(unknown), pa.scalar(place, pa.int32()), found)
        made = pc.if_else(pa.array(unknown), domain[place], made)
    codes = np.array(pc.fill_null(found, column.levels), np.int32)
    return Encoded(values=made, codes=codes, moved=int(unknown.sum()))


def _encode_scale(values: pa.ChunkedArray | pa.Array, column: Column) -> Encoded:
    read = conversion.to_numbers(values, column)
    if read.bad.any():
        raise DataError(
            f"column {column.name!r} has {_first(values, read.bad)}, which is no {NOUNS.get(column.kind, column.kind)}; "
            "correct the schema or the values"
        )
    _check_nulls(read.null, column)
    numbers = read.numbers
    codes = np.where(read.null, column.levels, column.scale.codes(numbers)).astype(np.int32)
    outside = codes < 0
    if outside.any():
        if not column.clip:
            row = int(np.flatnonzero(outside)[0])
            value = number_text(numbers[row], column.kind) if np.isfinite(numbers[row]) else str(numbers[row])
            raise DataError(
                f"column {column.name!r} has {value} in row {row + 1}{_more(outside)}, outside its declared cells "
                f"{_range(column)}; widen the edges, clean the value, or say clip = true"
            )
        numbers = np.where(outside, column.scale.nearest(numbers), numbers)
        codes = np.where(outside, column.scale.codes(numbers), codes).astype(np.int32)
    return Encoded(values=conversion.from_numbers(numbers, read.null, column), codes=codes, moved=int(outside.sum()))


def _range(column: Column) -> str:
    ends = (*column.edges[:1], *column.spikes, *column.edges[-1:])
    return f"{number_text(min(ends), column.kind)} to {number_text(max(ends), column.kind)}"


def _first(values: pa.ChunkedArray | pa.Array, wrong: NumpyArray) -> str:
    row = int(np.flatnonzero(wrong)[0])
    value = values[row].as_py()
    text = repr(value) if isinstance(value, str | int | float | bool) else f"the {values.type} {value}"
    return f"{text} in row {row + 1}{_more(wrong)}"


def _more(wrong: NumpyArray) -> str:
    more = int(wrong.sum()) - 1
    return f" (and {more:,} more)" if more else ""


def _check_nulls(null: NumpyArray, column: Column) -> None:
    if null.any() and not column.nullable:
        row = int(np.flatnonzero(null)[0])
        raise DataError(
            f"column {column.name!r} has no value in row {row + 1}{_more(null)}, but is not nullable; "
            "fill it, or declare nullable = true"
        )


def decode(codes: NumpyArray, schema: Schema, rng: np.random.Generator) -> pa.Table:
    """An Arrow table with these codes; a value is drawn inside its cell, by the cell's law."""
    if codes.ndim != 2 or codes.shape[1] != len(schema.columns):
        raise DataError(f"expected codes with {len(schema.columns)} columns, got an array of shape {codes.shape}")
    columns = [decode_column(codes[:, i], column, rng) for i, column in enumerate(schema.columns)]
    return pa.table(columns, names=list(schema.names))


def decode_column(codes: NumpyArray, column: Column, rng: np.random.Generator) -> pa.Array:
    wrong = (codes < 0) | (codes >= column.size)
    if wrong.any():
        raise DataError(
            f"expected codes of column {column.name!r} in 0 to {column.size - 1}, got {int(codes[wrong][0])}; "
            "they belong to another schema"
        )
    null = codes == column.levels
    index = np.where(null, 0, codes)
    if column.is_scale:
        return conversion.from_numbers(column.scale.draw(index, rng), null, column)
    domain = [parse_category(c, column.dtype, column.name) for c in column.categories]
    return pa.array(domain, arrow_type(column)).take(pa.array(index, mask=null, type=pa.int32()))


def numbers_of(frame: pa.Table, codes: NumpyArray, column: Column, index: int) -> NumpyArray:
    """What a comparison compares: a scale column's value, an ordinal one's rank; NaN where there is none."""
    if column.is_scale:
        return column.numbers(frame.column(column.name))
    return np.where(codes[:, index] >= column.levels, np.nan, codes[:, index].astype(np.float64))


def broken_rows(frame: pa.Table, codes: NumpyArray, schema: Schema) -> tuple[NumpyArray, str]:
    """Which rows break a declared rule, and the first rule broken."""
    broken = np.zeros(len(codes), bool)
    first = ""
    for zero in schema.forbidden:
        hit = zero.broken_by(codes, schema.columns)
        first = first or (str(zero) if hit.any() else "")
        broken |= hit
    for rule in schema.comparisons:
        left, right = (
            numbers_of(frame, codes, schema.column(name), schema.index(name)) for name in (rule.left, rule.right)
        )
        hit = rule.broken_by(left, right)
        first = first or (str(rule) if hit.any() else "")
        broken |= hit
    return broken, first


def one_hot(codes: NumpyArray, sizes: tuple[int, ...]) -> NumpyArray:
    """Codes as rows of zeros and ones: one block of `size` columns per column, one 1 in each."""
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rows = np.zeros((len(codes), int(sum(sizes))), np.float32)
    rows[np.arange(len(codes))[:, None], codes + offsets] = 1.0
    return rows


def from_one_hot(rows: NumpyArray, sizes: tuple[int, ...]) -> NumpyArray:
    """The inverse of `one_hot`; of a soft row, the largest entry of each block."""
    bounds = np.cumsum([0, *sizes])
    blocks = [rows[:, a:b].argmax(axis=1) for a, b in itertools.pairwise(bounds)]
    return np.stack(blocks, axis=1).astype(np.int32)


def _some(values: tuple[str, ...], most: int = 6) -> str:
    shown = ", ".join(values[:most])
    return shown if len(values) <= most else f"{shown} and {len(values) - most} more"
