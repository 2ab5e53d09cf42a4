"""From whatever a file holds to what a column says: text, numbers, truth values, dates and times in any Arrow type.

One path for all files: what a CSV holds is text, and text becomes a number or a date here and nowhere else. What cannot be
converted is marked, not raised, so that all problems of a table can be said together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from populace.tables.dates import DAY, moment_number
from populace.types import NumpyArray

if TYPE_CHECKING:
    from populace.tables.columns import Column


MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL")
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
WHOLE = r"^[+-]?\d{1,18}$"
ISO_DATE = r"^\d{4}-\d{2}-\d{2}$"
PLAIN_DATE = r"^(000[1-9]|00[1-9]\d|0[1-9]\d{2}|[1-9]\d{3})-\d{2}-\d{2}$"  # of the years that Python knows
ISO_DATETIME = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})?$"
ISO_TIME = r"^\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?$"
FEW = 2_048  # values, by which it is guessed whether most of a column's differ
COMMA = "comma"  # the format of a decimal column written 3,14
TRUTH_WORDS = (("0", "1"), ("false", "true"), ("no", "yes"), ("n", "y"), ("f", "t"))  # the negative one first
TRUTHS = {word: bool(truth) for words in TRUTH_WORDS for truth, word in enumerate(words)}
TYPES = {
    "string": pa.string(), "integer": pa.int64(), "float": pa.float64(), "boolean": pa.bool_(), "date": pa.date32(),
}  # fmt: skip
CAST_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbers:
    """A scale column's values as floats: NaN where `null` (no value) or `bad` (not of the column's kind)."""

    numbers: NumpyArray
    null: NumpyArray
    bad: NumpyArray


def arrow_type(column: Column) -> Any:
    """How a column is stored."""
    whole = column.step == int(column.step)
    if column.dtype == "datetime":
        return pa.timestamp("s" if whole else "ms")
    if column.dtype == "time":
        return pa.time32("s" if whole else "ms")
    return TYPES[column.dtype]


def plain(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """One array without dictionaries and large or viewed text, with null instead of NaN: pandas writes a gap as NaN."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        values = values.cast(pa.string())
    if pa.types.is_float16(values.type):
        values = values.cast(pa.float32())
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    return values


def is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def distinct_text(values: pa.ChunkedArray | pa.Array) -> pa.DictionaryArray | None:
    """Text by its distinct values, a gap among them; None for what is no text, and where most values differ."""
    if pa.types.is_dictionary(values.type):
        if not is_text(values.type.value_type) or values.null_count:
            return None
        whole = values.unify_dictionaries().combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        return whole if isinstance(whole, pa.DictionaryArray) and not whole.dictionary.null_count else None
    if not is_text(values.type) or len(values) < FEW or len(values.slice(0, FEW).unique()) > FEW // 2:
        return None
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return pc.dictionary_encode(whole, null_encoding="encode") if isinstance(whole, pa.Array) else None


def markers(column: Column) -> tuple[str, ...]:
    """What a text column's field may hold in place of a value."""
    return tuple(text for text in dict.fromkeys((*MISSING, *column.missing)) if text not in column.categories)


def without_markers(values: pa.Array, listed: tuple[str, ...]) -> pa.Array:
    """Text with null where it only says that there is no value."""
    gone = pc.is_in(values, value_set=pa.array(listed, pa.string()))
    return pc.if_else(gone, pa.scalar(None, pa.string()), values)


def to_numbers(values: pa.ChunkedArray | pa.Array, column: Column) -> Numbers:
    """The values of a scale column as floats: the number, days or seconds since 1970, seconds since midnight."""
    values = plain(values)
    if is_text(values.type):
        values = without_markers(pc.utf8_trim_whitespace(values), markers(column))
    null = values.is_null().to_numpy(zero_copy_only=False)
    try:
        numbers = _numbers(values, column)
    except CAST_ERRORS:
        numbers = np.full(len(values), np.nan)
    if column.kind == "integer":
        with np.errstate(invalid="ignore"):
            numbers = np.where(numbers == np.floor(numbers), numbers, np.nan)
    return Numbers(numbers=numbers, null=null, bad=np.isnan(numbers) & ~null)


