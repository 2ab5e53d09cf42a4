"""A file in pieces holds what it holds in one."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from populace.errors import DataError, InputError
from populace.tables import stream
from populace.tables.table import make_table, read_table


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_pieces_are_the_whole(suffix, small_table, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "CSV_BLOCK", 2_000)
    path = tmp_path / f"small.{suffix}"
    small_table.save(path)
    pieces = list(stream.stream_frames(path, small_table.schema, rows=100))
    assert len(pieces) >= 6
    assert max(piece.num_rows for piece in pieces) <= 100
    codes = np.concatenate([make_table(piece, small_table.schema).codes for piece in pieces])
    assert np.array_equal(codes, read_table(path, small_table.schema).codes)


def test_other_columns_are_left_out_and_named_ones_kept(small_table, tmp_path):
    frame = small_table.frame.append_column("who", pa.array([f"{i:03d}" for i in range(len(small_table))]))
    for name in ("x.csv", "x.parquet"):
        from populace.tables.table import write_frame

        write_frame(frame.append_column("noise", pa.array(range(len(small_table)))), tmp_path / name)
        piece = next(stream.stream_frames(tmp_path / name, small_table.schema, also=("who",)))
        assert piece.column_names == [*small_table.schema.names, "who"]
        assert piece.column("who")[7].as_py() == "007"


def test_what_cannot_be_read_is_one_sentence(small_table, tmp_path):
    schema = small_table.schema
    pq.write_table(small_table.frame.drop_columns(["size"]), tmp_path / "less.parquet")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    cases = {
        "none.parquet": (InputError, "no file"),
        "less.parquet": (DataError, "no column 'size'"),
        "cut.parquet": (DataError, "cannot read"),
        "x.txt": (InputError, "expected a table in one of"),
    }
    for name, (kind, sentence) in cases.items():
        with pytest.raises(kind, match=sentence):
            list(stream.stream_frames(tmp_path / name, schema))
