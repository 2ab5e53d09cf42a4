"""A run as the coordinator keeps it: a folder from which any job can go on, and one segment of it.

plan.json        what is run: agreement, seed, the root of public coins, fewest sites, seconds a site has for a round; private
roster.json      who takes part, fixed when the run begins
checkpoint.npz   state after the last whole round; private
rounds.jsonl     one line per round
status.json      where the run stands, replaced after every round and while a round waits; `segment` says who wrote it
skipped.json     sites that the rest of the run passes over
stop             while this file is there, a segment ends after the round it is in, or lacks its quorum
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp

from populace.border.models import read_document
from populace.border.regular import open_output
from populace.engines.agreement import Agreement, agreement_from_json
from populace.engines.checkpoint import Checkpoint
from populace.engines.coordinator import Coordinator, QuorumError, Round
from populace.engines.forms import PlanForm, RosterForm, StatusForm
from populace.engines.link import Link, LinkClosedError
from populace.engines.messages import make_facts_request
from populace.engines.roster import Roster, enrol, roster_from_json
from populace.engines.runtime import make_key
from populace.errors import PopulaceError, RunError
from populace.tables.files import read_json, write_json
from populace.types import JsonObject

State = Literal["new", "running", "interrupted", "waiting", "stopped", "finished"]
#: What of a plan may be given anew when a run is resumed: it decides how long is waited, never what is asked.
OPERATED = ("least", "timeout", "patience")
NOT_YET = "not asked yet"  # in this segment
SECONDS_TO_TELL = 1.0  # a wait shorter than this is not worth a file
SECONDS_FOR_LOCK = 30.0
SECONDS_TO_ENROL = 120.0
SECONDS_TO_READ = 40.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run is, fixed before its first round, and how it is operated, which may change when it is resumed: `least` sites
    to begin with, seconds a site has for a round, seconds a round without its quorum is asked again.

    `root` is drawn when the plan is saved, so that a run without a seed asks the same again if its checkpoint is lost.
    """

    run: str
    agreement: Agreement
    seed: int | None = None
    least: int = 1
    timeout: float = 300.0
    patience: float | None = None  # runs begun by earlier versions have none
    root: tuple[int, ...] = ()

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        fields = {name: getattr(self, name) for name in ("run", "seed", *OPERATED)}
        root = self.root or jax.random.key_data(make_key(self.seed)).tolist()
        write_json(folder / "plan.json", {**fields, "root": root, "agreement": self.agreement.to_json()}, mode=0o600)


