"""Which rows are the same: keyed digests of rows, ids and clients, under the secret of a ledger.

A plain hash of private rows would let anybody who sees it test a guess about them; these are BLAKE2b under a key of 256 bits
that stays in the ledger. Eight bytes are kept of each: two different rows of a billion that fall together are counted as one,
which never counts too little.

A row is recognised by the text of its cells, in whatever order, file or format they stand: numbers without trailing zeros,
letters in small, dates without an empty time of day, a gap as an empty text.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from populace.experiments.sources import PrivateData
from populace.tables.cell_text import cell_text as cell_text
from populace.tables.images import Images

Array = np.ndarray[Any, Any]
BETWEEN = "\x1f"  # cells; a cell that holds it can only make two rows look alike
AT_ONCE = 2**17  # rows
IMAGE_COLUMNS = ("image", "label")


class Accounts:
    """Digests of the rows of some data, in their order, under a secret."""

    def __init__(self, data: PrivateData, secret: bytes) -> None:
        self._data, self._secret = data, secret
        self._texts: dict[str, pa.Array] = {}
        self._rows: dict[tuple[str, ...], Array] = {}

    def __len__(self) -> int:
        return len(self._data.clients.data)

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """All columns of the file, modelled or not, sorted by name."""
        return IMAGE_COLUMNS if self._data.frame is None else tuple(sorted(self._data.frame.column_names))

    @property
    def ids(self) -> tuple[str, ...]:
        """The columns that the schema says are ids."""
        data = self._data.clients.data
        if isinstance(data, Images):
            return ()
        return tuple(other.name for other in data.schema.others if other.kind == "id" and other.name in self.columns)

    def rows(self, columns: tuple[str, ...]) -> Array:
        """One digest per row, over these columns."""
        if columns not in self._rows:
            self._rows[columns] = self._row_digests(columns)
        return self._rows[columns]

    def _row_digests(self, columns: tuple[str, ...]) -> Array:
        data = self._data.clients.data
        if isinstance(data, Images):
            return self._digests(
                x.tobytes() + int(y).to_bytes(4, "little") for x, y in zip(data.x, data.y, strict=True)
            )
        parts = [self._text(name) for name in columns]
        pieces = []
        for first in range(0, len(self), AT_ONCE):
            joined = pc.binary_join_element_wise(*(part.slice(first, AT_ONCE) for part in parts), BETWEEN)
            pieces.append(self._digests(joined.cast(pa.binary()).to_pylist()))
        return np.concatenate(pieces)

    def values(self, column: str) -> Array:
        """One digest per row, of its value in this column."""
        return self.rows((column,))

    @functools.cached_property
    def blocks(self) -> Array:
        """One digest per client, over its rows in their order."""
        clients, rows = self._data.clients, self.rows(self.columns)
        held = np.split(rows[clients.order], clients.starts[1:-1])
        return self._digests(each.tobytes() for each in held)

    def _text(self, name: str) -> pa.Array:
        if name not in self._texts:
            if self._data.frame is None:
                raise KeyError(name)
            self._texts[name] = cell_text(self._data.frame.column(name))
        return self._texts[name]

    def _digests(self, contents: Iterable[bytes]) -> Array:
        made = b"".join([hashlib.blake2b(content, key=self._secret, digest_size=8).digest() for content in contents])
        return np.frombuffer(made, "<u8")
