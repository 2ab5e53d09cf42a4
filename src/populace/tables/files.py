"""Writing files so that a crash or a full disk leaves either the old file or the new one, never a part."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from populace.errors import RunError
from populace.types import NumpyArray


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; on success it is flushed to disk and renamed to `path`, on failure removed."""
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


def read_arrays(path: Path) -> dict[str, NumpyArray]:
    """All arrays of an npz file; never anything that would have to be unpickled."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return dict(stored)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RunError(f"cannot read {path}: {error}; the file is damaged") from error


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"no file {path}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from error
