"""`census` for persons with several rows: what all rows of a person change in a message, and what they count."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from builders import assert_same, code_of, debug_state, entries, make_coordinator, make_site, make_sites, request_of
from populace.engines import debug, simulation
from populace.engines.runtime import padded_shard, population_of
from populace.errors import DataError, SpecError
from populace.methods.base import Shard
from populace.methods.census import persons as rules
from populace.methods.census.persons import UNITS, Contribution, contribution_of, row_units
from populace.methods.census.protocol import Census
from populace.privacy.source import Keyed, System
from populace.tables.partition import split, split_even, split_silos, with_persons
from populace.tables.schema import Column, Schema
from populace.tables.table import from_codes

FAST = {"components": 3, "members": 2, "fit_steps": 10}
ROWS = 400
MOST = UNITS[0]
SOURCES = {"keyed": Keyed(jax.random.key(0)), "exact": Keyed(jax.random.key(0), exact=True), "system": System()}


def long_schema():
    """Two stages: a scale and a list longer than their cells, and a target."""
    return Schema(
        columns=(
            Column(name="cost", kind="integer", edges=tuple(float(edge) for edge in range(121)), nullable=True),
            Column(name="ward", kind="categorical", categories=("north", "south", "east")),
            Column(name="code", kind="categorical", categories=tuple(f"c{number:03}" for number in range(60))),
            Column(name="ill", kind="categorical", categories=("no", "yes")),
        ),
        target="ill",
    )


def made_table(rows=ROWS, seed=0):
    schema, rng = long_schema(), np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, rows) for size in schema.sizes], axis=1).astype(np.int32)
    return from_codes(codes, schema, rng)


@pytest.fixture(scope="module")
def table():
    return made_table()


def protocol_of(**settings):
    return Census(**{"epsilon": 2.0, "delta": 1e-6, "unit": "person", **FAST, **settings})


def owned(clients, persons):
    return dataclasses.replace(clients, persons=np.asarray(persons))


# Sensitivity

STRAINED = {"all rows equal": (40, True), "all rows different": (40, False), "one row": (1, True),
            "more equal rows than units": (150, True), "more different rows than units": (150, False)}  # fmt: skip


def strained(table, held, equal):
    """Rows of which the first are one person's, all equal or all different, and the others are three persons'."""
    codes = table.codes.copy()
    if equal:
        codes[:held] = codes[0]
    else:
        codes[:held] = np.arange(held)[:, None] % np.array(table.schema.sizes)
    persons = np.where(np.arange(len(codes)) < held, 7, np.arange(len(codes)) % 3)
    population = population_of(split_silos(table, [len(table)]))
    return Shard(records=codes, mask=np.ones(len(codes), bool), population=population, persons=persons)


def questions(schema, rng):
    """The questions of both stages; the second with cells as a server may send them."""
    size, limits = sum(schema.sizes), np.iinfo(np.int32)
    yield {"codes": np.int32(0)}
    yield {"cells": np.zeros(size, np.int32)}
    yield {"cells": np.concatenate([np.arange(size, dtype=np.int32) for size in schema.sizes])}
    yield {"cells": rng.permutation(size).astype(np.int32)}
    yield {"cells": rng.integers(limits.min, limits.max, size, dtype=np.int32)}


def largest_change(protocol, shard, person=7, source=SOURCES["keyed"]):
    """The squared L2 change of a message by zeroing out all rows of one person, over its squared bound, over all stages.

    Replies of `central` have no noise: they are what a silo adds noise to. Both are whole numbers, divided last.
    """
    release = protocol.parts(shard.population).release
    without = dataclasses.replace(shard, mask=shard.mask & (shard.persons != person))
    found = []
    for question in questions(shard.population.table_schema, np.random.default_rng(0)):
        both = [np.asarray(protocol.answer(question, 0, one, (), source)[0], np.int64) for one in (shard, without)]
        bound = release.mechanisms[int("cells" in question)].bound
        found.append(int(((both[0] - both[1]) ** 2).sum()) / round(bound**2))
    return max(found)


@pytest.mark.parametrize("name", STRAINED)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_all_rows_of_a_person_stay_within_the_bound_in_every_stage(table, name, rows):
    held, equal = STRAINED[name]
    shard = strained(table, held, equal)
    change = largest_change(protocol_of(trust="central", rows_per_person=rows), shard)
    if equal and held >= rows:
        assert change == 1.0  # the bound is reached exactly, by equal rows
    else:
        assert change <= 1.0
    assert change > 0


BREAKS = {
    "shares rounded up": (0, lambda persons, mask, order, *, most, rows: (-(-most // 40) * mask).astype(np.int32)),
    "every row counts in full": (0, lambda persons, mask, order, *, most, rows: (most * mask).astype(np.int32)),
    "a row too many": (3, lambda persons, mask, order, *, most, rows: row_units(persons, mask, order, most=0, rows=rows + 1)),
    "the rest of others' rows": (
        0,
        lambda persons, mask, order, *, most, rows: np.where(mask, most * 400 // max(mask.sum(), 1), 0).astype(np.int32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_planted_breaks_pass_the_bound(table, name, monkeypatch):
    """Units that add up to more than a person's, a row too many, and units that depend on who else is there."""
    rows, broken = BREAKS[name]
    monkeypatch.setattr(rules, "row_units", broken)
    protocol = protocol_of(trust="central", rows_per_person=rows)
    assert largest_change(protocol, strained(table, 40, equal=True)) > 1.0


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("held", [1, 2, 6, 7, 59, 60, 61, 200])
def test_units_of_a_person_add_up_exactly(source, held):
    """Whatever the source: shares that differ by one at most, and of too many rows as many as there are units."""
    rng = np.random.default_rng(0)
    persons = np.concatenate([np.zeros(held, int), rng.integers(1, 9, 30), np.zeros(5, int)])
    mask = np.arange(len(persons)) < held + 30  # the last five are padding
    order = np.asarray(source.order(len(persons)))
    assert sorted(order) == list(range(len(persons)))
    units = np.asarray(row_units(persons, mask, order, most=MOST))
    totals = np.bincount(persons, units)
    assert set(totals[np.unique(persons)]) == {MOST}
    assert not units[~mask].any()
    own = units[:held]
    assert own.max() - own.min() <= 1
    few = np.asarray(row_units(persons, mask, order, most=4, rows=4))
    np.testing.assert_array_equal(np.bincount(persons, few), np.minimum(np.bincount(persons, mask), 4))


