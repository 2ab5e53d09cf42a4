"""What commands show: progress bars on a terminal, plain lines elsewhere, and tables that fit."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import typer

from populace.cli import interrupts

SECONDS_BETWEEN_LINES = 5.0


def say(text: str) -> None:
    interrupts.check()
    typer.echo(text)


def say_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


@contextlib.contextmanager
def progress(title: str, each: str = "round") -> Iterator[Callable[[Any], None]]:
    """A callback for engine progress: a rich bar on a terminal, a plain line now and then elsewhere."""
    if not sys.stderr.isatty():
        yield _plain(title, each)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def update(at: Any) -> None:
            interrupts.check()
            bar.update(task, completed=at.done, total=at.total)

        yield update


def _plain(title: str, each: str) -> Callable[[Any], None]:
    last = time.monotonic()

    def report(at: Any) -> None:
        nonlocal last
        interrupts.check()
        if at.done == at.total or time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            typer.echo(f"{title}: {each} {at.done:,} of {at.total:,}, {at.clients:,} replies", err=True)

    return report


@contextlib.contextmanager
def steps(title: str) -> Iterator[Callable[[Any], None]]:
    """A callback for the cells of a benchmark: a rich bar on a terminal, one line per cell measured elsewhere."""
    if not sys.stderr.isatty():
        yield lambda at: None if at.skipped else typer.echo(f"{title}: {_step(at)}", err=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda at: bar.update(task, completed=at.done, total=at.total, description=_step(at))


def _step(at: Any) -> str:
    what = ", ".join(f"{name} {value}" for name, value in at.cell.items())
    return f"cell {at.done} of {at.total} ({what}), {at.seconds:.1f} s"


def table(header: list[str], rows: list[list[str]], *, title: str = "") -> None:
    """A table as wide as it needs; columns of numbers line up on the right, dashes for what is left out with them."""
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]
    right = [i > 0 and bool(rows) and all(_is_number(str(row[i])) for row in rows) for i in range(len(header))]
    if title:
        typer.echo(title)
    for number, row in enumerate([header, *rows]):
        cells = [
            str(cell).rjust(width) if right[i] or (number and i and _is_number(str(cell))) else str(cell).ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        typer.echo("  ".join(cells).rstrip())
        if number == 0:
            typer.echo("  ".join("-" * width for width in widths))


def _is_number(cell: str) -> bool:
    plain = cell.replace(".", "", 1).replace(",", "").replace("-", "", 1).replace("%", "")
    return plain.isdigit() or cell.startswith("–")


def settings(pairs: list[str]) -> dict[str, str]:
    """`--set name=value`, as a mapping."""
    from populace.errors import SpecError

    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise SpecError(f"expected --set name=value, got {pair!r}")
        if name in found:
            raise SpecError(f"--set gives {name!r} twice")
        found[name] = value
    return found
