"""Opening files, and files alone: a pipe would be waited on for ever, and a device has no end.

`what` stands before the file's name in a sentence: "the schema ".
"""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path
from typing import IO, TextIO

from populace.errors import PopulaceError, RunError

PIECE = 2**20
MOST_BYTES = 2**28  # of a file that is read whole
KINDS = {
    stat.S_IFDIR: "Is a directory",
    stat.S_IFIFO: "Is a pipe",
    stat.S_IFSOCK: "Is a socket",
    stat.S_IFCHR: "Is a device",
    stat.S_IFBLK: "Is a device",
}


def check_regular(path: Path, *, error: type[PopulaceError] = RunError, what: str = "") -> os.stat_result:
    """What the system says about a file; one that is not there, or is no file, is refused without opening it."""
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        raise error(f"no file {path}") from None
    except (OSError, ValueError) as reason:  # ValueError: a name with a zero byte in it
        raise cannot_read(path, reason, error=error, what=what) from reason
    _check_kind(path, facts, error, what)
    return facts


def open_regular(path: Path, *, error: type[PopulaceError] = RunError, what: str = "") -> io.BufferedReader:
    """An open file; a pipe is not waited for, whenever it took the file's place."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise error(f"no file {path}") from None
    except (OSError, ValueError) as reason:
        raise cannot_read(path, reason, error=error, what=what) from reason
    try:
        _check_kind(path, os.fstat(number), error, what)
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def open_output(path: Path, *, error: type[PopulaceError] = RunError) -> TextIO:
    """A file that is written to at its end: a lock, a log. A pipe that nobody reads is not waited for."""
    try:
        number = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666
        )
    except (OSError, ValueError) as reason:
        words = reason.strerror if isinstance(reason, OSError) else str(reason)
        raise error(f"cannot write {path}: {words}") from reason
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise error(f"cannot write {path}: {_kind(os.fstat(number))}; expected the name of a file")
        return os.fdopen(number, "a", encoding="utf-8")
    except BaseException:
        os.close(number)
        raise


def check_output(path: Path, *, error: type[PopulaceError] = RunError) -> None:
    """Refuse to write over what is no file: a folder, a pipe, a device."""
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        return  # nothing there, or nothing that can be seen: writing says what is wrong
    if not stat.S_ISREG(facts.st_mode):
        raise error(f"cannot write {path}: {_kind(facts)}; expected the name of a file")


def read_bytes(path: Path, *, most: int = MOST_BYTES, error: type[PopulaceError] = RunError, what: str = "") -> bytes:
    """All of a file of at most `most` bytes."""
    try:
        with open_regular(path, error=error, what=what) as file:
            content = _content(file, most)
    except OSError as reason:
        raise cannot_read(path, reason, error=error, what=what) from reason
    if len(content) > most:
        raise error(
            f"cannot read {what}{path}: expected at most {most:,} bytes, got more; it is not a file of this kind"
        )
    return content


def _content(file: IO[bytes], most: int) -> bytes:
    """What stands in a file up to one byte more than `most`; memory is taken for its size, not for all it might have been."""
    content = file.read(min(os.fstat(file.fileno()).st_size, most) + 1)
    while len(content) <= most and (
        more := file.read(min(PIECE, most + 1 - len(content)))
    ):  # it grew, or tells no size
        content += more
    return content


def read_text(path: Path, *, most: int = MOST_BYTES, error: type[PopulaceError] = RunError, what: str = "") -> str:
    """All of a text file in UTF-8, of at most `most` bytes."""
    content = read_bytes(path, most=most, error=error, what=what)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as reason:
        raise error(
            f"cannot read {what}{path}: it is not UTF-8 text (byte {reason.start:,}); save it in UTF-8"
        ) from reason


def cannot_read(path: Path, reason: Exception, *, error: type[PopulaceError], what: str = "") -> PopulaceError:
    """The sentence for a file that the system, or a library, could not read."""
    words = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    return error(f"cannot read {what}{path}: {first_line(words) or type(reason).__name__}")


def first_line(words: str, *, most: int = 300) -> str:
    """The first line of what a library said, not too long to read."""
    lines = words.strip().splitlines()
    line = lines[0] if lines else ""
    return line if len(line) <= most else f"{line[:most]} ..."


def _check_kind(path: Path, facts: os.stat_result, error: type[PopulaceError], what: str) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise error(f"cannot read {what}{path}: {_kind(facts)}; expected a file")


def _kind(facts: os.stat_result) -> str:
    return KINDS.get(stat.S_IFMT(facts.st_mode), "Is no file")
