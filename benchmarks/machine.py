"""What a benchmark stores beside its figures: the machine, its load, and the versions of what ran."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

PACKAGES = ("jax", "jaxlib", "numpy", "torch", "pure-ldp", "multi-freq-ldpy", "mbi")


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> dict[str, Any]:
    """The machine as it is now; packages that are not installed are left out."""
    return {
        "system": platform.system(),
        "processor": _processor(),
        "cores": usable_cores(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := version_of(name))},
    }


def version_of(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
