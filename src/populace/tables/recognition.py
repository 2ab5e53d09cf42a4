"""What a column of unknown values is: truth values, numbers, dates, times, categories, identifiers or free text.

Everything here looks at the values (and at the name, for codes and identifiers); what follows from it is marked as read
from the data.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from populace.tables.cells import EXACT
from populace.tables.conversion import (
    ISO_DATE,
    ISO_DATETIME,
    ISO_TIME,
    MISSING,
    NUMBER,
    TRUTH_WORDS,
    is_text,
    parse_moments,
    parse_numbers,
    plain,
    without_markers,
)  # fmt: skip
from populace.tables.dates import DAY
from populace.types import JsonObject, NumpyArray

DATE_FORMS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y")
TIME_FORMS = ("", " %H:%M", " %H:%M:%S")
LIKE_A_DATE = r"^\d{1,4}[./-]\d{1,2}[./-]\d{1,4}( \d{1,2}:\d{2}(:\d{2})?)?$"
LEADING_ZERO = r"^[+-]?0\d"
CODE_NAME = re.compile(
    r"(^|[_\-. ])(id|ids|code|codes|type|zip|zipcode|postcode|plz|cd|key|status|category|sex|gender|race|ethnicity|"
    r"region|state|county|country|district)$|[a-z](Id|ID|Code|Type)$",
)
ID_NAME = re.compile(
    r"(^|[_\-. ])(id|ids|nbr|number|no|nr|key|uuid|guid|mrn|ssn)$|[a-z](Id|ID|Nr|Key)$|^(id|uuid)", re.I
)
FEW_CODES = 100
HOLES_AMONG = 60
HOLE_SHARE, HOLE_ROWS, HOLE_COUNT = 0.02, 0.01, 50
ODD_SHARE, ODD_WORDS, FEW_ODD = (
    0.2,
    2,
    20,
)  # words among numbers: in at most this share of rows, so many, beside many numbers
STEPS = (1.0, 0.1, 0.01, 0.001, 0.0001, 0.00001, 0.000001)
TIME_STEPS = (86_400.0, 3_600.0, 1_800.0, 900.0, 300.0, 60.0, 1.0, 0.001)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recognised:
    """One column's values and what they are.

    `what` is boolean, number, date, datetime, time, category, nothing (no value) or nested. `numbers` are those of a scale,
    without gaps; `texts` the values of a category; `whole` says that numbers are stored as whole ones.
    """

    what: str
    rows: int
    gaps: int
    markers: tuple[tuple[str, int], ...] = ()
    values: pa.Array | None = None
    numbers: NumpyArray | None = None
    whole: bool = False
    format: str = ""
    notes: tuple[str, ...] = ()


def recognise(values: pa.ChunkedArray | pa.Array, *, delimiter: str = ",") -> Recognised:
    """What the values of a column are."""
    values = plain(values)
    rows = len(values)
    marked: tuple[tuple[str, int], ...] = ()
    if is_text(values.type):
        values, marked = _without_gaps(pc.utf8_trim_whitespace(values))
    present = values.drop_null()
    facts: JsonObject = {"rows": rows, "gaps": values.null_count, "markers": marked}
    if not len(present):
        return Recognised(what="nothing", **facts)
    if pa.types.is_boolean(present.type):
        return Recognised(what="boolean", values=present, **facts)
    if pa.types.is_temporal(present.type):
        return _temporal(present, facts)
    if pa.types.is_integer(present.type) or pa.types.is_floating(present.type) or pa.types.is_decimal(present.type):
        return _number(present, facts)
    if is_text(present.type):
        return _text(present, facts, delimiter)
    return Recognised(what="nested", values=present, **facts)


def _without_gaps(values: pa.Array) -> tuple[pa.Array, tuple[tuple[str, int], ...]]:
    """Text with null where there is no value, and how that was written, with how often.

    Besides the usual markers, a word or two in a column that else holds numbers stands for "no value".
    """
    found = {one["values"]: one["counts"] for one in pc.value_counts(values).to_pylist() if one["values"] is not None}
    markers = [text for text in MISSING if text in found]
    rest = values.filter(pc.invert(pc.is_in(values, value_set=pa.array(MISSING)))).drop_null()
    words = rest.filter(pc.invert(pc.match_substring_regex(rest, NUMBER)))
    odd = words.unique().to_pylist() if len(words) <= ODD_SHARE * len(rest) else []
    if (
        1 <= len(odd) <= ODD_WORDS
        and len(rest.unique()) > FEW_ODD
        and all(re.match(r"^[A-Za-z .*-]+$", t) for t in odd)
    ):
        markers += odd
    return without_markers(values, (*MISSING, *markers)), tuple((text, found[text]) for text in markers)


def _temporal(present: pa.Array, facts: JsonObject) -> Recognised:
    kind = present.type
    if pa.types.is_duration(kind):
        return Recognised(what="nested", values=present, **facts)
    if pa.types.is_time(kind):
        unit = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[kind.unit]
        raw = present.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
        return Recognised(what="time", values=present, numbers=np.asarray(raw.to_numpy(), np.float64) / unit, **facts)
    zone = kind.tz if pa.types.is_timestamp(kind) else None
    seconds = (
        np.asarray(present.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64()).to_numpy(), np.float64) / 1e6
    )
    if pa.types.is_date(kind):
        return Recognised(what="date", values=present, numbers=np.floor(seconds / DAY), **facts)
    return Recognised(what="datetime", values=present, numbers=np.round(seconds, 3), **facts)


def _number(present: pa.Array, facts: JsonObject) -> Recognised:
    numbers = np.asarray(present.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)
    whole = bool(pa.types.is_integer(present.type))
    if not whole and facts["gaps"]:  # pandas turns whole numbers with a gap among them into floats
        whole = bool(((np.abs(numbers) < 2.0**53) & (numbers == np.floor(numbers))).all())
        present = present.cast(pa.int64(), safe=False) if whole else present
    return Recognised(what="number", values=present, numbers=numbers, whole=whole, **facts)


def _text(present: pa.Array, facts: JsonObject, delimiter: str) -> Recognised:
    distinct = present.unique()
    words = sorted({text.lower() for text in distinct.slice(0, 3).to_pylist()})
    if len(distinct) == 2 and tuple(words) in TRUTH_WORDS:
        return Recognised(what="boolean", values=present, **facts)
    if _all_match(distinct, NUMBER) and not pc.any(pc.match_substring_regex(distinct, LEADING_ZERO)).as_py():
        return _number_text(present, facts)
    if delimiter == ";" and not pc.any(pc.match_substring_regex(distinct, LEADING_ZERO)).as_py():
        numbers = parse_numbers(present, comma=True)
        if not np.isnan(numbers).any():
            return Recognised(what="number", values=present, numbers=numbers, format="comma", **facts)
    if _all_match(distinct, ISO_TIME):
        numbers = _spread(present, "time")
        if not np.isnan(numbers).any():
            return Recognised(what="time", values=present, numbers=numbers, **facts)
    for what, pattern in (("date", ISO_DATE), ("datetime", ISO_DATETIME)):
        if _all_match(distinct, pattern):
            numbers = _spread(present, what)
            if not np.isnan(numbers).any():
                return Recognised(what=what, values=present, numbers=numbers, **facts)
    if _all_match(distinct, LIKE_A_DATE):
        dated = _dated(present, distinct, facts)
        if dated is not None:
            return dated
    return Recognised(what="category", values=present, **facts)


def _all_match(distinct: pa.Array, pattern: str) -> bool:
    head = distinct.slice(0, 50)
    return bool(pc.all(pc.match_substring_regex(head, pattern)).as_py()) and bool(
        pc.all(pc.match_substring_regex(distinct, pattern)).as_py()
    )


def _number_text(present: pa.Array, facts: JsonObject) -> Recognised:
    numbers = parse_numbers(present)
    whole = bool(pc.all(pc.match_substring_regex(present, r"^[+-]?\d+$")).as_py())
    if whole:
        try:
            present = pc.utf8_ltrim(present, "+").cast(pa.int64())
        except pa.ArrowInvalid:  # longer than any number: an identifier made of digits
            return Recognised(what="category", values=present, **facts)
    else:
        present = pa.array(numbers)
    return Recognised(what="number", values=present, numbers=numbers, whole=whole, **facts)


def _spread(present: pa.Array, kind: str, form: str = "") -> NumpyArray:
    coded = present.dictionary_encode()
    return np.asarray(parse_moments(coded.dictionary, kind, form)[coded.indices.to_numpy()])


def _dated(present: pa.Array, distinct: pa.Array, facts: JsonObject) -> Recognised | None:
    """Dates that are not ISO: the first form that all values fit, day before month."""
    fitting = [
        date + time
        for time in TIME_FORMS
        for date in DATE_FORMS
        if not np.isnan(parse_moments(distinct, "datetime", date + time)).any()
    ]
    if not fitting:
        return None
    form = fitting[0]
    notes: tuple[str, ...] = ()
    if len(fitting) > 1:
        notes = (
            f"every date fits {fitting[0]} and {fitting[1]}; read as {fitting[0]}, change `format` if that is wrong",
        )
    what = "date" if form in DATE_FORMS else "datetime"
    numbers = _spread(present, what, form)
    return Recognised(what=what, values=present, numbers=numbers, format=form, notes=notes, **facts)


def decimal_step(numbers: NumpyArray) -> float:
    """The coarsest power of ten that all numbers are multiples of, down to a millionth; 0 where there is none."""
    largest = float(np.abs(numbers).max())
    for digits, step in enumerate(STEPS):
        if largest / step < 2.0**50 and bool((np.round(numbers, digits) == numbers).all()):
            return step
    return 0.0


def time_step(numbers: NumpyArray) -> float:
    """The coarsest unit of time that all moments are whole in: day, hour, minute, second, millisecond."""
    fine = np.round(numbers * 1000)
    return next((step for step in TIME_STEPS if bool((fine % (step * 1000) == 0).all())), 0.001)


def are_codes(name: str, values: NumpyArray, counts: NumpyArray) -> bool:
    """Whether whole numbers are codes and no scale: by their name, or by holes in their distribution.

    A scale rises and falls without gaps; among codes a number that hardly occurs stands between two that are frequent.
    """
    if len(values) <= FEW_CODES and CODE_NAME.search(name):
        return True
    if not 3 <= len(values) <= HOLES_AMONG or np.ptp(values) > EXACT:  # beyond, floats are not exact
        return False
    step = int(np.gcd.reduce(np.diff(values).astype(np.int64)))
    places = ((values - values[0]) / step).astype(np.int64)
    if places[-1] > 100_000:
        return True
    dense = np.zeros(places[-1] + 1)
    dense[places] = counts
    left = np.maximum.accumulate(dense)[:-2]
    right = np.maximum.accumulate(dense[::-1])[::-1][2:]
    least = np.minimum(left, right)
    enough = least >= max(HOLE_ROWS * counts.sum(), HOLE_COUNT)
    return bool((enough & (dense[1:-1] < HOLE_SHARE * least)).any())


def looks_like_id(name: str) -> bool:
    return bool(ID_NAME.search(name))
