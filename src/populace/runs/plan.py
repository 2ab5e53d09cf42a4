"""What can be said before any data is touched: guarantee, predicted error, bytes, and time."""

from __future__ import annotations

import dataclasses
import time

import jax
import numpy as np

from populace.engines import simulation
from populace.engines.runtime import Progress
from populace.methods.base import Plan, Population, Protocol
from populace.tables.partition import Clients, split
from populace.tables.schema import Schema
from populace.tables.table import Table, from_codes

TRIAL_CLIENTS = 20_000
TRIAL_SECONDS = 10.0
TRIAL_ROWS = 2  # of a person


def plan(protocol: Protocol, population: Population) -> tuple[Plan, float]:
    """The method's own prediction, and the seconds a simulation would take: the method's estimate, where it has one, or on
    this machine, extrapolated from a trial on rows drawn evenly from the public domain."""
    predicted = protocol.plan(population)
    return predicted, trial_seconds(protocol, population) if predicted.costs is None else predicted.costs.seconds


def trial_seconds(protocol: Protocol, population: Population) -> float:
    schema = population.table_schema
    count = min(population.clients, TRIAL_CLIENTS)
    clients = split(random_table(schema, count * population.records), records_per_client=population.records)
    if protocol.protected_unit == "person":
        clients = dataclasses.replace(clients, persons=np.arange(len(clients.data)) // TRIAL_ROWS)
    first, part = timed(protocol, clients, seed=0)
    second, share = timed(protocol, clients, seed=1)
    whole = second / share
    compiling = max(0.0, first - whole * part)
    return compiling + whole * population.clients / count


class _EnoughError(Exception):
    """The trial has run long enough; carries the share of its rounds that were done."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share


def timed(protocol: Protocol, clients: Clients, *, seed: int) -> tuple[float, float]:
    """Seconds of a run, and the share of its rounds they are for: a long one is broken off."""
    began = time.monotonic()

    def watch(progress: Progress) -> None:
        if time.monotonic() - began > TRIAL_SECONDS and progress.done < progress.total:
            raise _EnoughError(progress.done / progress.total)

    try:
        simulation.run(protocol, clients, root=jax.random.key(seed), progress=watch)
    except _EnoughError as enough:
        return time.monotonic() - began, enough.share
    return time.monotonic() - began, 1.0


def random_table(schema: Schema, rows: int) -> Table:
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, rows) for size in schema.sizes], axis=1).astype(np.int32)
    return from_codes(codes, schema, rng)
