"""Shared by all tests: JAX's compilation cache, strict dtypes, small tables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np  # noqa: E402

from populace.tables.schema import Column, Schema  # noqa: E402
from populace.tables.table import Table, from_codes  # noqa: E402


@pytest.fixture(scope="session")
def small_schema() -> Schema:
    return Schema(
        columns=(
            Column(name="colour", kind="categorical", categories=("red", "green", "blue")),
            Column(name="size", kind="ordinal", categories=("1", "2", "3", "4", "5"), dtype="integer", nullable=True),
            Column(name="weight", kind="numeric", edges=(0.0, 1.0, 2.5, 10.0), dtype="float"),
            Column(name="sold", kind="categorical", categories=("false", "true"), dtype="boolean"),
        ),
        target="sold",
    )


def dependent_codes(schema: Schema, rows: int, seed: int = 0) -> np.ndarray:
    """Codes in which every column leans towards the first."""
    rng = np.random.default_rng(seed)
    first = rng.choice(schema.sizes[0], rows, p=np.arange(1, schema.sizes[0] + 1) / sum(range(1, schema.sizes[0] + 1)))
    columns = [first]
    for size in schema.sizes[1:]:
        columns.append(np.where(rng.random(rows) < 0.6, first % size, rng.integers(0, size, rows)))
    return np.stack(columns, axis=1).astype(np.int32)


@pytest.fixture(scope="session")
def small_table(small_schema: Schema) -> Table:
    return from_codes(dependent_codes(small_schema, 600), small_schema, np.random.default_rng(0))
