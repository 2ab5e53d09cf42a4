"""A ledger of runs, as its owner looks at it: every run, the totals per unit, the limits that were given."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from populace.border.databases.address import file_of, is_database
from populace.border.models import interpreting, read_document
from populace.border.own_files import is_ledger
from populace.errors import InputError, RunError
from populace.privacy.run_ledger import Booked, RunLedger
from populace.runs.folder import RunFolder
from populace.runs.forms import TokenForm
from populace.runs.ledger.history import LEDGER, TOKEN, beside
from populace.runs.ledger.wording import json_number
from populace.runs.named import files_of
from populace.types import JsonObject


def find_ledger(named: Path) -> Path:
    """The ledger that is meant: the file itself, the one a run is booked in, or the one beside the data or in a folder.

    Edge cases: a run whose ledger is gone, or does not know it, is refused in words: what it cost is then forgotten.
    """
    if str(named).startswith(("postgresql:", "postgres:")):
        raise InputError(
            "the ledger of a database on a server lies where --ledger said: name that file, or a run booked in it"
        )
    if (named / "run.json").is_file():
        return _of_run(RunFolder(named))
    if named.is_dir():
        found = named / LEDGER
    elif named.suffix in (".csv", ".parquet", ".arrow", ".feather", ".npz") or _is_data(named):
        found = beside(named)
    else:
        found = named
    if not found.is_file():
        raise InputError(f"no ledger {found}; `populace synthesize DATA ...` begins one beside the data")
    return found


def _is_data(named: Path) -> bool:
    """Whether this is a database with records: a ledger is an SQLite file too."""
    return is_database(named) and named.is_file() and not is_ledger(named)


def _of_run(folder: RunFolder) -> Path:
    document = folder.read()
    booked = read_document(folder / TOKEN, TokenForm) if (folder / TOKEN).exists() else document.get("booked")
    if not booked or not booked.get("ledger"):
        raise RunError(f"the run in {folder.path} is booked in no ledger")
    path = Path(booked["ledger"])
    if not path.is_file():
        with interpreting(str(folder / "run.json")):
            places = [file_of(file) for file in files_of(document["spec"]["data"])]
            moved = [place.resolve().parent / LEDGER for place in places if place is not None]
        path = next((found for found in moved if found.is_file()), path)
    if not path.is_file():
        raise RunError(
            f"the run in {folder.path} is booked in {path}, which is gone; put it back: without it nothing says what was spent"
        )
    with RunLedger(path) as ledger:
        if ledger.run(booked["booking"]) is None:
            raise RunError(
                f"the run in {folder.path} was booked in {path}, which does not know it: the file was replaced, or the run "
                "comes from elsewhere; put back the file it was booked in"
            )
    return path


def overview(path: Path) -> JsonObject:
    """All a ledger holds, but the digests, as JSON takes it."""
    with RunLedger(path) as ledger:
        runs, limits = ledger.runs(), ledger.limits()
    return {
        "ledger": str(path),
        "limit": json_number(limits[-1].epsilon) if limits else None,
        "limits": [
            {"epsilon": json_number(one.epsilon), "because": one.because, "at": _when(one.at)} for one in limits
        ],
        "runs": [_run(run) for run in runs],
        "totals": _totals(runs),
    }


def _run(run: Booked) -> JsonObject:
    cost, history = run.cost, run.history
    return {
        "at": _when(run.at), "folder": run.folder, "data": run.data, "rows": run.rows, "method": run.method,
        "epsilon": json_number(cost.epsilon), "delta": cost.delta, "unit": cost.unit, "neighbours": cost.neighbours,
        "silos": cost.silos,
        "trust": cost.trust, "seeded": cost.seeded, "finished": run.finished, "shares_rows_with": history["runs_before"],
        "epsilon_so_far": history["epsilon_after"], "delta_so_far": history["delta_after"], "so_far_per": _per(history),
        "epsilon_added_so_far": _added(history)[0], "delta_added_so_far": _added(history)[1],
        "other_people": history.get("other_people", ""),
    }  # fmt: skip


def _totals(runs: list[Booked]) -> list[JsonObject]:
    """The most that any record, or any client of a column, has paid: accounts only change when a run is booked.

    `epsilon_added` is the sum, which a limit counts; None where a run is the worst whose booking did not keep it.
    """
    found: dict[str, JsonObject] = {}
    for run in runs:
        per, epsilon = _per(run.history), float(run.history["epsilon_after"])
        worst = found.setdefault(
            per, {"per": per, "epsilon": 0.0, "delta": 0.0, "epsilon_added": 0.0, "delta_added": 0.0, "neighbours": "",
                  "seeded": False},
        )  # fmt: skip
        if epsilon >= float(worst["epsilon"]):
            worst |= {"epsilon": json_number(epsilon), "neighbours": run.history["neighbours"]}
        worst["delta"] = max(worst["delta"], run.history["delta_after"])
        for name, added in zip(("epsilon_added", "delta_added"), _added(run.history), strict=True):
            unknown = added is None or worst[name] is None
            worst[name] = None if unknown else json_number(max(float(worst[name]), float(added)))
        worst["seeded"] = worst["seeded"] or run.cost.seeded
    return list(found.values())


def _added(history: Any) -> tuple[Any, Any]:
    """The sums of epsilons and deltas; of a booking of 0.2.0 only where they are the total: without a delta, or of one run."""
    if "epsilon_added" not in history:
        same = not history["delta_after"] or not history["runs_before"]
        return (history["epsilon_after"], history["delta_after"]) if same else (None, None)
    return history["epsilon_added"], history["delta_added"]


def _per(history: Any) -> str:
    return f"value of {history['per']}" if history["per"] else str(history["unit"])


def _when(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
