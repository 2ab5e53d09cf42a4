"""Where a run stands, for people and for programs: what its segments wrote, and what the command that supervises it does.

supervisor.json, in the run's folder beside status.json: what the command is doing, since when, and which process it is. Its
states are those of `populace.federation.states`; a process that is gone supervises nothing, whatever the file says.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import psutil

from populace.engines.segment import read_status
from populace.tables.files import read_json, write_json
from populace.types import JsonObject

Doing = Literal["sites", "starting", "rounds", "fitting", "sampling", "writing", "finished", "paused"]
ENDS = ("finished", "paused")
NOBODY = "nobody"


class Teller:
    """Notes what a command does with a run, and shows it."""

    def __init__(self, place: Path, watch: Callable[[JsonObject], None]) -> None:
        self._place, self._watch = place, watch
        self._process = psutil.Process(os.getpid()).create_time()

    def tell(self, state: Doing, words: str = "", **more: object) -> None:
        """Note a state, in words where there is more to say, and show it."""
        document = {
            "state": state, "words": words, "at": time.time(), "process": os.getpid(), "began": self._process, **more,
        }  # fmt: skip
        write_json(self._place / "supervisor.json", document)
        self.show()

    def show(self) -> None:
        self._watch(standing(self._place))


def standing(place: Path) -> JsonObject:
    """The status of a run with what is done about it now, and with what a hint to pass over a site needs."""
    status = {**read_status(place), "name": place.name, "folder": str(place.parents[1])}
    if (place / "plan.json").is_file():
        status["timeout"] = read_json(place / "plan.json")["timeout"]
    path = place / "supervisor.json"
    if path.is_file():
        status["doing"] = _present(read_json(path))
    return status


def _present(noted: JsonObject) -> JsonObject:
    """What was noted, unless the process that noted it is gone in the middle of it."""
    if noted["state"] in ENDS:
        return noted
    with contextlib.suppress(psutil.Error, KeyError, TypeError):
        process = psutil.Process(noted["process"])
        if abs(process.create_time() - noted["began"]) < 1.0 and process.status() != psutil.STATUS_ZOMBIE:
            return noted
    return {**noted, "state": NOBODY, "was": noted["state"]}
