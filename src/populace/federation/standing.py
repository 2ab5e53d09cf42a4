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

from populace.border.models import read_document
from populace.engines.flare.processes import SECONDS_APART, seconds_after_boot
from populace.engines.forms import PlanForm
from populace.engines.segment import read_status
from populace.federation.forms import DoingForm
from populace.tables.files import write_json
from populace.types import JsonObject

Doing = Literal["sites", "starting", "rounds", "fitting", "sampling", "writing", "finished", "paused"]
ENDS = ("finished", "paused")
NOBODY = "nobody"


class Teller:
    """Notes what a command does with a run, and shows it."""

    def __init__(self, place: Path, watch: Callable[[JsonObject], None]) -> None:
        self._place, self._watch = place, watch
        self._process = seconds_after_boot(psutil.Process(os.getpid()))

    def tell(self, state: Doing, words: str = "", **more: object) -> None:
        """Note a state, in words where there is more to say, and show it."""
        document = {
            "state": state, "words": words, "at": time.time(), "process": os.getpid(),
            "seconds_after_boot": self._process, **more,
        }  # fmt: skip
        write_json(self._place / "supervisor.json", document)
        self.show()

    def show(self) -> None:
        self._watch(standing(self._place))


def standing(place: Path) -> JsonObject:
    """The status of a run with what is done about it now, and with what a hint to pass over a site needs."""
    status = {**read_status(place), "name": place.name, "folder": str(place.parents[1])}
    if (place / "plan.json").is_file():
        status["timeout"] = read_document(place / "plan.json", PlanForm)["timeout"]
    path = place / "supervisor.json"
    if path.is_file():
        status["doing"] = _present(read_document(path, DoingForm, advice="remove it"))
    return status


def _present(noted: JsonObject) -> JsonObject:
    """What was noted, unless the process that noted it is gone in the middle of it."""
    if noted["state"] in ENDS:
        return noted
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(noted["process"])
        same = abs(seconds_after_boot(process) - noted["seconds_after_boot"]) < SECONDS_APART
        if same and process.status() != psutil.STATUS_ZOMBIE:
            return noted
    return {**noted, "state": NOBODY, "was": noted["state"]}
