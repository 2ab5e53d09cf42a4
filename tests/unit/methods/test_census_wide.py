"""Tables of many columns from end to end: the budget goes to the pairs that are worth it, and messages have their room."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from builders import assert_same, debug_state, make_coordinator, make_sites
from census_cases import listed, two_kinds, wide_schema
from populace.engines import simulation
from populace.engines.runtime import padded_shard, population_of
from populace.errors import SpecError
from populace.methods.base import Population
from populace.methods.census import protocol as census
from populace.methods.census.cells import MOST_POSITIONS
from populace.methods.census.protocol import Census
from populace.methods.census.table_weights import SEEN
from populace.privacy.source import Keyed
from populace.tables.partition import split
from populace.tables.schema import Schema

ROWS = 8_400
CONSTANT = (3, 8, 9, 10, 21)  # the first has a long scale
FAST = {"components": 2, "members": 2, "fit_steps": 40, "prior_precision": 1.0}
ROOMS = {"all": 50.0, "little room": 0.02}


def protocol_of(megabytes=50.0, **settings):
    asked = {"epsilon": 6.0, "delta": 1e-6, "trust": "central", "message_megabytes": megabytes}
    return Census(**{**asked, **FAST, **settings})


@pytest.fixture(scope="module")
def clients():
    table = two_kinds(wide_schema(30, nullable=False), ROWS, constant=CONSTANT)
    return split(table, records_per_client=ROWS // 2)


@pytest.fixture(scope="module", params=ROOMS)
def made(request, clients):
    """A run, with what it was made by."""
    protocol = protocol_of(ROOMS[request.param])
    outcome = simulation.run(protocol, clients, root=jax.random.key(0))
    learner = protocol.parts(population_of(clients)).learner
    return protocol, learner, outcome


def shares(codes, sizes, columns):
    places = np.ravel_multi_index([codes[:, column] for column in columns], [sizes[column] for column in columns])
    counts = np.bincount(places, minlength=math.prod(sizes[column] for column in columns))
    return counts.reshape([sizes[column] for column in columns]) / len(codes)


def distance(first, second):
    return float(np.abs(first - second).sum() / 2)


def test_every_column_comes_out_as_it_is_and_constant_ones_stay_so(made, clients):
    """Also a long column that no table with a weight has: the first stage alone tells of it."""
    _, _, outcome = made
    codes, sizes = clients.data.codes, clients.data.schema.sizes
    for column in range(30):
        found = outcome.generator.marginal((column,))
        assert distance(found, shares(codes, sizes, (column,))) < 0.08, column
        if column in CONSTANT:
            assert found[1] > 0.99


def nothing_else_shows(learner, state, column):
    """Whether noise hides every value of a column but the largest."""
    long, short = learner.first.read(np.asarray(state.one_way))
    noise = learner.release.deviation(0, 2) / (2 if column in long else 1)
    cells = learner._groupings(state)[column].cell
    counts = np.bincount(cells, long[column]) if column in long else short[column].sum(axis=0)
    return (np.sort(counts)[:-1] <= SEEN * noise).all()


def test_the_tables_of_constant_columns_are_left_out_and_the_others_have_less_noise(made):
    _, learner, outcome = made
    tables = learner.tables
    weights = learner._weights(outcome.state.learner)
    bare = [column for column in CONSTANT if nothing_else_shows(learner, outcome.state.learner, column)]
    assert len(bare) >= len(CONSTANT) - 1  # noise alone may show another value now and then
    constant = np.array([bool(set(pair) & set(bare)) for pair in tables.pairs])
    assert not weights[constant].any()
    assert np.sum(weights**2) <= tables.squares
    assert weights[weights > 0].mean() > tables.weights.mean()
    observed = learner.observed(outcome.state.learner)
    left_out = weights[tables.pair_of_entry] == 0
    assert np.isinf(observed.deviations[left_out]).all()
    assert np.isfinite(observed.deviations[~left_out]).all()
    assert not observed.shares[:, left_out].any()


def test_shares_and_noise_of_the_tables_that_are_counted_are_right(made, clients):
    """What is observed beside the rows' own shares is noise of the deviation that is said."""
    _, learner, outcome = made
    tables, state = learner.tables, outcome.state.learner
    cells = np.asarray(learner._as_cells(clients.data.codes, learner.question(state, np.int32(1))["cells"]))
    observed, weights, ends = learner.observed(state), learner._weights(state), np.cumsum(tables.table_sizes)
    scores = []
    for number in np.flatnonzero(weights):
        columns = (tables.target, *tables.pairs[number])
        real = shares(cells, tables.sizes, columns).reshape(tables.outcomes, -1)
        where = slice(ends[number] - tables.table_sizes[number], ends[number])
        scores.append(((observed.shares[:, where] - real) / observed.deviations[where]).ravel())
    assert np.concatenate(scores).std() == pytest.approx(1, rel=0.1)


