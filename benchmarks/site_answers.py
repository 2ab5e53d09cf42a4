"""`python -m benchmarks.site_answers`: what a site takes to answer for ten thousand patients, in blocks and one by one.

    python -m benchmarks.site_answers [--clients N] [--few N] [--json FILE]

`poll` over nine columns, one row per patient, unseeded. One process, one request for all of them after a smaller one that
compiles; the one-by-one path, which answers what is too little for a block, gets requests of so few clients, and is scaled up.
Seconds are processor time, of the operating system too, so a busy machine does not stretch the longer work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from populace.engines import site as site_module
from populace.engines import wire
from populace.engines.agreement import Agreement
from populace.engines.messages import make_ask
from populace.engines.site import Hosted, Site
from populace.engines.site_answers import LEAST_TOGETHER
from populace.methods.base import Population
from populace.methods.registry import make_protocol
from populace.privacy.ledger import Budget
from populace.privacy.source import Keyed
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.datasets.domains import adult9
from populace.tables.files import write_json
from populace.tables.partition import split
from populace.tables.table import from_codes
from populace.types import NumpyArray

EPSILON = 2.0
#: Functions of a reply whose seconds are told apart: where they are called from, and their name.
PARTS: dict[str, tuple[Any, str]] = {
    "reading the request": (site_module, "read_ask"),
    "reading the ledger, before and while booking": (SqliteLedger, "read"),
    "looking up what is stored": (site_module, "look_up"),
    "answering": (site_module, "answer_slots"),
    "booking": (SqliteLedger, "commit_many"),
    "stacking the replies": (wire, "fill_rows"),
}


def make_site(folder: Path, clients: int, *, runs: int) -> Site:
    """A site whose accounts can pay for so many runs."""
    schema = adult9()
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(size, size=clients) for size in schema.sizes], axis=1)
    agreement = Agreement(protocol=make_protocol("poll", {"epsilon": EPSILON}), schema=schema)
    budget = Budget(epsilon=EPSILON * runs)
    SqliteLedger(folder / "ledger.sqlite", budget).close()
    rows = split(from_codes(codes.astype(np.int32), schema, rng), records_per_client=1)
    hosted = Hosted(clients=rows, accounts=tuple(f"row {row + 1}" for row in range(clients)), records=1)
    return Site(
        hosted=hosted, agreements={agreement.digest: agreement}, ledger_path=folder / "ledger.sqlite", budget=budget
    )


def ask(site: Site, who: NumpyArray, *, run: str) -> bytes:
    """The request of a coordinator to some of the clients, each with a question of its own."""
    (agreement,) = site.agreements.values()
    population: Population = agreement.population(clients=len(site.hosted.accounts), records=1)
    protocol = agreement.protocol
    asked = protocol.ask(protocol.begin(population, jax.random.key(0)), population, Keyed(jax.random.key(1)))
    if asked is None:
        raise RuntimeError("poll asks nothing")
    own = np.resize(np.asarray(asked.own), len(who))
    return make_ask(
        agreement, population, run=run, round_id=0, first=0, clients=who, heard=np.zeros(len(who)), common=asked.common,
        own=own,
    )  # fmt: skip


def cpu_seconds(site: Site, requests: list[bytes], clients: int) -> float:
    """Processor time of the replies to these requests; fails unless each client is answered for once."""
    began = time.process_time()
    replies = [site.reply(request) for request in requests]
    took = time.process_time() - began
    answered = sum(len(wire.unpack(reply).arrays.get("clients", ())) for reply in replies)
    if answered != clients:
        raise RuntimeError(f"{clients} clients were asked, and {answered} answered")
    return took


def parts_of(site: Site, request: bytes) -> dict[str, float]:
    """Processor time of the parts of one reply, each without those that it calls."""
    seconds, within = dict.fromkeys(PARTS, 0.0), [0.0]

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            began = time.process_time()
            within.append(0.0)
            result = function(*arguments, **options)
            took = time.process_time() - began
            seconds[part] += took - within.pop()
            within[-1] += took
            return result

        return call

    kept = {part: getattr(home, name) for part, (home, name) in PARTS.items()}
    for part, (home, name) in PARTS.items():
        setattr(home, name, timed(part, kept[part]))
    began = time.process_time()
    site.reply(request)
    whole = time.process_time() - began
    for part, (home, name) in PARTS.items():
        setattr(home, name, kept[part])
    return {part: round(each, 3) for part, each in {**seconds, "all else": whole - within[0]}.items()}


def measure(clients: int, few: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        site = make_site(Path(name), clients, runs=9)
        everybody = np.arange(clients, dtype=np.int32)
        cold = cpu_seconds(site, [ask(site, everybody, run="cold")], clients)
        again = cpu_seconds(site, [ask(site, everybody, run="cold")], clients)
        together = [cpu_seconds(site, [ask(site, everybody, run=f"warm-{i}")], clients) for i in range(3)]
        groups = np.array_split(everybody[:few], -(-few // (LEAST_TOGETHER - 1)))
        cpu_seconds(site, [ask(site, groups[0], run="first")], len(groups[0]))
        alone = cpu_seconds(site, [ask(site, group, run="alone") for group in groups], few)
        parts = parts_of(site, ask(site, everybody, run="parts"))
    warm = sorted(together)[1]
    return {
        "clients": clients,
        "cpu_seconds_in_blocks": round(warm, 3),
        "cpu_seconds_in_blocks_each": [round(each, 3) for each in together],
        "cpu_seconds_in_blocks_with_compilation": round(cold, 3),
        "cpu_seconds_from_the_ledger": round(again, 3),
        "cpu_seconds_one_by_one": round(alone * clients / few, 3),
        "clients_measured_one_by_one": few,
        "ratio": round(alone * clients / few / warm, 1),
        "cpu_seconds_of_the_parts": parts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--few", type=int, default=200)
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    before = os.getloadavg()[0]
    found = measure(wanted.clients, wanted.few)
    print(json.dumps(found, indent=2))
    if wanted.json is not None:
        machine = {"python": platform.python_version(), "cores": os.cpu_count(), "system": platform.system()}
        command = f"python -m benchmarks.site_answers --clients {wanted.clients} --few {wanted.few}"
        load = {"before": round(before, 2), "after": round(os.getloadavg()[0], 2)}
        write_json(wanted.json, {"command": command, "machine": machine, "load": load, "measured": found})


if __name__ == "__main__":
    main()
