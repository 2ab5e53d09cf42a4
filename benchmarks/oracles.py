"""`python -m benchmarks.oracles`: perturb and count a million reports on one core, beside two published packages.

    pip install --target DIR --no-deps pure-ldp multi-freq-ldpy "xxhash<4" bitarray bitstring tibs numba llvmlite \\
        statsmodels patsy
    PYTHONPATH=src:DIR python -m benchmarks.oracles --json FILE

The packages are measured in the same run where they can be imported, on fewer users, scaled up: they take one user at a time.
Seconds are processor time of one core, medians of five after compilation, so a busy machine does not stretch the longer work.
All perturb (with generators for simulation, not for deployment), count and estimate. Ours is `simulate_batch`; `keyed` is what
perturbing takes as engines do it, with a key per client.
"""

from __future__ import annotations

from benchmarks.one_core import median_seconds  # isort: skip (before JAX starts its threads)

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.peer_oracles import multi_freq_ldpy, pure_ldp
from populace.privacy.randomizers.aggregate import tally
from populace.privacy.randomizers.base import FrequencyOracle, Randomizer, simulate_many
from populace.privacy.randomizers.grr import Grr
from populace.privacy.randomizers.hadamard import Hadamard
from populace.privacy.randomizers.hashing import Olh
from populace.privacy.randomizers.rappor import Rappor
from populace.privacy.randomizers.subset import SubsetSelection
from populace.privacy.randomizers.unary import Oue, Sue

USERS = 1_000_000
FEW = 20_000
SIZE = 64
EPSILONS = (1.0, 4.0)
KINDS: dict[str, Any] = {
    "grr": Grr,
    "oue": Oue,
    "sue": Sue,
    "olh": Olh,
    "subset": SubsetSelection,
    "hadamard": Hadamard,
    "rappor": Rappor,
}


def ours(oracle: Randomizer, values: Any) -> dict[str, float]:
    """Seconds to perturb with a key per client, to perturb in one batch, and to count and estimate."""
    keyed = jax.jit(lambda values, key: simulate_many(oracle.simulate, values, key))
    key = jax.random.key(0)
    reports = oracle.simulate_batch(values, seed=0)
    estimate = oracle.estimate if isinstance(oracle, FrequencyOracle) else oracle.estimate_bits  # type: ignore[attr-defined]

    def count() -> Any:
        counted = tally(oracle, reports)
        return estimate(counted.counts, counted.reports)

    return {
        "keyed_s": median_seconds(lambda: jax.block_until_ready(keyed(values, key))),
        "perturb_s": median_seconds(lambda: oracle.simulate_batch(values, seed=0)),
        "count_s": median_seconds(count),
    }


def theirs(make: Callable[..., Any], name: str, epsilon: float, values: list[int]) -> float | None:
    """Seconds scaled to `USERS`, or None where the package or the oracle is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work = make(name, epsilon, SIZE, values)
            return None if work is None else median_seconds(work) * USERS / len(values)
    except ImportError:
        return None


def measure() -> list[dict[str, Any]]:
    values = np.random.default_rng(0).integers(0, SIZE, USERS).astype(np.int32)
    few = values[:FEW].tolist()
    rows = []
    for epsilon in EPSILONS:
        for name, kind in KINDS.items():
            row: dict[str, Any] = {"oracle": name, "epsilon": epsilon, **ours(kind(size=SIZE, epsilon=epsilon), values)}
            row["total_s"] = row["perturb_s"] + row["count_s"]
            for package, make in (("multi_freq_ldpy", multi_freq_ldpy), ("pure_ldp", pure_ldp)):
                seconds = theirs(make, name, epsilon, few)
                row[f"{package}_s"] = seconds
                row[f"{package}_ratio"] = None if seconds is None else seconds / row["total_s"]
            rows.append(row)
            show(row)
    return rows


def show(row: dict[str, Any]) -> None:
    def cell(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    print(
        f"{row['oracle']:>9} {row['epsilon']:>4} {row['keyed_s']:>7.3f}"
        f" {row['perturb_s']:>9.3f} {row['count_s']:>7.3f} {row['total_s']:>7.3f}"
        f" {cell(row['multi_freq_ldpy_s'], '.1f'):>16} {cell(row['multi_freq_ldpy_ratio'], '.0f'):>6}"
        f" {cell(row['pure_ldp_s'], '.1f'):>9} {cell(row['pure_ldp_ratio'], '.0f'):>6}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the table here as well")
    arguments = parser.parse_args()
    print(
        f"{USERS} users, {SIZE} values, one core; its seconds after compilation, median of 5; packages scaled from {FEW} users"
    )
    heads = f"{'oracle':>9} {'eps':>4} {'keyed':>7} {'perturb':>9} {'count':>7} {'total':>7}"
    print(heads + f" {'multi-freq-ldpy':>16} {'ratio':>6} {'pure-ldp':>9} {'ratio':>6}")
    rows = measure()
    if arguments.json:
        command = f"PYTHONPATH=src:DIR python -m benchmarks.oracles --json {arguments.json}"
        table = {"command": command, "users": USERS, "package_users": FEW, "size": SIZE, "rows": rows}
        arguments.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
