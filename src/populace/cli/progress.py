"""What a command is doing, while it does it: a bar or a clock on a terminal, plain lines now and then elsewhere.

A step that has a number of parts reports them; one that has none (a fit, a file that is read) is said with the seconds it has
taken so far. Steps shorter than two seconds are not said.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, Self

import typer

from populace.cli import interrupts

SECONDS_BETWEEN_LINES = 5.0
SHORT = 2.0  # seconds of a step that is not worth a line
LOOK = 0.25  # seconds between looks at the clock


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


class Shown(Protocol):
    """What long work tells as it goes on: which step begins, and how many parts of it are done."""

    def doing(self, words: str) -> None:
        """Say that a step begins; the one before it is over."""

    def __call__(self, at: Any) -> None:
        """Say how many parts of the step are done."""


class Lines:
    """Plain lines on standard error, at most one in five seconds.

    A thread looks at the clock, because steps such as a compiled fit tell nothing while they last.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._lock, self._over = threading.Lock(), threading.Event()
        self._words, self._began = "", time.monotonic()
        self._said = -SECONDS_BETWEEN_LINES + self._began  # the first line is due at once
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def doing(self, words: str) -> None:
        interrupts.check()
        with self._lock:
            self._words, self._began = words, time.monotonic()

    def say(self, text: str, *, due: bool = False) -> None:
        """Say a line if it is due, or if enough time has passed since the last."""
        interrupts.check()
        with self._lock:
            if due or time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
                self._said = time.monotonic()
                typer.echo(f"{self.title}: {text}", err=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK):
            with self._lock:
                now = time.monotonic()
                seconds = now - self._began
                if self._words and seconds >= SHORT and now - self._said >= SECONDS_BETWEEN_LINES:
                    self._said = now
                    typer.echo(f"{self.title}: {self._words}, {seconds:.0f} s", err=True)


class RoundLines(Lines):
    """Lines about rounds, clients or answers: whatever `each` is."""

    def __init__(self, title: str, each: str) -> None:
        super().__init__(title)
        self.each = each

    def __call__(self, at: Round) -> None:
        words = f"{self.each} {at.done:,} of {at.total:,}, {at.clients:,} replies"
        self.say(words, due=at.done == at.total)


class CellLines(Lines):
    """One line for every cell that was measured."""

    def __call__(self, at: Cell) -> None:
        if not at.skipped:
            self.say(_cell_in_words(at), due=True)


class Bar:
    """A line of a terminal that renews itself: the step, its bar where it has parts, and the time it has taken."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self.title = title
        columns = (
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[parts]}"),
            TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(title, total=None, parts="")

    def doing(self, words: str) -> None:
        interrupts.check()
        self._bar.reset(self._task, total=None, completed=0, description=f"{self.title}: {words}", parts="")

    def update(self, at: Round | Cell, description: str | None = None) -> None:
        interrupts.check()
        parts = f"{at.done:,}/{at.total:,}"
        self._bar.update(self._task, completed=at.done, total=at.total, description=description, parts=parts)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


class RoundBar(Bar):
    """A bar of rounds, clients or answers."""

    def __call__(self, at: Round) -> None:
        self.update(at)


class CellBar(Bar):
    """A bar of cells, with what was measured last."""

    def __call__(self, at: Cell) -> None:
        self.update(at, _cell_in_words(at))


@contextlib.contextmanager
def progress(title: str, each: str = "round") -> Iterator[Shown]:
    """What is being done, for work in rounds or in one piece; also a callback for engines' progress."""
    shown: RoundBar | RoundLines = RoundBar(title) if sys.stderr.isatty() else RoundLines(title, each)
    with shown:
        yield shown


@contextlib.contextmanager
def steps(title: str) -> Iterator[Shown]:
    """What is being done, for work in cells: a bar on a terminal, one line per cell measured elsewhere."""
    shown: CellBar | CellLines = CellBar(title) if sys.stderr.isatty() else CellLines(title)
    with shown:
        yield shown


def _cell_in_words(at: Cell) -> str:
    what = ", ".join(f"{name} {value}" for name, value in at.cell.items())
    return f"cell {at.done} of {at.total} ({what}), {at.seconds:.1f} s"
