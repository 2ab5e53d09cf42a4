"""Damage to files: seeded, so that a case can be had again."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

from populace.errors import PopulaceError

ENDS = (b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f", (2**31 - 1).to_bytes(8, "little"), (2**40).to_bytes(8, "little"))


def mutated(content: bytes, seed: int) -> bytes:
    """The content with some bytes changed, cut off, taken out, or copied elsewhere."""
    draw, damaged = random.Random(seed), bytearray(content)
    kind, at = draw.choice(["bytes", "bytes", "bytes", "cut", "number", "gap", "copy"]), draw.randrange(len(content))
    if kind == "bytes":
        for _ in range(draw.choice((1, 1, 2, 4, 16))):
            damaged[draw.randrange(len(content))] = draw.randrange(256)
    elif kind == "cut":
        del damaged[at:]
    elif kind == "number":
        damaged[at : at + 8] = draw.choice(ENDS)
    elif kind == "gap":
        del damaged[at : at + draw.randrange(1, 40)]
    else:
        start, length = draw.randrange(len(content)), draw.randrange(1, 64)
        damaged[at : at + length] = content[start : start + length]
    return bytes(damaged)


def read_all(read: Callable[[Path], object], path: Path, content: bytes, seeds: range) -> None:
    """Read many mutations; each is read, or refused in a sentence. Says which one it is at, in case the process dies."""
    for seed in seeds:
        path.write_bytes(mutated(content, seed))
        sys.stdout.write(f"{seed}\n")
        sys.stdout.flush()
        try:
            read(path)
        except PopulaceError as error:
            if "\n" in str(error):
                raise RuntimeError(f"seed {seed}: {error} is more than one sentence") from error
