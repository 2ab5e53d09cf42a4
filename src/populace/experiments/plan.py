"""What can be said before any data is touched: guarantee, predicted error, bytes, and time."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

from populace.engines import simulation
from populace.protocols.base import Plan, Population, Protocol
from populace.tables.partition import split
from populace.tables.schema import Schema
from populace.tables.table import from_codes

TRIAL_CLIENTS = 20_000


def plan(protocol: Protocol, population: Population) -> tuple[Plan, float]:
    """The method's own prediction, and the seconds a simulation would take on this machine, extrapolated from a trial on
    rows drawn evenly from the public domain."""
    return protocol.plan(population), trial_seconds(protocol, population)


def trial_seconds(protocol: Protocol, population: Population) -> float:
    schema = population.table_schema
    count = min(population.clients, TRIAL_CLIENTS)
    clients = split(random_table(schema, count * population.records), records_per_client=population.records)
    began = time.monotonic()
    simulation.run(protocol, clients, root=jax.random.key(0))
    first = time.monotonic()
    simulation.run(protocol, clients, root=jax.random.key(1))
    second = time.monotonic()
    per_client = (second - first) / count
    return (first - began) + per_client * max(0, population.clients - count)


def random_table(schema: Schema, rows: int) -> Any:
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, rows) for size in schema.sizes], axis=1).astype(np.int32)
    return from_codes(codes, schema, rng)
