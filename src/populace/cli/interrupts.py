"""Ctrl-C is never lost: one that falls where Python must ignore it is raised again when something is said next.

An exception that a signal raises inside a callback of the garbage collector (JAX has one) is printed and dropped.
"""

from __future__ import annotations

import signal
from types import FrameType

_asked: list[int] = []


def remember() -> None:
    """Keep in mind that an interrupt came; for the entry point, in its main thread."""
    signal.signal(signal.SIGINT, _note)


def _note(number: int, _frame: FrameType | None) -> None:
    _asked.append(number)
    raise KeyboardInterrupt


def check() -> None:
    """Raise the interrupt that came, if one did."""
    if _asked:
        raise KeyboardInterrupt
