"""What commands show: progress bars on a terminal, plain lines elsewhere, and tables that fit."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import typer

from populace.cli import interrupts

if TYPE_CHECKING:
    from rich.text import Text

SECONDS_BETWEEN_LINES = 5.0
READABLE = 100  # columns of prose
WIDE = 10_000  # columns: a table as wide as it needs


def say(text: str) -> None:
    interrupts.check()
    typer.echo(text)


def say_json(document: object) -> None:
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


class Round(Protocol):
    """Where a run stands, as engines report it."""

    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def clients(self) -> int: ...


class Cell(Protocol):
    """Where a grid of runs stands: what was measured, or found measured."""

    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def cell(self) -> Mapping[str, object]: ...
    @property
    def seconds(self) -> float: ...
    @property
    def skipped(self) -> bool: ...


@contextlib.contextmanager
def progress(title: str, each: str = "round") -> Iterator[Callable[[Round], None]]:
    """A callback for engine progress: a rich bar on a terminal, a plain line now and then elsewhere."""
    if not sys.stderr.isatty():
        yield _plain(title, each)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def update(at: Round) -> None:
            interrupts.check()
            bar.update(task, completed=at.done, total=at.total)

        yield update


def _plain(title: str, each: str) -> Callable[[Round], None]:
    last = time.monotonic()

    def report(at: Round) -> None:
        nonlocal last
        interrupts.check()
        if at.done == at.total or time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            typer.echo(f"{title}: {each} {at.done:,} of {at.total:,}, {at.clients:,} replies", err=True)

    return report


@contextlib.contextmanager
def steps(title: str) -> Iterator[Callable[[Cell], None]]:
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


def _step(at: Cell) -> str:
    what = ", ".join(f"{name} {value}" for name, value in at.cell.items())
    return f"cell {at.done} of {at.total} ({what}), {at.seconds:.1f} s"


def say_lines(lines: Iterable[tuple[str, str]]) -> None:
    """Labels with their words beside them, broken into lines that fit where somebody reads them on a terminal."""
    from populace.privacy.guarantee import LABEL, aligned

    if not sys.stdout.isatty():
        say(aligned(lines))
        return
    width = min(shutil.get_terminal_size().columns, READABLE)
    for label, words in lines:
        say(textwrap.fill(words, width, initial_indent=f"{label:{LABEL}}", subsequent_indent=" " * LABEL))


def table(header: list[str], rows: list[list[str]], *, title: str = "", width: int | None = None) -> None:
    """A table as wide as it needs, or of a given width with cells broken into lines. Columns of numbers line up on the
    right, and so do single numbers where the width is free."""
    import io

    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="")
    for i, name in enumerate(header):
        numbers = i > 0 and bool(rows) and all(_is_number(str(row[i])) for row in rows)
        shown.add_column(Text(name), justify="right" if numbers else "left", no_wrap=width is None or i == 0)
    for row in rows:
        shown.add_row(*(_cell(str(cell), right=width is None and i > 0) for i, cell in enumerate(row)))
    lines = io.StringIO()
    Console(file=lines, width=width or WIDE, color_system=None, legacy_windows=False).print(shown)
    if title:
        typer.echo(title)
    for line in lines.getvalue().splitlines():
        typer.echo(line.rstrip())


def _cell(text: str, *, right: bool) -> Text:
    from rich.text import Text

    return Text(text, justify="right" if right and _is_number(text) else None)


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
