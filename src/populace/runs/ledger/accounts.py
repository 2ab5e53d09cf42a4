"""Which rows are the same: keyed digests of rows, ids and clients, under the secret of a ledger.

A plain hash of private rows would let anybody who sees it test a guess about them; these are BLAKE2b under a key of 256 bits
that stays in the ledger. Eight bytes are kept of each: two different rows of a billion that fall together are counted as one,
which never counts too little.

A row is recognised by the values of its cells, in whatever order, file, format or spelling they stand (`tables/value_text.py`),
under column names without case and surrounding spaces. The columns that tell people apart and stay when a table is exported
again are its *core*: without ids, without what numbers rows or stamps them, without what is the same in all rows.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from populace.runs.sources import PrivateData
from populace.tables.images import Images
from populace.tables.recognition import looks_like_id
from populace.tables.value_text import fold_name, value_text
from populace.types import NumpyArray

BETWEEN = "\x1f"  # cells; a cell that holds it can only make two rows look alike
AT_ONCE = 2**17  # rows
IMAGE_COLUMNS = ("image", "label")
NUMBERED = 0.9  # different values per row, from which on a column numbers or stamps its rows
FRACTION = r"^-?[0-9]+\.[0-9]"  # of measurements, which may all differ


class Accounts:
    """Digests of the rows of some data, in their order, under a secret."""

    def __init__(self, data: PrivateData, secret: bytes) -> None:
        self._data, self._secret = data, secret
        self._texts: dict[str, pa.Array] = {}
        self._rows: dict[tuple[str, ...], NumpyArray] = {}

    def __len__(self) -> int:
        return len(self._data.clients.data)

    @functools.cached_property
    def _names(self) -> dict[str, list[str]]:
        """The columns of the file by their folded names; two that differ in case alone are one."""
        found: dict[str, list[str]] = {}
        for name in sorted(IMAGE_COLUMNS if self._data.frame is None else self._data.frame.column_names):
            found.setdefault(fold_name(name), []).append(name)
        return found

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """All columns of the file, modelled or not, by their folded names, sorted."""
        return tuple(sorted(self._names))

    @property
    def ids(self) -> tuple[str, ...]:
        """The columns that the schema says are ids."""
        return self._others("id")

    def _others(self, *kinds: str) -> tuple[str, ...]:
        data = self._data.clients.data
        if isinstance(data, Images):
            return ()
        names = dict.fromkeys(fold_name(other.name) for other in data.schema.others if other.kind in kinds)
        return tuple(name for name in names if name in self.columns)

    def core(self, without: str | None) -> tuple[str, ...]:
        """The columns that tell people apart and stay when the table is exported again; of images, the image.

        Left out are `without` (the client column), ids and free text by the schema, what a name says is an id, what is the
        same in all rows (the day of an export), and what differs in nearly all (pseudonyms, row numbers, times), unless it
        is a number with decimals. Leaving out too much makes rows look alike, never different.
        """
        if self._data.frame is None:
            return IMAGE_COLUMNS[:1]
        left_out = {without, *self._others("id", "text")}
        return tuple(
            name
            for name in self.columns
            if name not in left_out and not any(map(looks_like_id, self._names[name])) and self._tells(name)
        )

    def _tells(self, name: str) -> bool:
        distinct = self._text(name).unique()
        if len(distinct) < 2:
            return False
        return len(distinct) < NUMBERED * len(self) or bool(
            pc.any(pc.match_substring_regex(distinct, FRACTION)).as_py()
        )

    def rows(self, columns: tuple[str, ...]) -> NumpyArray:
        """One digest per row, over these columns."""
        if columns not in self._rows:
            self._rows[columns] = self._row_digests(columns)
        return self._rows[columns]

    def _row_digests(self, columns: tuple[str, ...]) -> NumpyArray:
        data = self._data.clients.data
        if isinstance(data, Images):
            labelled = IMAGE_COLUMNS[1] in columns
            return self._digests(
                x.tobytes() + (int(y).to_bytes(4, "little") if labelled else b"")
                for x, y in zip(data.x, data.y, strict=True)
            )
        parts = [self._text(name) for name in columns]
        pieces = []
        for first in range(0, len(self), AT_ONCE):
            joined = pc.binary_join_element_wise(*(part.slice(first, AT_ONCE) for part in parts), BETWEEN)
            pieces.append(self._digests(joined.cast(pa.binary()).to_pylist()))
        return np.concatenate(pieces)

    def values(self, column: str) -> NumpyArray:
        """One digest per row, of its value in this column."""
        return self.rows((column,))

    @functools.cached_property
    def blocks(self) -> NumpyArray:
        """One digest per client, over its rows in their order."""
        clients, rows = self._data.clients, self.rows(self.columns)
        held = np.split(rows[clients.order], clients.starts[1:-1])
        return self._digests(each.tobytes() for each in held)

    def _text(self, name: str) -> pa.Array:
        if name not in self._texts:
            if self._data.frame is None:
                raise KeyError(name)
            parts = [value_text(self._data.frame.column(one)) for one in self._names[name]]
            self._texts[name] = pc.binary_join_element_wise(*parts, BETWEEN) if len(parts) > 1 else parts[0]
        return self._texts[name]

    def _digests(self, contents: Iterable[bytes]) -> NumpyArray:
        made = b"".join([hashlib.blake2b(content, key=self._secret, digest_size=8).digest() for content in contents])
        return np.frombuffer(made, "<u8")
