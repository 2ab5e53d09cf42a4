"""A run over a federation: submits segments until the run is over, whatever dies on the way, then makes the rows."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
import shlex
import time
from collections.abc import Callable
from pathlib import Path

from populace.border.models import read_document
from populace.engines.flare import processes, session
from populace.engines.link import InProcess
from populace.engines.roster import Roster
from populace.engines.runtime import Keys
from populace.engines.segment import Plan, checkpoint_of, coordinator_of, read_roster, read_status
from populace.errors import InputError, RunError
from populace.federation.coordinator import Federation
from populace.federation.forms import SubmittedForm
from populace.runs.domains import save_schema
from populace.runs.federated_statement import LOOPBACK, seated_in_words, stated_federation
from populace.runs.folder import RunFolder
from populace.runs.restated import sites_population
from populace.runs.run import Run, versions
from populace.tables.files import write_json
from populace.types import JsonObject, NumpyArray
from populace.version import __version__

Watch = Callable[[JsonObject], None]
Say = Callable[[str], None]
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_BETWEEN_QUESTIONS = 2.0
SECONDS_FOR_OWN_SITES = 60.0
SECONDS_TO_RETURN = 12.0  # a site's client reports every ten seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How a run is supervised: fewest sites to begin with, seconds a site has for a round, seconds without progress to bear."""

    least: int = 1
    timeout: float = 300.0
    patience: float = 900.0


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
    if rows < 1 or options.least < 1 or options.timeout <= 0 or options.patience < 0:
        raise InputError("expected rows and sites of at least 1 and a timeout above 0")
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
        if not (place / "plan.json").is_file():
            plan = Plan(run=spec["run"], agreement=agreement, seed=seed, least=options.least, timeout=options.timeout)
            plan.save(place)
        if resuming:
            say(f"resuming the unfinished run {spec['run']} after round {read_status(place)['round']}")
        Supervisor(federation, place, options, watch, say).go()
        return _finish(place, folder, spec, digest, rows=rows, seconds=lambda: time.monotonic() - began)


def _run_name(federation: Federation, folder: RunFolder) -> str:
    if (folder / "run.json").is_file():
        kept = folder.read()
        if kept["status"] == "unfinished" and "run" in kept.get("spec", {}):
            return str(kept["spec"]["run"])
    return f"{federation.name}-{secrets.token_hex(4)}"


