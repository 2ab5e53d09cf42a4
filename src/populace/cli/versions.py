"""`populace --version`: what a report of a bug needs, from what is installed, without importing any of it."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Mapping

from populace.version import __version__

LIBRARIES = ("jax", "jaxlib", "numpy", "pyarrow", "dp-accounting", "scikit-learn", "typer")
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "papers": ("matplotlib",),
    "federation": ("nvflare", "psutil"),
    "collector": ("starlette", "uvicorn", "psycopg"),
    "databases": ("duckdb", "adbc-driver-postgresql"),
}
MISSING = "not installed"


def installed(name: str) -> str:
    """A package's version, or that there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return MISSING


def version_lines() -> list[str]:
    """populace, Python and the machine, the libraries that results depend on, and which extras are there."""
    lines = [f"populace {__version__}", f"python {platform.python_version()} ({platform.python_implementation()})"]
    lines.append(f"platform {re.sub('[^!-~]+', ' ', platform.platform())}")
    lines += [f"{name} {installed(name)}" for name in LIBRARIES]
    for extra, names in EXTRAS.items():
        found = {name: installed(name) for name in names}
        if MISSING in found.values():
            lacking = ", ".join(name for name, version in found.items() if version == MISSING)
            lines.append(f"extra {extra}: {MISSING} (lacks {lacking}); pip install 'populace[{extra}]'")
        else:
            lines.append(f"extra {extra}: {', '.join(f'{name} {version}' for name, version in found.items())}")
    return lines
