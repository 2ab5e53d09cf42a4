"""Shared by all tests: JAX's compilation cache, strict dtypes, small tables."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # small ones too: other processes need them
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests run in as many processes as there are cores: threads of theirs would only wait for each other, and burn time at that.
for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")
# Tests compile much and compute little: code that is made quickly, not code that runs fast.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1",
)

import jax  # noqa: E402
import numpy as np  # noqa: E402

import builders  # noqa: E402
from populace.tables.schema import Schema  # noqa: E402
from populace.tables.table import Table, from_codes  # noqa: E402

MOST_MEMORY = 5 * 2**29
#: Files that wait for servers, and files that compute for long, the longest first.
WAITING = (
    "deployment/test_federation.py", "deployment/test_strangers.py", "deployment/test_secrets.py",
    "deployment/test_connecting.py", "deployment/test_certificates.py", "deployment/test_collector.py",
    "deployment/test_commands.py", "deployment/test_skip.py", "deployment/test_kits.py",
)  # fmt: skip
COMPUTING = (
    "conformance/test_protocols.py", "statistics/test_recorder.py", "fuzz/test_fuzz.py", "conformance/test_secure_sums.py",
    "conformance/test_representation.py", "unit/runs/test_verify_lies.py", "unit/runs/test_history.py",
    "statistics/test_audits_of_noise.py", "unit/methods/test_flaim.py", "statistics/test_census.py",
    "statistics/test_oracles.py", "unit/evaluation/test_large_tables.py", "unit/test_examples.py",
    "unit/test_public_door.py", "unit/runs/test_persons.py", "unit/runs/test_verify.py", "unit/runs/test_run.py",
    "unit/runs/test_poll_collect.py", "conformance/test_sharding.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two processes compute while a third one waits, and what is left for the end is short: two cores are busy to the end."""
    first = [name for three in zip_longest(WAITING, COMPUTING[::2], COMPUTING[1::2]) for name in three if name]
    place = {ROOT / "tests" / name: number for number, name in enumerate(first)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True, scope="module")
def _small_memory() -> Iterator[None]:
    """What one file compiled is dropped where it has grown large: gigabytes of it slow everything after."""
    yield
    if resident_bytes() > MOST_MEMORY:
        jax.clear_caches()
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(scope="session")
def database() -> Iterator[Any]:
    """A PostgreSQL that runs during the tests of one process."""
    from benchmarks.collector_load import postgres, postgres_folder

    if postgres_folder() is None:
        pytest.skip("no PostgreSQL is installed here (postgres, initdb): tests that need one are left out")
    with postgres() as running:
        yield running


def resident_bytes() -> int:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


@pytest.fixture(scope="session")
def small_schema() -> Schema:
    return builders.small_schema()


@pytest.fixture(scope="session")
def small_table(small_schema: Schema) -> Table:
    return from_codes(builders.dependent_codes(small_schema, 600), small_schema, np.random.default_rng(0))