def test_a_message_has_exactly_the_numbers_that_have_room(made, clients):
    protocol, learner, outcome = made
    population, tables = population_of(clients), learner.tables
    room = int(1e6 * protocol.message_megabytes / 4) // tables.outcomes
    assert tables.places == min(room, tables.entries)
    assert (tables.places < tables.entries) == (protocol.message_megabytes < 1)
    assert np.shape(outcome.state.learner.pairs) == (tables.outcomes, tables.places)
    assert learner.release.mechanisms[1].size == tables.outcomes * tables.places
    question = learner.question(outcome.state.learner, np.int32(1))
    reply = learner.answer(question, 0, padded_shard(clients, 0, population), Keyed(jax.random.key(0)))
    assert np.shape(reply) == (tables.outcomes, tables.places)
    assert 4 * np.size(reply) <= 1e6 * protocol.message_megabytes
    assert any("has room for" in note for note in learner.notes()) == (tables.places < tables.entries)


def test_room_changes_neither_the_guarantee_nor_the_bound(made, clients):
    protocol, learner, _ = made
    population = population_of(clients)
    claim, whole = protocol.guarantee(population), protocol_of().guarantee(population)
    assert (claim.epsilon, claim.delta, claim.derivation) == (whole.epsilon, whole.delta, whole.derivation)
    assert learner.tables.bound == protocol_of().parts(population).learner.tables.bound
    assert any("in L2, at most whatever the cells are" in line for line in claim.derivation)


def test_columns_that_depend_on_each_other_still_do(made, clients):
    """Of the pair that got the largest weight, with the rows' own shares nearer than those of independent columns."""
    _, learner, outcome = made
    weights = learner._weights(outcome.state.learner)
    sizes, codes = clients.data.schema.sizes, clients.data.codes
    pair = learner.tables.pairs[int(np.argmax(weights))]
    real = shares(codes, sizes, pair)
    alone = np.outer(*(shares(codes, sizes, (column,)) for column in pair))
    assert distance(outcome.generator.marginal(pair), real) < 0.6 * distance(alone, real)


@pytest.mark.parametrize("megabytes", [0.0076, 0.0001])
def test_a_table_larger_than_the_room_is_refused_in_one_sentence(clients, megabytes):
    with pytest.raises(SpecError) as refused:
        protocol_of(megabytes).parts(population_of(clients))  # the largest has 24 times 40 cells for two outcomes
    assert str(refused.value).startswith(
        "a message would hold 18,588 cells, 0.0744 MB; allow more with message_megabytes"
    )
    assert "\n" not in str(refused.value)


def test_few_columns_have_no_choice_of_tables_and_are_refused_where_all_do_not_fit():
    few = two_kinds(wide_schema(24), 50)
    population = population_of(split(few, records_per_client=50))
    assert not protocol_of().parts(population).learner.first.short
    assert protocol_of().parts(population).learner.tables.room == 0
    with pytest.raises(SpecError, match="a message would hold"):
        protocol_of(0.02).parts(population)


def test_many_columns_that_are_all_long_are_chosen_among_too():
    """No column is short, the message has not room for all tables, and constant columns get none of it; the bound stays."""
    schema = Schema(columns=tuple(listed(f"c{number}", 50) for number in range(26)))
    clients = split(two_kinds(schema, 2_000, constant=(4, 5)), records_per_client=2_000)
    protocol = protocol_of(0.4, fit_steps=5, prior_precision=1.0)
    outcome = simulation.run(protocol, clients, root=jax.random.key(0))
    learner = protocol.parts(population_of(clients)).learner
    weights, tables = learner._weights(outcome.state.learner), learner.tables
    assert not learner.first.short
    assert 4 * tables.numbers <= 0.4e6 < 4 * tables.outcomes * tables.entries
    assert np.sum(weights**2) <= tables.squares
    assert 0 < tables.table_sizes[weights > 0].sum() <= tables.places
    assert not weights[[4 in pair or 5 in pair for pair in tables.pairs]].any()
    assert set(np.unique(outcome.generator.sample(500, jax.random.key(1)).codes[:, 4])) == {1}


