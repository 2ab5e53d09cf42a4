"""`python -m benchmarks.wae`: rounds of DP-Fed-WAE as one compiled loop, beside the same clients one after the other.

Records are drawn evenly from 124 binary columns: time does not depend on them. Prints rounds per second of the published
setting (10 clients a round, 10 epochs, 18,188 parameters) and of the default recipe, the cost against clients per round and
against parameters, and what the paper's table 3 has: one round at the server (3.5 ms there) and 10^5 rows (7.4 s).
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import jax
import numpy as np
import pyarrow as pa

from populace.engines import simulation
from populace.engines.runtime import population_of
from populace.methods.base import Replies, Shard
from populace.methods.blocks.networks import count_parameters
from populace.methods.wae.dp_fed_wae import DpFedWae
from populace.privacy.source import Keyed
from populace.tables.partition import Clients, split
from populace.tables.schema import Column, Schema
from populace.tables.table import Table

COLUMNS = 124
ROWS = 100_000
SERVER_ROUNDS = 20


def people(clients: int) -> Clients:
    """Clients of two random records each."""
    schema = Schema(
        columns=tuple(Column(name=f"c{i}", kind="categorical", categories=("0", "1")) for i in range(COLUMNS))
    )
    codes = np.random.default_rng(0).integers(0, 2, (2 * clients, COLUMNS), dtype=np.int32)
    return split(Table(schema=schema, codes=codes, frame=pa.table({})), records_per_client=2)  # nothing reads the frame


def measure(protocol: DpFedWae, clients: Clients) -> dict[str, Any]:
    """Seconds of a run after compilation, and of the first, which compiles."""
    began = time.perf_counter()
    simulation.run(protocol, clients, root=jax.random.key(0))
    first = time.perf_counter() - began
    began = time.perf_counter()
    outcome = simulation.run(protocol, clients, root=jax.random.key(1))
    seconds = time.perf_counter() - began
    return {
        "recipe": protocol.recipe,
        "parameters": count_parameters(protocol.parts(population_of(clients)).learner.net.shapes),
        "clients_per_round": protocol.clients_per_round(population_of(clients)),
        "clients": len(clients),
        "rounds": outcome.rounds,
        "seconds": seconds,
        "seconds_compiling": max(0.0, first - seconds),
        "rounds_per_second": outcome.rounds / seconds,
        "milliseconds_per_client": 1e3 * seconds / len(clients),
    }


def one_by_one(protocol: DpFedWae, clients: Clients, count: int) -> float:
    """Seconds per client when each is computed alone, compiled but without vmap."""
    population = population_of(clients)
    ask = protocol.ask(protocol.begin(population, jax.random.key(0)), population, Keyed(jax.random.key(1)))
    if ask is None:
        raise RuntimeError("the run is over before it began")
    alone = jax.jit(
        lambda own, records, mask, key: protocol.answer(
            ask.common, own, Shard(records=records, mask=mask, population=population), (), Keyed(key)
        )[0]
    )
    records, mask = clients.gather(np.arange(count), 2)
    alone(0, records[0], mask[0], jax.random.key(0)).block_until_ready()
    began = time.perf_counter()
    for number in range(count):
        alone(number, records[number], mask[number], jax.random.key(number)).block_until_ready()
    return (time.perf_counter() - began) / count


def at_the_server(protocol: DpFedWae, clients: Clients) -> dict[str, float]:
    """Seconds of one round's question and answers at the server, and of making rows, both after compilation."""
    population = population_of(clients)
    state = protocol.begin(population, jax.random.key(0))
    ask = protocol.ask(state, population, Keyed(jax.random.key(1)))
    if ask is None:
        raise RuntimeError("the run is over before it began")
    size = len(ask.cohort)
    replies = Replies(clients=ask.cohort, present=np.ones(size, bool), values=np.arange(size, dtype=np.int32))

    @jax.jit
    def one(state: Any) -> Any:
        asked = protocol.ask(state, population, Keyed(jax.random.key(1)))
        return protocol.absorb(state, asked, replies, Keyed(jax.random.key(2)))  # type: ignore[arg-type]

    after = jax.block_until_ready(one(state))
    began = time.perf_counter()
    for _ in range(SERVER_ROUNDS):
        after = jax.block_until_ready(one(after))
    server = (time.perf_counter() - began) / SERVER_ROUNDS
    generator = protocol.finish(after, population, jax.random.key(3))
    generator.sample_codes(ROWS, jax.random.key(4), {})
    began = time.perf_counter()
    generator.sample_codes(ROWS, jax.random.key(5), {})
    return {"server_seconds_per_round": server, "seconds_for_100000_rows": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50_000, help="of the published setting")
    parser.add_argument("--sweep", type=int, default=2_000, help="clients of each row of the sweeps; 0 for none")
    parser.add_argument("--million", action="store_true", help="also 10^6 clients of the default recipe")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    rows = []

    def add(protocol: DpFedWae, clients: Clients) -> None:
        rows.append(measure(protocol, clients))
        words = [
            f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in rows[-1].items()
        ]
        print("  ".join(words), flush=True)

    everybody = people(arguments.clients)
    paper = DpFedWae(epsilon=8.0, recipe="paper")
    add(paper, everybody)
    alone = one_by_one(paper, everybody, 200)
    print(f"one client after the other: {1e3 * alone:.3g} ms each, {1e4 * alone:.3g} ms a round of ten", flush=True)
    add(DpFedWae(epsilon=8.0), everybody)
    if arguments.sweep:
        few = people(arguments.sweep)
        for cohort in (10, 100, 1_000):
            add(DpFedWae(epsilon=8.0, recipe="paper", cohort_size=cohort), few)
        for hidden in (370, 3_700):
            add(DpFedWae(epsilon=8.0, recipe="paper", hidden_size=hidden), people(max(20, 200_000 // hidden)))
    if arguments.million:
        add(DpFedWae(epsilon=8.0), people(1_000_000))
    server = {recipe: at_the_server(DpFedWae(epsilon=8.0, recipe=recipe), everybody) for recipe in ("paper", "best")}  # type: ignore[arg-type]
    for recipe, values in server.items():
        print(f"{recipe}: " + "  ".join(f"{name} {value:.4g}" for name, value in values.items()), flush=True)
    found = {
        "device": str(jax.devices()[0].device_kind), "one_by_one_seconds_per_client": alone, "rows": rows, "server": server,
    }  # fmt: skip
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
