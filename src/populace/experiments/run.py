"""Running a specification: read, split, simulate, sample, write; resumable at every step."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from populace.engines import simulation
from populace.engines.exchange import Keys, Outcome, Report, check_kind, population_of
from populace.experiments.folder import RunFolder
from populace.experiments.sources import read_clients
from populace.experiments.spec import RunSpec, make_method
from populace.models.generator import Generator, load_generator
from populace.privacy.guarantee import Guarantee, guarantee_from_json
from populace.protocols.base import Protocol
from populace.tables.files import read_json, write_json
from populace.tables.images import Images
from populace.tables.partition import Clients
from populace.tables.table import Table

Array = Any
Say = Callable[[str], None]

VERSIONS = ("populace", "jax", "numpy", "pyarrow", "dp-accounting")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run: the generator, what it guarantees, and what it cost."""

    generator: Generator
    guarantee: Guarantee
    details: Mapping[str, Any]

    def sample(self, rows: int, *, seed: int | None = None, conditions: Mapping[str, str] | None = None) -> Table:
        return self.generator.sample(rows, make_key(seed), conditions)


def make_key(seed: int | None) -> Array:
    """A JAX key from a seed, or from 128 bits of the operating system's randomness."""
    if seed is not None:
        return jax.random.fold_in(jax.random.key(seed & 0xFFFFFFFF), seed >> 32)
    words = np.frombuffer(secrets.token_bytes(8), np.uint32)
    return jax.random.wrap_key_data(jax.numpy.asarray(words))


def simulate(protocol: Protocol, clients: Clients, *, seed: int | None = None, progress: Report | None = None) -> Run:
    """Run a method on simulated clients, in memory."""
    outcome = simulation.run(protocol, clients, root=make_key(seed), progress=progress)
    guarantee = dataclasses.replace(outcome.guarantee, seeded=seed is not None)
    return Run(generator=outcome.generator, guarantee=guarantee, details=_details(outcome))


def load_run(path: str | Path) -> Run:
    folder = RunFolder(path)
    document = folder.document()
    guarantee = guarantee_from_json(read_json(folder / "privacy.json"))
    return Run(generator=load_generator(folder.path), guarantee=guarantee, details=document)


def synthesize(spec: RunSpec, out: str | Path, *, progress: Report | None = None, say: Say = lambda _: None) -> Run:
    """Everything from data file to run folder. An unfinished folder with the same specification is resumed."""
    began = time.monotonic()
    protocol = make_method(spec)
    clients = read_clients(
        spec.data, schema=spec.schema_file, target=spec.target, records_per_client=spec.records_per_client,
        client_column=spec.client_column,
    )  # fmt: skip
    check_kind(protocol, population_of(clients))
    folder = RunFolder(out)
    with folder.claim(spec.model_dump(), spec.digest()) as resuming:
        folder.check_same_data(*_contents(clients))
        if resuming:
            say(f"resuming the unfinished run in {folder.path}")
        say(f"{protocol.facts.name}: {len(clients):,} simulated clients ({clients.how})")
        read = time.monotonic()
        outcome = simulation.run(
            protocol, clients, root=make_key(spec.seed), checkpoint=folder.checkpoint, progress=progress
        )
        trained = time.monotonic()
        guarantee = dataclasses.replace(
            outcome.guarantee,
            seeded=spec.seed is not None,
            assumptions=(*outcome.guarantee.assumptions, *_assumptions(spec)),
        )
        table = outcome.generator.sample(spec.rows, Keys(folder.checkpoint.root()).sample())
        sampled = time.monotonic()
        outcome.generator.save(folder.path)
        table.save(folder / "synthetic.parquet")
        write_json(folder / "privacy.json", {**guarantee.to_json(), "ledger": outcome.ledger.spent()})
        document = {
            "status": "finished",
            "digest": spec.digest(),
            "spec": spec.model_dump(),
            "method": protocol.facts.name,
            "parameters": dataclasses.asdict(protocol),  # type: ignore[call-overload]
            "clients": len(clients),
            "split": clients.how,
            "rows": spec.rows,
            "versions": versions(),
            "seconds": {
                "reading": read - began, "training": trained - read, "sampling": sampled - trained,
                "total": time.monotonic() - began,
            },
            **_details(outcome),
        }  # fmt: skip
        folder.finish(document)
    return Run(generator=outcome.generator, guarantee=guarantee, details=document)


def _assumptions(spec: RunSpec) -> tuple[str, ...]:
    drawn = (
        "simulated on one machine: noise from a floating-point simulation of the mechanism; a deployed client samples exactly, "
        "from the operating system's generator"
    )
    return (drawn,) if spec.seed is None else ()


def _details(outcome: Outcome) -> dict[str, Any]:
    return {"rounds": outcome.rounds, "traffic": outcome.traffic.to_json(), "ledger": outcome.ledger.spent()}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _contents(clients: Clients) -> tuple[bytes, ...]:
    data = clients.data
    arrays = (data.x, data.y) if isinstance(data, Images) else (data.codes,)
    return tuple(np.ascontiguousarray(array).tobytes() for array in (*arrays, clients.order, clients.starts))
