"""Writing files so that a crash or a full disk leaves either the old file or the new one, never a part.

Reading them is the border's part; `read_json` and `read_arrays` are its readers.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from populace.border.arrays import read_arrays as read_arrays
from populace.border.documents import read_json as read_json
from populace.border.regular import check_output
from populace.errors import RunError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; on success it is flushed to disk and renamed to `path`, on failure removed."""
    check_output(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}; nothing was left under that name") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    with replacing(path) as temporary:
        temporary.touch(mode=mode)
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, document: object, *, mode: int = 0o644) -> None:
    write_text(path, json.dumps(document, indent=2, ensure_ascii=False, allow_nan=True) + "\n", mode=mode)
