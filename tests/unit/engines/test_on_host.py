"""Methods that answer on the host: the same sums as compiled, and bounded memory."""

import jax
import numpy as np
import pytest

from builders import dependent_codes
from populace.engines import debug, simulation
from populace.methods.census import protocol as census
from populace.methods.census.protocol import Census
from populace.tables.coded import code_frame
from populace.tables.partition import split_silos
from populace.tables.schema import Column, Schema
from populace.tables.table import from_codes

FAST = {"components": 2, "members": 1, "fit_steps": 3}


@pytest.fixture(scope="module")
def table():
    schema = Schema(
        columns=(
            Column(name="cost", kind="integer", edges=tuple(map(float, range(121))), nullable=True),
            Column(name="ward", kind="categorical", categories=("north", "south", "east")),
            Column(name="ill", kind="boolean", dtype="boolean", categories=("false", "true")),
        ),
        target="ill",
    )
    return from_codes(dependent_codes(schema, 500), schema, np.random.default_rng(0))


@pytest.mark.parametrize("trust", ["silo", "central"])
def test_sums_are_those_of_compiled_answers(table, trust, monkeypatch):
    """Also of silos without records, and of codes in fewer bits."""
    method = Census(epsilon=1.0, trust=trust, **FAST)
    sizes, root = [100, 0, 400], jax.random.key(5)
    compiled = simulation.run(method, split_silos(table, sizes), root=root).state.learner
    one_by_one = debug.run(method, split_silos(table, sizes), root=root).state.learner
    monkeypatch.setattr(census, "COUNTED_ON_HOST", 1)
    streamed = code_frame(table.frame, table.schema)
    assert streamed.codes.dtype == np.uint8
    for rows in (table, streamed):
        found = simulation.run(method, split_silos(rows, sizes), root=root).state.learner
        for part in ("one_way", "pairs", "messages"):
            np.testing.assert_array_equal(getattr(found, part), getattr(compiled, part), err_msg=part)
            np.testing.assert_array_equal(getattr(found, part), getattr(one_by_one, part), err_msg=part)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "folder", "csv"])
def test_memory_grows_by_little_more_than_the_codes(kind):
    """Ten times the rows: the codes of 20 columns in 16 bits, the row numbers, and nothing else that grows with them."""
    from benchmarks import census_counting

    small, large = (census_counting.measured(kind, rows) for rows in (100_000, 1_000_000))
    grown = (large["peak_gib"] - small["peak_gib"]) * 2**30
    assert grown < 900_000 * (1.3 * 20 * 2 + 40) + 200 * 2**20
