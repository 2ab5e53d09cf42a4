"""A run over a federation: submits segments until the run is over, whatever dies on the way, then makes the rows.

What to do next is decided in `populace.federation.states`; here is the loop around it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from populace.border.documents import parse_json
from populace.border.models import read_document
from populace.border.regular import read_text
from populace.engines.flare import processes, session
from populace.engines.segment import OPERATED, Plan, is_over, read_plan, read_roster, read_skipped, read_status
from populace.errors import InputError, PopulaceError, RunError
from populace.federation import states
from populace.federation.coordinator import SECONDS_TO_ANSWER, Federation
from populace.federation.forms import SubmittedForm
from populace.federation.result import finish
from populace.federation.standing import Teller
from populace.runs.folder import RunFolder
from populace.runs.run import Run
from populace.tables.files import write_json
from populace.types import JsonObject
from populace.version import __version__

Watch = Callable[[JsonObject], None]
Say = Callable[[str], None]
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_BETWEEN_QUESTIONS = 2.0
SECONDS_FOR_OWN_SITES = 60.0
SECONDS_TO_TELL = 5.0  # of waiting, before it is shown; then twice as long each time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How a run is supervised: fewest sites to begin with, seconds a site has for a round, seconds without progress to bear.

    What is None is as the run was begun, or as by default.
    """

    least: int | None = None
    timeout: float | None = None
    patience: float | None = None

    def over(self, earlier: Mapping[str, float] | None = None) -> Options:
        """These options with nothing left open."""
        kept = {**DEFAULTS, **(earlier or {})}
        given = {name: getattr(self, name) for name in OPERATED}
        whole = {name: kept[name] if value is None else value for name, value in given.items()}
        return Options(least=int(whole["least"]), timeout=whole["timeout"], patience=whole["patience"])


DEFAULTS = {"least": 1, "timeout": 300.0, "patience": 900.0}
WORDS = {"least": "--sites", "timeout": "--timeout", "patience": "--patience"}


