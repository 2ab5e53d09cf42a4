"""CSV: lines and headers of any length in bounded memory."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from damage import read_all
from populace.border.delimited import csv_names
from populace.errors import DataError
from populace.tables.reading import read_frame
from populace.tables.schema import schema_from_dict
from populace.tables.stream import stream_frames


def column(name: str) -> dict[str, object]:
    return {"name": name, "kind": "categorical", "categories": ["1", "2"], "source": "test"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x" * 30_000_000, "longer than 1,048,576 bytes"),
        (b"a,b\n1,2\n" + b"x" * 30_000_000 + b",2\n", "line 3 is longer than 1,048,576"),
        (b",".join(b"c%d" % i for i in range(100_000)) + b"\n", "at most 16,384 columns"),
        ("a,b\n1,2\n".encode("utf-16-le"), "every other byte is zero"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-8"),
        ("ä,b\n1,2\n".encode("latin-1"), "UTF-8"),
        (b'"' + b"x" * 200_000 + b'",b\n1,2\n', "field larger than field limit"),
    ],
    ids=[
        "no line's end",
        "a long line",
        "many columns",
        "UTF-16",
        "UTF-16 with a mark",
        "Latin-1",
        "a long name",
    ],
)
def test_texts_that_are_no_tables(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=words) as caught:
        read_frame(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    with pytest.raises(DataError):
        list(stream_frames(path, schema_from_dict({"format": 2, "column": [column("a"), column("b")]})))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes


def test_a_header_may_hold_line_ends_and_be_cut_inside_a_letter(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('"a\nb",c\n1,2\n', encoding="utf-8")
    assert csv_names(tmp_path / "t.csv", ",") == ["a\nb", "c"]
    (tmp_path / "u.csv").write_text("a,b\n" + "ä" * 600_000 + ",2\n", encoding="utf-8")
    assert csv_names(tmp_path / "u.csv", ",") == ["a", "b"]


def test_damaged_text_is_read_or_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f'{i},"wörd {i % 3}",{i / 7:.3f}\n' for i in range(60))
    read_all(read_frame, tmp_path / "t.csv", ("a,b,c\n" + rows).encode(), range(150))
    assert capsys.readouterr().out.endswith("149\n")
