"""Cells as text of their value: what two exports of the same table have in common.

Further than `cell_text`: `0100`, `100.00`, `1e2` and `100,0` are one number; `2024-05-01`, `01.05.2024` and `5/1/2024` one
date; `yes`, `true` and `1` one truth; letters are the same however their accents are composed; `NA` is a gap. Every cell is
read by itself, whatever else stands in its column and whatever a schema says, so that a part of a file, or the same file under
another schema, gives the same text. Where a cell can be read in two ways, both get one text: day and month of a date are put
in order. Different values may therefore look alike (1 May and 5 January): made for recognising, not for showing.
"""

from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from populace.tables.cell_text import cell_text
from populace.tables.conversion import MISSING, NUMBER, parse_numbers, plain

EXACT = 1e15  # whole numbers up to here are floats without loss; longer ones are ids, and stay text
COMMA = r"^([+-]?[0-9]*),([0-9]+)$"
LONG = r"^[+-]?[0-9]{16,}$"
FIRST = r"^(?P<y>[0-9]{4})[-/.](?P<a>[0-9]{1,2})[-/.](?P<b>[0-9]{1,2})(?P<rest>$|[t ].*$)"
LAST = r"^(?P<a>[0-9]{1,2})[-/.](?P<b>[0-9]{1,2})[-/.](?P<y>[0-9]{4})(?P<rest>$|[t ].*$)"
TIMES = (
    (r"([0-9]:[0-9]{2}(\.[0-9]+)?)(z|\+00:?00)$", r"\1"),
    (r"(:[0-9]{2}\.[0-9]*?)0+$", r"\1"),
    (r"(:[0-9]{2})\.$", r"\1"),
    (r"(^|[t ])0?([0-9]{1,2}:[0-9]{2}):00$", r"\1\2"),
    (r"(^|[t ])0([0-9]:[0-9]{2})", r"\1\2"),
)
WORDS = {
    **dict.fromkeys(("true", "yes", "y", "t"), "1"),
    **dict.fromkeys(("false", "no", "n", "f"), "0"),
    **dict.fromkeys((text.lower() for text in MISSING), ""),
}


def fold_name(name: str) -> str:
    """A column's name without case and surrounding spaces."""
    return unicodedata.normalize("NFKC", name).strip().casefold()


def value_text(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Every cell as text that is the same however its value was written; a gap is empty."""
    values = plain(values)
    kind = values.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return cell_text(values)
    coded = values.dictionary_encode()
    distinct = coded.dictionary
    if pa.types.is_integer(kind):
        texts = distinct.cast(pa.string())
    elif pa.types.is_float64(kind):
        texts = _number_text(distinct.to_numpy(zero_copy_only=False))
    else:
        texts = _text_of_text(cell_text(distinct))
    return pc.fill_null(texts.take(coded.indices), "")


def _text_of_text(texts: pa.Array) -> pa.Array:
    if not len(texts):
        return texts
    texts = pc.utf8_normalize(texts, form="NFKC")
    texts = pc.replace_substring_regex(texts, pattern=COMMA, replacement=r"\1.\2")
    long = pc.match_substring_regex(texts, LONG)
    numbers = pc.and_(pc.match_substring_regex(texts, NUMBER), pc.invert(long))
    if pc.all(numbers).as_py():
        return _number_text(parse_numbers(texts))
    read = _number_text(parse_numbers(pc.if_else(numbers, texts, "0")))
    other = pc.if_else(long, pc.utf8_ltrim(texts, characters="+0"), _words(_moments(texts)))
    return pc.if_else(numbers, read, other)


def _number_text(numbers: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> pa.Array:
    whole = (np.abs(numbers) < EXACT) & (numbers == np.floor(numbers))
    made = pa.array(np.where(whole, numbers, 0.0).astype(np.int64)).cast(pa.string())
    if whole.all():
        return made
    rest = pa.array([repr(number) for number in numbers[~whole].tolist()], pa.string())
    return pc.replace_with_mask(made, pa.array(~whole), rest)


def _moments(texts: pa.Array) -> pa.Array:
    """Dates as year, the smaller and the larger of day and month, and the time of day; anything else as it is."""
    if pc.any(pc.match_substring_regex(texts, r"[0-9]:[0-9]{2}")).as_py():
        for pattern, kept in TIMES:
            texts = pc.replace_substring_regex(texts, pattern=pattern, replacement=kept)
    for pattern in (FIRST, LAST):
        found = pc.extract_regex(texts, pattern=pattern)
        if found.null_count == len(found):
            continue
        year, one, two, rest = (pc.struct_field(found, name) for name in ("y", "a", "b", "rest"))
        one, two = (pc.utf8_lpad(part, width=2, padding="0") for part in (one, two))
        swapped = pc.greater(one, two)
        low, high = pc.if_else(swapped, two, one), pc.if_else(swapped, one, two)
        rest = pc.replace_substring_regex(rest, pattern=r"^[t ]+", replacement=" ")
        rest = pc.if_else(pc.equal(rest, " 0:00"), "", rest)
        day = pc.binary_join_element_wise(year, low, high, "-")
        texts = pc.coalesce(pc.binary_join_element_wise(day, rest, ""), texts)
    return texts


def _words(texts: pa.Array) -> pa.Array:
    place = pc.index_in(texts, value_set=pa.array(list(WORDS), pa.string()))
    return pc.coalesce(pa.array(list(WORDS.values()), pa.string()).take(place), texts)