def run_federation(
    federation: Federation,
    out: Path,
    *,
    rows: int,
    seed: int | None,
    options: Options,
    watch: Watch = lambda _: None,
    say: Say = lambda _: None,
) -> Run:
    """A whole run, resumed where an earlier call with the same folder stopped."""
    _check(rows, options.over())
    began = time.monotonic()
    agreement, folder = federation.agreement(), RunFolder(out)
    spec: JsonObject = {
        "data": f"federation:{federation.name}", "method": agreement.method, "parameters": agreement.parameters,
        "schema": agreement.terms["schema"], "rows": rows, "seed": seed, "run": _run_name(federation, folder),
        "epsilon": agreement.parameters.get("epsilon"), "version": __version__,
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    with folder.claim(spec, digest) as resuming:
        place = federation.run_folder(spec["run"])
        if resuming:
            say(f"resuming the unfinished run {spec['run']} after round {read_status(place)['round']}")
        if (place / "plan.json").is_file():
            options = _operate(place, options, say)
        else:
            options = options.over()
            plan = Plan(run=spec["run"], agreement=agreement, seed=seed, **dataclasses.asdict(options))
            plan.save(place)
        tell = Teller(place, watch)
        try:
            Supervisor(federation, place, options, watch, say).go()
            made = finish(place, folder, spec, digest, rows=rows, seconds=lambda: time.monotonic() - began, tell=tell)
        except BaseException as error:
            with contextlib.suppress(PopulaceError):  # a full disk, for one: the first error is the one to show
                tell.tell("paused", str(error) or "interrupted; give the same command again to go on")
            raise
        tell.tell("finished", f"{rows:,} rows written")
        return made


def _check(rows: int, options: Options) -> None:
    least, timeout, patience = (getattr(options, name) for name in OPERATED)
    if rows < 1 or least < 1 or timeout <= 0 or patience < 0:
        raise InputError("expected rows and sites of at least 1 and a timeout above 0")


def _operate(place: Path, given: Options, say: Say) -> Options:
    """The options of a run that is resumed: those given now, else those it had; a change is kept in its plan, and said."""
    plan = read_plan(place)
    had = {name: getattr(plan, name) for name in OPERATED}
    if plan.patience is None:
        del had["patience"]  # begun by an earlier version
    whole = given.over(had)
    changed = [name for name in OPERATED if getattr(whole, name) != getattr(plan, name)]
    if changed:
        dataclasses.replace(plan, **dataclasses.asdict(whole)).save(place)
    if told := [f"{WORDS[name]} {getattr(whole, name):g} (was {had[name]:g})" for name in changed if name in had]:
        seated = (
            " (its sites are seated already: --sites changes nothing now)" if (place / "roster.json").is_file() else ""
        )
        say(f"from now on: {', '.join(told)}{seated if 'least' in changed else ''}")
    return whole


def _run_name(federation: Federation, folder: RunFolder) -> str:
    if (folder / "run.json").is_file():
        kept = folder.read()
        if kept["status"] == "unfinished" and "run" in kept.get("spec", {}):
            return str(kept["spec"]["run"])
    return f"{federation.name}-{secrets.token_hex(4)}"


class Supervisor:
    """Keeps a run going: a FLARE job is a disposable segment, and another is submitted where `states.decide` says so."""

    def __init__(self, federation: Federation, place: Path, options: Options, watch: Watch, say: Say) -> None:
        self._federation, self._place, self._options, self._say = federation, place, options.over(), say
        self._teller = Teller(place, watch)
        self._memory = states.Memory(
            progress=time.monotonic(), round=int(read_status(place)["round"]), slowest=_slowest_round(place)
        )
        self._lost: frozenset[str] = frozenset()  # sites that the last segment missed
        self._tell_at = 0.0
        self._sessions: list[session.Session] = []

    def _connect(self, *, seconds: float = SECONDS_TO_ANSWER) -> session.Session:
        """A session with the server, which is closed in the end whatever happens: FLARE's threads would outlive the command."""
        self._sessions.append(self._federation.connect(seconds=seconds))
        return self._sessions[-1]

    def go(self) -> None:
        if is_over(self._place):
            return
        link = self._connect()
        try:
            self._abort_last(link)
            while True:
                began = time.monotonic()
                link = self._wait_for_sites(link)
                self._memory = states.waited_for_sites(self._memory, time.monotonic() - began)
                job_id = self._submit(link)
                try:
                    link, decision = self._follow(link, job_id)
                except BaseException:
                    link.abort(job_id)
                    raise
                if decision.move == "finished":
                    return
                if decision.move == "pause":
                    link.abort(job_id)
                    raise RunError(decision.why)
                link = self._afresh(link, job_id)
                self._say(f"a new segment from round {read_status(self._place)['round']} on: {decision.why}")
        finally:
            for opened in self._sessions:
                opened.close()

    def _abort_last(self, link: session.Session) -> None:
        """Abort the job that a killed supervisor may have left running: two segments of a run would wait for each other."""
        (self._place / "stop").touch()  # for one that it had not noted yet; the next segment removes it when it begins
        if (self._place / "submitted.json").is_file():
            link.abort(read_document(self._place / "submitted.json", SubmittedForm)["job"])

    def _submit(self, link: session.Session) -> str:
        """Submit the next segment, with a number that none before it had."""
        path = self._place / "submitted.json"
        last = int(read_document(path, SubmittedForm).get("segment", 0)) if path.exists() else 0
        number = 1 + max(last, int(read_status(self._place).get("segment", 0)))
        write_json(path, {"job": "", "segment": number})
        self._memory = states.begin_segment(self._memory, segment=number, now=time.monotonic())
        self._teller.tell("starting", f"segment {number} is starting", segment=number)
        job_id = link.submit(session.write_job(self._place / "job", self._place, segment=number))
        write_json(path, {"job": job_id, "segment": number})
        return job_id

    def _wait_for_sites(self, link: session.Session) -> session.Session:
        """Wait for sites: a new run for as many as requested, a resumed one for all of its own at first, then for any.

        Those that the last segment missed are not waited for, nor are those passed over.
        """
        roster = read_roster(self._place)
        least = int(self._options.least or 1)
        began, shown = time.monotonic(), -1
        while True:
            own = set() if roster is None else {seat.site for seat in roster.seats} - read_skipped(self._place)
            try:
                found = set(link.sites())
            except RunError:  # a busy server; `connect` says where it is not running
                link.close()
                link = self._connect()
                found = set()
                time.sleep(SECONDS_BETWEEN_QUESTIONS)
            waited = time.monotonic() - began
            here, wanted = (found, least) if roster is None else (found & own, len(own))
            if len(here) >= wanted:
                return link
            if roster is not None and here and (own - found <= self._lost or waited > SECONDS_FOR_OWN_SITES):
                return link
            if len(here) != shown:
                shown = len(here)
                away = f"; not connected: {', '.join(sorted(own - found))}" if own - found else ""
                self._teller.tell("sites", f"{shown} of {wanted} sites connected{away}", connected=shown, wanted=wanted)
            if waited > float(self._options.patience or 0.0):
                expected = f"at least {least} connected sites" if roster is None else "a site of the run"
                raise RunError(
                    f"expected {expected}, got {', '.join(sorted(found)) or 'none'}; give the same command again to go on"
                )
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _follow(self, link: session.Session, job_id: str) -> tuple[session.Session, states.Decision]:
        """Watch one segment until another is needed, the run has to pause, or its rounds are over."""
        server, asked = processes.alive(self._federation.server_kit), time.monotonic()
        while True:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            seen = self._look()
            if time.monotonic() - asked >= SECONDS_BETWEEN_QUESTIONS:
                link, seen = self._question(link, job_id, server, seen)
                asked = time.monotonic()
                seen = dataclasses.replace(
                    seen, state=self._state(read_status(self._place)) if seen.job else seen.state
                )
            self._memory, decision = states.decide(self._memory, seen, given=float(self._options.patience or 0.0))
            if decision.move == "finished":
                self._clear(link, job_id)
            if decision.move != "keep":
                self._lost = seen.silent - set(self._memory.back)
                return link, decision

    def _look(self) -> states.Seen:
        """The run's status, as the present segment wrote it; what changed is shown."""
        status, now = read_status(self._place), time.monotonic()
        segment, waiting = int(status.get("segment", 0)), status.get("waiting") or {}
        own = segment == self._memory.segment
        silent = {site for site, one in status.get("sites", {}).items() if one["last"] == "missing"}
        silent = (silent | set(waiting.get("sites", ()))) - read_skipped(self._place) if own else set()
        if int(status["round"]) != self._memory.round or (own and self._tell_at == 0.0):
            self._teller.tell("rounds", segment=segment)
            self._tell_at = now + SECONDS_TO_TELL
        elif waiting and own and now > self._tell_at:
            self._teller.show()
            self._tell_at = now + max(SECONDS_TO_TELL, time.time() - waiting["since"])
        return states.Seen(
            now=now, state=self._state(status), why=str(status["why"]), segment=segment, round=int(status["round"]),
            seconds_of_last_round=float(status.get("seconds_of_last_round", 0.0)), silent=frozenset(silent),
        )  # fmt: skip

    def _state(self, status: JsonObject) -> str:
        """The state of the run; one that says it is finished, and whose result is gone, is not."""
        state = str(status["state"])
        return "interrupted" if state == "finished" and not is_over(self._place) else state

    def _question(
        self, link: session.Session, job_id: str, server: int | None, seen: states.Seen
    ) -> tuple[session.Session, states.Seen]:
        """Ask the server about the job, and who runs it where a site is silent; a session that fails is opened anew."""
        alive = processes.alive(self._federation.server_kit)
        if alive is None or alive != server:
            what = "died" if alive is None else "was started again"
            return link, dataclasses.replace(seen, server="dead", server_why=f"the server {what}")
        try:
            ended = link.status(job_id) if link.over(job_id) else ""
            at_work = link.at_work(job_id) if seen.silent and not ended else {}
            return link, dataclasses.replace(seen, job=ended, at_work=at_work, server="answers")
        except RunError as error:
            why = str(error)
        try:
            fresh = self._connect(seconds=SECONDS_BETWEEN_QUESTIONS)
        except RunError:
            return link, dataclasses.replace(seen, server="silent", server_why=why)
        link.close()
        return fresh, dataclasses.replace(seen, server="silent", server_why=why)

    def _clear(self, link: session.Session, job_id: str) -> None:
        """End the job once the run is over: FLARE may wait long for a site that died."""
        until = time.monotonic() + 5.0
        while time.monotonic() < until:
            try:
                if link.over(job_id):
                    return
            except RunError:
                return
            time.sleep(SECONDS_BETWEEN_LOOKS)
        link.abort(job_id)

    def _afresh(self, link: session.Session, job_id: str) -> session.Session:
        """End the old job, make sure that the server runs, and open a session with it."""
        (self._place / "stop").touch()
        link.abort(job_id)
        link.close()
        time.sleep(states.pause_before(self._memory))
        self._tell_at = 0.0
        if processes.was_stopped(self._federation.server_kit):
            raise RunError("the server was stopped; start it and give the same command again to go on")
        if processes.alive(self._federation.server_kit) is None:
            self._say("the server died; starting it again")
            self._federation.start()
        return self._connect()


def _slowest_round(place: Path) -> float:
    """The longest that a round of this run has taken."""
    path = place / "rounds.jsonl"
    lines = read_text(path).splitlines() if path.exists() else []
    return max((_seconds(line) for line in lines), default=0.0)


def _seconds(line: str) -> float:
    try:
        return float(parse_json(line, where="a round")["seconds"])
    except (PopulaceError, ValueError, KeyError, TypeError):
        return 0.0  # cut short by a full disk or a kill
