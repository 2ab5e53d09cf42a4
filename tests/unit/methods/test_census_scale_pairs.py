"""Pairs of scales in groups of cells: the bound whatever a server asks, exact counts, groups, and what they are worth."""

import dataclasses
import math

import jax
import numpy as np
import pyarrow as pa
import pytest

from census_cases import listed
from populace.engines import simulation
from populace.engines.runtime import population_of
from populace.methods.base import Population, Shard
from populace.methods.census.cells import Coarse, Grouping
from populace.methods.census.fit import fit_mixture
from populace.methods.census.protocol import Census
from populace.methods.census.scale_pairs import GROUPS, LARGE, MOST_SHARE, SHORTEST, ScalePairs
from populace.methods.census.tables import WEIGHT_UNITS, PairTables
from populace.privacy.source import Keyed
from populace.tables.partition import split_silos
from populace.tables.schema import Column, Schema
from populace.tables.table import make_table

ROWS = 4_000


def numbers(name, codes, *, nullable=False):
    return Column(name=name, kind="integer", edges=tuple(float(edge) for edge in range(codes + 1)), nullable=nullable)


SCHEMA = Schema(
    columns=(
        numbers("a", 100),
        listed("ward", 3),
        numbers("b", 100, nullable=True),
        numbers("c", 15),
        listed("ill", 2),
    ),
    target="ill",
)


def pairs_of(schema, target=None):
    return ScalePairs(schema, PairTables(Coarse(schema).sizes, target))


def random_codes(schema, rows, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, size, rows) for size in schema.sizes], axis=1).astype(np.int32)


def test_which_columns_have_groups():
    assert pairs_of(SCHEMA, 4).columns == (0, 2, 3)
    assert pairs_of(SCHEMA, 4).grouped.sizes == (GROUPS, GROUPS + 1, GROUPS)
    short = Schema(columns=(numbers("a", 100), numbers("b", SHORTEST - 1), listed("ward", 30)))
    alone = pairs_of(short)
    assert (alone.columns, alone.numbers, alone.squares, alone.asked) == ((), 0, 0, 0)


@pytest.mark.parametrize("scales", [2, 6, 20])
def test_groups_take_a_bounded_share_of_the_budget(scales):
    """As much as an average table has, unless there are many: where all columns are scales, at most the share."""
    for others in (0, 20):
        columns = (*(numbers(f"n{i}", 100) for i in range(scales)), *(listed(f"c{i}", 4) for i in range(others)))
        pairs = pairs_of(Schema(columns=columns))
        assert pairs.squares <= MOST_SHARE * (pairs.squares + pairs.tables.squares)
        assert pairs.weight == WEIGHT_UNITS if others and scales <= 6 else 3 <= pairs.weight <= WEIGHT_UNITS


HOSTILE = {
    "as asked": lambda size: np.arange(size) % GROUPS,
    "all one": lambda size: np.zeros(size, int),
    "negative": lambda size: np.full(size, -(2**31)),
    "far out": lambda size: np.full(size, 2**31 - 1),
    "mixed": lambda size: np.random.default_rng(0).integers(-(2**31), 2**31, size),
}


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("traced", [False, True], ids=["host", "traced"])
def test_a_record_changes_a_message_by_the_bound_whatever_groups_are_asked_for(hostile, traced):
    protocol = Census(epsilon=1.0, delta=1e-6, trust="central")
    population = Population(schema=SCHEMA, clients=1, records=9)
    parts = protocol.parts(population)
    learner, codes = parts.learner, random_codes(SCHEMA, 9)
    question = {name: np.asarray(each) for name, each in learner.example(1).items()}
    question["groups"] = HOSTILE[hostile](learner.scale_pairs.asked).astype(np.int32)

    def message(mask):
        def told(asked, records):
            shard = Shard(records=records, mask=mask, population=population)
            return protocol.answer(asked, 0, shard, (), Keyed(jax.random.key(0)))[0]

        return np.asarray((jax.jit(told) if traced else told)(question, codes), np.int64)

    everybody = message(np.ones(9, bool))
    for left_out in range(9):
        change = everybody - message(np.arange(9) != left_out)
        assert math.sqrt(np.sum(change**2)) == pytest.approx(parts.release.mechanisms[-1].bound)
        assert np.sum(change[learner.tables.numbers :] > 0) == len(learner.scale_pairs.grouped.pairs) == 3


