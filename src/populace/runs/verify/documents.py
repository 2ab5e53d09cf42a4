"""The papers of a run that `populace verify` looks at, and what one look says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from populace.errors import PopulaceError, RunError
from populace.privacy import events
from populace.privacy.events import Event
from populace.privacy.guarantee import FORMAT, Guarantee
from populace.runs.folder import RunFolder
from populace.types import JsonObject

#: What reading JSON of another form than expected raises.
DAMAGED = (AttributeError, IndexError, KeyError, TypeError, ValueError)
#: "left out" is what need not be there: nothing is missing for it. "not checked" is what could not be looked at.
Result = Literal["holds", "fails", "not checked", "left out"]


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that was looked at, and what came out, in words."""

    what: str
    result: Result
    words: str

    def to_json(self) -> dict[str, str]:
        return {"check": self.what, "result": self.result, "words": self.words}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Papers:
    """The documents of a run; `run` is None in a folder that holds only what may be published."""

    folder: RunFolder
    privacy: JsonObject
    guarantee: Guarantee
    event: Event | None
    run: JsonObject | None

    @property
    def old(self) -> bool:
        """Whether version 0.1.0 wrote them."""
        return int(self.privacy.get("format", 1)) < FORMAT


def read_papers(path: str | Path) -> Papers:
    """The papers of a finished run, or of what was published of one."""
    folder = RunFolder(path)
    if not folder.path.is_dir():
        raise RunError(
            f"no folder {folder.path}; expected one that `populace synthesize` made, or what was published of it"
        )
    run = folder.document() if (folder / "run.json").is_file() else None
    if not (folder / "privacy.json").is_file():
        raise RunError(f"{folder.path} has no privacy.json: it is not a run, nor what is published of one")
    privacy, guarantee = folder.privacy(), folder.guarantee()
    try:
        found = privacy.get("event")
        event = None if found is None else events.from_json(found)
    except (*DAMAGED, OverflowError, PopulaceError) as error:
        raise RunError(f"{folder / 'privacy.json'} is damaged: {error!r}") from error
    return Papers(folder=folder, privacy=privacy, guarantee=guarantee, event=event, run=run)
