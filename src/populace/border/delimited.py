"""The beginnings of CSV files: the delimiter and the header's names, in bounded memory; and lines that do not fit it."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from pathlib import Path

from populace.border.columnar import MOST_COLUMNS
from populace.border.regular import open_regular
from populace.errors import DataError

DELIMITERS = (",", ";", "\t", "|")
MARKS = 4  # bytes that are enough to tell UTF-16 by its zeros
SNIFFED = 2**16  # bytes looked at for the delimiter
MOST_LINE = 2**20  # bytes of the header, and characters of a line; Arrow's reader has the same limit


def sniffed_delimiter(path: Path) -> str:
    """Comma, semicolon, tab or bar: the one that stands most often in the header, outside quotes."""
    begun = _begin(path, SNIFFED)
    if len(begun) >= MARKS and not (any(begun[::2]) and any(begun[1::2])):
        raise DataError(
            f"cannot read {path}: every other byte is zero, so it is not UTF-8 text; save it as CSV in UTF-8"
        )
    header = begun.decode("utf-8", errors="replace").lstrip("\ufeff\r\n")
    outside = "".join(header.split('"')[::2]).replace("\r", "\n").split("\n")
    first = outside[0] if outside else ""
    return max(DELIMITERS, key=first.count)


def csv_names(path: Path, delimiter: str) -> list[str]:
    """The header's names."""
    begun = _begin(path, MOST_LINE + 1)
    too_long = f"cannot read {path}: its header is longer than {MOST_LINE:,} bytes; expected names in one line"
    if len(begun) > MOST_LINE and not (b"\n" in begun or b"\r" in begun):
        raise DataError(too_long)
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(begun, final=len(begun) <= MOST_LINE)
        lines = io.StringIO(text, newline="")
        names = next(csv.reader(lines, delimiter=delimiter), [])
    except UnicodeDecodeError as reason:
        raise DataError(f"cannot read {path}: it is not UTF-8 text; save it as CSV in UTF-8") from reason
    except csv.Error as reason:
        raise DataError(f"cannot read {path}: {reason}; the file may be of another format") from None
    if len(begun) > MOST_LINE and not lines.read(1):
        raise DataError(too_long)
    if len(names) > MOST_COLUMNS:
        raise DataError(f"cannot read {path}: expected at most {MOST_COLUMNS:,} columns, got {len(names):,}")
    return names


def odd_line(path: Path) -> str:
    """The first line of a CSV with another number of fields than the header, in words; its content is not repeated."""
    with open_regular(path, error=DataError) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(_lines(file), delimiter=sniffed_delimiter(path))
        wanted, begun = 0, 1
        try:
            for row in rows:
                if row and not wanted:
                    wanted = len(row)
                elif row and len(row) != wanted:
                    return f"line {begun} has {len(row)} field{'s' * (len(row) != 1)}, the header {wanted}"
                begun = rows.line_num + 1
        except _LongLineError:
            return f"line {rows.line_num + 1} is longer than {MOST_LINE:,} characters"
        except (csv.Error, UnicodeDecodeError):
            return ""
    return ""


class _LongLineError(Exception):
    """A line beyond the limit."""


def _lines(file: io.TextIOWrapper) -> Iterator[str]:
    while line := file.readline(MOST_LINE + 1):
        if len(line) > MOST_LINE:
            raise _LongLineError
        yield line


def _begin(path: Path, length: int) -> bytes:
    with open_regular(path, error=DataError) as file:
        return file.read(length)
