"""`python -m benchmarks.secure_sum_graph`: a client's seconds and bytes in a secure sum, masks between all or along a graph.

    python -m benchmarks.secure_sum_graph [--size N] [--clients K ...] [--json FILE]

A tenth of the clients may collude and a tenth may be missing; nobody is missing here. All clients run in this process, one
after the other. A client's seconds are its own work over all steps, drawing its share of the noise among it; the median over a
sample is given. Clients of the sample keep their steps on disk as at a real site, the others in memory. Bytes are those of the
messages; the network is not in it. Along the graph all clients take all steps and the sum is opened; less the plain sum, it has
to be noise of the right scale. With masks between all that is done for up to `ALL_PAIRS` clients. Above it, keys are those of
all, one client takes every step with sealed boxes, signatures and lists as they would come from all the others, and the sum is
not opened. (The library refuses masks between more than 1,000; the limit is lifted here to measure what it spares.)
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.secure_sum import DEVIATION, Site, numbers_with_noise, timed, timed_twice
from populace.engines.secure_sum import messages, primitives, roster, steps
from populace.engines.secure_sum.graph import graph_of_claim
from populace.engines.secure_sum.journal import MemoryJournal
from populace.engines.secure_sum.opening import open_sum
from populace.engines.secure_sum.roster import Member, Opening, SumRoster
from populace.engines.secure_sum.site import SumSite
from populace.engines.secure_sum.steps import kept_from_bytes

CLIENTS = (50, 200, 1_000, 5_000)
SAMPLED = 10
ALL_PAIRS = 200
SHARE = 0.1  # of all clients that may collude, and that may be missing


class InMemory(Site):
    """A client that is not in the sample."""

    def __init__(self, opening: Opening, place: int, key: bytes) -> None:
        self.own = SumSite(opening=opening, place=place, signing_key=key, journal=MemoryJournal())
        self.seconds = self.cpu = 0.0
        self.up = self.down = 0


def signing_key(place: int) -> bytes:
    return hashlib.sha256(place.to_bytes(4, "big")).digest()


def make_opening(count: int, size: int, *, sparse: bool) -> Opening:
    members = tuple(
        Member(site=f"client-{i}", key=primitives.signing_public(signing_key(i)).hex()) for i in range(count)
    )
    few = math.ceil(SHARE * count)
    return Opening(
        run="benchmark", round=0, roster=SumRoster(members=members, threshold=count - few, colluders=few), size=size,
        graph=graph_of_claim(clients=count, colluders=few, dropouts=few) if sparse else None,
    )  # fmt: skip


def opened_by_all(opening: Opening, folder: Path) -> dict[str, Any]:
    count = len(opening.roster.members)
    sample = set(np.linspace(0, count - 1, SAMPLED).astype(int).tolist())
    clients = [
        Site(opening, place, signing_key(place), folder)
        if place in sample
        else InMemory(opening, place, signing_key(place))
        for place in range(count)
    ]
    counts = np.arange(opening.size, dtype=np.int64) % 1_000

    def exchange(step: messages.Step, requests: Any) -> Any:
        for place, request in requests.items():
            yield place, clients[place].answer(step, request, counts)

    took, cpu, opened = timed_twice(lambda: open_sum(opening, exchange))
    noise = opened.total.view(np.int64) - count * counts
    spread = float(noise.std() / (DEVIATION * count**0.5))
    if not 0.95 < spread < 1.05 or len(opened.survivors) != count:
        raise SystemExit(
            f"the opened sum is not that of the clients: its noise is {spread:.3f} times what it should be"
        )
    coordinator = took - sum(client.seconds for client in clients), cpu - sum(client.cpu for client in clients)
    return figures([clients[place] for place in sorted(sample)], coordinator) | {"opened": True}


def one_of_all(opening: Opening, folder: Path) -> dict[str, Any]:
    """The first client's part in a sum with masks between all, with what the others would send it."""
    count = len(opening.roster.members)
    counts = np.arange(opening.size, dtype=np.int64) % 1_000
    client = Site(opening, 0, signing_key(0), folder)
    row = messages.unpack_rows(
        client.answer("advertise", {}, counts), kind="advertise", width=messages.ADVERTISED_BYTES
    )
    others, keys = {}, {0: row[0]}
    for place in range(1, count):
        others[place], keys[place] = steps.advertise(opening, place=place, signing_key=signing_key(place))
    client.answer("share", keys, counts)
    boxes = {}
    for place, kept in others.items():
        known = dataclasses.replace(kept, keys=keys)
        key = steps.sealing_keys(opening, known, [(place, 0)])[place, 0]
        content = os.urandom(messages.SEALED_BYTES - 16)
        boxes[place] = primitives.seal(key, content, bound_to=opening.context)
    client.answer("mask", boxes, counts)
    survivors = tuple(range(count))
    client.answer("confirm", dict.fromkeys(survivors, b""), counts)
    content = steps.confirmed(
        opening, kept_from_bytes(client.own.journal.kept("benchmark", 0, "confirm")).keys, survivors
    )
    signatures = {place: primitives.sign(signing_key(place), content) for place in survivors}
    client.answer("reveal", signatures, counts)
    return figures([client], (None, None)) | {"opened": False}


