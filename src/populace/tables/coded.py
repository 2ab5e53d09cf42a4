"""Tables read in a stream: of every piece only the codes are kept, as compact as the schema's sizes allow.

Pieces are read one after the other and encoded by as many threads as there are processors: at no time more than a few of
them are in memory, beside the codes of the rows before.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from populace.errors import DataError
from populace.tables.schema import Schema
from populace.tables.stream import rows_of, stream_frames
from populace.tables.table import Table, make_table
from populace.types import NumpyArray

ROWS = 2**17  # of a piece of a frame
GROWTH = 1.25  # of the room for codes, where a file does not say how many rows it has
FIRST_ROOM = 2**16  # rows


def code_type(schema: Schema) -> np.dtype:  # type: ignore[type-arg]
    """The narrowest whole numbers that hold every code of every column."""
    largest = max(schema.sizes)
    return np.dtype(np.uint8 if largest <= 2**8 else np.uint16 if largest <= 2**16 else np.int32)


def compact(table: Table) -> Table:
    """The same table with its codes column by column, in the narrowest whole numbers that hold them all."""
    codes = np.empty(table.codes.shape[::-1], code_type(table.schema)).T
    codes[...] = table.codes
    return dataclasses.replace(table, codes=codes)


def read_coded(path: str | Path, schema: Schema, *, also: tuple[str, ...] = ()) -> tuple[Table, pa.Table]:
    """The rows of a file or folder by their codes, in the order of the file, and the columns in `also` as they stand there.

    The table has no `frame`: what stood in the file is not kept.
    """
    return _gathered(stream_frames(path, schema, also=also), schema, also, rows_of(path), str(path))


def code_frame(frame: pa.Table, schema: Schema) -> Table:
    """The rows of a frame by their codes alone, encoded as `read_coded` does it."""
    pieces = (frame.slice(start, ROWS) for start in range(0, max(1, frame.num_rows), ROWS))
    return _gathered(pieces, schema, (), frame.num_rows, "the table")[0]


def _gathered(
    frames: Iterable[pa.Table], schema: Schema, also: tuple[str, ...], known: int | None, name: str
) -> tuple[Table, pa.Table]:
    codes = np.empty((FIRST_ROOM if known is None else known, len(schema.columns)), code_type(schema))
    moved: collections.Counter[str] = collections.Counter()
    rows, others = 0, []
    for piece, kept in _encoded(frames, schema, also, name):
        if rows + len(piece) > len(codes):
            codes = _with_room(codes, rows + len(piece))
        codes[rows : rows + len(piece)] = piece.codes
        rows += len(piece)
        moved.update(piece.clipped)
        others.append(kept)
    if rows == 0:
        raise DataError(f"{name} has no rows; expected at least one")
    if rows < len(codes):
        codes = codes[:rows].copy()
    frame = pa.concat_tables(others, promote_options="permissive") if also else pa.table({})
    return Table(schema=schema, codes=codes, frame=pa.table({}), clipped=dict(moved)), frame


def _with_room(codes: NumpyArray, rows: int) -> NumpyArray:
    """The same codes with room for more; memory is moved by the operating system where it can."""
    codes.resize((max(rows, int(GROWTH * len(codes))), codes.shape[1]), refcheck=False)
    return codes


def _encoded(
    frames: Iterable[pa.Table], schema: Schema, also: tuple[str, ...], name: str
) -> Iterator[tuple[Table, pa.Table]]:
    """Every piece encoded, in order; a few are worked on at a time."""
    threads = os.cpu_count() or 1
    waiting: collections.deque[Future[tuple[Table, pa.Table]]] = collections.deque()
    start = 0
    with ThreadPoolExecutor(threads) as pool:
        try:
            for frame in frames:
                if not frame.num_rows:
                    continue
                waiting.append(pool.submit(_piece, frame, schema, also, start, name))
                start += frame.num_rows
                if len(waiting) > threads + 1:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _piece(frame: pa.Table, schema: Schema, also: tuple[str, ...], start: int, name: str) -> tuple[Table, pa.Table]:
    try:
        return make_table(frame, schema), frame.select(list(also))
    except DataError as error:
        where = f" (rows counted from row {start + 1:,} of {name} on)" if start else ""
        raise DataError(f"{error}{where}") from None
