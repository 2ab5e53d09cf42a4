"""Between an Arrow table, integer codes and one-hot rows.

Encoding is strict: a value outside the public domain is an error, never a new category. Decoding a bin draws a value
inside it, and encoding that value gives the bin back, so `encode(decode(codes)) == codes` for every schema.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from populace.errors import DataError
from populace.tables.schema import Column, Schema, parse_category

Array = np.ndarray[Any, Any]

ARROW_TYPES = {"string": pa.string(), "integer": pa.int64(), "float": pa.float64(), "boolean": pa.bool_()}
CAST_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


def store(frame: pa.Table, schema: Schema) -> pa.Table:
    """The schema's columns in the types it declares, null where there is no value; other columns are left out."""
    if frame.num_rows == 0:
        raise DataError("the table has no rows; expected at least one")
    missing = [name for name in schema.names if name not in frame.column_names]
    if missing:
        raise DataError(
            f"the schema does not match the data: column {missing[0]!r} is not in the table, "
            f"which has {', '.join(frame.column_names)}"
        )
    return pa.table([store_column(frame.column(c.name), c) for c in schema.columns], names=list(schema.names))


def encode(frame: pa.Table, schema: Schema) -> Array:
    """Integer codes, one row per record, one column per schema column; other columns of the frame are left out."""
    kept = store(frame, schema)
    codes = np.empty((kept.num_rows, len(schema.columns)), np.int32)
    for index, column in enumerate(schema.columns):
        codes[:, index] = encode_column(kept.column(column.name), column)
    return codes


