"""Arrow and Parquet that were damaged: a sentence, never a dead process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from populace.border.columnar import (
    arrow_batches,
    arrow_schema,
    parquet_batches,
    parquet_facts,
    read_arrow,
    read_parquet,
)
from populace.errors import DataError
from populace.tables.reading import read_frame
from populace.tables.reports import report_batches

ROWS = 200
READ = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from damage import read_all
from populace.border.columnar import arrow_batches, parquet_batches
from populace.tables.proposal import propose
from populace.tables.reading import read_frame
from populace.tables.table import make_table

def read(path):
    frame = read_frame(path)
    for column in frame.columns:
        column.combine_chunks()
        str(column)
    batches = parquet_batches if path.suffix == ".parquet" else arrow_batches
    for batch in batches(path, columns=frame.column_names[:2]):
        batch.to_pydict()
    plain = frame.drop_columns([name for name in ("list", "struct") if name in frame.column_names])
    make_table(plain, propose(plain).schema)

path = Path(sys.argv[1])
read_all(read, path.with_name("damaged" + path.suffix), path.read_bytes(), range(int(sys.argv[2]), int(sys.argv[3])))
"""


def table() -> pa.Table:
    draw = np.random.default_rng(0)
    words = [f"w{i % 7}" if i % 5 else None for i in range(ROWS)]
    return pa.table({
        "whole": pa.array(draw.integers(0, 9, ROWS), mask=draw.random(ROWS) < 0.2), "number": draw.normal(size=ROWS),
        "text": words, "coded": pa.array(words).dictionary_encode(), "truth": draw.random(ROWS) < 0.5,
        "list": [[1, 2] if i % 3 else None for i in range(ROWS)], "struct": [{"x": i, "y": str(i)} for i in range(ROWS)],
        "day": pa.array(range(ROWS), pa.date32()),
    })  # fmt: skip


def written(folder: Path, kind: str, compression: str | None) -> Path:
    path = folder / f"good.{kind}"
    if kind == "parquet":
        pq.write_table(table(), path, compression=compression or "none", row_group_size=90)
    else:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(path, table().schema, options=options) as writer:
            writer.write_table(table(), max_chunksize=70)
    return path


@pytest.mark.parametrize(
    ("kind", "compression"), [("arrow", None), ("arrow", "lz4"), ("arrow", "zstd"), ("parquet", "zstd")]
)
def test_damaged_files_end_in_a_sentence_and_not_in_a_crash(kind: str, compression: str | None, tmp_path: Path) -> None:
    path = written(tmp_path, kind, compression)
    program = READ.format(root=str(Path(__file__).parents[2]))
    done = subprocess.run(
        [sys.executable, "-c", program, str(path), "0", "60"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"at seed {done.stdout.split()[-1:]}: {done.stderr[-2000:]}"
    assert done.stdout.split()[-1] == "59"


def test_what_full_validation_finds(tmp_path: Path) -> None:
    """Codes beyond their list, offsets beyond their buffer: what crashes readers that trust a file."""
    codes = pa.DictionaryArray.from_arrays(pa.array([0, 1, 7], pa.int32()), pa.array(["a", "b"]), safe=False)
    offsets = pa.py_buffer(np.array([0, 2, 100_000_000, 3], np.int32).tobytes())
    text = pa.StringArray.from_buffers(3, offsets, pa.py_buffer(b"abc"))
    for name, column in (("codes", codes), ("text", text)):
        path = tmp_path / f"{name}.arrow"
        frame = pa.table({"report": column})
        with pa.ipc.new_file(path, frame.schema) as writer:
            writer.write_table(frame)
        for read in (
            read_frame,
            read_arrow,
            lambda at: list(arrow_batches(at)),
            lambda at: list(report_batches([at], width=3)),
        ):
            with pytest.raises(DataError, match="cannot read"):
                read(path)


def test_rows_that_no_file_of_this_size_holds(tmp_path: Path) -> None:
    """A column of nothing has any length for free."""
    path = tmp_path / "nothing.arrow"
    batch = pa.record_batch([pa.nulls(2**31 - 1)], names=["a"])
    with pa.ipc.new_file(path, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(DataError, match="announces 2,147,483,647 cells"):
        read_frame(path)


@pytest.mark.parametrize(
    "kind", [pa.date32(), pa.date64(), *(pa.timestamp(unit) for unit in ("s", "ms", "us"))], ids=str
)
def test_dates_beyond_the_calendar(kind: pa.DataType, tmp_path: Path) -> None:
    per_day = {"date32[day]": 1, "date64[ms]": 86_400_000}.get(str(kind)) or 86_400 * 1000 ** ("s", "ms", "us").index(
        kind.unit
    )
    for day, good in ((2_932_896, True), (2_932_897, False), (-719_162, True), (-719_163, False)):
        column = pa.array([0, day * per_day], pa.int32() if pa.types.is_date32(kind) else pa.int64()).view(kind)
        with pa.ipc.new_file(tmp_path / "d.arrow", pa.schema([("when", kind)])) as writer:
            writer.write_table(pa.table({"when": column}))
        if good:
            assert read_frame(tmp_path / "d.arrow").num_rows == 2
        else:
            with pytest.raises(DataError, match="'when' holds dates outside the years 1 to 9999"):
                read_frame(tmp_path / "d.arrow")


def test_a_few_columns_are_as_good_as_all(tmp_path: Path) -> None:
    for kind, read, batches, names in (
        ("arrow", read_arrow, arrow_batches, lambda at: arrow_schema(at).names),
        ("parquet", read_parquet, parquet_batches, lambda at: parquet_facts(at)[0].names),
    ):
        path = written(tmp_path, kind, "zstd")
        assert names(path) == table().column_names
        assert read(path).equals(table()) or kind == "parquet"
        some = pa.Table.from_batches(list(batches(path, columns=["coded", "whole"])))
        assert some.to_pydict() == table().select(["coded", "whole"]).to_pydict()
    assert parquet_facts(path)[1] == ROWS


def test_too_many_columns(tmp_path: Path) -> None:
    frame = pa.table({f"c{i}": [1] for i in range(2**14 + 1)})
    with pa.ipc.new_file(tmp_path / "wide.arrow", frame.schema) as writer:
        writer.write_table(frame)
    with pytest.raises(DataError, match="at most 16,384 columns"):
        read_frame(tmp_path / "wide.arrow")
