"""Arrays from npz files. A header may announce any shape: each is checked against what is stored before memory is taken."""

from __future__ import annotations

import contextlib
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from populace.border.regular import first_line, open_regular
from populace.errors import PopulaceError, RunError
from populace.types import NumpyArray

MOST_HEADER = 10_000  # characters of one array's header
DEFLATE = 1032  # the most bytes that one byte of a deflated stream can stand for
#: What the libraries raise on damaged archives and headers.
DAMAGED = (
    OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, SyntaxError, OverflowError, RecursionError,
    MemoryError, RuntimeError, NotImplementedError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

#: Chooses, from the names in a file, those to read.
Choose = Callable[[Sequence[str]], Sequence[str]]


class _ForgedError(ValueError):
    """An archive whose words about itself contradict each other."""


def read_arrays(path: Path, *, choose: Choose = tuple, error: type[PopulaceError] = RunError) -> dict[str, NumpyArray]:
    """The arrays of an npz file, or those of them that are chosen; never anything that would have to be unpickled."""
    with _opened(path, error) as archive:
        members = _members(archive)
        chosen = [members[name] for name in choose(tuple(members))]
        _check_total(chosen)
        return {member.filename.removesuffix(".npy"): _read(archive, member) for member in chosen}


def array_shapes(path: Path, *, error: type[PopulaceError] = RunError) -> dict[str, tuple[int, ...]]:
    """The shapes that the headers of an npz file's arrays announce; no number of theirs is read."""
    shapes = {}
    with _opened(path, error) as archive:
        for name, member in _members(archive).items():
            with archive.open(member) as stream:
                shapes[name] = _header(stream)[0]
    return shapes


@contextlib.contextmanager
def _opened(path: Path, error: type[PopulaceError]) -> Iterator[zipfile.ZipFile]:
    """An npz file; whatever the libraries say of a damaged one becomes one sentence."""
    with open_regular(path, error=error) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                yield archive
        except PopulaceError:
            raise
        except DAMAGED as reason:
            words = first_line(str(reason)) or type(reason).__name__
            raise error(
                f"cannot read {path}: {words}; the file may be truncated, damaged or of another format"
            ) from reason


def memory_of_machine() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name == member.filename or name in members:
            raise _ForgedError(f"expected arrays, each under a name of its own, got {member.filename!r}")
        if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _ForgedError(f"expected arrays stored or deflated, got {name!r} packed otherwise")
        members[name] = member
    return members


def _check_total(members: Sequence[zipfile.ZipInfo]) -> None:
    for member in members:
        if member.file_size > DEFLATE * (member.compress_size + 1):
            raise _ForgedError(
                f"array {member.filename!r} announces more bytes than its {member.compress_size:,} can hold"
            )
    total, most = sum(member.file_size for member in members), memory_of_machine()
    if total > most:
        raise _ForgedError(f"expected arrays that fit into this machine's memory of {most:,} bytes, got {total:,}")


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NumpyArray:
    with archive.open(member) as stream:
        shape, dtype = _header(stream)
        count = math.prod(shape)
        if stream.tell() + count * dtype.itemsize != member.file_size:
            raise _ForgedError(
                f"array {member.filename!r} announces {dtype} of shape {shape}, which {member.file_size:,} bytes are not"
            )
    with archive.open(member) as stream:
        array: NumpyArray = np.lib.format.read_array(stream, allow_pickle=False, max_header_size=MOST_HEADER)
        if stream.read(1):
            raise _ForgedError(
                f"array {member.filename!r} goes on after its end"
            )  # reading on also compares the checksum
    return array


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and the type of one array."""
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise _ForgedError(f"expected arrays in version 1 or 2 of their format, got {version}")
    shape, _, dtype = readers[version](stream, max_header_size=MOST_HEADER)
    if dtype.hasobject:
        raise _ForgedError("Object arrays cannot be loaded: they hold code; expected numbers or text")
    if dtype.itemsize == 0:
        raise _ForgedError(f"expected arrays of numbers or text, got {dtype}")
    if any(isinstance(length, bool) or length < 0 for length in shape):
        raise _ForgedError(f"expected lengths of at least 0, got the shape {shape}")
    return shape, dtype
