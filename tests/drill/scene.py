"""The federation of a drill: sites on loopback behind proxies, each machine with a clock of its own, one of them a liar."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

import builders
from federation_for_tests import TestFederation
from populace.engines.flare import processes
from populace.methods.registry import make_protocol
from populace.tables.files import read_json, write_json
from populace.tables.table import from_codes

from .proxy import Proxies

HERE = Path(__file__).parent
LIAR = "liar"
COORDINATOR = "coordinator"
ROWS_PER_SITE = 80
SEED_OF_SITES = 5
SECONDS_FOR_A_ROUND = 5.0
PATIENCE = 60.0
#: The methods of the runs, all with charges that add up in one ledger. `independent` asks clients in the order of the sites:
#: a site that is away is waited for, and nobody is ever lost. The others mix sites in a round: it goes on without one.
METHODS = {
    "independent": make_protocol("independent", {"epsilon": 0.5, "clients_per_batch": 2}),
    "poll": make_protocol(
        "poll",
        {
            "epsilon": 0.5, "clients_per_batch": 4, "latent_classes": 2, "prior_scale": 1.0, "chains": 1, "langevin_steps": 24,
        },
    ),
    "dp-fed-wae": make_protocol(
        "dp-fed-wae", {"epsilon": 1.5, "participations": 3, "cohort_size": 8, "latent_classes": 2}
    ),
}  # fmt: skip
WITHOUT_LIAR = ("independent",)  # a round that asks the liar alone would never have a reply


class Scene:
    """Everything that runs: `machines` are the coordinator's and the sites'. Nothing is outside `folder`."""

    def __init__(self, folder: Path, *, sites: int) -> None:
        self.folder = folder
        self.honest = tuple(f"site-{number + 1}" for number in range(sites))
        names = (*self.honest, LIAR)
        schema = builders.small_schema()
        codes = builders.dependent_codes(schema, ROWS_PER_SITE * len(names))
        table = from_codes(codes, schema, np.random.default_rng(0))
        self.clocks = {name: folder / f"{name}.clock" for name in (COORDINATOR, *names)}
        for name in self.clocks:
            self.set_clock(name, 0.0)
        self.made = TestFederation(folder, table, list(METHODS.values()), names=names, seed=SEED_OF_SITES)
        self._proxies = Proxies()
        self._port = int(self.made.federation.document["port"])
        self.proxies = {name: self._proxies.add(self._port) for name in names}

    @property
    def federation(self):
        return self.made.federation

    @property
    def sites(self):
        return self.made.sites

    def set_clock(self, machine: str, offset: float) -> None:
        """How many seconds a machine's clock is ahead."""
        path = self.clocks[machine]
        path.with_suffix(".new").write_text(repr(offset))
        path.with_suffix(".new").replace(path)

    @contextlib.contextmanager
    def environment(self, machine: str) -> Iterator[dict[str, str]]:
        """What processes started meanwhile inherit on a machine."""
        paths = [str(HERE / "injected"), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        wanted = {
            "PYTHONPATH": os.pathsep.join(paths),
            "POPULACE_DRILL_CLOCK": str(self.clocks[machine]),
            "POPULACE_DRILL_DETOUR": f"{self._port}:{self.proxies[machine].port}" if machine in self.proxies else "",
            "POPULACE_DRILL_LIES": "1" if machine == LIAR else "",
        }
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield dict(os.environ)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def kit(self, machine: str) -> Path:
        return self.federation.server_kit if machine == COORDINATOR else self.sites[machine].kit

    def start(self, machine: str) -> bool:
        """Start a machine's long-lived process, if it is not running; returns whether it was started."""
        if processes.alive(self.kit(machine)) is not None:
            return False
        with self.environment(machine):
            (self.federation if machine == COORDINATOR else self.sites[machine]).start()
        return True

    def stop(self, machine: str) -> None:
        (self.federation if machine == COORDINATOR else self.sites[machine]).stop()

    def family(self, machine: str) -> list[psutil.Process]:
        return processes.family(self.kit(machine))

    def take_method(self, method: str) -> None:
        """What the next runs are made of: the coordinator's own proposal."""
        path = self.federation.proposal_path
        agreement = self.made.agreement(METHODS[method])
        write_json(path, {**read_json(path), "agreement": agreement.to_json()})

    def close(self) -> None:
        for machine in (*self.sites, COORDINATOR):
            for member in self.family(machine):
                with contextlib.suppress(psutil.Error):
                    member.resume()
            self.stop(machine)
        self._proxies.close()

    def left_behind(self) -> list[psutil.Process]:
        """Processes that name the drill's folder, the drill itself aside."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and str(self.folder) in " ".join(process.cmdline()):
                    found.append(process)
        return [
            process for process in found if process.pid not in {parent.pid for parent in psutil.Process().parents()}
        ]


class Command:
    """`populace federation run` as a person gives it."""

    def __init__(self, scene: Scene, out: Path, *, sites: int, seed: int) -> None:
        words = [
            "federation",
            "run",
            str(scene.federation.path),
            "--out",
            str(out),
            "--sites",
            str(sites),
            "--rows",
            "50",
        ]
        words += ["--timeout", f"{SECONDS_FOR_A_ROUND:g}", "--seed", str(seed), "--patience", f"{PATIENCE:g}"]
        self.log = out.with_suffix(".log")
        self._mark = self.log.stat().st_size if self.log.exists() else 0
        with scene.environment(COORDINATOR) as environment, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "populace", *words], stdout=log, stderr=subprocess.STDOUT, env=environment,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        return self.log.read_bytes()[self._mark :].decode(errors="replace")
