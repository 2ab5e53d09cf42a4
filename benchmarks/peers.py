"""`python -m benchmarks.peers`: the same work, in one run, by us and by what people would take instead.

    pip install torch pure-ldp statsmodels "xxhash<4" multi-freq-ldpy mbi   # each optional; what is missing is skipped by name
    python -m benchmarks.peers --json FILE [--only rounds oracles fit]

`rounds`   a published round of DP-Fed-WAE: our compiled simulation, a PyTorch loop over clients, `torch.func` over all at once.
           Before anything is timed, both must compute the update that ours computes, from the same start and latents
`oracles`  reports of randomised response, OUE and OLH, perturbed, counted and estimated: ours, pure-ldp, multi-freq-ldpy
`fit`      noisy tables of all pairs of nine columns: our mixture, and mbi's estimators, each in a process of its own

Work alternates, figures are medians, ratios are theirs to ours. The machine and its load are stored with them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import describe, usable_cores

TOLERANCE = 1e-4  # of an update's coordinates, which are up to ten learning rates of 1e-3 long
ROUNDS = {"ours": 500, "PyTorch client loop": 2, "torch.func": 10}  # timed together
REPEATS = 5
ORACLES = ("grr", "oue", "olh")
USERS, FEW, SIZE, EPSILON = 1_000_000, 20_000, 64, 1.0
FIT_SECONDS = 600.0  # after which an estimator is given up
NEEDED = {"rounds": ("torch",), "oracles": ("pure_ldp", "multi_freq_ldpy"), "fit": ("mbi",)}


def missing(part: str) -> list[str]:
    """The packages of a part that are not installed."""
    return [name for name in NEEDED[part] if importlib.util.find_spec(name) is None]


def compare_rounds(repeats: int) -> dict[str, Any]:
    """Milliseconds of a round, ours and theirs, and by how much the updates differ."""
    import jax

    from benchmarks.wae import people
    from populace.engines import simulation
    from populace.engines.runtime import population_of
    from populace.methods.blocks.networks import count_parameters
    from populace.methods.wae.dp_fed_wae import DpFedWae

    protocol = DpFedWae(epsilon=8.0, recipe="paper")
    clients = people(10 * ROUNDS["ours"])
    learner: Any = protocol.parts(population_of(clients)).learner
    works: dict[str, Callable[[], object]] = {"ours": lambda: simulation.run(protocol, clients, root=jax.random.key(1))}
    result: dict[str, Any] = {"clients_per_round": 10, "parameters": count_parameters(learner.net.shapes)}
    if "torch" in missing("rounds"):
        result["skipped"] = ["torch"]
    else:
        differences, theirs = torch_rounds(learner, clients)
        result["largest_difference_of_updates"] = differences
        works |= theirs
    times = alternate({name: (work, ROUNDS[name]) for name, work in works.items()}, repeats)
    return (
        result | {"milliseconds_per_round": {name: summary(each, 1e3) for name, each in times.items()}} | ratios(times)
    )


def torch_rounds(learner: Any, clients: Any) -> tuple[dict[str, float], dict[str, Callable[[], object]]]:
    """How far the updates of both ways of PyTorch are from ours, and the work to be timed."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import torch

    from benchmarks import peer_rounds

    torch.set_num_threads(usable_cores())
    net = learner.net
    theta = net.start(jax.random.key(7))
    records = clients.gather(np.arange(10), 2)[0]
    keys = jax.random.split(jax.random.key(8), 10)
    mine = jax.jit(jax.vmap(lambda own, key: learner.update(theta, own, jnp.ones(2), key)))(jnp.asarray(records), keys)
    # The latents that `adam_update` draws, epoch by epoch.
    draw = jax.vmap(lambda key, epoch: jax.random.normal(jax.random.fold_in(key, epoch), (2, net.latent)), (None, 0))
    priors = np.stack([np.asarray(draw(key, jnp.arange(learner.local_epochs))) for key in keys])
    start = torch.tensor(np.asarray(theta))
    x = torch.tensor(np.asarray(net.blocks.encode(records)))
    made = peer_rounds.peers(
        net.shapes, learner.mechanism, epochs=learner.local_epochs, learning_rate=learner.learning_rate
    )
    differences, works = {}, {}
    for peer in made:
        update = peer.updates(start, x, torch.tensor(priors)).numpy()
        differences[peer.name] = float(np.abs(update - np.asarray(mine)).max())
        if not differences[peer.name] <= TOLERANCE:
            raise RuntimeError(f"{peer.name}: its updates differ from ours by {differences[peer.name]:.2g}")

        def work(peer: Any = peer) -> None:
            now = start
            for _ in range(ROUNDS[peer.name]):
                now = peer.round(now, x, net.latent)

        works[peer.name] = work
    return differences, works