def _numbers(values: pa.Array, column: Column) -> NumpyArray:
    kind = values.type
    if column.kind in ("integer", "decimal"):
        if is_text(kind):
            return parse_numbers(values, comma=column.format == COMMA)
        if pa.types.is_temporal(kind):
            raise pa.ArrowTypeError("dates are no numbers")
        return _floats(values.cast(pa.float64(), safe=False))
    if is_text(kind):
        return _by_distinct(values, column)
    if column.kind == "time":
        if pa.types.is_timestamp(kind):
            return _floats(values.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())) / 1e6 % DAY
        return _floats(values.cast(pa.time64("us" if kind != pa.time64("ns") else "ns")).cast(pa.int64())) / (
            1e9 if kind == pa.time64("ns") else 1e6
        )
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise pa.ArrowTypeError("no date")
    unit = kind.unit if pa.types.is_timestamp(kind) else "s"
    per_second = {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[unit]
    zone = kind.tz if pa.types.is_timestamp(kind) else None
    seconds = _floats(values.cast(pa.timestamp(unit, zone)).cast(pa.int64())) / per_second
    return np.floor(seconds / DAY) if column.kind == "date" else np.round(seconds, 3)


def _floats(values: pa.Array) -> NumpyArray:
    return np.asarray(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)


def parse_numbers(values: pa.Array, *, comma: bool = False) -> NumpyArray:
    """Text as numbers, NaN where it is none."""
    if comma:
        values = pc.replace_substring(values, ",", ".")
    good = pc.match_substring_regex(values, NUMBER)
    values = pc.if_else(good, pc.utf8_ltrim(values, "+"), pa.scalar(None, pa.string()))
    return _floats(values.cast(pa.float64()))


def _by_distinct(values: pa.Array, column: Column) -> NumpyArray:
    """Dates and times in text, each distinct one parsed once."""
    coded = values.dictionary_encode()
    listed = coded.dictionary
    numbers = parse_moments(listed, column.kind, column.format)
    if column.format:  # what was written back as ISO reads too
        numbers = np.where(np.isnan(numbers), parse_moments(listed, column.kind), numbers)
    index = coded.indices.fill_null(len(listed)).to_numpy(zero_copy_only=False)
    return np.asarray(np.concatenate([numbers, [np.nan]])[index])


def parse_moments(texts: pa.Array, kind: str, form: str = "") -> NumpyArray:
    """Dates, datetimes or times of day from text in a strptime form, or ISO where none is given; NaN where it is none."""
    if form:
        parsed = pc.strptime(texts, form, "s", error_is_null=True)
        seconds = _floats(parsed.cast(pa.int64()))
        return seconds if kind == "datetime" else np.floor(seconds / DAY) if kind == "date" else seconds % DAY
    if kind == "date" and pc.all(pc.match_substring_regex(texts, PLAIN_DATE)).as_py():
        with contextlib.suppress(*CAST_ERRORS):  # one that no calendar has
            return _floats(texts.cast(pa.date32()).cast(pa.int32()))
    return np.array([_iso(text, kind) for text in texts.to_pylist()], np.float64)


PROBE = dt.datetime(2001, 2, 3, 14, 5, 6)  # no two of its parts are alike


def can_write(form: str, kind: str) -> bool:
    """Whether a strptime form writes moments so that they can be read again: to the day, times of day to the hour."""
    unit = 3_600 if kind == "time" else 1 if kind == "date" else DAY
    try:
        read = parse_moments(pa.array([PROBE.strftime(form)]), kind, form)[0]
    except (pa.ArrowInvalid, ValueError):
        return False
    since = (PROBE - dt.datetime(1970, 1, 1)).total_seconds()
    wanted = {"date": since // DAY, "datetime": since, "time": since % DAY}[kind]
    return bool(read // unit == wanted // unit)


def _iso(text: str | None, kind: str) -> float:
    patterns = (ISO_TIME,) if kind == "time" else (ISO_DATE, ISO_DATETIME)
    if text is None or not any(re.match(pattern, text) for pattern in patterns):
        return float("nan")
    try:
        return moment_number(text, kind)
    except ValueError:
        return float("nan")


def from_numbers(numbers: NumpyArray, null: NumpyArray, column: Column) -> pa.Array:
    """Floats in the type the column is stored in."""
    wanted = arrow_type(column)
    if column.dtype == "float":
        return pa.array(numbers, wanted, mask=null)
    fine = 1000 if pa.types.is_temporal(wanted) and column.dtype != "date" and wanted.unit == "ms" else 1
    whole = np.floor(np.where(null, 0.0, numbers) * fine + 1e-6).astype(np.int64)
    plain_type = pa.int32() if column.dtype in ("date", "time") else pa.int64()
    return pa.array(whole, pa.int64(), mask=null).cast(plain_type).cast(wanted)


def to_categories(values: pa.ChunkedArray | pa.Array, column: Column) -> tuple[pa.Array, NumpyArray]:
    """The values of a column of categories in its type, null where there is none, and which are not of that type."""
    values = plain(values)
    if pa.types.is_boolean(values.type) and column.kind == "boolean":
        values = values.cast(pa.string())
    if is_text(values.type):
        listed = pc.is_in(values, value_set=pa.array(column.categories, pa.string()))
        values = pc.if_else(listed, values, pc.utf8_trim_whitespace(values))
        values = without_markers(values, markers(column))
        values = _truths_as_listed(values, column) if column.kind == "boolean" else values
    null = values.is_null().to_numpy(zero_copy_only=False)
    try:
        made = _typed(values, column.dtype)
    except CAST_ERRORS:
        made = pa.nulls(len(values), TYPES[column.dtype])
    return made, made.is_null().to_numpy(zero_copy_only=False) & ~null


def _truths_as_listed(values: pa.Array, column: Column) -> pa.Array:
    """Truth values in any writing (t, Yes, 1) as the column's categories write them; other text stays."""
    listed = {TRUTHS[text.lower()]: text for text in column.categories if text.lower() in TRUTHS}
    if len(listed) != len(column.categories):
        return values
    words = [word for word, truth in TRUTHS.items() if truth in listed]
    place = pc.index_in(pc.utf8_lower(values), value_set=pa.array(words, pa.string()))
    meant = pa.array([listed[TRUTHS[word]] for word in words], pa.string()).take(place)
    return pc.coalesce(meant, values)


def _typed(values: pa.Array, dtype: str) -> pa.Array:
    text = is_text(values.type)
    if dtype == "string":
        return values.cast(pa.string())
    if dtype == "boolean":
        if not text:
            return values.cast(pa.bool_())
        lower = pc.index_in(pc.utf8_lower(values), value_set=pa.array(list(TRUTHS)))
        return pa.array(list(TRUTHS.values())).take(lower)
    if dtype == "integer":
        return _whole(values, text=text)
    numbers = parse_numbers(values) if text else _floats(values.cast(pa.float64(), safe=False))
    return pa.array(numbers + 0.0, mask=np.isnan(numbers))  # minus zero is zero


def _whole(values: pa.Array, *, text: bool) -> pa.Array:
    """Whole numbers; 39.0 is one, in text too."""
    if pa.types.is_integer(values.type) or pa.types.is_boolean(values.type):
        return values.cast(pa.int64())
    if text:
        try:
            return values.cast(pa.int64())
        except CAST_ERRORS:
            numbers = parse_numbers(values)
    else:
        numbers = _floats(values.cast(pa.float64(), safe=False))
    with np.errstate(invalid="ignore"):
        good = (numbers == np.floor(numbers)) & (np.abs(numbers) < 2.0**63)
    return pa.array(np.where(good, numbers, 0).astype(np.int64), mask=~good)
