"""Cells as text that is the same however the value was written.

Numbers without trailing zeros, letters in small, dates without an empty time of day, a gap as an empty text. Leading zeros
stay: `001` and `1` may be two people.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from populace.tables.conversion import plain

TIDY = (
    (r"[t ]00:00:00(\.0+)?(z|\+00:00)?$", ""),  # midnight, where a date was meant
    (r"(:[0-9]{2})\.0+$", r"\1"),
    (r"^([+-]?[0-9]+\.[0-9]*?)0+$", r"\1"),
    (r"^([+-]?[0-9]+)\.$", r"\1"),
)


def cell_text(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Every cell as text that is the same however the value was written."""
    values = plain(values)
    if pa.types.is_nested(values.type) or pa.types.is_binary(values.type) or pa.types.is_fixed_size_binary(values.type):
        return pa.array([repr(value) for value in values.to_pylist()], pa.string())
    encoded = values.dictionary_encode()
    texts = encoded.dictionary.cast(pa.string())
    texts = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    for pattern, kept in TIDY:
        texts = pc.replace_substring_regex(texts, pattern=pattern, replacement=kept)
    return pc.fill_null(texts.take(encoded.indices), "")
