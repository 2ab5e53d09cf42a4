"""What every process of a pool does first: it leaves interrupts to its parent, and never outlives it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from typing import Any


def begin_worker() -> None:
    """For the start of a new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_after, args=(parent,), daemon=True).start()


def _leave_after(parent: Any) -> None:
    parent.join()
    os._exit(1)
