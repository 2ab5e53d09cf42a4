"""Three sites on one machine, as three hospitals would do it step by step, with the table that ships with the package."""

from __future__ import annotations

import dataclasses
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from populace.errors import RunError
from populace.federation.coordinator import Federation, read_proposal
from populace.federation.propose import propose
from populace.federation.site import Hosting, SiteFolder
from populace.federation.supervisor import Options, Say, Watch, run_federation
from populace.runs.run import Run
from populace.tables.embedded import harbour

NAME = "harbour"
SITES = ("northgate", "netherfield", "quayside")
SHARES = (0.5, 0.3, 0.2)
ROWS = 4_000
QUICK = {
    "chains": "2",
    "langevin_steps": "100",
}  # a shorter fit than by default: this is to be looked at, not to be used


@dataclasses.dataclass(frozen=True, kw_only=True)
class Played:
    """The results of the demo: its folder and its run."""

    run: Run
    folder: Path
    sites: tuple[SiteFolder, ...]
    all_rows: Path


def play(out: Path, *, epsilon: float, watch: Watch, say: Say) -> Played:
    """Create a federation, let sites join, run, and stop; everything that was started is stopped, whatever happens."""
    if out.exists() and any(out.iterdir()):
        raise RunError(f"{out} is not empty; choose another --out, or remove it")
    out.mkdir(parents=True, exist_ok=True)
    table = harbour()
    schema, everything = out / "harbour.toml", out / "all-rows-for-the-report.parquet"
    table.schema.save(schema)
    table.save(everything)
    federation = Federation(out / "coordinator")
    say("coordinator: founds the federation (root certificate, server, proposal)")
    agreement = propose(schema=str(schema), epsilon=epsilon, method="poll", settings=QUICK)
    fingerprint = federation.create(agreement, name=NAME, host="localhost", port=free_port())
    sites = tuple(SiteFolder(out / name) for name in SITES)
    edges = np.round(np.cumsum([0.0, *SHARES]) * len(table)).astype(int)
    say(f"{', '.join(SITES)}: make keys and requests; the coordinator signs; each joins with its own rows")

    def join(number: int) -> None:
        name, site = SITES[number], sites[number]
        request = site.request(name=name, org=f"{name}_clinic", federation=NAME)
        _, signed = federation.approve(request)
        rows = out / f"{name}.parquet"
        table.take(np.arange(edges[number], edges[number + 1])).save(rows)
        hosting = Hosting(data=rows, by="rows", epsilon=epsilon)
        site.set_up(signed, read_proposal(federation.proposal_path), hosting, fingerprint=fingerprint)

    with ThreadPoolExecutor(len(SITES)) as pool:
        list(pool.map(join, range(len(SITES))))
    try:
        federation.start()
        for site in sites:
            site.start()
        say("all are started; the run begins when three sites are connected")
        run = run_federation(
            federation,
            out / "run",
            rows=ROWS,
            seed=None,
            options=Options(least=len(SITES), timeout=120.0),
            watch=watch,
            say=say,
        )
    finally:
        for site in sites:
            site.stop()
        federation.stop()
    return Played(run=run, folder=out / "run", sites=sites, all_rows=everything)


def free_port() -> int:
    """A free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
