"""Doing what was drawn, and undoing it: signals, limits on files, clocks, proxies. Everything that happens is written down."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from .plan import Disturbance
from .scene import COORDINATOR, Command, Scene


@dataclasses.dataclass(order=True)
class Undo:
    """What ends a disturbance, and when."""

    at: float
    what: str = dataclasses.field(compare=False)
    act: Callable[[], None] = dataclasses.field(compare=False)


class Disturber:
    """Carries out disturbances of one drill; `events` counts those that met something, by kind."""

    def __init__(self, scene: Scene, log: Path) -> None:
        self._scene, self._log, self._began = scene, log, time.monotonic()
        self._pending: list[Undo] = []
        self.command: Command | None = None
        self.events: Counter[str] = Counter()

    @property
    def idle(self) -> bool:
        """Whether nothing that was begun is still to be ended."""
        return not self._pending

    def note(self, what: str, **more: object) -> None:
        line = {"at": round(time.monotonic() - self._began, 3), "what": what, **more}
        with self._log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def do(self, what: Disturbance, run: int) -> None:
        act = getattr(self, "_" + what.kind.replace("-", "_"))
        met = act(what)
        self.events[what.kind] += bool(met)
        self.note(what.kind, run=run, site=what.site if what.kind.endswith(("site", "client", "job")) else "",
                  seconds=what.seconds, amount=what.amount, met=met)  # fmt: skip

    def undo(self, *, all_now: bool = False) -> None:
        """End what is due, or everything."""
        now = time.monotonic()
        due = sorted(one for one in self._pending if all_now or one.at <= now)
        self._pending = [one for one in self._pending if one not in due]
        for one in due:
            one.act()
            self.note(f"end of {one.what}")

    def _later(self, what: Disturbance, act: Callable[[], None]) -> None:
        self._pending.append(Undo(time.monotonic() + what.seconds, f"{what.kind} {what.site}", act))

    def _signal(self, members: list[psutil.Process], number: int) -> int:
        met = 0
        for member in members:
            with contextlib.suppress(psutil.Error):
                member.send_signal(number)
                met += 1
        if number == signal.SIGKILL:
            psutil.wait_procs(members, timeout=10)
        return met

    def _command_process(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            if self.command is not None and self.command.process.poll() is None:
                return [psutil.Process(self.command.process.pid)]
        return []

    # Kills. The server is started again by the command, or with it; a site by its staff, after a while.

    def _kill_site(self, what: Disturbance) -> int:
        met = self._signal(self._scene.family(what.site), signal.SIGKILL)
        self._later(what, lambda: self._back(what.site))
        return met

    def _kill_site_client(self, what: Disturbance) -> int:
        """The client alone: its job process is an orphan until it notices."""
        met = self._signal(self._scene.family(what.site)[:1], signal.SIGKILL)
        self._later(what, lambda: self._back(what.site))
        return met

    def _kill_site_job(self, what: Disturbance) -> int:
        return self._signal(self._scene.family(what.site)[1:], signal.SIGKILL)

    def _kill_server(self, what: Disturbance) -> int:
        return self._signal(self._scene.family(COORDINATOR), signal.SIGKILL)

    def _kill_server_process(self, what: Disturbance) -> int:
        return self._signal(self._scene.family(COORDINATOR)[:1], signal.SIGKILL)

    def _kill_server_job(self, what: Disturbance) -> int:
        return self._signal(self._scene.family(COORDINATOR)[1:], signal.SIGKILL)

    def _kill_command(self, what: Disturbance) -> int:
        if self.command is None or self.command.process.poll() is not None:
            return 0
        self.command.kill()  # by its parent's own handle: whoever else waits for it takes its exit code away
        return 1

    def _kill_everything(self, what: Disturbance) -> int:
        met = self._kill_command(what) + self._kill_server(what)
        for site in self._scene.honest:
            met += self._signal(self._scene.family(site), signal.SIGKILL)
            self._later(what, lambda site=site: self._back(site))
        return met

    def _back(self, site: str) -> None:
        self.note("started again" if self._scene.start(site) else "was running", site=site)

    # Stops

    def _stop(self, what: Disturbance, members: list[psutil.Process]) -> int:
        self._later(what, lambda: self._signal(members, signal.SIGCONT) and None)
        return self._signal(members, signal.SIGSTOP)

    def _stop_site(self, what: Disturbance) -> int:
        return self._stop(what, self._scene.family(what.site))

    def _stop_site_job(self, what: Disturbance) -> int:
        return self._stop(what, self._scene.family(what.site)[1:])

    def _stop_server(self, what: Disturbance) -> int:
        return self._stop(what, self._scene.family(COORDINATOR))

    def _stop_command(self, what: Disturbance) -> int:
        return self._stop(what, self._command_process())

    def _restart_site(self, what: Disturbance) -> int:
        met = len(self._scene.family(what.site))
        self._scene.stop(what.site)
        self._later(what, lambda: self._back(what.site))
        return met

    # Clocks: what is set stays set; a later one sets it again.

    def _clock_site(self, what: Disturbance) -> int:
        self._scene.set_clock(what.site, what.amount)
        return 1

    def _clock_coordinator(self, what: Disturbance) -> int:
        self._scene.set_clock(COORDINATOR, what.amount)
        return 1

    # Full disks: no file may grow past so many bytes. Python ignores SIGXFSZ, so that writing fails with EFBIG.

    def _disk_site(self, what: Disturbance) -> int:
        return self._fill(what, lambda: self._scene.family(what.site))

    def _disk_coordinator(self, what: Disturbance) -> int:
        return self._fill(what, lambda: [*self._scene.family(COORDINATOR), *self._command_process()])

    def _fill(self, what: Disturbance, members: Callable[[], list[psutil.Process]]) -> int:
        def limit(most: int) -> int:
            met = 0
            for member in members():  # also those started meanwhile, which inherit the limit
                with contextlib.suppress(OSError, psutil.Error):
                    _, hard = resource.prlimit(member.pid, resource.RLIMIT_FSIZE)
                    resource.prlimit(member.pid, resource.RLIMIT_FSIZE, (most, hard))
                    met += 1
            return met

        self._later(what, lambda: limit(resource.RLIM_INFINITY) and None)
        return limit(int(what.amount))

    # Connections

    def _slow_site(self, what: Disturbance) -> int:
        self._scene.proxies[what.site].rate = what.amount
        self._later(what, self._scene.proxies[what.site].heal)
        return 1

    def _late_site(self, what: Disturbance) -> int:
        self._scene.proxies[what.site].latency = what.amount
        self._later(what, self._scene.proxies[what.site].heal)
        return 1

    def _silent_site(self, what: Disturbance) -> int:
        self._scene.proxies[what.site].silent = True
        self._later(what, self._scene.proxies[what.site].heal)
        return 1

    def _cut_site(self, what: Disturbance) -> int:
        proxy = self._scene.proxies[what.site]
        proxy.refusing = True
        proxy.cut()
        self._later(what, proxy.heal)
        return 1

    def _half_open_site(self, what: Disturbance) -> int:
        proxy = self._scene.proxies[what.site]
        proxy.half_open()
        self._later(what, proxy.cut)
        return 1
