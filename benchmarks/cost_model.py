"""The seconds of simulations by method, as coefficients that `populace plan` multiplies with the sizes of a run.

    python -m benchmarks.cost_model [METHOD ...]     # measures, and writes src/populace/runs/cost_model.json

Each method runs on invented rows of several sizes, in a fresh process each, with its default settings; a long run is broken off
and extrapolated from the rounds it did. Coefficients are not negative and have the least squared relative error. Processor time
is measured, on which other work on the machine has little influence; what takes so many seconds of it on one core takes
somewhat fewer on two.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import scipy.optimize

from populace.runs.plan import MODEL, sizes_of

FILE = Path(__file__).parents[1] / "src" / "populace" / "runs" / MODEL
SECONDS = 8.0  # after which a run is broken off
SIZES = {"small": (3, 6, 2, 4), "census": (7, 16, 7, 14, 6, 5, 2, 41, 2)}
PEOPLE = [("small", 2_000, 1), ("small", 50_000, 1), ("census", 4_000, 1), ("census", 200_000, 1)]
SILOS = [("small", 3, 500), ("small", 6, 4_000), ("census", 3, 2_000), ("census", 6, 20_000)]


@dataclasses.dataclass(frozen=True)
class Case:
    """One run: a method on a table of this shape, so many clients with so many records each."""

    method: str
    shape: str
    clients: int
    records: int


def measure(case: Case) -> dict[str, float]:
    """Sizes and seconds of one run, in this process."""
    import jax

    from populace.engines import simulation
    from populace.engines.runtime import Progress
    from populace.methods.base import Population
    from populace.methods.registry import make_protocol
    from populace.tables.columns import Column
    from populace.tables.partition import split
    from populace.tables.schema import Schema
    from populace.tables.table import from_codes

    columns = tuple(
        Column(name=f"c{i}", kind="categorical", categories=tuple(f"v{j}" for j in range(size)))
        for i, size in enumerate(SIZES[case.shape])
    )
    schema = Schema(columns=columns, target=columns[-1].name)
    rng = np.random.default_rng(0)
    rows = case.clients * case.records
    codes = np.stack([rng.integers(0, size, rows) for size in schema.sizes], axis=1).astype(np.int32)
    clients = split(from_codes(codes, schema, rng), records_per_client=case.records)
    protocol = make_protocol(case.method, {"epsilon": 8.0} if case.method not in ("fed-vae", "central-vae") else {})
    population = Population(schema=schema, clients=case.clients, records=case.records)
    began = time.perf_counter()
    share = 1.0

    class EnoughError(Exception):
        """The run has lasted long enough."""

    def watch(progress: Progress) -> None:
        nonlocal share
        if time.perf_counter() - began > SECONDS and progress.done < progress.total:
            share = progress.done / progress.total
            raise EnoughError

    first = time.process_time()
    with contextlib.suppress(EnoughError):
        simulation.run(protocol, clients, root=jax.random.key(0), progress=watch)
    return {"seconds": time.process_time() - first, "share": share, **sizes_of(protocol, population)}


def coefficients(points: list[dict[str, float]]) -> dict[str, float]:
    """Coefficients of the sizes, and the largest ratio of a measured time to the predicted one, or the other way about.

    What a broken-off run would have taken is its time once, and the rest of its rounds in proportion.
    """
    names = ["once", "answer", "value"]
    rows = np.array([[point["once"], *(point[name] * point["share"] for name in names[1:])] for point in points])
    seconds = np.array([point["seconds"] for point in points])
    found, _ = scipy.optimize.nnls(rows / seconds[:, None], np.ones(len(points)))
    ratios = rows @ found / seconds
    worst = float(np.exp(np.abs(np.log(np.maximum(ratios, 1e-9))).max()))
    return {**dict(zip(names, (float(f"{value:.3g}") for value in found), strict=True)), "worst_ratio": round(worst, 2)}


def cases(method: str) -> list[Case]:
    from populace.methods.registry import protocol_class

    facts = protocol_class(method).facts
    of_silos = facts.unit == "record" or method in ("c-dpd-vae", "fed-vae", "central-vae", "fedavg-gan")
    return [Case(method, *one) for one in (SILOS if of_silos else PEOPLE)]


def main(methods: list[str]) -> None:
    from populace.methods.registry import built_in_facts

    known = json.loads(FILE.read_text(encoding="utf-8"))["methods"] if FILE.is_file() else {}
    takes_tables = [facts.name for facts in built_in_facts() if "table" in facts.kinds and facts.name != "census"]
    for method in methods or takes_tables:
        points = []
        for case in cases(method):
            words = [sys.executable, "-m", "benchmarks.cost_model", "--one", json.dumps(dataclasses.asdict(case))]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{case}: {done.stderr.strip().splitlines()[-1]}", flush=True)
                continue
            points.append(json.loads(done.stdout.splitlines()[-1]))
        known[method] = coefficients(points)
        print(method, known[method], flush=True)
        document = {
            "command": "python -m benchmarks.cost_model",
            "machine": platform.machine(),
            "cores": 2,
            "methods": known,
        }
        FILE.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(Case(**json.loads(sys.argv[2])))))
    else:
        main(sys.argv[1:])
