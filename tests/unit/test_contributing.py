"""The template method of CONTRIBUTING.md, as a package of somebody else: found by its entry point, run on every engine."""

import dataclasses
import importlib
import json
import re
import sys
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest

from builders import assert_same, debug_state, dependent_codes, make_coordinator, make_sites, small_protocol
from populace.cli.main import call
from populace.engines import debug, simulation
from populace.engines.runtime import population_of
from populace.methods import registry
from populace.methods.base import Shard
from populace.tables.partition import split
from populace.tables.table import from_codes

DOCUMENT = Path(__file__).parents[2] / "CONTRIBUTING.md"
NAME, RECORDS = "one-way", 3


def block(language):
    """The one block of the document in this language, without its indentation."""
    (found,) = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", DOCUMENT.read_text(), re.M | re.S)
    return re.sub(f"^{found[0]}", "", found[1], flags=re.M)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The template, installed as pip leaves it: its files, and beside them what it offers."""
    group, points = tomllib.loads(block("toml"))["project"]["entry-points"].popitem()
    ((name, target),) = points.items()
    assert (group, name) == ("populace.methods", NAME)
    folder, module = tmp_path_factory.mktemp("site-packages"), target.partition(":")[0]
    path = folder / f"{module.replace('.', '/')}.py"
    path.parent.mkdir()
    path.write_text(block("python"))
    (path.parent / "__init__.py").touch()
    info = folder / "one_way_counts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: one-way-counts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        registry.offered.cache_clear()
        yield importlib.import_module(module)
    for imported in (module, module.partition(".")[0]):
        sys.modules.pop(imported, None)
    registry.offered.cache_clear()


@pytest.fixture(scope="module")
def protocol(package):
    return small_protocol(NAME)


@pytest.fixture(scope="module")
def clients(small_table):
    return split(small_table.take(np.arange(59)), records_per_client=RECORDS)  # the last holds two


@pytest.fixture(scope="module")
def outcome(protocol, clients):
    return simulation.run(protocol, clients, root=jax.random.key(5), compiled=True)


@pytest.mark.parametrize("engine", ["round by round", "debug"])
def test_it_ends_alike_on_every_engine_of_one_machine(engine, protocol, clients, outcome):
    other = (
        debug.run(protocol, clients, root=jax.random.key(5))
        if engine == "debug"
        else simulation.run(protocol, clients, root=jax.random.key(5), compiled=False)
    )
    assert_same(outcome.state, other.state)
    assert other.rounds == outcome.rounds == 3
    assert other.ledger.spent() == outcome.ledger.spent()
    assert other.traffic == outcome.traffic


def test_sites_end_where_the_debug_engine_ends(protocol, small_table, tmp_path):
    table = small_table.take(np.arange(24))
    claim = protocol.guarantee(population_of(split(table, records_per_client=RECORDS)))
    budget = {"epsilon": claim.epsilon, "delta": claim.delta, "unit": claim.unit}
    sites = make_sites(tmp_path, table, protocol, records=RECORDS, **budget)
    found = make_coordinator(tmp_path, table.schema, protocol, sites).go()
    state, charges = debug_state(protocol, split(table, records_per_client=RECORDS), jax.random.key(5))
    assert found.over
    assert_same(found.state, state)
    assert found.ledger.spent()["charges"] == charges == 8


def test_exact_noise_is_another_draw_of_the_same_deviation(protocol, clients, outcome):
    exact = simulation.run(protocol, clients, root=jax.random.key(5), exact_noise=True)
    difference = np.asarray(exact.state.learner - outcome.state.learner, np.float64)
    deviation = protocol.parts(population_of(clients)).release.mechanism.deviation * np.sqrt(2 * len(clients))
    assert 0.5 < difference.std() / deviation < 1.7  # 15 numbers


def test_the_claim_is_what_was_asked_for_and_what_was_booked(outcome):
    assert outcome.guarantee.epsilon == pytest.approx(2.0, rel=0.01)
    assert outcome.guarantee.epsilon <= 2.0
    assert outcome.ledger.spent()["epsilon"] == pytest.approx(outcome.guarantee.epsilon, rel=1e-9)


def test_a_record_moves_a_message_by_at_most_what_the_noise_is_for(protocol, clients):
    population = population_of(clients)
    learner = protocol.parts(population).learner
    quiet = dataclasses.replace(learner, release=Quiet(learner.release))
    records = np.asarray(dependent_codes(population.table_schema, RECORDS))
    shards = [
        Shard(records=records, mask=np.arange(RECORDS) < count, population=population)
        for count in (RECORDS, RECORDS - 1)
    ]
    counts = [np.asarray(quiet.answer((), (), shard, None), np.float64) for shard in shards]
    mechanism = learner.release.mechanism
    assert np.linalg.norm(counts[0] - counts[1]) * mechanism.grid == pytest.approx(mechanism.bound)


class Quiet:
    """A release that lets everything out, for the arithmetic of a learner."""

    def __init__(self, release):
        self.mechanism = release.mechanism

    def at_client(self, units, source):
        return units


def test_the_command_line_lists_runs_and_verifies_it(package, small_schema, tmp_path, capsys):
    codes = dependent_codes(small_schema, 300)
    table = from_codes(codes, small_schema, np.random.default_rng(0))
    table.save(tmp_path / "people.parquet")
    small_schema.save(tmp_path / "people.toml")
    assert call(["methods"]) == 0
    assert NAME in capsys.readouterr().out
    assert call(["methods", NAME]) == 0
    assert "clients asked in one exchange" in capsys.readouterr().out
    data = [str(tmp_path / "people.parquet"), "--schema", str(tmp_path / "people.toml")]
    method = ["--method", NAME, "--epsilon", "8", "--records-per-client", "30"]
    assert call(["synthesize", *data, *method, "--rows", "400", "--seed", "1", "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["method"] == NAME
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["unit"] == "record"
    assert call(["verify", str(tmp_path / "run")]) == 0
    assert call(["sample", str(tmp_path / "run"), "--rows", "2000", "-o", str(tmp_path / "more.csv")]) == 0