def test_counts_are_those_of_the_records_on_the_host_and_compiled():
    pairs, codes = pairs_of(SCHEMA, 4), random_codes(SCHEMA, 500)
    cells = np.minimum(codes, np.array(pairs.tables.sizes) - 1)
    units = np.random.default_rng(1).integers(0, 4, 500)
    groups = np.concatenate([np.arange(size) * GROUPS // size for size in (24, 25, 15)]).astype(np.int32)
    of_cells = dict(zip(pairs.columns, pairs.by_column(groups), strict=True))
    wanted = []
    for first, second in ((0, 2), (0, 3), (2, 3)):
        table = np.zeros((GROUPS + (first == 2), GROUPS + (second == 2)), int)
        np.add.at(table, (of_cells[first][cells[:, first]], of_cells[second][cells[:, second]]), units)
        wanted.append(pairs.weight * table.ravel())
    host = pairs.counts(cells, units, groups)
    np.testing.assert_array_equal(host, np.concatenate(wanted))
    np.testing.assert_array_equal(jax.jit(pairs.counts)(cells, units, groups), host)
    by_code = [
        np.minimum(np.arange(size), most - 1) for size, most in zip(SCHEMA.sizes, pairs.tables.sizes, strict=True)
    ]
    np.testing.assert_array_equal(pairs.counts(codes, units, groups, by_code), host)


def test_large_values_and_no_value_are_groups_by_themselves():
    pairs = pairs_of(SCHEMA, 4)
    spikes = {0: [3], 2: [0, 7, 12], 3: []}
    groupings, shares = [], []
    for column, size in enumerate(pairs.tables.sizes):
        alone = np.isin(np.arange(size), spikes.get(column, []))
        groupings.append(Grouping(np.arange(size), np.ones(size), np.zeros(size, bool), alone))
        shares.append(np.where(alone, 2 * LARGE + np.arange(size) / 100, 0.01))
    first, second, third = pairs.by_column(pairs.groups(groupings, shares))
    for group, sizes in ((first, GROUPS), (second, GROUPS + 1), (third, GROUPS)):
        assert np.all(np.diff(group) >= 0)
        assert set(group) == set(range(sizes))
    assert np.sum(first == first[3]) == 1
    assert [int(np.sum(second == second[cell])) for cell in (7, 12, 24)] == [1, 1, 1]  # the two largest, and no value
    assert np.sum(second == second[0]) > 1
    membership = pairs.membership(pairs.groups(groupings, shares))
    assert membership.shape == (pairs.tables.positions, pairs.grouped.positions)
    np.testing.assert_array_equal(membership.sum(axis=1), [1] * 24 + [0] * 3 + [1] * 40)


def hump(seed):
    """Two numbers with a weak correlation and a relation that is not monotone, as ages and hours of work have."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 100, ROWS)
    second = 40 + 0.15 * first - 0.01 * (first - 50) ** 2 + rng.normal(0, 14, ROWS)
    schema = Schema(columns=(numbers("a", 100), numbers("b", 120), listed("ward", 3), listed("ill", 2)), target="ill")
    frame = {
        "a": first, "b": np.clip(np.rint(second + 20), 0, 119).astype(int),
        "ward": rng.choice(["ward0", "ward1", "ward2"], ROWS), "ill": rng.choice(["ill0", "ill1"], ROWS),
    }  # fmt: skip
    return make_table(pa.table(frame), schema)


def correlation(table):
    return float(np.corrcoef(*(table.frame.column(name).to_numpy() for name in "ab"))[0, 1])


@pytest.mark.slow
def test_groups_say_how_two_numbers_hang_together():
    """From the same sums, a fit that is told of the groups is nearer to the correlation than one that is not."""
    protocol = Census(epsilon=0.5, delta=1e-6, components=10, members=4, fit_steps=300)
    errors = {"with": [], "without": []}
    for seed in range(4):
        clients = split_silos(hump(seed), [ROWS])
        outcome = simulation.run(protocol, clients, root=jax.random.key(seed))
        learner, state = protocol.parts(population_of(clients)).learner, outcome.state.learner
        groupings, observed = learner._groupings(state), learner.observed(state)
        assert observed.grouped.shares.sum() == pytest.approx(1, abs=8 * GROUPS * observed.grouped.deviation)
        for name, seen in (("with", observed), ("without", dataclasses.replace(observed, grouped=None))):
            mixture = fit_mixture(learner.tables, seen, learner.settings, jax.random.key(0), learner._roots(groupings))
            made = learner._at_codes(groupings, seen, mixture).sample(20_000, jax.random.key(1))
            errors[name].append(abs(correlation(made) - correlation(clients.data)))
    assert np.mean(errors["with"]) < 0.75 * np.mean(errors["without"]), errors


def test_a_message_keeps_to_its_room_with_the_groups_in_it():
    columns = (*(numbers(f"n{i}", 100) for i in range(30)), listed("ward", 3), listed("ill", 2))
    population = Population(schema=Schema(columns=columns), clients=2, records=50)
    for megabytes in (0.2, 0.5, 50.0):
        parts = Census(epsilon=1.0, delta=1e-6, message_megabytes=megabytes).parts(population)
        sent = 4 * parts.release.mechanisms[-1].size
        assert sent == 4 * (parts.learner.tables.numbers + parts.learner.scale_pairs.numbers)
        assert sent <= 1e6 * megabytes