class Supervisor:
    """Keeps a run going: a FLARE job is a disposable segment, and a new one is submitted when the last one ended too early,
    when the server died, or when a site that was missing is back."""

    def __init__(self, federation: Federation, place: Path, options: Options, watch: Watch, say: Say) -> None:
        self._federation, self._place, self._options, self._watch, self._say = federation, place, options, watch, say
        self._progress = time.monotonic()
        self._seen: JsonObject = {}
        self._missing: dict[str, float] = {}
        self._bear: dict[str, float] = {}

    def go(self) -> None:
        if read_status(self._place)["state"] == "finished":
            return
        link = self._federation.connect()
        try:
            self._abort_last(link)
            self._wait_for_sites(link)
            while True:
                job_id = link.submit(session.write_job(self._place / "job", self._place))
                write_json(self._place / "submitted.json", {"job": job_id})
                try:
                    again = self._follow(link, job_id)
                except BaseException:
                    link.abort(job_id)
                    raise
                if not again:
                    return
                link = self._afresh(link, job_id)
                self._say(f"a new segment from round {read_status(self._place)['round']} on: {again}")
        finally:
            link.close()

    def _abort_last(self, link: session.Session) -> None:
        """Abort the job that a killed supervisor may have left running: two segments of a run would wait for each other."""
        if (self._place / "submitted.json").is_file():
            link.abort(read_document(self._place / "submitted.json", SubmittedForm)["job"])

    def _wait_for_sites(self, link: session.Session) -> None:
        """Wait for sites: a new run for as many as requested, a resumed one for all of its own at first, then for any."""
        roster = read_roster(self._place)
        own = set() if roster is None else {seat.site for seat in roster.seats}
        began = time.monotonic()
        while True:
            found, waited = link.sites(), time.monotonic() - began
            if roster is None and len(found) >= self._options.least:
                return
            if roster is not None and (own <= set(found) or (own & set(found) and waited > SECONDS_FOR_OWN_SITES)):
                return
            if waited > self._options.patience:
                expected = f"at least {self._options.least} connected sites" if roster is None else "a site of the run"
                raise RunError(
                    f"expected {expected}, got {', '.join(found) or 'none'}; give the same command again to go on"
                )
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _follow(self, link: session.Session, job_id: str) -> str:
        """Watch one segment; returns why another is needed, or nothing when the run is over."""
        asked = time.monotonic()
        self._missing, began = {}, time.time()
        while True:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            status = self._look()
            fresh = status.get("at", 0.0) >= began
            if status["state"] == "finished":
                self._clear(link, job_id)
                return ""
            if status["state"] == "stopped" and fresh:
                raise RunError(status["why"])
            if time.monotonic() - self._progress > self._options.patience:
                raise RunError(
                    f"no round was finished in {self._options.patience:g} s ({status['why'] or 'no reply'}); give the same "
                    "command again to go on"
                )
            if status["state"] == "waiting" and fresh:
                return str(status["why"])
            if time.monotonic() - asked < SECONDS_BETWEEN_QUESTIONS:
                continue
            asked = time.monotonic()
            try:
                if link.over(job_id):
                    return "" if self._look()["state"] == "finished" else f"the last one ended ({link.status(job_id)})"
                back = self._returned(status, link.sites())
            except RunError as error:
                return str(error)
            if back:
                return f"{', '.join(back)} can be asked again"

    def _look(self) -> JsonObject:
        status = read_status(self._place)
        if status.get("round") != self._seen.get("round"):
            self._progress = time.monotonic()
            self._watch(status)
        self._seen = status
        return status

    def _returned(self, status: JsonObject, connected: list[str]) -> list[str]:
        """Sites that missed rounds of this segment and have been connected again for a while: a new segment would include them.

        Each time a site is missed again, twice as long.
        """
        now = time.monotonic()
        missing = {site for site, at in status.get("sites", {}).items() if at["last"] == "missing"}
        self._missing = {site: self._missing.get(site, now) for site in missing if site in connected}
        back = [site for site, since in self._missing.items() if now - since > self._bear.get(site, SECONDS_TO_RETURN)]
        for site in back:
            self._bear[site] = 2 * self._bear.get(site, SECONDS_TO_RETURN)
        return back

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
        if processes.was_stopped(self._federation.server_kit):
            raise RunError("the server was stopped; start it and give the same command again to go on")
        if processes.alive(self._federation.server_kit) is None:
            self._say("the server died; starting it again")
            self._federation.start()
        link = self._federation.connect()
        self._wait_for_sites(link)
        return link


def _sites(place: Path, roster: Roster, heard: NumpyArray) -> JsonObject:
    """How the run ended for each site, and how many replies came from it over all rounds."""
    last = read_status(place).get("sites", {})
    return {
        seat.site: {
            **last.get(seat.site, {}),
            "replies_in_all": int(heard[seat.first : seat.first + seat.clients].sum()),
        }
        for seat in roster.seats
    }


def _finish(
    place: Path, folder: RunFolder, spec: JsonObject, digest: str, *, rows: int, seconds: Callable[[], float]
) -> Run:
    """Generator, rows and documents from the run's last checkpoint."""
    coordinator = coordinator_of(place, InProcess({}))
    keys, state, heard, ledger, traffic, done = coordinator.start()
    protocol, population, roster = coordinator.agreement.protocol, coordinator.population, coordinator.roster
    generator = protocol.finish(state, population, keys.finish())
    host, answered = Federation(place.parents[1]).document["host"], int((heard > 0).sum())
    guarantee = stated_federation(
        protocol.guarantee(population), roster, kind=population.kind, answered=answered,
        seeded=roster.seeded or coordinator.seeded, host=host,
    )  # fmt: skip
    drawn = generator.sample(rows, Keys(checkpoint_of(place).root()).sample())
    generator.save(folder.path)
    save_schema(folder, generator, population.schema)
    folder.save_synthetic(drawn)
    document = {
        "status": "finished",
        "digest": digest,
        "spec": spec,
        "command": shlex.join(["populace", "federation", "run", "FOLDER", "--rows", str(rows), "--out", "RUN"]),
        "method": protocol.facts.name,
        "parameters": coordinator.agreement.parameters,
        "clients": population.clients,
        "split": seated_in_words(roster),
        "population": sites_population(population, roster, answered=answered, rehearsal=host in LOOPBACK),
        "rows": rows,
        "versions": versions(),
        "seconds": {"total": seconds()},
        "rounds": done,
        "replies": int(heard.sum()),
        "traffic": traffic.to_json(),
        "ledger": ledger.spent(),
        "sites": _sites(place, roster, heard),
    }
    folder.save_privacy(guarantee, document, event=ledger.worst_event())
    folder.finish(document)
    return Run(generator=generator, guarantee=guarantee, details=document)