def test_the_coin_and_not_the_file_chooses_rows():
    """Every one of ten rows is chosen about as often, and stages and runs choose anew."""
    persons, mask = np.zeros(10, int), np.ones(10, bool)
    keys = jax.random.split(jax.random.key(0), 600)
    drawn = jax.vmap(lambda key: row_units(persons, mask, Keyed(key).order(10), most=2, rows=2))(keys)
    np.testing.assert_array_equal(np.asarray(drawn).sum(axis=1), 2)
    assert np.abs(np.asarray(drawn).mean(axis=0) - 0.2).max() < 0.08


# Counts


@pytest.mark.parametrize("source", [SOURCES["keyed"], SOURCES["system"]], ids=["keyed", "system"])
def test_one_row_each_counts_what_records_count_times_the_units(table, source):
    clients = owned(split_even(table, clients=3, seed=0), np.arange(ROWS)[::-1])
    person, record = protocol_of(trust="central"), protocol_of(trust="central", unit="record")
    for question in questions(table.schema, np.random.default_rng(0)):
        for client in range(3):
            shard = padded_shard(clients, client, population_of(clients))
            units, plain = (np.asarray(one.answer(question, 0, shard, (), source)[0]) for one in (person, record))
            np.testing.assert_array_equal(units, MOST * plain)
    bounds = [[m.bound for m in one.parts(population_of(clients)).release.mechanisms] for one in (person, record)]
    np.testing.assert_allclose(bounds[0], MOST * np.array(bounds[1]))


