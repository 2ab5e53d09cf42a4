"""Digests of small seeded runs of every method on every engine: a change that should change no number changes no digest.

    python tools/digests.py --out digests.json              run all, store what came out
    python tools/digests.py --against docs/results/digests.json   run all, name every run that differs; exit code 1 if one does

A digest covers all numbers of the server's last state, of the generator, and what the ledgers booked, whatever their order.
Digests of floating-point results hold for one machine and one version of JAX; `docs/results/digests.json` names both.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import platform
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from populace.engines import debug, simulation
from populace.engines.agreement import Agreement
from populace.engines.checkpoint import Checkpoint
from populace.engines.coordinator import Coordinator
from populace.engines.link import InProcess
from populace.engines.roster import enrol
from populace.engines.runtime import Outcome, population_of
from populace.engines.site import Hosted, Site
from populace.methods.base import Protocol
from populace.methods.registry import BUILT_IN, make_protocol, protocol_class
from populace.privacy.ledger import Budget
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.images import Images
from populace.tables.partition import Clients, split
from populace.tables.schema import Column, Schema
from populace.tables.table import Table, from_codes

EPSILON, SEED = 2.0, 5
ROWS, FEW, IMAGES = 60, 10, 34
#: Methods that answer without training a network: they get all rows.
MANY = ("poll", "independent", "samprivsyn", "calm", "krr", "lopub", "locop", "moments")
DECODER = {"hidden_size": 4, "latent_size": 2}
CHAINED = "participations=2,hidden_size=3,latent_size=2,sleep_steps=1,fitting_steps=2,batch_size=1"
#: Where the method's own small settings are not those of the digests that are kept.
ROW_SETTINGS: dict[str, dict[str, Any]] = {
    "dp-fed-wae": {"cohort_size": 5, "latent_classes": 2},
    "fedsel-wae": {"cohort_size": 5, "hidden_size": 6, "latent_size": 2, "local_epochs": 2},
    "fl-gan": {"generator_steps": 1, "critic_steps": 2, "critic_hidden_size": 3, "batch_size": 1, **DECODER},
    "ufl-gan": {"generator_steps": 1, "critic_steps": 2, "critic_hidden_size": 3, "batch_size": 1, **DECODER},
    "fedavg-gan": {
        "rounds": 2,
        "sampling_rate": 0.5,
        "local_steps": 1,
        "critic_hidden_size": 3,
        "batch_size": 1,
        **DECODER,
    },
}
GAN = {"critic_hidden_size": 4, "basis_size": 3, **DECODER}
IMAGE_SETTINGS: dict[str, dict[str, Any]] = {
    "dp-fed-wae": {"cohort_size": 3},
    "chain": {"then": f"l-dpd-vae:net=small,{CHAINED}"},
    "fl-gan": {"generator_steps": 1, "critic_steps": 2, "batch_size": 1, **GAN},
    "ufl-gan": {"generator_steps": 1, "critic_steps": 2, "batch_size": 1, **GAN},
    "fedavg-gan": {"rounds": 2, "sampling_rate": 0.5, "local_steps": 1, "batch_size": 1, **GAN},
    "dp-fl": {"rounds": 2, "batch_size": 6, "features": 1, **GAN},
}


def table() -> Table:
    schema = Schema(
        columns=(
            Column(name="colour", kind="categorical", categories=("red", "green", "blue")),
            Column(name="size", kind="ordinal", categories=("1", "2", "3", "4", "5"), dtype="integer", nullable=True),
            Column(name="weight", kind="decimal", edges=(0.0, 1.0, 2.5, 10.0)),
            Column(name="sold", kind="categorical", categories=("false", "true"), dtype="boolean"),
        ),
        target="sold",
    )
    rng = np.random.default_rng(0)
    first = rng.integers(0, schema.sizes[0], ROWS)
    others = (np.where(rng.random(ROWS) < 0.6, first % size, rng.integers(0, size, ROWS)) for size in schema.sizes[1:])
    return from_codes(np.stack([first, *others], 1).astype(np.int32), schema, np.random.default_rng(0))


def images() -> Images:
    rng = np.random.default_rng(1)
    return Images(x=rng.integers(0, 256, (IMAGES, 8, 8)).astype(np.uint8), y=rng.integers(0, 3, IMAGES), classes=3)


def digest(arrays: Iterable[Any]) -> str:
    """One digest of all numbers, whatever the order of the arrays; empty ones do not count."""
    each = []
    for leaf in arrays:
        is_key = hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.ascontiguousarray(jax.random.key_data(leaf) if is_key else leaf)
        if array.size:
            each.append(hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest())
    return hashlib.sha256("".join(sorted(each)).encode()).hexdigest()[:16]


def of_outcome(outcome: Outcome) -> dict[str, str]:
    return {
        "state": digest(jax.tree.leaves(outcome.state)),
        "generator": digest(array for _, array in sorted(outcome.generator.arrays().items())),
        "spent": str(outcome.ledger.spent()),
    }


def over_sites(protocol: Protocol, data: Any, clients: Clients, records: int) -> dict[str, str]:
    """Two sites in this process; every message is written and read as over a network."""
    population = population_of(clients)
    claim = protocol.guarantee(population)
    agreement = Agreement(protocol=protocol, schema=population.schema)
    budget = Budget(epsilon=claim.epsilon, delta=claim.delta, unit=claim.unit)
    edges = (0, records * (len(data) // records // 2), len(data))
    with tempfile.TemporaryDirectory() as name:
        folder, sites = Path(name), {}
        for number, (low, high) in enumerate(itertools.pairwise(edges)):
            part = split(data.take(np.arange(low, high)), records_per_client=records)
            ledger = folder / f"site-{number}.sqlite"
            SqliteLedger(ledger, budget).close()
            hosted = Hosted(clients=part, accounts=tuple(f"row {k}" for k in range(len(part))), records=records)
            sites[f"site-{number}"] = Site(
                hosted=hosted, agreements={agreement.digest: agreement}, ledger_path=ledger, budget=budget,
                root=jax.random.key(SEED), log=lambda _: None,
            )  # fmt: skip
        link = InProcess({name: site.reply for name, site in sites.items()})
        roster = enrol(agreement, link, run="run-1", least=1, timeout=1.0)
        end = Coordinator(
            agreement=agreement, roster=roster, link=link, run="run-1", root=jax.random.key(SEED),
            checkpoint=Checkpoint(folder / "run.npz"), timeout=1.0, patience=0.0, seeded=True,
        ).go()  # fmt: skip
        return {"state": digest(jax.tree.leaves(end.state)), "spent": str(end.ledger.spent())}


def runs(only: tuple[str, ...]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Method and data, engine, digests."""
    for kind, special in (("table", ROW_SETTINGS), ("images", IMAGE_SETTINGS)):
        for name in only or BUILT_IN:
            if kind not in protocol_class(name).facts.kinds:
                continue
            settings = special.get(name, protocol_class(name).small)
            protocol = make_protocol(name, {"epsilon": EPSILON, **settings})
            whole = table() if kind == "table" else images()
            data = whole.take(np.arange(FEW)) if kind == "table" and name not in MANY else whole
            records = 2 if kind == "table" else 12
            clients, root = split(data, records_per_client=records), jax.random.key(SEED)
            what = f"{name} {kind}"
            yield what, "simulation", of_outcome(simulation.run(protocol, clients, root=root))
            if protocol.compiles:
                yield what, "compiled", of_outcome(simulation.run(protocol, clients, root=root, compiled=True))
            yield what, "debug", of_outcome(debug.run(protocol, clients, root=root))
            yield what, "sites", over_sites(protocol, data, clients, records)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="store the digests here")
    parser.add_argument("--against", type=Path, help="compare with the digests stored here")
    parser.add_argument("methods", nargs="*", help="only these methods")
    given = parser.parse_args()
    kept = json.loads(given.against.read_text())["runs"] if given.against else {}
    made: dict[str, dict[str, dict[str, str]]] = {}
    different = 0
    for what, engine, digests in runs(tuple(given.methods)):
        made.setdefault(what, {})[engine] = digests
        same = kept.get(what, {}).get(engine) == digests
        different += bool(kept) and not same
        print(f"{what}, {engine}: {'same' if same else 'DIFFERENT' if kept else digests['state']}", flush=True)
    if given.out:
        versions = {name: metadata.version(name) for name in ("populace", "jax", "numpy")}
        document = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "versions": versions,
            "runs": made,
        }
        given.out.write_text(json.dumps(document, indent=1) + "\n")
    if kept:
        print(f"{different} of {sum(map(len, made.values()))} runs differ")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
