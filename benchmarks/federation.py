"""`python -m benchmarks.federation`: seconds per round over real sites on loopback, beside the same round in one process.

    python -m benchmarks.federation [--sites N] [--rounds N] [--sizes N ...] [--json FILE]

Sites with mutual TLS, each its own process, one client each; a round sends so many float32 parameters to every site, and each
answers with eight bytes through its ledger. Beside it: the same loop and sites in this process (wire format, ledger and
checkpoint included, no network), and the compiled simulation.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from populace.engines import simulation
from populace.engines.agreement import Agreement
from populace.engines.checkpoint import Checkpoint
from populace.engines.coordinator import Coordinator
from populace.engines.link import InProcess
from populace.engines.roster import enrol
from populace.engines.segment import Plan
from populace.engines.site_file import open_site
from populace.federation.coordinator import Federation, Proposal
from populace.federation.demo import free_port
from populace.federation.site import Hosting, SiteFolder
from populace.federation.supervisor import Options, Supervisor
from populace.methods.base import Ask, Facts, Population, Protocol
from populace.methods.base import Plan as ProtocolPlan
from populace.methods.baselines.marginals import Marginals
from populace.privacy.events import Pure
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.tables.files import read_json, write_json
from populace.tables.partition import split
from populace.tables.schema import Column, Schema
from populace.tables.table import make_table

SCHEMA = Schema(columns=(Column(name="c", kind="categorical", categories=("a", "b")),))
SIZES = (18_188, 250_000, 25_000_000)  # DP-Fed-WAE on 124 columns, one megabyte, a hundred
PRICE = 2.0**-10  # of a round; a site's limit must be finite


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    round: Any
    theta: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Payload(Protocol):
    """So many parameters to everybody, two numbers back that depend on no record: nothing but transport, at a nominal price."""

    size: int
    total_rounds: int

    facts: ClassVar[Facts] = Facts(
        name="payload", title="", paper="", trust=("local",), unit="client", kinds=("table",), traffic=""
    )

    def round_count(self, population: Population) -> int:
        return self.total_rounds

    def begin(self, population: Population, key: Any, warm: Any = None) -> State:
        return State(round=jnp.int32(0), theta=jnp.zeros(self.size, jnp.float32))

    def ask(self, state: State, population: Population, source: Any) -> Ask | None:
        if not isinstance(state.round, jax.core.Tracer) and int(state.round) >= self.total_rounds:
            return None
        everybody = jnp.arange(population.clients, dtype=jnp.int32)
        return Ask(round=state.round, cohort=everybody, common=state.theta, own=everybody)

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=Pure(PRICE), unit="client")

    def answer(self, common: Any, own: Any, shard: Any, memory: Any, source: Any) -> tuple[Any, Any]:
        return jnp.stack([common[0], common[-1]]), memory

    def absorb(self, state: State, ask: Ask, replies: Any, source: Any) -> State:
        return State(round=state.round + 1, theta=state.theta + jnp.sum(replies.present))

    def finish(self, state: State, population: Population, key: Any) -> Marginals:
        return Marginals(schema=SCHEMA, tables=(np.full(2, 0.5),))

    def guarantee(self, population: Population) -> Guarantee:
        return Guarantee(
            epsilon=PRICE * self.total_rounds,
            unit="client",
            neighbours="replace",
            trust="local",
            mechanism="none",
        )

    def plan(self, population: Population) -> ProtocolPlan:
        sent = 4.0 * self.size
        return ProtocolPlan(
            guarantee=self.guarantee(population), rounds=self.total_rounds, bytes_up=8.0, bytes_down=sent, errors={}
        )

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return 4.0 * self.size, 8.0


def agreement(size: int, rounds: int) -> Agreement:
    from benchmarks.federation import (
        Payload as Importable,  # sites import it by this name, also when this file is the program
    )

    return Agreement(protocol=Importable(size=size, total_rounds=rounds), schema=SCHEMA)


def summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"median": statistics.median(ordered), "p90": ordered[int(0.9 * (len(ordered) - 1))], "rounds": len(ordered)}


class Bench:
    """A federation of so many sites in a folder of its own."""

    def __init__(self, folder: Path, sites: int, agreements: list[Agreement]) -> None:
        self.federation = Federation(folder / "coordinator")
        fingerprint = self.federation.create(agreements[0], name="bench", host="localhost", port=free_port())
        self.sites = [SiteFolder(folder / f"site-{i}") for i in range(sites)]
        pq.write_table(pa.table({"c": ["a", "b"]}), folder / "rows.parquet")

        def set_up(site: SiteFolder) -> None:
            _, signed = self.federation.approve(site.request(name=site.path.name, org="org", federation="bench"))
            hosting = Hosting(data=folder / "rows.parquet", by="site", epsilon=99.0)
            proposal = Proposal(federation="bench", server="", fingerprint=fingerprint, agreement=agreements[0])
            site.set_up(signed, proposal, hosting, fingerprint=fingerprint)
            own = read_json(site.file_path)
            write_json(site.file_path, {**own, "agreed": [one.to_json() for one in agreements]}, mode=0o600)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(set_up, self.sites))

    def start(self) -> float:
        began = time.perf_counter()
        self.federation.start()
        for site in self.sites:
            site.start()
        link = self.federation.connect()
        while len(link.sites()) < len(self.sites):
            time.sleep(0.1)
        link.close()
        return time.perf_counter() - began

    def stop(self) -> None:
        for site in self.sites:
            site.stop()
        self.federation.stop()

    def over_flare(self, one: Agreement, run: str) -> dict[str, float]:
        place = self.federation.run_folder(run)
        Plan(run=run, agreement=one, least=len(self.sites), timeout=300.0).save(place)
        began = time.perf_counter()
        Supervisor(self.federation, place, Options(least=len(self.sites)), lambda _: None, print).go()
        lines = [json.loads(line) for line in (place / "rounds.jsonl").read_text().splitlines()]
        if any(len(self.sites) != sum(line["replies"].values()) for line in lines):
            print("  some rounds were partial")
        return {**summary([line["seconds"] for line in lines[1:]]), "whole_run": time.perf_counter() - began}

    def in_process(self, one: Agreement, folder: Path) -> dict[str, float]:
        sites = {site.path.name: open_site(site.file_path) for site in self.sites}
        link = InProcess({name: site.reply for name, site in sites.items()})
        roster = enrol(one, link, run="in-process", least=len(sites), timeout=60.0)
        seconds: list[float] = []
        Coordinator(
            agreement=one,
            roster=roster,
            link=link,
            run=f"in-process-{folder.name}",
            root=jax.random.key(0),
            checkpoint=Checkpoint(folder / "checkpoint.npz"),
        ).go(lambda at: seconds.append(at.seconds) or True)  # type: ignore[func-returns-value]
        return summary(seconds[1:])


def simulated(one: Agreement, clients: int) -> float:
    table = make_table(pa.table({"c": ["a"] * clients}), SCHEMA)
    people = split(table)
    simulation.run(one.protocol, people, root=jax.random.key(0), compiled=False)
    began = time.perf_counter()
    outcome = simulation.run(one.protocol, people, root=jax.random.key(0), compiled=False)
    return (time.perf_counter() - began) / outcome.rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="parameters, as float32")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    agreements = [agreement(size, options.rounds if size < 10**7 else min(options.rounds, 6)) for size in options.sizes]
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench = Bench(folder, options.sites, agreements)
        try:
            print(f"{options.sites} sites connected {bench.start():.1f} s after their start")
            for size, one in zip(options.sizes, agreements, strict=True):
                place = folder / f"in-process-{size}"
                place.mkdir()
                row = {
                    "sites": options.sites, "parameters": size, "megabytes": 4e-6 * size,
                    "flare": bench.over_flare(one, f"bench-{size}"), "in_process": bench.in_process(one, place),
                    "simulation": {"mean": simulated(one, options.sites)}, "load": np.round(os.getloadavg(), 1).tolist(),
                }  # fmt: skip
                found.append(row)
                print(
                    f"{size:>12,} parameters ({row['megabytes']:.2f} MB): FLARE median {row['flare']['median']:.3f} s, "
                    f"p90 {row['flare']['p90']:.3f}; in process {row['in_process']['median']:.4f} s; "
                    f"simulation {row['simulation']['mean']:.4f} s a round (load {row['load'][0]})",
                    flush=True,
                )
        finally:
            bench.stop()
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
