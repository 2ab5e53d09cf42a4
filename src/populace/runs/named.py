"""Data by name, and numbers of things, as they are asked for: known before anything is loaded. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from populace.border.databases.address import is_database, resolved
from populace.errors import SpecError
from populace.methods.facts import Kind

#: What `data` says of rows that were given in Python and stand in no file.
TABLE_IN_MEMORY, IMAGES_IN_MEMORY = "memory:table", "memory:images"
Files = str | Sequence[str]


def files_of(data: Files) -> tuple[str, ...]:
    """The files that these data are, a silo each."""
    return (data,) if isinstance(data, str) else tuple(data)


def kind_of(data: Files) -> Kind:
    """Whether these are tables or images, by the names of the files."""
    images = all(file.endswith(".npz") or file == IMAGES_IN_MEMORY for file in files_of(data))
    return "images" if images else "table"


def check_named_once(files: tuple[str, ...]) -> None:
    """One sentence for a file that is given twice."""
    if (twice := _named_twice(files)) is not None:
        raise SpecError(f"the file {twice} is given twice; each file is a silo of its own: name it once")


def _named_twice(files: tuple[str, ...]) -> str | None:
    """A file that is named twice, whatever links lead there, or once beside its folder: its records would count twice, and be
    protected half as well."""
    names = [resolved(file) for file in files]
    for number, (file, name) in enumerate(zip(files, names, strict=True)):
        if name in names[:number] or (not is_database(file) and str(Path(name).parent) in names):
            return file
    return None


def check_count(name: str, count: object) -> None:
    """One sentence for what is no number of things."""
    if not isinstance(count, int | np.integer) or isinstance(count, bool):
        raise SpecError(f"expected {name} as a whole number, got {count!r}")
    if count < 1:
        raise SpecError(f"expected {name} of at least 1, got {count}")


def check_seed(seed: object) -> None:
    """One sentence for what is no seed; None is one, from the operating system."""
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if seed is not None and not (whole and 0 <= seed < 2**63):  # type: ignore[operator]
        raise SpecError(f"expected a seed in [0, 2^63), got {seed!r}")
