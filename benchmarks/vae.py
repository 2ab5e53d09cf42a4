"""`python -m benchmarks.vae`: a round of the VAE methods, all clients at once beside one client after the other.

Each way is compiled before it is timed, so that the ratio is of work and not of compilation. `--celeba` runs two rounds of
`c-dpd-vae` on as many clients, images and pixels as CelebA has, made up, and prints the peak memory of the process.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import resource
import time
from typing import Any

import jax
import numpy as np

from populace.engines import simulation
from populace.engines.runtime import Keys, Traffic, new_ledger, population_of
from populace.methods.base import Population, Protocol, Replies, Shard
from populace.methods.vae.c_dpd_vae import CDpdVae
from populace.methods.vae.fed_vae import FedVae
from populace.methods.vae.l_dpd_vae import LDpdVae
from populace.privacy.source import Keyed
from populace.tables.images import Images
from populace.tables.partition import Clients, split

CELEBA_CLIENTS, CELEBA_IMAGES, CELEBA_SHAPE, CELEBA_SHARE = 9_343, 19, (32, 32, 3), 0.02


def made_up(clients: int, images: int, shape: tuple[int, ...], classes: int) -> Clients:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (clients * images, *shape), dtype=np.uint8)
    return split(Images(x=x, y=rng.integers(0, classes, len(x)), classes=classes), records_per_client=images)


def time_of_rounds(protocol: Protocol, clients: Clients, rounds: int) -> float:
    """Seconds a round of the simulation, after the rounds that compile."""
    population, keys = population_of(clients), Keys(jax.random.key(0))
    runner = simulation._RoundByRound(protocol, clients, population, keys, new_ledger(protocol, population))
    state, memory = protocol.begin(population, keys.begin()), simulation._memories(protocol, population, keys)
    state, memory, traffic, _ = runner.advance(state, memory, Traffic(), 0, 1)
    jax.block_until_ready(state)
    began = time.perf_counter()
    state, memory, _, _ = runner.advance(state, memory, traffic, 1, rounds)
    jax.block_until_ready((state, memory))
    return (time.perf_counter() - began) / rounds


def time_one_by_one(protocol: Protocol, clients: Clients, rounds: int) -> float:
    """Seconds a round with a compiled client, asked one after the other: the loop of a framework that has no vmap."""
    population, keys = population_of(clients), Keys(jax.random.key(0))
    answer = jax.jit(functools.partial(_answer, protocol, population))
    absorb = jax.jit(protocol.absorb)
    state = protocol.begin(population, keys.begin())
    memories = {client: protocol.remember(population, keys.memory(client)) for client in range(len(clients))}
    began = 0.0
    for round_id in range(rounds + 1):
        if round_id == 1:
            jax.block_until_ready(state)
            began = time.perf_counter()
        ask = protocol.ask(state, population, Keyed(keys.ask(round_id)))
        if ask is None:
            raise RuntimeError(f"expected at least {rounds + 1} rounds, got {round_id}")
        values = []
        for slot, client in enumerate(np.asarray(ask.cohort).tolist()):
            records, mask = clients.gather(np.array([client]), population.records)
            one = jax.tree.map(lambda rows: rows[0], records)
            own = jax.tree.map(lambda rows, slot=slot: rows[slot], ask.own)
            key = keys.answer(round_id, client)
            reply, memories[client] = answer(ask.common, own, one, mask[0], memories[client], key)
            values.append(reply)
        replies = Replies(
            clients=ask.cohort,
            present=ask.cohort >= 0,
            values=jax.tree.map(lambda *each: jax.numpy.stack(each), *values),
        )
        state = absorb(state, ask, replies, Keyed(keys.absorb(round_id)))
    jax.block_until_ready((state, memories))
    return (time.perf_counter() - began) / rounds


def _answer(
    protocol: Protocol, population: Population, common: Any, own: Any, records: Any, mask: Any, memory: Any, key: Any
) -> tuple[Any, Any]:
    shard = Shard(records=records, mask=mask, population=population)
    return protocol.answer(common, own, shard, memory, Keyed(key))


def compare(clients: int, images: int, rounds: int) -> list[dict[str, Any]]:
    data = made_up(clients, images, (28, 28), 10)
    methods: dict[str, Protocol] = {
        "fed-vae, one epoch, every client": FedVae(
            rounds=rounds + 1, sampling_rate=1.0, local_epochs=1, batch_size=images
        ),
        "l-dpd-vae, one noised step, every client": LDpdVae(
            epsilon=10.0, participations=rounds + 1, batch_size=images // 2
        ),
    }
    found = []
    for name, protocol in methods.items():
        together = time_of_rounds(protocol, data, rounds)
        apart = time_one_by_one(protocol, data, rounds)
        found.append({
            "method": name, "clients": clients, "images_per_client": images, "device": jax.devices()[0].device_kind,
            "seconds_per_round_simulated": round(together, 4),
            "seconds_per_round_one_client_after_the_other": round(apart, 4),
            "times_faster": round(apart / together, 2),
        })  # fmt: skip
    return found


def celeba() -> dict[str, Any]:
    protocol = CDpdVae(
        epsilon=10.0,
        rounds=2,
        sampling_rate=CELEBA_SHARE,
        local_epochs=10,
        batch_size=8,
        learning_rate=1e-2,
        clip_norm=0.5,
        momentum=0.9,
    )
    data = made_up(CELEBA_CLIENTS, CELEBA_IMAGES, CELEBA_SHAPE, 2)
    population = population_of(data)
    leaves = jax.tree.leaves(jax.eval_shape(lambda: protocol.remember(population, jax.random.key(0))))
    kept = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) * len(data)
    times = [time.perf_counter()]
    outcome = simulation.run(
        protocol, data, root=jax.random.key(0), progress=lambda _: times.append(time.perf_counter())
    )
    return {
        "clients": len(data), "images_per_client": CELEBA_IMAGES, "shape": list(CELEBA_SHAPE), "rounds": outcome.rounds,
        "clients_that_computed": outcome.traffic.messages, "charges": outcome.ledger.spent()["charges"],
        "memories_gib": round(kept / 2**30, 2),
        "memories_on_the_host": kept > simulation.MOST_MEMORY_ON_DEVICE,
        "seconds_of_each_round": [round(later - before, 2) for before, later in itertools.pairwise(times)],
        "peak_memory_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--celeba", action="store_true", help="9,343 clients of 19 images of 32 x 32 in colour, made up"
    )
    options = parser.parse_args()
    found = celeba() if options.celeba else compare(options.clients, options.images, options.rounds)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
