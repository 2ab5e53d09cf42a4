"""What a plan says of memory and time, beside the arrays that a run has."""

import dataclasses
import json
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from census_cases import listed
from populace.cli.main import call
from populace.engines import simulation
from populace.methods.base import Population
from populace.methods.census import fit
from populace.methods.census.protocol import Census
from populace.runs import plan as plans
from populace.tables.schema import Schema

WIDE = {
    "124 binary columns": ([2] * 123, True),
    "three of 48 columns have 700 codes": ([700] * 3 + [4] * 44, True),
    "100 columns of 16 values": ([16] * 100, False),
}


def population_of(name, records=20_000, clients=6):
    sizes, target = WIDE[name]
    columns = tuple(listed(f"c{number}", size) for number, size in enumerate(sizes))
    schema = Schema(columns=(*columns, listed("ill", 2)), target="ill") if target else Schema(columns=columns)
    return Population(schema=schema, clients=clients, records=records)


def compiled_bytes(learner):
    """What one compiled step of the fits holds at once, by the compiler's own account."""
    tables = learner.tables
    settings = dataclasses.replace(fit.affordable(learner.settings, tables), steps=2, pull=0.0)
    members, places = fit.draw_members(settings), (tables.positions, tables.positions)
    precisions = {
        "pairs": jnp.zeros(places), "single": jnp.zeros(tables.positions),
        "single_shares": jnp.zeros((tables.outcomes, tables.positions)), "pull": jnp.float32(1.0),
    }  # fmt: skip
    shares = {"pairs": jnp.zeros((members, tables.outcomes, *places))}
    arguments = (jnp.zeros(sum(tables.sizes)), shares, precisions, (None,) * len(tables.columns))
    keys = jax.random.split(jax.random.key(0), members)
    held = fit.fit_members.lower(tables, settings, *arguments, keys).compile().memory_analysis()
    return held.temp_size_in_bytes + held.argument_size_in_bytes + held.output_size_in_bytes


@pytest.mark.parametrize("name", WIDE)
def test_memory_is_that_of_the_arrays_of_a_run(name):
    """Within a factor of three: what a site allocates as it counts, and what the compiler holds for the fits, with the sums."""
    population = population_of(name, records=2_000)
    learner = Census(epsilon=1.0, delta=1e-6).parts(population).learner
    costs, tables = learner.costs(), learner.tables
    tracemalloc.start()
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, population.records, np.int32) for size in tables.sizes], axis=1)
    tables.counts(codes, np.ones(len(codes), bool))
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held / 3 < costs.site_bytes < 3 * held
    sums = 8 * tables.outcomes * tables.entries
    least = compiled_bytes(learner) + sums
    assert least / 3 < costs.coordinator_bytes < 3 * (least + 10 * sums)


def test_wider_tables_and_more_records_take_more():
    costs = {name: Census(epsilon=1.0, delta=1e-6).plan(population_of(name)).costs for name in WIDE}
    assert costs["100 columns of 16 values"].coordinator_bytes > 5 * costs["124 binary columns"].coordinator_bytes
    few, many = (Census(epsilon=1.0).plan(population_of("124 binary columns", rows)).costs for rows in (10**4, 10**6))
    assert many.site_bytes - few.site_bytes == 990_000 * 124 * 4
    assert many.site_seconds > 10 * few.site_seconds
    assert many.coordinator_bytes == few.coordinator_bytes


def test_seconds_are_those_that_were_measured():
    """124 columns took 90 to 130 s beside other work, before columns alike compiled as one; a minute is asked for."""
    costs = Census(epsilon=1.0, delta=1e-6).plan(population_of("124 binary columns", 5_500)).costs
    assert 20 < costs.coordinator_seconds < 60
    assert costs.seconds == pytest.approx(costs.coordinator_seconds + 6 * costs.site_seconds)


def test_a_plan_of_a_wide_table_runs_no_trial(tmp_path, monkeypatch, capsys):
    def refused(*_):
        raise AssertionError("a trial was run")

    monkeypatch.setattr(simulation, "run", refused)
    monkeypatch.setattr(plans, "stored_seconds", refused)
    population = population_of("100 columns of 16 values")
    population.schema.save(tmp_path / "wide.toml")
    arguments = ["plan", "--schema", str(tmp_path / "wide.toml"), "--clients", "6", "--records-per-client", "20000"]
    arguments += ["--epsilon", "1", "--method", "census"]
    assert call([*arguments, "--json"]) == 0
    costs = json.loads(capsys.readouterr().out)["costs"]
    assert costs["coordinator_bytes"] > 1e8
    assert call(arguments) == 0
    words = capsys.readouterr().out
    assert "at the coordinator" in words
    assert "without a trial" in words
