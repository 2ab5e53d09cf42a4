"""Files of randomised reports: written and read batch by batch, so that ten million answers need the memory of one batch.

A file (Parquet or Arrow) has a column `report`, one row per answer:

    whole numbers                     one value told (randomised response)
    fixed-size lists of whole numbers a few numbers (a hash's seed and value)
    fixed-size binary                 a row of bits, eight to a byte, first bit highest (unary, subset selection, RAPPOR)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from populace.border.columnar import arrow_batches, arrow_schema, parquet_batches, parquet_facts
from populace.border.regular import check_regular
from populace.errors import DataError, InputError
from populace.tables.files import replacing
from populace.types import NumpyArray

COLUMN = "report"
BATCH = 2**16
SUFFIXES = (".parquet", ".arrow", ".feather")


def write_reports(path: str | Path, batches: Iterable[NumpyArray]) -> int:
    """Batches of reports into one Parquet file; rows of booleans are packed. Returns how many were written."""
    path, written = Path(path), 0
    with replacing(path) as temporary:
        writer: Any = None
        try:
            for batch in batches:
                column = pack(np.asarray(batch))
                if writer is None:
                    schema = pa.schema([pa.field(COLUMN, column.type)])
                    writer = pyarrow.parquet.ParquetWriter(temporary, schema, compression="zstd")
                writer.write_table(pa.table({COLUMN: column}), row_group_size=BATCH)
                written += len(column)
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            raise DataError(f"there are no reports to write into {path}")
    return written


def pack(reports: NumpyArray) -> pa.Array:
    """A batch of reports as an Arrow column."""
    if reports.dtype == bool:
        packed = np.packbits(reports, axis=1)
        return pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(packed.shape[1]), len(packed), [None, pa.py_buffer(np.ascontiguousarray(packed))]
        )
    if reports.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(reports.reshape(-1)), reports.shape[1])
    return pa.array(reports)


def report_batches(paths: Sequence[str | Path], *, width: int, rows: int = BATCH) -> Iterator[NumpyArray]:
    """The reports of these files, in order, at most `rows` at a time; rows of bits come back as `width` booleans."""
    for path in map(Path, paths):
        for column in _columns(path, rows):
            yield unpack(column, width, path)


def unpack(column: Any, width: int, path: Path) -> NumpyArray:
    """A column of reports as an array; what no client could have sent is for the oracle to refuse."""
    if column.null_count:
        raise DataError(f"{path} has rows without a report; remove them")
    kind = column.type
    if pa.types.is_integer(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if pa.types.is_fixed_size_list(kind) and pa.types.is_integer(kind.value_type):
        return np.asarray(column.flatten().to_numpy(zero_copy_only=False).reshape(-1, kind.list_size))
    if pa.types.is_fixed_size_binary(kind):
        if kind.byte_width != -(-width // 8):
            raise DataError(f"expected reports of {-(-width // 8)} bytes in {path}, got {kind.byte_width}")
        raw = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, kind.byte_width)
        raw = raw[column.offset : column.offset + len(column)]
        return np.unpackbits(raw, axis=1)[:, :width].view(bool)
    raise DataError(
        f"expected whole numbers, lists of them, or fixed-size binary in column 'report' of {path}, got {kind}"
    )


def _columns(path: Path, rows: int) -> Iterator[Any]:
    if path.suffix not in SUFFIXES:
        raise InputError(f"expected a file of reports in one of {', '.join(SUFFIXES)}, got {path}")
    check_regular(path, error=InputError)
    parquet = path.suffix == ".parquet"
    names = (parquet_facts(path)[0] if parquet else arrow_schema(path)).names
    if names.count(COLUMN) != 1:
        how_many = "two columns" if COLUMN in names else "no column"
        raise DataError(f"{path} has {how_many} 'report'; its columns are {', '.join(names)}")
    for batch in (
        parquet_batches(path, columns=[COLUMN], rows=rows) if parquet else arrow_batches(path, columns=[COLUMN])
    ):
        column = batch.column(0)
        yield from (column.slice(start, rows) for start in range(0, len(column), rows))