def figures(sample: list[Site], coordinator: tuple[float | None, float | None]) -> dict[str, Any]:
    return {
        "seconds_of_a_client": statistics.median(client.seconds for client in sample),
        "cpu_seconds_of_a_client": statistics.median(client.cpu for client in sample),
        "bytes_from_a_client": statistics.median(client.up for client in sample),
        "bytes_to_a_client": statistics.median(client.down for client in sample),
        "clients_measured": len(sample), "seconds_of_the_coordinator": coordinator[0],
        "cpu_seconds_of_the_coordinator": coordinator[1],
    }  # fmt: skip


def measured(count: int, size: int, *, sparse: bool) -> dict[str, Any]:
    opening = make_opening(count, size, sparse=sparse)
    graph = opening.graph
    masks = {"neighbours": count - 1, "shares_needed": opening.shares_needed}
    if graph is not None:
        few = opening.roster.colluders
        masks = {
            "neighbours": graph.degree, "shares_needed": graph.threshold,
            "leaks_at_most": graph.leaks(colluders=few, dropouts=few), "fails_at_most": graph.fails(dropouts=few),
        }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        whole = sparse or count <= ALL_PAIRS
        return masks | (opened_by_all if whole else one_of_all)(opening, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=10**4)
    parser.add_argument("--clients", type=int, nargs="+", default=list(CLIENTS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    roster.MOST_MEMBERS = max(roster.MOST_MEMBERS, *options.clients)
    took, _ = timed(lambda: [numbers_with_noise(np.zeros(options.size, np.int64)) for _ in range(20)])
    rows = []
    for count in options.clients:
        row = {"clients": count} | {
            name: measured(count, options.size, sparse=name == "graph") for name in ("graph", "all_pairs")
        }
        rows.append(row)
        for name in ("graph", "all_pairs"):
            one: Any = row[name]
            print(
                f"{count:>6,} clients, {name}: {one['neighbours']:,} neighbours, {one['seconds_of_a_client']:.3f} s "
                f"(CPU {one['cpu_seconds_of_a_client']:.3f}), {one['bytes_from_a_client'] / 1e3:.1f} kB up, "
                f"{one['bytes_to_a_client'] / 1e3:.1f} kB down, coordinator's CPU {one['cpu_seconds_of_the_coordinator']}",
                flush=True,
            )
    if options.json is not None:
        command = "python -m benchmarks.secure_sum_graph --json docs/results/secure-sum-graph.json"
        document = {
            "command": command, "numbers": options.size, "bits": 64, "share_that_may_collude": SHARE,
            "share_that_may_be_missing": SHARE, "seconds_of_the_noise_alone": took / 20, "rows": rows,
        }  # fmt: skip
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