def without_noise(protocol, clients):
    """The sums of a run whose noise is taken off again, by adding up replies of `central`."""
    state, _ = debug_state(protocol, clients, jax.random.key(0))
    learner = protocol.parts(population_of(clients)).learner
    cells = np.asarray(learner.question(state.learner, np.int32(1))["cells"])
    shards = [padded_shard(clients, client, population_of(clients)) for client in range(len(clients))]
    source = SOURCES["keyed"]
    pairs = sum(np.asarray(learner.answer({"cells": cells}, 0, one, source), np.int64) for one in shards)
    one_way = sum(np.asarray(learner.answer({"codes": np.int32(0)}, 0, one, source), np.int64) for one in shards)
    return learner, cells, dataclasses.replace(state.learner, pairs=pairs, one_way=one_way)


def test_without_noise_the_sums_are_tables_of_persons(table):
    """Persons with 1, 2, 3 and 4 rows at a silo, whose rows weigh exactly 1/k: the plain weighted tables."""
    persons = np.repeat(np.arange(160), np.resize([1, 2, 3, 4], 160))
    clients = owned(split_silos(table, [ROWS]), persons)
    learner, cells, sums = without_noise(protocol_of(trust="central"), clients)
    weights = 1 / np.bincount(persons)[persons]
    in_cells = learner._as_cells(table.codes, cells)
    start = 0
    observed = learner.observed(sums)
    for (first, second), shape in zip(learner.tables.pairs, learner.tables.shapes, strict=True):
        wanted = np.zeros((learner.tables.outcomes, *shape))
        np.add.at(wanted, (in_cells[:, 3], in_cells[:, first], in_cells[:, second]), weights)
        end = start + math.prod(shape)
        np.testing.assert_allclose(observed.shares[:, start:end].reshape(wanted.shape) * 160, wanted, atol=1e-9)
        start = end
    cost = np.bincount(table.codes[:, 0], weights, minlength=table.schema.sizes[0])
    assert sums.one_way[0] == 2 * MOST * 160  # all persons, with twice the weight
    np.testing.assert_allclose(sums.one_way[1 : 1 + len(cost)] / MOST, cost, atol=1e-9)


# Engines


