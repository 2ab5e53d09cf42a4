"""JAX's compiled programs, kept between commands in the user's cache folder, so that the second run compiles little.

A program depends on shapes and settings, never on records: records are its arguments (tests/unit/cli/test_compilation_cache.py
shows that other records need no other program). Whoever can write into the folder decides what this user's commands execute, so
it is used only while it belongs to this user alone. It may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import warnings
from importlib.metadata import version
from pathlib import Path

FOLDER = "POPULACE_CACHE"  # names another folder; "off" keeps nothing
OFF = "off"
MOST_BYTES = 2**29
BROKEN = r"Error (reading|writing) persistent compilation cache entry"


def enable() -> Path | None:
    """Let JAX keep its programs, before it is imported; returns where, or None where nothing is kept.

    A cache that the user has set for JAX itself stays as it is.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or os.environ.get(FOLDER) == OFF:
        return None
    try:
        folder = _folder()
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        for own in (folder.parent, folder):
            own.mkdir(exist_ok=True, mode=0o700)
            if not _is_own(own):
                return None
        prune(folder.parent, most=MOST_BYTES)
    except (OSError, RuntimeError):  # no home, a read-only or foreign one: commands work without
        return None
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = (
        "0"  # many small programs take longer than a few large ones
    )
    os.environ["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"
    _drop_when_broken(folder)
    return folder


def _folder() -> Path:
    """One folder per kind of processor and version of the compiler: code made for one may not run on another."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "populace"
    chosen = Path(os.environ[FOLDER]) if os.environ.get(FOLDER) else home
    made_for = f"{platform.machine()} {_processor()} {version('jax')} {version('jaxlib')}"
    return chosen.absolute() / "compiled" / hashlib.sha256(made_for.encode()).hexdigest()[:16]


def _processor() -> str:
    """What the processor can do, as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return " ".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def _is_own(folder: Path) -> bool:
    """Whether a folder, not a link to one, belongs to this user and opens to nobody else."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077


def prune(folder: Path, *, most: int) -> None:
    """Remove the programs that were written first, until the rest take at most `most` bytes."""
    kept = sorted((file.stat().st_mtime_ns, file.stat().st_size, file) for file in folder.glob("*/*") if file.is_file())
    total = sum(size for _, size, _ in kept)
    for _, size, file in kept:
        if total <= most:
            return
        file.unlink(missing_ok=True)
        total -= size


def _drop_when_broken(folder: Path) -> None:
    """Forget all programs where JAX cannot read one, as after a kill while it was written; JAX itself would keep it."""
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: object) -> None:
        if str(message).startswith(("Error reading persistent", "Error writing persistent")):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        else:
            shown(message, category, filename, lineno, *rest)  # type: ignore[arg-type]

    warnings.showwarning = show  # type: ignore[assignment]
    warnings.filterwarnings("always", message=BROKEN)
