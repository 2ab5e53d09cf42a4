"""The clients of a data file, a block at a time: who they are is known from one row to the next, not from the whole file."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from populace.border.databases.address import is_database, short_name
from populace.errors import DataError, InputError, out_of_range
from populace.runs.sources import EMBEDDED
from populace.runs.spec import NO_ROW_NUMBERS
from populace.tables import embedded
from populace.tables.codec import plain
from populace.tables.schema import Schema
from populace.tables.stream import stream_frames
from populace.tables.table import Table, make_table
from populace.types import Array

CLIENTS = 2**14  # of a block, at most
CODES = 2**24  # of a block, unless one client holds more


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Clients that follow one another: their names, their records padded to a public width, and what is real."""

    first: int
    names: tuple[str, ...]
    records: Array
    mask: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Census:
    """What a first pass over the rows finds: how many clients, how much the widest holds, how many rows.

    `moved` counts, by column, the values that lay outside the domain and were moved into it; `digest` is that of the clients'
    names in their order.
    """

    digest: str
    clients: int
    widest: int
    rows: int
    moved: Mapping[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientStream:
    """The clients of a data file: so many rows each, in their order, or the rows with one value of `client_column`.

    Edge cases: rows of one client must stand together, so that one block of clients is all that is ever held; a row that does
    not fit the schema is found by `census`, before anybody is asked. A database has no order of rows that stays: there a client
    column is needed, and rows come in its order.
    """

    data: str
    schema: Schema
    records_per_client: int = 1
    client_column: str | None = None

    def __post_init__(self) -> None:
        if self.records_per_client < 1:
            raise out_of_range("records-per-client", "of at least 1", self.records_per_client)
        if self.client_column is not None and self.records_per_client != 1:
            raise InputError("give --records-per-client or --client-column, not both")
        if self.client_column is None and is_database(self.data):
            raise InputError(NO_ROW_NUMBERS)
        if self.client_column in self.schema.names:
            raise DataError(
                f"the client column {self.client_column!r} is also a column of the schema; take it out of the schema"
            )

    def census(self) -> Census:
        """Every row once, checked against the schema; nobody is asked anything."""
        rows = widest = running = 0
        last = -1
        hashes: list[bytes] = []
        digest = hashlib.sha256()
        moved: collections.Counter[str] = collections.Counter()
        for codes, owner, names in self._pieces(moved):
            rows += len(codes)
            found_hashes = b"".join(map(_hash, names))
            digest.update(found_hashes)
            if self.client_column is not None:
                hashes.append(found_hashes)
            owners, counts = np.unique(owner, return_counts=True)
            counts[0] += running if owners[0] == last else 0
            widest, running, last = max(widest, int(counts.max())), int(counts[-1]), int(owners[-1])
        if rows == 0:
            raise DataError(f"{self.data} has no rows; expected at least one")
        self._check_together(np.frombuffer(b"".join(hashes), np.uint64))
        return Census(digest=digest.hexdigest(), clients=last + 1, widest=widest, rows=rows, moved=moved)

    def blocks(self, widest: int) -> Iterator[Block]:
        """All clients in order, their records padded to `widest`."""
        most = int(np.clip(CODES // (widest * len(self.schema.columns)), 1, CLIENTS))
        codes, owner, names = np.zeros((0, len(self.schema.columns)), np.int32), np.zeros(0, np.int64), []
        done = 0
        for piece, piece_owner, piece_names in self._pieces():
            codes, owner = np.concatenate([codes, piece]), np.concatenate([owner, piece_owner])
            names += piece_names
            while owner[-1] - done >= most:  # the last client may have more rows in the next piece
                cut = int(np.searchsorted(owner, done + most))
                yield _block(codes[:cut], owner[:cut], names[:most], done, widest)
                codes, owner, names, done = codes[cut:], owner[cut:], names[most:], done + most
        while len(owner):
            cut = int(np.searchsorted(owner, done + most))
            yield _block(codes[:cut], owner[:cut], names[:most], done, widest)
            codes, owner, names, done = codes[cut:], owner[cut:], names[most:], done + most

    def _pieces(self, moved: collections.Counter[str] | None = None) -> Iterator[tuple[Array, Array, list[str]]]:
        """Codes, whose each row is, and the names of the clients that begin here; adds to `moved` what was moved."""
        start, last, count = 0, None, 0
        for frame in self._frames():
            table = self._encoded(frame, start)
            codes = table.codes
            if moved is not None:
                moved.update(table.clipped)
            number = start + np.arange(len(codes))
            if self.client_column is None:
                owner = number // self.records_per_client
                begun = range(-(-start // self.records_per_client), int(owner[-1]) + 1)
                yield codes, owner, [f"{short_name(self.data)} {client}" for client in begun]
            else:
                values = self._values(frame, start)
                changed = np.array([a != b for a, b in zip([last, *values[:-1]], values, strict=True)])
                owner = count + np.cumsum(changed) - 1
                yield codes, owner, [value for value, new in zip(values, changed, strict=True) if new]
                last, count = values[-1], int(owner[-1]) + 1
            start += len(codes)

    def _frames(self) -> Iterator[pa.Table]:
        if self.data.startswith(EMBEDDED):
            if self.data != f"{EMBEDDED}harbour":
                raise InputError(f"expected embedded:harbour, got {self.data!r}")
            if self.client_column is not None:
                raise DataError(f"no client column {self.client_column!r} in {self.data}")
            yield embedded.harbour().frame
            return
        also = () if self.client_column is None else (self.client_column,)
        for frame in stream_frames(self.data, self.schema, also=also):
            if frame.num_rows:
                yield frame

    def _encoded(self, frame: pa.Table, start: int) -> Table:
        try:
            return make_table(frame, self.schema)
        except DataError as error:
            where = f" (rows counted from row {start + 1:,} of {self.data} on)" if start else ""
            raise DataError(f"{error}{where}") from None

    def _values(self, frame: pa.Table, start: int) -> list[str]:
        values = plain(frame.column(self.client_column))
        if values.null_count:
            row = start + int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
            raise DataError(
                f"the client column {self.client_column!r} has no value in row {row + 1}; say whose row it is, or drop it"
            )
        return [str(value) for value in values.to_pylist()]

    def _check_together(self, hashes: Array) -> None:
        """Refuse a client that begins twice. Eight bytes a client are held, whatever the names."""
        order = np.argsort(hashes, kind="stable")
        again = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
        if not len(again):
            return
        wanted = int(order[again + 1].min())
        name = next(
            itertools.islice(itertools.chain.from_iterable(names for *_, names in self._pieces()), wanted, None)
        )
        raise DataError(
            f"the rows of client {name!r} stand in several places of {self.data}; sort it by {self.client_column!r}, so that "
            "each client's rows stand together"
        )


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()


def _block(codes: Array, owner: Array, names: list[str], first: int, widest: int) -> Block:
    clients = int(owner[-1]) - first + 1
    starts = np.searchsorted(owner, first + np.arange(clients))
    position = np.arange(len(owner)) - starts[owner - first]
    records = np.zeros((clients, widest, codes.shape[1]), np.int32)
    mask = np.zeros((clients, widest), bool)
    records[owner - first, position] = codes
    mask[owner - first, position] = True
    return Block(first=first, names=tuple(names), records=records, mask=mask)
