"""`python -m benchmarks.simulation`: `independent` on a million simulated clients, beside one client after the other.

Prints seconds after compilation, the peak memory of the process, and the ratio to the debug engine on a sample of clients.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from typing import Any

import jax
import numpy as np

from populace.engines import debug, simulation
from populace.methods.baselines.independent import Independent
from populace.tables.partition import split
from populace.tables.schema import Column, Schema
from populace.tables.table import Table, from_codes


def table_of(rows: int, columns: int) -> Table:
    schema = Schema(
        columns=tuple(
            Column(name=f"c{i}", kind="categorical", categories=tuple(str(v) for v in range(2 + 2 * i)))
            for i in range(columns)
        )
    )
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, rows) for size in schema.sizes], axis=1).astype(np.int32)
    return from_codes(codes, schema, rng)


def measure(clients: int, columns: int) -> dict[str, Any]:
    protocol = Independent(epsilon=1.0)
    table = table_of(clients, columns)
    population = split(table, records_per_client=1)
    simulation.run(protocol, population, root=jax.random.key(0))  # compiles
    began = time.perf_counter()
    outcome = simulation.run(protocol, population, root=jax.random.key(1))
    simulated = time.perf_counter() - began
    outcome.generator.sample(clients, jax.random.key(2))
    began = time.perf_counter()
    outcome.generator.sample(clients, jax.random.key(3))
    sampled = time.perf_counter() - began
    few = split(table.take(np.arange(40)), records_per_client=1)
    began = time.perf_counter()
    debug.run(protocol, few, root=jax.random.key(1))
    one_by_one = (time.perf_counter() - began) / 40
    return {
        "clients": clients,
        "columns": columns,
        "seconds_simulated_after_compilation": simulated,
        "seconds_sampling_as_many_rows": sampled,
        "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "times_faster_than_one_client_after_the_other": one_by_one * clients / simulated,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    found = measure(arguments.clients, arguments.columns)
    for name, value in found.items():
        print(f"{name:50s} {value:,.2f}" if isinstance(value, float) else f"{name:50s} {value:,}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