@pytest.mark.parametrize("settings", [{}, {"trust": "central"}, {"rows_per_person": 2}], ids=str)
def test_simulation_debug_and_sites_give_the_same_replies(table, settings, tmp_path):
    protocol, persons = protocol_of(**settings), np.arange(ROWS) % 37
    clients = owned(split(table, records_per_client=100), persons)
    outcome = simulation.run(protocol, clients, root=jax.random.key(5))
    state, _ = debug_state(protocol, clients, jax.random.key(5))
    assert_same(outcome.state, state)
    sites = make_sites(tmp_path, table, protocol, epsilon=99.0, delta=1e-3, unit="person", records=100, seed=5)
    starts = {"site-1": 0, "site-2": ROWS // 2, "site-3": 3 * ROWS // 4}
    for name, site in sites.items():
        held = owned(site.hosted.clients, persons[starts[name] :][: len(site.hosted.clients.data)])
        sites[name] = dataclasses.replace(site, hosted=dataclasses.replace(site.hosted, clients=held))
    coordinator = make_coordinator(tmp_path, table.schema, protocol, sites, seed=5)
    assert_same(coordinator.go().state, outcome.state)


def test_exact_randomness_serves_persons_too(table):
    clients = owned(split_even(table, clients=2, seed=0), np.arange(ROWS) // 4)
    outcome = simulation.run(protocol_of(epsilon=40.0), clients, root=jax.random.key(5), exact_noise=True)
    assert outcome.noise == "exact"
    assert len(outcome.generator.sample(20, jax.random.key(1))) == 20


def test_a_site_without_persons_answers_no_question_about_them(table, tmp_path):
    said = []
    protocol = protocol_of()
    options = {"epsilon": 99.0, "delta": 1e-3, "unit": "person", "records": 100, "log": said.append}
    site = make_site(tmp_path, table, protocol, **options)
    request = request_of(protocol, table.schema, total=4, records=100)
    assert code_of(site.reply(request)) == "guarantee"
    assert entries(site) == 0
    assert "person column" in said[-1]
    other = make_site(tmp_path, table, protocol, name="other", **{**options, "unit": "record"})
    held = owned(other.hosted.clients, np.arange(ROWS) // 2)
    other = dataclasses.replace(other, hosted=dataclasses.replace(other.hosted, clients=held))
    assert code_of(other.reply(request)) == "budget"  # a limit per record is not charged per person
    assert entries(other) == 0


# What is refused, and what is said


def test_rows_that_name_persons_and_methods_that_protect_them_go_together(table):
    clients = split_even(table, clients=3, seed=0)
    with pytest.raises(SpecError, match="nothing says whose each row is"):
        simulation.run(protocol_of(), clients, root=jax.random.key(0))
    with pytest.raises(SpecError, match="protects one record here"):
        debug.run(protocol_of(unit="record"), owned(clients, np.arange(ROWS)), root=jax.random.key(0))
    with pytest.raises(SpecError, match="rows_per_person is for persons"):
        protocol_of(unit="record", rows_per_person=2)
    with pytest.raises(SpecError, match="rows_per_person"):
        protocol_of(rows_per_person=-1)
    with pytest.raises(SpecError, match="unit"):
        protocol_of(unit="household")


@pytest.mark.parametrize("missing", [None, "", " ", "NA", "?"])
def test_a_person_column_says_whose_every_row_is(table, missing):
    values = np.array([f"p{row // 2}" for row in range(ROWS)], object)
    values[9] = missing
    with pytest.raises(DataError, match="no value in row 10; say whose row it is, or drop it"):
        with_persons(split(table), values, name="patient")


def test_one_person_in_several_spellings_is_one(table):
    values = np.resize(np.array(["P7", " p7 ", "p7", "q8"], object), ROWS)
    clients = with_persons(split(table), values, name="patient")
    assert clients.asked["person"] == "patient"
    np.testing.assert_array_equal(clients.persons, np.resize([0, 0, 0, 1], ROWS))


def test_fewer_units_where_counts_would_not_fit():
    assert contribution_of("record", rows=0, room=1) == Contribution()
    assert [contribution_of("person", rows=0, room=room).most for room in (10**6, 60, 59, 11, 5, 1)] == [
        60,
        60,
        12,
        6,
        2,
        1,
    ]
    assert contribution_of("person", rows=3, room=1).most == 3


@pytest.mark.parametrize("trust", ["silo", "central"])
@pytest.mark.parametrize("rows", [0, 2])
def test_the_claim_is_for_persons_and_costs_what_records_cost(table, trust, rows):
    population = population_of(split_even(table, clients=3, seed=0))
    claim = protocol_of(trust=trust, rows_per_person=rows).guarantee(population)
    record = protocol_of(trust=trust, unit="record").guarantee(population)
    assert (claim.unit, claim.neighbours, claim.units) == ("person", "zero-out", record.units)
    assert (claim.epsilon, claim.delta) == (record.epsilon, record.delta)
    assert "group line" not in claim.statement
    assert "group line" in record.statement
    assert "a person with rows at several silos pays at each of them" in claim.assumptions
    assert "all rows of one person at a silo replaced by nothing" in claim.statement
    assert "(person level)" in claim.statement
    derivation = " ".join(claim.derivation)
    assert f"a person at most {rows or MOST} times that" in derivation
    assert "private coin" in derivation
    assert "one record" not in claim.statement
