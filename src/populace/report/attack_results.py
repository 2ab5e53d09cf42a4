"""Attack and audit results beside a run, where somebody ran them; a page never stays silent about those that were not run."""

from __future__ import annotations

import shlex
from pathlib import Path

import pydantic

from populace.border.models import Form, check_document
from populace.errors import RunError
from populace.runs.named import Files, files_of
from populace.tables.files import read_json
from populace.types import JsonObject

PROVES_NOTHING = (
    "An attack that does no better than a coin (50 %) proves nothing: another attacker, or another target, may do better. Only "
    "the guarantee bounds all attackers. An attack that does better than a coin, on the other hand, is a finding."
)


class _Audit(Form):
    """audit.json."""

    rows: list[JsonObject] = pydantic.Field(default_factory=list)
    notes: list[str] = pydantic.Field(default_factory=list)


class _Membership(Form):
    rows: list[JsonObject] = pydantic.Field(default_factory=list)


class _Attacks(Form):
    """attacks.json."""

    membership: _Membership = pydantic.Field(default_factory=_Membership)
    attribute: JsonObject = pydantic.Field(default_factory=dict)
    distances: JsonObject = pydantic.Field(default_factory=dict)
    notes: list[str] = pydantic.Field(default_factory=list)


def read_audit(path: Path) -> JsonObject | None:
    """`audit.json`, or None; a damaged one is said to be so and not passed over."""
    return _read(path, _Audit)


def read_attacks(path: Path) -> JsonObject | None:
    found = _read(path, _Attacks)
    if found is None or "damaged" in found:
        return found
    return {"membership": {}, "attribute": {}, "distances": {}, "notes": [], **found}


def _read(path: Path, form: type[Form]) -> JsonObject | None:
    if not path.is_file():
        return None
    document = read_json(path)
    try:
        return check_document(document, form, where=str(path))
    except RunError:
        return {"damaged": f"{path.name} is not in the form `populace` writes; run it again"}


def real_options(files: Files) -> list[str]:
    """The options that name the files of real rows."""
    return [word for file in files_of(files) for word in ("--real", file)]


#: Options of runs that `populace attack` refuses.
REFUSED = {"client_column": "--client-column", "person": "--person"}


def commands(run: JsonObject, real: Files) -> dict[str, str]:
    """What to type to run what was not run."""
    name = str(run["folder"].path) if "folder" in run else "RUN"
    spec = (run.get("details") or {}).get("spec") or {}
    refused = next((option for key, option in REFUSED.items() if spec.get(key)), "")
    return {
        "attack": "" if refused else shlex.join(["populace", "attack", name, *real_options(real)]),
        "no_attack": f"Runs with {refused} cannot be attacked yet." if refused else "",
        "audit": shlex.join(["populace", "audit", name]),
        "proves_nothing": PROVES_NOTHING,
    }
