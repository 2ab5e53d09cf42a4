"""The drill: one run after the other until the time is up, each disturbed by its own plan and then checked."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from populace.engines.segment import read_status
from populace.errors import PopulaceError
from populace.federation.skipping import skip
from populace.tables.files import read_json

from . import leftovers
from .disturb import Disturber
from .memory import Memory
from .plan import Disturbance, draw
from .replay import copy_site
from .scene import COORDINATOR, LIAR, SEED_OF_SITES, WITHOUT_LIAR, Command, Scene
from .summary import OF_A_RUN, OF_THE_DRILL, Ran, summarise
from .verify import verify

ORDER = ("independent", "dp-fed-wae", "poll", "dp-fed-wae", "poll")
SECONDS_TO_FINISH = 300.0  # for a run that nothing disturbs any more
SECONDS_FOR_LAST_RUN = 60.0  # no run begins with less
SECONDS_TO_HEAL = 30.0  # before the end nothing is disturbed any more
SECONDS_TO_END_JOBS = 60.0
SECONDS_BETWEEN_LOOKS = 0.2
DISTURBANCES = (4, 9)  # of one run, the second not included
ROUNDS_TO_GO_ON, LONGEST_WAIT = 3, 60.0  # after which a disturbance is got over, or not waited for
SEGMENT = re.compile(r"segment (\d+)\b")


@dataclasses.dataclass(frozen=True)
class Due:
    """When the last disturbance was, and in which round: the next one follows from it."""

    last: float
    round: int

    def has_come(self, what: Disturbance, now: float, round_id: int) -> bool:
        over = not what.waits or round_id >= self.round + ROUNDS_TO_GO_ON or now - self.last > LONGEST_WAIT
        return over and now - self.last >= what.after


class Drill:
    """`seconds` of chaos over `sites` honest sites and a liar, in `folder`; `say` tells people how it goes."""

    def __init__(self, folder: Path, *, seconds: float, seed: int, sites: int, say: Callable[[str], None]) -> None:
        self.folder, self.seconds, self.seed, self.say = folder, seconds, seed, say
        self.scene = Scene(folder, sites=sites)
        self.disturber = Disturber(self.scene, folder / "events.jsonl")
        self.memory = Memory()
        self.runs: list[Ran] = []
        self.died: Counter[str] = Counter()
        self.guarantees: dict[str, float] = {}
        self._secrets = leftovers.secrets(folder)
        self._began = time.monotonic()

    def go(self) -> dict[str, object]:
        """The whole drill; returns its summary. Whatever happens, what was started is stopped."""
        self._began = time.monotonic()
        try:
            for machine in (COORDINATOR, *self.scene.honest):
                self.scene.start(machine)
            while not self.runs or self._left() > SECONDS_FOR_LAST_RUN:
                self._run(len(self.runs))
        finally:
            self.disturber.undo(all_now=True)
            if self.disturber.command is not None and self.disturber.command.process.poll() is None:
                self.disturber.command.kill()
            self.scene.close()
        return self._summary()

    def _left(self) -> float:
        return self.seconds - (time.monotonic() - self._began)

    def _run(self, number: int) -> None:
        method = ORDER[number % len(ORDER)]
        coin = np.random.default_rng([self.seed, number])
        ran = Ran(number=number, method=method)
        self.runs.append(ran)
        members = self._seat(method)
        self.scene.take_method(method)
        place = self.folder / f"run-{number:03d}"
        place.mkdir()
        copies = {
            site: copy_site(folder.path, folder.file_path, place / "before" / site)
            for site, folder in self.scene.sites.items()
        }
        plan = draw(coin, self.scene.honest, int(coin.integers(*DISTURBANCES)))
        self.disturber.note("run", run=number, method=method, plan=[dataclasses.asdict(each) for each in plan])
        began = time.monotonic()
        self._attend(ran, place / "out", plan, sites=len(members))
        ran.seconds = time.monotonic() - began
        self.disturber.undo(all_now=True)
        if not ran.wrong:
            self._check(ran, place, copies, coin)
        for said in ran.wrong:
            self.disturber.note("WRONG", run=number, said=said)
        self.say(_sentence(ran))

    def _seat(self, method: str) -> tuple[str, ...]:
        """The sites of a run; the liar takes part where a round can do without."""
        if method not in WITHOUT_LIAR:
            self.scene.start(LIAR)
            return (*self.scene.honest, LIAR)
        if self.scene.family(LIAR):
            self.scene.stop(LIAR)
            until = time.monotonic() + SECONDS_TO_END_JOBS
            while LIAR in self._connected() and time.monotonic() < until:
                time.sleep(1.0)
        return self.scene.honest

    def _connected(self) -> list[str]:
        with contextlib.suppress(PopulaceError):
            link = self.scene.federation.connect(seconds=10.0)
            try:
                return link.sites()
            finally:
                link.close()
        return []

    def _attend(self, ran: Ran, out: Path, plan: list[Disturbance], *, sites: int) -> None:
        """Give the command, disturb it, give it again where it ended too early; returns when the run is finished or stuck."""
        command = self._give(ran, out, sites)
        due, seen, quiet = Due(time.monotonic(), 0), 0, None
        while (code := command.process.poll()) != 0:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            now = time.monotonic()
            self.disturber.undo()
            self._look()
            if code is not None:
                self._ended(ran, out, command, code)
                time.sleep(1.0)
                command = self._give(ran, out, sites)
            if self._left() < SECONDS_TO_HEAL:
                plan.clear()
                self.disturber.undo(all_now=True)
            seen = max(seen, self._round(out))
            if plan and seen and due.has_come(plan[0], now, seen):
                self.disturber.do(plan.pop(0), ran.number)
                due = Due(time.monotonic(), seen)
            quiet = None if plan or not self.disturber.idle else quiet or now
            if quiet is not None and now - quiet > SECONDS_TO_FINISH:
                ran.wrong.append(
                    f"not finished {SECONDS_TO_FINISH:g} s after the last disturbance: {command.said()[-300:]!r}"
                )
                command.kill()
                break
        ran.segments = len(set(SEGMENT.findall(command.log.read_text(errors="replace"))))

    def _give(self, ran: Ran, out: Path, sites: int) -> Command:
        ran.commands += 1
        self.disturber.command = Command(self.scene, out, sites=sites, seed=SEED_OF_SITES + ran.number)
        return self.disturber.command

    def _ended(self, ran: Ran, out: Path, command: Command, code: int) -> None:
        """A command that ended before its run: killed by the drill, or with one sentence and exit code 2."""
        said = command.said().strip().splitlines()
        if code == 2 and said and "Traceback" not in command.said():
            ran.pauses.append(said[-1].replace(str(self.folder), "FOLDER"))
            self.disturber.note("paused", run=ran.number, said=said[-1])
            if LIAR in said[-1]:  # a round asks the liar's clients alone, and waits: a coordinator passes over it
                self.disturber.note("skip", run=ran.number, said=skip(self.scene.federation, LIAR, run=self._name(out)))
        elif code != -9:
            ran.wrong.append(f"the command ended with {code}: {' | '.join(said[-3:])}")
        self.scene.start(COORDINATOR)

    def _round(self, out: Path) -> int:
        with contextlib.suppress(PopulaceError, KeyError, TypeError):
            return int(read_status(self._place(out))["round"])
        return 0

    def _place(self, out: Path) -> Path:
        return self.scene.federation.run_folder(self._name(out))

    def _name(self, out: Path) -> str:
        return str(read_json(out / "run.json")["spec"]["run"])

    def _look(self) -> None:
        """Memory, and sites that died without being killed: their staff starts them again."""
        families = {machine: self.scene.family(machine) for machine in (COORDINATOR, *self.scene.sites)}
        self.memory.look((machine, members[0]) for machine, members in families.items() if members)
        if self.disturber.idle:
            for site in self.scene.honest:
                if not families[site]:
                    self.died[site] += 1
                    self.disturber.note("died by itself", site=site)
                    self.scene.start(site)

    def _check(self, ran: Ran, place: Path, copies: dict[str, Path], coin: np.random.Generator) -> None:
        """All invariants of a run, once no job is left that could still charge."""
        until = time.monotonic() + SECONDS_TO_END_JOBS
        while any(len(self.scene.family(site)) > 1 for site in self.scene.sites) and time.monotonic() < until:
            time.sleep(0.5)
        ledgers = {site: folder.path / "ledger.sqlite" for site, folder in self.scene.sites.items()}
        try:
            ran.verdict = verify(
                self._place(place / "out"), ledgers, copies, generator=place / "out", scratch=place / "replay",
                guarantees=self.guarantees, coin=coin,
            )  # fmt: skip
            ran.wrong += ran.verdict.wrong
        except (PopulaceError, OSError, ValueError, KeyError) as error:
            ran.wrong.append(f"cannot be checked: {type(error).__name__}: {error}")
        if not ran.wrong:
            shutil.rmtree(place / "replay")
            shutil.rmtree(place / "before")

    def _summary(self) -> dict[str, object]:
        """What is found once everything is stopped, with what was found on the way."""
        until = time.monotonic() + SECONDS_TO_END_JOBS
        while self.scene.left_behind() and time.monotonic() < until:
            time.sleep(0.5)
        left = [" ".join(process.cmdline())[:200] for process in self.scene.left_behind()]
        federation, outs = self.scene.federation.path, [self.folder / f"run-{ran.number:03d}" for ran in self.runs]
        sites = [site.path / part for site in self.scene.sites.values() for part in ("kit/local", "request")]
        broken, temporary = leftovers.check_whole(federation / "runs", *outs, *sites)
        unknown, known = leftovers.check_logs(self.folder)
        wrong = [f"run {ran.number} ({ran.method}): {said}" for ran in self.runs for said in ran.wrong]
        wrong += [f"left running: {words}" for words in left] + broken
        wrong += leftovers.check_modes(self.folder, self._secrets)
        wrong += self.memory.check() + [f"traceback in {said}" for said in unknown]
        return {
            "seed": self.seed,
            "sites": len(self.scene.honest),
            "liars": 1,
            "seconds": round(time.monotonic() - self._began),
            **summarise(self.runs),
            "events": dict(sorted(self.disturber.events.items())),
            "events_in_all": self.disturber.events.total(),
            "temporary_files_left": temporary,
            "sites_that_died_by_themselves": self.died.total(),
            "known_tracebacks": dict(known.most_common()),
            "megabytes_at_most": self.memory.most(),
            "invariants": [*OF_A_RUN, *OF_THE_DRILL],
            "wrong": wrong,
        }


def _sentence(ran: Ran) -> str:
    found = ran.verdict
    figures = "" if found is None else f"{found.rounds} rounds, {found.absorbed} replies, {found.charged} charges, "
    return (
        f"run {ran.number} ({ran.method}): {figures}{ran.seconds:.0f} s, {ran.commands} commands, {ran.segments} segments; "
        f"{'all invariants hold' if not ran.wrong else 'WRONG: ' + ran.wrong[0]}"
    )
