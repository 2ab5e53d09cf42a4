"""What commands show: progress bars on a terminal, plain lines elsewhere, and tables that fit."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from populace.cli import interrupts
from populace.cli.progress import progress as progress
from populace.cli.progress import steps as steps

if TYPE_CHECKING:
    from rich.text import Text

READABLE = 100  # columns of prose
WIDE = 10_000  # columns: a table as wide as it needs


def say(text: str) -> None:
    interrupts.check()
    typer.echo(text)


def say_json(document: object) -> None:
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


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
