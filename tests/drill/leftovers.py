"""What a drill leaves in its folder: whole files, private secrets, logs without tracebacks that nobody has named."""

from __future__ import annotations

import dataclasses
import json
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

TRACEBACK = "Traceback (most recent call last):"
#: Files that only their owner may read, wherever they appear.
PRIVATE = re.compile(
    r"(ledger\.sqlite.*|data\.json|populace\.json|checkpoint\..*|plan\.json|site\.log|process\.log|sum\.key|.*\.key)"
)
FOLLOWED = ("was the direct cause of the following exception", "another exception occurred")
#: Tracebacks that may be in the logs of FLARE's processes, by what they hold, and what each comes from.
KNOWN: Mapping[str, str] = {
    r"(?s)\A(?!.*populace).*\n(\(cut off\)|\d{4}-\d\d-\d\d [^\n]*)\Z": "FLARE's log, cut off by a full disk or a kill",
    r"(OSError|RunError).*File too large": "a full disk",
}


@dataclasses.dataclass(frozen=True)
class Traceback:
    """One traceback in a log: the file, its last line, all of it."""

    path: Path
    last: str
    text: str


def tracebacks(folder: Path) -> Iterator[Traceback]:
    """All tracebacks in the logs below a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and ("log" in path.name or path.suffix == ".out") and path.suffix in (".txt", ".log", ".out"):
            yield from tracebacks_of(path)


def tracebacks_of(path: Path) -> Iterator[Traceback]:
    """The tracebacks in one log; one with its causes is one."""
    lines = path.read_text(errors="replace").splitlines()
    number = 0
    while number < len(lines):
        if TRACEBACK not in lines[number]:
            number += 1
            continue
        end = _end_of(lines, number)
        while (following := _cause_of(lines, end)) is not None:
            end = _end_of(lines, following)
        last = lines[end] if end < len(lines) else "(cut off)"
        yield Traceback(path=path, last=last.strip(), text="\n".join([*lines[number:end], last]))
        number = end + 1


def _end_of(lines: list[str], begin: int) -> int:
    """The line that says what was raised."""
    end = begin + 1
    while end < len(lines) and (lines[end].startswith((" ", "\t")) or not lines[end].strip()):
        end += 1
    return end


def _cause_of(lines: list[str], end: int) -> int | None:
    """Where the traceback of what followed from this one begins."""
    for number in range(end + 1, min(end + 8, len(lines))):
        if TRACEBACK in lines[number]:
            return number if any(words in line for line in lines[end:number] for words in FOLLOWED) else None
    return None


def check_logs(folder: Path) -> tuple[list[str], Counter[str]]:
    """Tracebacks of no known kind, and how many there are of each known one."""
    unknown, known = [], Counter()
    for one in tracebacks(folder):
        why = next((why for pattern, why in KNOWN.items() if re.search(pattern, one.text)), None)
        if why is None:
            unknown.append(f"{one.path.relative_to(folder)}: {one.last[:200]}")
        else:
            known[why] += 1
    return unknown, known


def secrets(folder: Path) -> dict[Path, int]:
    """Files and folders that others may not read now."""
    return {
        path: stat.S_IMODE(path.stat().st_mode)
        for path in folder.rglob("*")
        if not path.is_symlink() and path.exists() and not stat.S_IMODE(path.stat().st_mode) & 0o077
    }


def check_modes(folder: Path, before: Mapping[Path, int]) -> list[str]:
    """What was private is private, and so is what has a private thing's name."""
    found = [
        f"{path.relative_to(folder)} had mode {mode:o}, and has {stat.S_IMODE(path.stat().st_mode):o}"
        for path, mode in before.items()
        if path.exists() and stat.S_IMODE(path.stat().st_mode) != mode
    ]
    for path in folder.rglob("*"):
        if path.is_file() and PRIVATE.fullmatch(path.name) and stat.S_IMODE(path.stat().st_mode) & 0o077:
            inside = any(
                not stat.S_IMODE(parent.stat().st_mode) & 0o077 for parent in path.parents if folder in parent.parents
            )
            if not inside:
                found.append(f"{path.relative_to(folder)} is readable by others")
    return found


def check_whole(*folders: Path) -> tuple[list[str], int]:
    """Files that cannot be read whole, and how many temporary files killed writers left."""
    broken, temporary = [], 0
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if not path.is_file():
                continue
            if path.name.endswith(".tmp"):
                temporary += 1
            elif path.suffix in (".json", ".head", ".jsonl", ".npz") and not _is_whole(path):
                broken.append(f"{path} is damaged")
    return broken, temporary


def _is_whole(path: Path) -> bool:
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as stored:
                return all(stored[name] is not None for name in stored)
        texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        return all(json.loads(text) is not ... for text in texts)
    except (OSError, ValueError, EOFError, KeyError):
        return False
