"""One-way tables of long columns are kept to: what is clear of noise, what noise hides, and what columns have to do with
each other."""

import dataclasses

import jax
import numpy as np
import pytest

from census_cases import listed, two_kinds
from populace.methods.base import Population
from populace.methods.census.fit import CLEAR, Observed, matched
from populace.methods.census.protocol import Census
from populace.methods.census.tables import PairTables
from populace.tables.schema import Column, Schema

TABLES = PairTables((6, 4, 2), target=2)
LONG = slice(0, 6)


def mixture(seed, *, components=8, sizes=TABLES.sizes):
    """Components that differ, all with something in every cell."""
    rng = np.random.default_rng(seed)
    values = [rng.dirichlet(np.full(size, 2.0), components) for size in sizes]
    return rng.dirichlet(np.full(components, 3.0)), np.concatenate(values, axis=1)


def seen(shares=None, deviation=1e-4):
    """What was observed: the first column by itself, where shares of it are given; no table of pairs."""
    bare = np.zeros((2, TABLES.entries)), np.full(TABLES.entries, np.inf)
    alone = np.zeros((2, TABLES.positions)), np.full(TABLES.positions, np.inf)
    given = {} if shares is None else {0: (np.asarray(shares), np.broadcast_to(deviation, len(shares)))}
    return Observed(*bare, *alone, given)


def joint(weights, values):
    """Shares of the first two columns together."""
    return np.einsum("z,za,zb->ab", weights, values[:, LONG], values[:, 6:10])


def log_odds(table):
    """Of every two rows and every two columns of a table."""
    logs = np.log(table)
    return logs[:, None, :, None] - logs[None, :, :, None] - logs[:, None, None, :] + logs[None, :, None, :]


