"""`python -m benchmarks.collector`: simulated devices over HTTP on loopback, answers a second and latencies.

    python -m benchmarks.collector [--answers N] [--connections N] [--json FILE] [--stores sqlite postgresql] [--workers 1 4]

Every device makes two requests, one for its question and one with its answer, over connections that are kept; an answer counts
when its receipt came, after the transaction that holds it is on disk. Devices, server and database share the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import tempfile
from pathlib import Path
from typing import Any

import psutil

from benchmarks.collector_load import Devices, Served, links, postgres, postgres_folder, serving
from populace.collector.invite import invite
from populace.collector.stores import study_store
from populace.collector.study import StudyFolder, plan_study
from populace.tables.embedded import harbour_schema
from populace.tables.files import write_json

WARM_UP = 500


def make_study(folder: Path, answers: int, store: str | None) -> StudyFolder:
    harbour_schema().save(folder / "schema.toml")
    study = plan_study(
        schema=str(folder / "schema.toml"), epsilon=2.0, clients=answers, settings={"stages": 1}, title="benchmark"
    )
    place = StudyFolder(folder / "study")
    place.create(study, folder / "schema.toml")
    kept = study_store(place, study, store)
    invite(study, kept, answers, folder / "links.txt", url="http://127.0.0.1/")
    kept.close()
    return place


def server_seconds(served: Served) -> float:
    """Processor time of everything that serves; the database is not in it."""
    if served.process is None:
        return 0.0
    main = psutil.Process(served.process.pid)
    times = [process.cpu_times() for process in (main, *main.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {f"p{int(100 * q)}": round(1_000 * ordered[int(q * (len(ordered) - 1))], 2) for q in (0.5, 0.99)}


def measure(answers: int, *, workers: int, connections: int, store: str | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        place = make_study(Path(name), answers + WARM_UP, store)
        invitations = links(Path(name) / "links.txt")
        load_before = os.getloadavg()[0]
        with serving(place.path, workers=workers) as served:
            Devices(served.port, connections=connections).run(invitations[:WARM_UP])
            server, own = server_seconds(served), own_seconds()
            outcome = Devices(served.port, connections=connections, seed=1).run(invitations[WARM_UP:])
            server, own = server_seconds(served) - server, own_seconds() - own
            counted = served.progress()["answers"]
    if len(outcome.receipts) != answers or counted != answers + WARM_UP:
        raise RuntimeError(f"{answers} devices, {len(outcome.receipts)} receipts, {counted} answers in the store")
    return {
        "store": "sqlite" if store is None else "postgresql",
        "workers": workers,
        "connections": connections,
        "answers": answers,
        "seconds": round(outcome.seconds, 2),
        "answers_per_second": round(answers / outcome.seconds),
        "question_ms": quantiles(outcome.ask_seconds),
        "answer_ms": quantiles(outcome.answer_seconds),
        "server_cpu_us_per_answer": round(1e6 * server / answers),
        "devices_cpu_us_per_answer": round(1e6 * own / answers),
        "load_before": round(load_before, 2),
        "load_after": round(os.getloadavg()[0], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--stores", nargs="+", default=["sqlite", "postgresql"], choices=["sqlite", "postgresql"])
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    found: list[dict[str, Any]] = []
    for store in wanted.stores:
        if store == "postgresql" and postgres_folder() is None:
            print("no PostgreSQL is installed here: left out")
            continue
        for workers in wanted.workers:
            with postgres() if store == "postgresql" else contextlib.nullcontext() as database:
                url = None if database is None else database.url
                found.append(measure(wanted.answers, workers=workers, connections=wanted.connections, store=url))
            print(json.dumps(found[-1]), flush=True)
            if wanted.json is not None:
                machine = {"python": platform.python_version(), "cores": os.cpu_count(), "system": platform.system()}
                command = (
                    f"python -m benchmarks.collector --answers {wanted.answers} --connections {wanted.connections}"
                )
                write_json(wanted.json, {"command": command, "machine": machine, "measured": found})


if __name__ == "__main__":
    main()