def alternate(works: dict[str, tuple[Callable[[], object], int]], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds and processor seconds of one unit of each work, once for every repeat, after a first call each."""
    for work, _ in works.values():
        work()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, (work, units) in works.items():
            began, worked = time.perf_counter(), time.process_time()
            work()
            times[name].append(((time.perf_counter() - began) / units, (time.process_time() - worked) / units))
    return times


def summary(times: list[tuple[float, float]], scale: float = 1.0) -> dict[str, float]:
    """The medians of time and processor time."""
    wall, processor = zip(*times, strict=True)
    return {"time": scale * statistics.median(wall), "processor_time": scale * statistics.median(processor)}


def ratios(times: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """How many times longer the others take, the median over repeats, by time and by processor time."""
    found = {
        name: {
            kind: statistics.median(
                theirs[which] / mine[which] for theirs, mine in zip(each, times["ours"], strict=True)
            )
            for which, kind in enumerate(("time", "processor_time"))
        }
        for name, each in times.items()
        if name != "ours"
    }
    return {"ratios": found}


def compare_oracles(repeats: int) -> dict[str, Any]:
    """Seconds of a million reports; the packages take one user at a time, so fewer users are scaled up."""
    import numpy as np

    from benchmarks import peer_oracles
    from populace.privacy.randomizers.aggregate import tally
    from populace.privacy.randomizers.grr import Grr
    from populace.privacy.randomizers.hashing import Olh
    from populace.privacy.randomizers.unary import Oue

    values = np.random.default_rng(0).integers(0, SIZE, USERS).astype(np.int32)
    kinds: dict[str, Any] = {"grr": Grr, "oue": Oue, "olh": Olh}
    rows, skipped = {}, set()
    for name in ORACLES:
        oracle = kinds[name](size=SIZE, epsilon=EPSILON)

        def mine(oracle: Any = oracle) -> Any:
            counted = tally(oracle, oracle.simulate_batch(values, seed=0))
            return oracle.estimate(counted.counts, counted.reports)

        works: dict[str, tuple[Callable[[], object], int]] = {"ours": (mine, USERS)}
        for package in ("pure_ldp", "multi_freq_ldpy"):
            try:
                work = getattr(peer_oracles, package)(name, EPSILON, SIZE, values[:FEW].tolist())
                work()
            except ImportError as problem:
                skipped.add(f"{package} ({problem})")
            except (
                TypeError,
                ValueError,
                AttributeError,
            ) as problem:  # a version that does not work with its own parts
                skipped.add(f"{package} ({name}: {problem})")
            else:
                works[package] = (work, FEW)
        times = alternate(works, repeats)
        rows[name] = {"seconds": {who: summary(each, USERS) for who, each in times.items()}} | ratios(times)
        say(name, rows[name])
    return {"users": USERS, "users_of_packages": FEW, "values": SIZE, "epsilon": EPSILON, "rows": rows} | (
        {"skipped": sorted(skipped)} if skipped else {}
    )


def compare_fits() -> dict[str, Any]:
    """Seconds and two-way distance of each fit."""
    from benchmarks.peer_fits import KINDS

    found: dict[str, Any] = {}
    for kind in KINDS:
        if kind != "ours" and missing("fit"):
            return {"rows": found, "skipped": ["mbi"]}
        words = [sys.executable, "-m", "benchmarks.peer_fits", kind]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=FIT_SECONDS)
        except subprocess.TimeoutExpired:
            found[kind] = {"failed": f"not done after {FIT_SECONDS:.0f} s"}
        else:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            found[kind] = json.loads(done.stdout.splitlines()[-1]) if not done.returncode else {"failed": last}
        say(kind, found[kind])
    return {
        "rows": found,
        "ratios": {
            kind: row["processor_seconds"] / found["ours"]["processor_seconds"]
            for kind, row in found.items()
            if kind != "ours" and "failed" not in row
        },
    }


def say(name: str, row: dict[str, Any]) -> None:
    print(f"{name}: {json.dumps(row, default=float)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(NEEDED), default=list(NEEDED))
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--json", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    warnings.simplefilter("ignore")  # of the packages, about each other
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "rounds": lambda: compare_rounds(arguments.repeats),
        "oracles": lambda: compare_oracles(arguments.repeats),
        "fit": compare_fits,
    }
    document: dict[str, Any] = {"command": "python -m benchmarks.peers", "machine": describe()}
    for part in arguments.only:
        for name in missing(part):
            print(f"{part}: {name} is not installed; skipped", flush=True)
        document[part] = parts[part]() | {"load": [round(load, 2) for load in os.getloadavg()]}
        say(part, document[part])
        if arguments.json:
            arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