@pytest.mark.parametrize("seed", range(4))
def test_cells_that_are_clear_end_at_what_was_observed(seed):
    weights, values = mixture(seed)
    wanted = np.random.default_rng(seed).dirichlet(np.full(6, 4.0))
    before = weights @ values[:, LONG]
    found = matched(TABLES, seen(wanted), weights, values)
    assert np.abs(before - wanted).max() > 0.05
    np.testing.assert_allclose(weights @ found[:, LONG], wanted, atol=1e-3)
    np.testing.assert_allclose(found[:, LONG].sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_array_equal(found[:, 6:], values[:, 6:])  # nothing else was counted by itself


def test_margins_of_pairs_count_beside_a_columns_own_counts():
    """What is kept to is the mean of both by their precision, not the first stage alone."""
    weights, values = mixture(1)
    own, other = np.array([0.3, 0.1, 0.2, 0.1, 0.2, 0.1]), np.array([0.1, 0.3, 0.2, 0.1, 0.1, 0.2])
    shares = np.broadcast_to(other[:, None] / 8, (2, 6, 4)).reshape(2, -1)
    both = dataclasses.replace(seen(own, 1e-3), shares=shares, deviations=np.full(TABLES.entries, 1e-3 / np.sqrt(8)))
    found = matched(TABLES, both, weights, values)
    np.testing.assert_allclose(weights @ found[:, LONG], (own + other) / 2, atol=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_cells_that_noise_hides_share_what_is_left_as_they_did_before(seed):
    """Three cells are clear; what is said of the others is noise, and only their sum is kept to."""
    weights, values = mixture(seed)
    wanted, deviation = np.array([0.3, 0.25, 0.2, 0.19, -0.1, 0.1]), np.array([1e-3, 1e-3, 1e-3, 0.05, 0.05, 0.05])
    assert ((wanted > CLEAR * deviation) == [True, True, True, False, False, False]).all()
    found = matched(TABLES, seen(wanted, deviation), weights, values)
    now = weights @ found[:, LONG]
    np.testing.assert_allclose(now[:3], wanted[:3], atol=1e-3)
    assert now[3:].sum() == pytest.approx(0.25, abs=2e-3)
    hidden, before = found[:, 3:6], values[:, 3:6]
    np.testing.assert_allclose(
        hidden / hidden.sum(axis=1, keepdims=True), before / before.sum(axis=1, keepdims=True), rtol=1e-9
    )


@pytest.mark.parametrize("deviation", [1e-4, np.array([1e-4, 1e-4, 1e-4, 1.0, 1.0, 1.0])], ids=["clear", "some hidden"])
@pytest.mark.parametrize("seed", range(4))
def test_what_columns_have_to_do_with_each_other_stays(seed, deviation):
    """A component's cells are all multiplied alike, but for its total; odds ratios keep their sign and about their size."""
    weights, values = mixture(seed)
    wanted = np.random.default_rng(seed + 9).dirichlet(np.full(6, 6.0))
    found = matched(TABLES, seen(wanted, deviation), weights, values)
    factors = np.log(found[:, LONG] / values[:, LONG])
    alike = factors - factors.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(alike, np.broadcast_to(alike[0], alike.shape), atol=1e-9)
    assert np.ptp(alike[0]) > 0.3  # and it does move
    before, after = log_odds(joint(weights, values)), log_odds(joint(weights, found))
    strong = np.abs(before) > 0.3
    assert strong.sum() > 20
    assert (np.sign(after[strong]) == np.sign(before[strong])).all()
    np.testing.assert_allclose(after, before, atol=0.1 + 0.25 * np.abs(before).max())
    np.testing.assert_allclose(after[strong] / before[strong], 1, atol=0.4)


def test_absent_cells_stay_absent():
    """Also where noise says that there is something: in all components, or in one."""
    weights, values = mixture(2)
    values[:, 4] = 0
    values[3, 1] = 0
    wanted = np.array([0.2, 0.2, 0.2, 0.1, 0.2, 0.1])
    found = matched(TABLES, seen(wanted), weights, values)
    assert not found[:, 4].any()
    assert found[3, 1] == 0
    assert (found[:, [0, 2, 3, 5]] > 0).all()
    now = weights @ found[:, LONG]
    np.testing.assert_allclose(now.sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(now[:4] / now[:4].sum(), wanted[:4] / wanted[:4].sum(), atol=5e-3)


@pytest.mark.parametrize("clear", [1.0, 1.3, 0.2], ids=["all", "more than all", "few"])
def test_components_without_any_mass_are_no_trouble(clear):
    """One has nothing in the column, one only where nothing is left, and one component has no weight."""
    weights, values = mixture(3)
    values[0, LONG] = 0
    values[1, LONG] = np.eye(6)[3]
    values[2, LONG] = np.eye(6)[0]
    weights = np.where(np.arange(8) == 5, 0, weights)
    weights = weights / weights.sum()
    wanted, deviation = np.array([clear, 0.0, 0.0, -0.1, 0.0, 0.0]), 1e-2
    found = matched(TABLES, seen(wanted, deviation), weights, values)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    np.testing.assert_allclose(found[:, LONG].sum(axis=1), [0, *[1] * 7], atol=1e-12)
    np.testing.assert_allclose(found[1, LONG], np.eye(6)[3], atol=1e-12)


def test_a_column_in_which_nothing_is_clear_or_nothing_is_held():
    weights, values = mixture(4)
    hidden = matched(TABLES, seen(np.full(6, 0.1), 10.0), weights, values)
    np.testing.assert_allclose(hidden, values, rtol=1e-9)
    values[:, LONG] = 0
    found = matched(TABLES, seen(np.full(6, 1 / 6)), weights, values)
    assert not found[:, LONG].any()
    np.testing.assert_array_equal(found[:, 6:], values[:, 6:])


def test_nothing_happens_without_counts_of_the_first_stage_and_the_fit_is_not_written_over():
    weights, values = mixture(5)
    kept = values.copy()
    np.testing.assert_array_equal(matched(TABLES, seen(), weights, values), values)
    moved = matched(TABLES, seen(np.full(6, 1 / 6)), weights, values)
    assert np.abs(moved - values).max() > 0.01
    np.testing.assert_array_equal(values, kept)


def test_a_model_keeps_to_the_one_way_table_although_its_fit_is_short():
    """From sums without noise: cells of the long column are as counted, which so few steps of the fit do not reach."""
    cost = Column(name="cost", kind="integer", edges=tuple(float(edge) for edge in range(121)))
    schema = Schema(columns=(cost, listed("ward", 3), listed("ill", 2)), target="ill")
    protocol = Census(epsilon=20.0, delta=1e-6, trust="central", components=3, members=2, fit_steps=4)
    learner = protocol.parts(Population(schema=schema, clients=1, records=6_000)).learner
    codes, everything = two_kinds(schema, 6_000).codes, np.ones(6_000, bool)
    one_way = learner.first.counts(codes, everything).astype(np.int64)
    state = dataclasses.replace(learner.begin(None), one_way=one_way, messages=np.ones(2, np.int32))
    groupings = learner._groupings(state)
    cells = learner._cells_of_codes(np.concatenate([one.cell for one in groupings]))
    pairs = learner.tables.counts(codes, everything, cells).astype(np.int64)
    model = learner.finish(dataclasses.replace(state, pairs=pairs), jax.random.key(0))
    wanted = np.bincount(codes[:, 0], minlength=120) / 6_000
    found = model.marginal((0,))
    cell = groupings[0].cell
    np.testing.assert_allclose(np.bincount(cell, found), np.bincount(cell, wanted), atol=2e-3)