def plain(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """One array without dictionaries, with null instead of NaN: pandas writes a missing number as NaN."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    return values


def store_column(values: pa.ChunkedArray | pa.Array, column: Column) -> pa.Array:
    """The values in the type the column declares; a value that does not fit that type is an error."""
    values = plain(values)
    wanted = ARROW_TYPES[column.dtype]
    try:
        if column.kind == "numeric" and not pa.types.is_integer(values.type):
            values = _whole_or_float(plain(values.cast(pa.float64(), safe=False)), column)
        elif column.kind != "numeric" and column.dtype == "float":
            values = pc.add(plain(values.cast(wanted, safe=False)), 0.0)  # minus zero is zero
        return values.cast(wanted, safe=wanted != pa.float64())  # a whole number beyond 2^53 becomes the nearest float
    except CAST_ERRORS:
        declared = column.kind if column.kind == "numeric" else column.dtype
        raise DataError(
            f"column {column.name!r} holds {values.type} values that are not all {declared}, as the schema says; "
            "correct the schema or the values"
        ) from None


def _whole_or_float(numbers: pa.Array, column: Column) -> pa.Array:
    """Floats, unchanged; refuses fractions and infinities in a column of whole numbers, which a cast would not name."""
    if column.dtype == "integer":
        whole = pc.fill_null(pc.equal(pc.floor(numbers), numbers), True).to_numpy(zero_copy_only=False)
        if not whole.all():
            row = int(np.flatnonzero(~whole)[0])
            raise DataError(
                f"column {column.name!r} has {numbers[row].as_py()} in row {row + 1}, but the schema says integer; "
                "round it, or declare dtype = 'float'"
            )
        _check_inside(numbers, column)
    return numbers


def encode_column(values: pa.ChunkedArray | pa.Array, column: Column) -> Array:
    values = store_column(values, column)
    null = values.is_null().to_numpy(zero_copy_only=False)
    if null.any() and not column.nullable:
        row = int(np.flatnonzero(null)[0])
        raise DataError(
            f"column {column.name!r} has no value in row {row + 1}, but is not nullable; "
            "fill it, or declare nullable = true"
        )
    codes = _encode_bins(values, column) if column.kind == "numeric" else _encode_categories(values, column)
    codes[null] = column.levels
    return codes


def _encode_categories(values: pa.Array, column: Column) -> Array:
    domain = pa.array([parse_category(c, column.dtype, column.name) for c in column.categories], values.type)
    found = pc.index_in(values, value_set=domain)
    unknown = found.is_null().to_numpy(zero_copy_only=False) & values.is_valid().to_numpy(zero_copy_only=False)
    if unknown.any():
        row = int(np.flatnonzero(unknown)[0])
        raise DataError(
            f"column {column.name!r} has the unknown category {values[row].as_py()!r} in row {row + 1}; "
            f"the schema lists {_some(column.categories)}"
        )
    return np.array(pc.fill_null(found, 0), np.int32)


def _encode_bins(values: pa.Array, column: Column) -> Array:
    numbers = _check_inside(values, column)
    edges = np.asarray(column.edges)
    codes = np.searchsorted(edges, np.where(np.isnan(numbers), edges[0], numbers), side="right") - 1
    return np.asarray(np.minimum(codes, column.levels - 1), np.int32)


def _check_inside(values: pa.Array, column: Column) -> Array:
    """The values as floats, NaN where there is none; refuses a value outside the declared edges."""
    numbers = np.asarray(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)
    outside = (numbers < column.edges[0]) | (numbers > column.edges[-1])
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        raise DataError(
            f"column {column.name!r} has {values[row].as_py()} in row {row + 1}, outside its declared edges "
            f"{column.edges[0]:g} to {column.edges[-1]:g}; widen the edges or clean the value"
        )
    return numbers


def decode(codes: Array, schema: Schema, rng: np.random.Generator) -> pa.Table:
    """An Arrow table with these codes; a numeric value is drawn evenly inside its bin."""
    if codes.ndim != 2 or codes.shape[1] != len(schema.columns):
        raise DataError(f"expected codes with {len(schema.columns)} columns, got an array of shape {codes.shape}")
    columns = [decode_column(codes[:, i], column, rng) for i, column in enumerate(schema.columns)]
    return pa.table(columns, names=list(schema.names))


def decode_column(codes: Array, column: Column, rng: np.random.Generator) -> pa.Array:
    wrong = (codes < 0) | (codes >= column.size)
    if wrong.any():
        raise DataError(
            f"expected codes of column {column.name!r} in 0 to {column.size - 1}, got {int(codes[wrong][0])}; "
            "they belong to another schema"
        )
    null = codes == column.levels
    index = np.where(null, 0, codes)
    if column.kind != "numeric":
        domain = [parse_category(c, column.dtype, column.name) for c in column.categories]
        values = pa.array(domain, ARROW_TYPES[column.dtype])
        return values.take(pa.array(index, mask=null, type=pa.int32()))
    if column.dtype == "integer":
        ranges = np.array([column.integer_range(i) for i in range(column.levels)], np.int64)
        whole = rng.integers(ranges[index, 0], ranges[index, 1], endpoint=True)
        return pa.array(whole, pa.int64(), mask=null)
    edges = np.asarray(column.edges, np.float64)
    low, high = edges[index], edges[index + 1]
    share = rng.random(len(index))
    drawn = low * (1.0 - share) + high * share  # low + (high - low) * share overflows between far edges
    below = np.nextafter(high, low)  # rounding may reach the upper edge, which belongs to the next bin
    return pa.array(np.clip(drawn, low, below), pa.float64(), mask=null)


def numbers_of(frame: pa.Table, codes: Array, column: Column, index: int) -> Array:
    """What a comparison compares: a numeric column's value, an ordinal one's rank; NaN where there is none."""
    if column.kind == "numeric":
        return np.asarray(frame.column(column.name).cast(pa.float64()).to_numpy(), np.float64)
    return np.where(codes[:, index] >= column.levels, np.nan, codes[:, index].astype(np.float64))


def broken_rows(frame: pa.Table, codes: Array, schema: Schema) -> tuple[Array, str]:
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


def one_hot(codes: Array, sizes: tuple[int, ...]) -> Array:
    """Codes as rows of zeros and ones: one block of `size` columns per column, one 1 in each."""
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rows = np.zeros((len(codes), int(sum(sizes))), np.float32)
    rows[np.arange(len(codes))[:, None], codes + offsets] = 1.0
    return rows


def from_one_hot(rows: Array, sizes: tuple[int, ...]) -> Array:
    """The inverse of `one_hot`; of a soft row, the largest entry of each block."""
    bounds = np.cumsum([0, *sizes])
    blocks = [rows[:, a:b].argmax(axis=1) for a, b in itertools.pairwise(bounds)]
    return np.stack(blocks, axis=1).astype(np.int32)


def _some(values: tuple[str, ...], most: int = 6) -> str:
    shown = ", ".join(values[:most])
    return shown if len(values) <= most else f"{shown} and {len(values) - most} more"