def read_plan(folder: Path) -> Plan:
    document = read_document(folder / "plan.json", PlanForm)
    try:
        agreement = agreement_from_json(document["agreement"], where=str(folder / "plan.json"))
        fields = {name: document[name] for name in ("run", "seed", "least", "timeout")}
        fields["patience"] = document.get("patience")
        root = tuple(int(word) for word in document["root"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder / 'plan.json'} is damaged: {error!r}") from error
    return Plan(agreement=agreement, root=root, **fields)


def checkpoint_of(folder: Path) -> Checkpoint:
    return Checkpoint(folder / "checkpoint.npz")


def read_roster(folder: Path) -> Roster | None:
    path = folder / "roster.json"
    return roster_from_json(read_document(path, RosterForm)) if path.exists() else None


def read_status(folder: Path) -> JsonObject:
    new: JsonObject = {"state": "new", "round": 0, "segment": 0, "why": "", "sites": {}}
    path = folder / "status.json"
    return {**new, **read_document(path, StatusForm)} if path.exists() else new


def is_over(folder: Path) -> bool:
    """Whether all rounds of a run are done, and their result is still there: a checkpoint that was lost, or an old one that
    was put back, is made up for by asking again."""
    status, checkpoint = read_status(folder), checkpoint_of(folder)
    return status["state"] == "finished" and checkpoint.exists() and checkpoint.rounds() >= int(status["round"])


def read_skipped(folder: Path) -> frozenset[str]:
    """The sites that the rest of a run passes over."""
    path = folder / "skipped.json"
    found = read_json(path) if path.exists() else []
    if not isinstance(found, list) or not all(isinstance(site, str) for site in found):
        raise RunError(
            f"{path} is damaged: expected a list of sites; restore it from a copy, or remove it to skip nobody"
        )
    return frozenset(found)


def coordinator_of(
    folder: Path, link: Link, waiting: Callable[[int, frozenset[str]], None] = lambda *_: None
) -> Coordinator:
    """The loop over a run's folder; asks the sites for their facts when the run is new."""
    plan = read_plan(folder)
    roster = read_roster(folder)
    if roster is None:
        patience = max(plan.timeout, SECONDS_TO_ENROL)
        of_sums = plan.agreement.roster
        least = max(plan.least, 0 if of_sums is None else len(of_sums.members))
        roster = enrol(plan.agreement, link, run=plan.run, least=least, timeout=patience)
        write_json(folder / "roster.json", roster.to_json())
    elif ready := sorted(set(link.sites()) - read_skipped(folder)):
        # A site reads its data when the first request of a segment comes; a round's timeout is not meant for that.
        request = make_facts_request(plan.agreement, run=plan.run)
        done = int(read_status(folder)["round"])

        def still(silent: frozenset[str]) -> frozenset[str]:
            left = silent - read_skipped(folder)
            waiting(done, left)
            return left

        link.while_waiting(still)
        link.exchange(dict.fromkeys(ready, request), max(plan.timeout, SECONDS_TO_READ))
    return Coordinator(
        agreement=plan.agreement, roster=roster, link=link, run=plan.run,
        root=jax.random.wrap_key_data(jnp.array(plan.root, jnp.uint32)), checkpoint=checkpoint_of(folder),
        timeout=plan.timeout, patience=plan.patience or 0.0, seeded=plan.seed is not None,
        skipped=lambda: read_skipped(folder), waiting=waiting, stopping=(folder / "stop").exists,
    )  # fmt: skip


def advance(folder: Path, link: Link, segment: int | None = None) -> State:
    """Run one segment: rounds until the protocol is over, the link closes, or a stop is requested. Never two at once.

    `segment` is its number; without one, it is the next. One that a later segment has replaced does nothing, nor does one of a
    run that is over, or that another process is still working on.
    """
    with _alone(folder) as alone:
        if not alone:
            return "interrupted"
        before = read_status(folder)
        last = int(before.get("segment", 0))
        number = last + 1 if segment is None else segment
        if number < last:
            return "interrupted"
        if is_over(folder):
            return _note(folder, "finished", segment=number)
        (folder / "stop").unlink(missing_ok=True)
        sites = {site: {**one, "last": NOT_YET} for site, one in before.get("sites", {}).items()}
        _note(folder, "running", segment=number, sites=sites, segment_rounds=0)
        try:
            coordinator = coordinator_of(folder, link, waiting=_Waiting(folder).note)
            began = time.time()

            def watch(at: Round) -> bool:
                _note_round(folder, coordinator, at, began)
                return not (folder / "stop").exists()

            state: State = "finished" if coordinator.go(watch).over else "interrupted"
            return _note(folder, state)
        except LinkClosedError as error:
            return _note(folder, "interrupted", str(error))
        except QuorumError as error:
            return _note(folder, "waiting", str(error))
        except PopulaceError as error:
            return _note(folder, "stopped", str(error))
        except Exception as error:
            _note(folder, "stopped", f"{type(error).__name__}: {error}")
            raise


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Hold the folder's lock, or say that another has it: the segment of a job that is not quite dead may for a moment."""
    with open_output(folder / ".lock") as handle:
        until, held = time.monotonic() + SECONDS_FOR_LOCK, False
        while not held and time.monotonic() < until:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except OSError:
                time.sleep(0.2)
        yield held


def _note(folder: Path, state: State, why: str = "", **more: object) -> State:
    status = {**read_status(folder), "state": state, "why": why, "waiting": None, "at": time.time(), **more}
    write_json(folder / "status.json", status)
    return state


class _Waiting:
    """Writes into the status whom a round waits for, once it has waited for a while, and whenever that changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._round, self._since, self._told = -1, 0.0, frozenset[str]()

    def note(self, round_id: int, silent: frozenset[str]) -> None:
        if round_id != self._round:
            self._round, self._since, self._told = round_id, time.time(), frozenset()
        if silent != self._told and time.time() - self._since > SECONDS_TO_TELL:
            self._told = silent
            waiting = {"round": round_id + 1, "sites": sorted(silent), "since": self._since}
            write_json(self._folder / "status.json", {**read_status(self._folder), "waiting": waiting})


def _note_round(folder: Path, coordinator: Coordinator, at: Round, began: float) -> None:
    def last(site: str) -> str:
        if site in at.refusals:
            return f"refused: {at.refusals[site]}"
        if site in at.skipped:
            return "passed over"
        return "missing" if site in at.missing else "answered" if at.replies[site] else "not asked"

    line = {
        "round": at.number, "seconds": round(at.seconds, 4), "replies": dict(at.replies), "refusals": dict(at.refusals),
        "missing": list(at.missing), "at": time.time(),
    }  # fmt: skip
    with open_output(folder / "rounds.jsonl") as file:
        file.write(json.dumps(line) + "\n")
    before = read_status(folder)
    status = {
        "state": "running",
        "why": "",
        "waiting": None,
        "segment": before.get("segment", 0),
        "segment_rounds": before.get("segment_rounds", 0) + 1,
        "run": coordinator.run,
        "method": coordinator.agreement.method,
        "round": at.number,
        "rounds": at.total,
        "seconds_of_last_round": round(at.seconds, 4),
        "seconds_of_segment": round(time.time() - began, 2),
        "bytes_to_sites": at.traffic.down,
        "bytes_from_sites": at.traffic.up,
        "seeded": coordinator.roster.seeded or coordinator.seeded,
        "sites": {
            seat.site: {
                "clients": seat.clients,
                "replies_in_last_round": at.replies[seat.site],
                "replies_in_all": at.replies_in_all[seat.site],
                "last": last(seat.site),
                "epsilon": at.epsilon[seat.site],
            }
            for seat in coordinator.roster.seats
        },
        "at": time.time(),
    }
    write_json(folder / "status.json", status)