def test_a_target_of_many_values_is_no_outcome_though_it_has_few_cells():
    schema = Schema(columns=tuple(listed(f"c{number}", 50) for number in range(500)), target="c7")
    learner = protocol_of().parts(Population(schema=schema, clients=1, records=1_000)).learner
    assert learner.tables.target is None
    assert sum(learner.tables.sizes) <= MOST_POSITIONS


def test_engines_agree_on_weights_that_go_to_silos(clients, tmp_path, monkeypatch):
    """Weights are asked for over messages, and every engine ends with the same sums."""
    monkeypatch.setattr(
        census, "COUNTED_ON_HOST", 1
    )  # compiling takes most of the time, and `first_stage` has its test
    protocol = protocol_of(trust="silo")
    parts = split(clients.data, records_per_client=ROWS // 4)
    outcome = simulation.run(protocol, parts, root=jax.random.key(5))
    assert_same(outcome.state, debug_state(protocol, parts, jax.random.key(5))[0])
    options = {"epsilon": 99.0, "delta": 1e-3, "unit": "record", "records": ROWS // 4}
    sites = make_sites(tmp_path, clients.data, protocol, **options)
    assert_same(make_coordinator(tmp_path, clients.data.schema, protocol, sites).go().state, outcome.state)


def test_noise_that_hides_every_count_leaves_a_model(clients):
    """Nothing is seen of any column: all tables are as good as each other, and rows can still be drawn."""
    protocol = protocol_of(epsilon=0.02)
    population = population_of(clients)
    learner = protocol.parts(population).learner
    state = learner.begin(jax.random.key(0))
    rng = np.random.default_rng(0)
    noise = [np.rint(rng.normal(0, learner.release.deviation(stage, 2), shape)).astype(np.int64)
             for stage, shape in ((0, state.one_way.shape), (1, state.pairs.shape))]  # fmt: skip
    state = dataclasses.replace(state, one_way=noise[0], pairs=noise[1], messages=np.array([2, 2], np.int32))
    weights = learner._weights(state)
    assert 0 < np.sum(weights**2) <= learner.tables.squares
    observed = learner.observed(state)
    assert np.isfinite(observed.shares).all()
    assert len(learner.finish(state, jax.random.key(0)).sample(20, jax.random.key(1))) == 20


@pytest.mark.parametrize("megabytes", ROOMS.values(), ids=ROOMS)
def test_a_table_of_constant_columns_alone(clients, megabytes):
    """Nothing varies, so that no table is worth more than another: every row comes out as all rows are."""
    schema = clients.data.schema
    table = two_kinds(schema, ROWS, constant=range(30))
    outcome = simulation.run(protocol_of(megabytes), split(table, records_per_client=ROWS // 2), root=jax.random.key(1))
    made = outcome.generator.sample(2_000, jax.random.key(2)).codes
    assert (made == 1).mean() > 0.99
    assert (made == 1).mean(axis=0).min() > 0.95


def test_sums_of_constant_columns_without_noise_fit_the_room_and_count_every_record(clients):
    """No two columns vary at all: the usual weights, of as many tables as there is room for, and the right total."""
    population, protocol = population_of(clients), protocol_of(ROOMS["little room"])
    learner = protocol.parts(population).learner
    records = np.ones((2_000, 30), np.int32)
    state = learner.begin(jax.random.key(0))
    one_way = 1_000 * learner.first.counts(records, np.ones(2_000, bool)).astype(np.int64)  # far above noise
    state = dataclasses.replace(state, one_way=one_way, messages=np.array([2, 2], np.int32))
    weights = learner._weights(state)
    assert learner.tables.table_sizes[weights > 0].sum() <= learner.tables.places
    pairs = 1_000 * learner.tables.counts(records, np.ones(2_000, bool), weights=weights).astype(np.int64)
    observed = learner.observed(dataclasses.replace(state, pairs=pairs))
    totals = np.bincount(learner.tables.pair_of_entry, observed.shares.sum(axis=0), minlength=len(weights))
    np.testing.assert_allclose(totals[weights > 0], 1.0, rtol=1e-9)
