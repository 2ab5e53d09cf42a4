"""npz: what a header announces is checked before memory is taken for it."""

from __future__ import annotations

import io
import resource
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from damage import read_all
from populace.border.arrays import memory_of_machine, read_arrays
from populace.errors import DataError, RunError
from populace.tables.images import read_images


def header(shape: str, dtype: str = "<f8", *, version: bytes = b"\x01\x00") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text.encode()


def archive(path: Path, *members: tuple[str, bytes], packing: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", packing) as packed:
        for name, content in members:
            packed.writestr(name, content)
    return path


WRONG = {
    "a huge shape": header("(1000000000000,)"),
    "lengths whose product overflows": header("(4294967296, 4294967296, 4294967296)"),
    "a negative length": header("(-1,)") + bytes(8),
    "a truth value as a length": header("(True,)") + bytes(8),
    "text without length": header("(1000000000000000,)", "<U0"),
    "fewer bytes than announced": header("(3,)") + bytes(16),
    "more bytes than announced": header("(1,)") + bytes(16),
    "objects": header("(1,)", "|O") + bytes(8),
    "a cut header": header("(1,)")[:40],
    "no header": b"abc",
    "nothing": b"",
    "deep brackets": header("(" * 3_000 + ")" * 3_000),
    "another version": header("(1,)", version=b"\x09\x00") + bytes(8),
    "no dtype": header("(1,)", "nonsense") + bytes(8),
}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_what_a_header_may_not_announce(content: bytes, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for packing in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        path = archive(tmp_path / "a.npz", ("x.npy", content), packing=packing)
        with pytest.raises(RunError, match=r"cannot read .*a.npz: .*truncated") as caught:
            read_arrays(path)
        assert "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_archives_that_are_none(tmp_path: Path) -> None:
    good = header("(1,)") + bytes(8)
    other = archive(tmp_path / "other.npz", ("x.txt", b"words"))
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = archive(tmp_path / "twice.npz", ("x.npy", good), ("x.npy", good))
    packed = archive(tmp_path / "packed.npz", ("x.npy", good), packing=zipfile.ZIP_LZMA)
    (tmp_path / "raw.npz").write_bytes(good)
    for path in (other, twice, packed, tmp_path / "raw.npz"):
        with pytest.raises(RunError, match="cannot read"):
            read_arrays(path)


def test_a_small_file_does_not_become_larger_than_the_machine(tmp_path: Path) -> None:
    """The words of the central directory are forged: more than there is memory, and more than deflate can hold."""
    path = archive(tmp_path / "bomb.npz", ("x.npy", header("(2,)") + bytes(16)))
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", 2**32 - 2)
    path.write_bytes(content)
    with pytest.raises(RunError, match="announces more bytes than its"):
        read_arrays(path)
    content[entry + 20 : entry + 24] = struct.pack("<I", 2**31)
    path.write_bytes(content)
    with pytest.raises(RunError, match="cannot read"):
        read_arrays(path)
    assert memory_of_machine() > 2**28


def test_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6.0).reshape(2, 3), "b": np.asfortranarray(np.arange(6).reshape(2, 3)), "c": np.array(["ä", "bc"]),
        "d": np.array(True), "e": np.zeros((0, 5), np.uint8),
    }  # fmt: skip
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        found = read_arrays(tmp_path / "a.npz")
        assert set(found) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype
    assert list(read_arrays(tmp_path / "a.npz", choose=lambda names: [n for n in names if n == "c"])) == ["c"]


def test_what_is_not_chosen_is_not_read(tmp_path: Path) -> None:
    pixels, labels = io.BytesIO(), io.BytesIO()
    np.save(pixels, np.zeros((3, 4, 4), np.uint8))
    np.save(labels, np.array([0, 1, 1]))
    path = archive(
        tmp_path / "i.npz",
        ("x.npy", pixels.getvalue()),
        ("y.npy", labels.getvalue()),
        ("z.npy", header("(10000000000,)")),
    )
    assert len(read_images(path)) == 3
    with pytest.raises(DataError, match="cannot read"):
        read_arrays(path, error=DataError)


def test_damaged_archives_are_refused_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.arange(50.0), b=np.arange(20, dtype=np.int32))
    read_all(read_arrays, tmp_path / "b.npz", (tmp_path / "a.npz").read_bytes(), range(200))
    assert capsys.readouterr().out.endswith("199\n")
