"""Weights of tables: what a server may ask for, what a silo sends then, and which tables are worth the budget."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from builders import code_of, entries, make_site, request_of
from census_cases import two_kinds, wide_schema
from populace.methods.census.protocol import Census
from populace.methods.census.table_weights import chosen_weights, impurity
from populace.methods.census.tables import MOST_WEIGHT, PairTables

TABLES = PairTables((3, 2, 4, 2, 5, 2), target=5)
PAIRS = len(TABLES.pairs)
LARGEST = np.iinfo(np.int32).max
CODES = np.random.default_rng(0).integers(0, TABLES.sizes, (40, 6)).astype(np.int32)
ONES = np.ones(40, bool)


def filled(number, *others):
    """A weight for all tables, but other ones for the first."""
    return np.array([*others, *[number] * (PAIRS - len(others))], np.int32)


def hostile_weights():
    """Each would change a message by more than the bound, or does so where 32 bits are too few."""
    yield "negative", filled(0, -1)
    yield "all negative", filled(-MOST_WEIGHT)
    yield "above the most", filled(0, MOST_WEIGHT + 1)
    yield "squares above the bound", filled(MOST_WEIGHT)
    yield "one too many", np.array([TABLES.weights[0] + 1, *TABLES.weights[1:]], np.int32)
    yield "largest", filled(LARGEST)
    yield "one largest", filled(0, LARGEST)
    yield "least", filled(np.iinfo(np.int32).min)
    yield "a square that overflows", filled(0, 46_341)
    yield "a square that is 0 in 32 bits", filled(0, 65_536)
    yield "squares that add up to 0 in 32 bits", filled(0, *[32_768] * 4)
    yield "random", np.random.default_rng(0).integers(-(2**31), LARGEST, PAIRS, dtype=np.int32)


@pytest.fixture(scope="module")
def traced():
    """Counting with weights that are asked for, compiled once."""
    return jax.jit(lambda codes, units, asked: TABLES.counts(codes, units, weights=TABLES.permitted(asked)))


def changes(count, asked):
    """The squared change of a message by each of a few records."""
    whole = np.asarray(count(CODES, ONES, asked), np.int64)
    for row in (0, 13, 39):
        rest = np.asarray(count(CODES, np.arange(40) != row, asked), np.int64)
        yield int(((whole - rest) ** 2).sum())


def on_host(codes, units, asked):
    return TABLES.counts(codes, units, weights=TABLES.permitted(asked))


HOSTILE = dict(hostile_weights())


@pytest.mark.parametrize("asked", HOSTILE.values(), ids=HOSTILE)
def test_hostile_weights_change_a_message_by_no_more_than_the_bound(asked, traced):
    for count in (on_host, traced):
        for square in changes(count, asked):
            assert square == TABLES.squares == round(TABLES.bound**2)  # those that are usual are used instead
    np.testing.assert_array_equal(TABLES.permitted(asked), TABLES.weights)
    np.testing.assert_array_equal(on_host(CODES, ONES, asked), traced(CODES, ONES, asked))


def test_the_hostile_weights_would_pass_the_bound_where_nobody_looked():
    """So that the test above can fail: without `permitted` a record changes far more."""
    for name, asked in HOSTILE.items():
        square = int(np.sum(asked.astype(object) ** 2))
        assert square > TABLES.squares or asked.min() < 0, name


def fair_weights():
    yield "usual", TABLES.weights.astype(np.int32)
    yield "none", filled(0)
    yield "one table", filled(0, 23)
    yield "the most", filled(0, math.isqrt(TABLES.squares))
    yield "others", np.resize([0, 3, 8, 0, 9], PAIRS).astype(np.int32)


FAIR = dict(fair_weights())


@pytest.mark.parametrize("asked", FAIR.values(), ids=FAIR)
def test_permitted_weights_are_used_as_asked(asked, traced):
    assert np.sum(asked.astype(int) ** 2) <= TABLES.squares
    np.testing.assert_array_equal(TABLES.permitted(asked), asked)
    assert set(changes(on_host, asked)) == {int(np.sum(asked.astype(int) ** 2))}
    np.testing.assert_array_equal(on_host(CODES, ONES, asked), traced(CODES, ONES, asked))


def listed_slowly(tables, codes, weights):
    """Tables with a weight first, in their order, as far as there is room; and zeros."""
    rows = [np.zeros((tables.outcomes, 0), np.int64)]
    for (first, second), weight in zip(tables.pairs, weights.tolist(), strict=True):
        table = np.zeros((tables.outcomes, tables.sizes[first], tables.sizes[second]), np.int64)
        outcome = 0 if tables.target is None else codes[:, tables.target]
        np.add.at(table, (outcome, codes[:, first], codes[:, second]), weight)
        rows += [table.reshape(tables.outcomes, -1)] if weight else []
    whole = np.concatenate(rows, axis=1)[:, : tables.places]
    return np.pad(whole, ((0, 0), (0, tables.places - whole.shape[1])))


@pytest.mark.parametrize("room", [0, 1, 20, 57, 10**6])
@pytest.mark.parametrize("target", [5, None])
def test_a_message_lists_the_tables_with_a_weight_as_far_as_there_is_room(room, target):
    tables = PairTables(TABLES.sizes, target, room)
    assert tables.places == (min(room, tables.entries) if room else tables.entries)
    rng, count = (
        np.random.default_rng(room),
        jax.jit(lambda codes, units, asked: tables.counts(codes, units, None, asked)),
    )
    for share in (0.0, 0.3, 1.0):
        weights = (rng.integers(1, 9, len(tables.pairs)) * (rng.random(len(tables.pairs)) < share)).astype(np.int32)
        wanted = listed_slowly(tables, CODES, weights)
        assert wanted.shape == (tables.outcomes, tables.places)
        plain, compiled = tables.counts(CODES, ONES, weights=weights), np.asarray(count(CODES, ONES, weights))
        np.testing.assert_array_equal(plain, wanted)
        np.testing.assert_array_equal(compiled, wanted)
        assert plain.dtype == compiled.dtype == np.int32
        where = tables.layout(weights)
        np.testing.assert_array_equal(jax.jit(tables.layout)(weights), where)
        assert len(np.unique(where)) == tables.places
        counted = weights[tables.pair_of_entry[where]] > 0
        assert not plain[:, ~counted].any()
        assert (np.diff(counted.astype(int)) <= 0).all()


def test_squares_that_would_pass_32_bits_together_are_seen_when_traced():
    """Of 1,030 columns there are so many pairs that the largest weights of all add up to less than nothing in 32 bits."""
    tables = PairTables((1,) * 1_030)
    asked = np.full(len(tables.pairs), MOST_WEIGHT, np.int32)
    assert np.sum(asked * asked, dtype=np.int32) < 0  # a plain sum would be taken in
    for found in (tables.permitted(asked), jax.jit(tables.permitted)(asked)):
        np.testing.assert_array_equal(found, tables.weights)
    allowed = np.full(len(tables.pairs), 8, np.int32)
    np.testing.assert_array_equal(jax.jit(tables.permitted)(jnp.asarray(allowed)), allowed)


def test_a_site_refuses_weights_of_another_shape_before_it_pays(tmp_path):
    protocol = Census(epsilon=1.0, delta=1e-6, **Census.small)
    table = two_kinds(wide_schema(26, long=False), 80)
    site = make_site(tmp_path, table, protocol, epsilon=99.0, delta=1e-3, unit="record", records=40, seed=None)
    asked = {"total": 2, "records": 40}
    assert code_of(site.reply(request_of(protocol, table.schema, **asked))) == "reply"
    before = entries(site)
    cells, pairs = np.concatenate([np.arange(size, dtype=np.int32) for size in table.schema.sizes]), 25 * 24 // 2
    usual = np.full(pairs, 8, np.int32)
    for weights in (usual[:-1], np.append(usual, 8), usual.astype(np.int64), usual.astype(np.float32), usual[None]):
        request = request_of(
            protocol, table.schema, **asked, round_id=1, common={"cells": cells, "weights": np.asarray(weights)}
        )
        assert code_of(site.reply(request)) == "malformed"
    bare = request_of(protocol, table.schema, **asked, round_id=1, common={"cells": cells})
    assert code_of(site.reply(bare)) == "malformed"
    assert entries(site) == before
    right = request_of(protocol, table.schema, **asked, round_id=1, common={"cells": cells, "weights": usual})
    assert code_of(site.reply(right)) == "reply"
    assert entries(site) == 2 * before


# Which tables are worth it


def test_impurity_is_that_of_what_is_seen():
    assert impurity(np.array([500.0, 500.0]), 1.0) == pytest.approx(0.5)
    assert impurity(np.array([10_000.0, 19.0]), 10.0) == 0.0  # what noise may be is not counted where it is little
    assert impurity(np.array([1_000.0, 19.0]), 10.0) == impurity(
        np.array([1_000.0, -5.0]), 10.0
    )  # else as the noise itself
    assert impurity(np.array([1_000.0, 19.0]), 10.0) == pytest.approx(1 - (1000**2 + 10**2) / 1010**2)
    assert 0 < impurity(np.array([1_000.0, 21.0]), 10.0) < 0.05
    assert impurity(np.array([3.0, -8.0, 5.0]), 10.0) == 1.0  # noise hides all
    assert impurity(np.zeros(4), 0.0) == 1.0


WIDE = PairTables((2, 3, 24, 40) * 8, target=0)
NOISES = [1e-9, 1e-4, 1e-3, 1e-2, 1.0, 1e6]


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("room", [0, 2_000, 10_000])
def test_weights_stay_within_the_squares_and_the_room(noise, room):
    tables = PairTables(WIDE.sizes, 0, room)
    rng = np.random.default_rng(0)
    for impurities in (rng.random(32), rng.random(32) ** 8, np.ones(32), np.zeros(32), np.eye(32)[5], np.eye(32)[0]):
        weights = chosen_weights(tables, impurities, noise=noise)
        assert weights.dtype == np.int64
        assert 0 <= weights.min() <= weights.max() <= MOST_WEIGHT
        assert 0 < np.sum(weights**2) <= tables.squares
        assert tables.table_sizes[weights > 0].sum() <= tables.places
        np.testing.assert_array_equal(tables.permitted(weights), weights)
        if weights.max() < MOST_WEIGHT:  # and the budget is used
            assert np.sum(weights**2) > 0.85 * tables.squares


@pytest.mark.parametrize("noise", NOISES)
def test_where_nothing_tells_columns_apart_the_weights_are_about_the_usual_ones(noise):
    """All columns vary alike (as it seems where noise hides them all), or none does: the same table for the same cells."""
    same = PairTables((3,) * 32, target=0)
    for impurities in (np.ones(32), np.zeros(32), np.full(32, 0.3)):
        np.testing.assert_array_equal(chosen_weights(same, impurities, noise=noise), same.weights)
    np.testing.assert_array_equal(chosen_weights(WIDE, np.zeros(32), noise=noise), WIDE.weights)


def test_columns_that_hardly_vary_lose_their_tables_and_others_gain():
    impurities = np.where(np.arange(32) % 2, 0.6, 1e-8)
    weights = chosen_weights(WIDE, impurities, noise=1e-3)
    for (first, second), weight, usual in zip(WIDE.pairs, weights, WIDE.weights, strict=True):
        if first % 2 and second % 2:
            assert weight > usual
        else:
            assert weight == 0


def test_the_room_is_for_the_tables_that_are_wanted_most():
    tables = PairTables((4,) * 30, target=None, room=16 * 10)
    impurities = np.linspace(0.1, 0.9, 30)
    weights = chosen_weights(tables, impurities, noise=1e-3)
    assert (weights > 0).sum() == 10
    products = np.array(
        [impurities[first] * impurities[second] for first, second in itertools.combinations(range(30), 2)]
    )
    assert products[weights > 0].min() >= np.sort(products)[-10]
