"""What the shell offers behind TAB: methods, benchmarks, kinds of trust, run folders. Nothing here loads JAX or reads data."""

from __future__ import annotations

from pathlib import Path

FINISHED = "run.json"
TRUST = {
    "local": "each person's device adds the noise",
    "silo": "the holder of the records adds the noise",
    "secure-sum": "silos add shares of the noise to a sum",
    "central": "a trusted server adds the noise",
}


def methods(incomplete: str) -> list[tuple[str, str]]:
    """Methods whose names begin so, each with its one line."""
    from populace.methods.registry import built_in_facts, offered

    lines = {fact.name: fact.line for fact in built_in_facts()}
    lines |= {one.name: f"from package {one.package}" for one in offered() if not one.problem}
    return [(name, line) for name, line in lines.items() if name.startswith(incomplete)]


def benchmarks(incomplete: str) -> list[str]:
    """Benchmarks whose names begin so."""
    from populace.papers.registry import BENCHMARKS

    return [name for name in BENCHMARKS if name.startswith(incomplete)]


def trust(incomplete: str) -> list[tuple[str, str]]:
    """Kinds of trust that begin so, and who adds the noise."""
    return [(name, meaning) for name, meaning in TRUST.items() if name.startswith(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Folders of runs whose paths begin so; the shell offers files where there is none."""
    head, slash, begins = incomplete.rpartition("/")
    try:
        here = sorted(Path(f"{head}{slash}" or ".").expanduser().iterdir())
        named = [one.name for one in here if one.name.startswith(begins) and (one / FINISHED).is_file()]
    except OSError:
        return []
    return [f"{head}{slash}{name}" for name in named]


def runs_and_methods(incomplete: str) -> list[tuple[str, str]]:
    """Run folders, then methods."""
    return [(path, "a run's folder") for path in runs(incomplete)] + methods(incomplete)
