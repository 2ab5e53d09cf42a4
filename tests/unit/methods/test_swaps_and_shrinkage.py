"""Building rows by exchanges, and pulling noisy tables towards independence."""

import numpy as np
import pytest

from populace.methods.blocks.frequency_estimation import (
    NoisyTable,
    channel,
    invert_pair,
    maximise_likelihood,
    pair_variance,
)
from populace.methods.blocks.records_generator import (
    build_rows,
    combinations_of,
    move_to_marginals,
    move_to_pair,
    rank_within,
)
from populace.methods.marginals.shrinkage import (
    fit_consistent_model,
    fit_shrunk_model,
    interaction,
    strongest,
    towards_independence,
)


def table_of(codes, a, b, shape):
    return np.bincount(codes[:, a] * shape[1] + codes[:, b], minlength=shape[0] * shape[1]).reshape(shape) / len(codes)


def exact_single(table, column):
    return NoisyTable((column,), table, 1e-4)


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return np.stack([rng.integers(0, size, 3000) for size in (4, 5, 3)], axis=1), rng


def test_rank_within_counts_equal_entries_before():
    values = np.array([3, 1, 3, 3, 1, 0])
    assert rank_within(values).tolist() == [0, 0, 1, 2, 1, 0]
    assert rank_within(np.array([], int)).tolist() == []


def test_one_way_tables_are_reached_exactly_with_the_fewest_changes(rows):
    codes, rng = rows
    tables = [np.array([0.4, 0.3, 0.2, 0.1]), np.full(5, 0.2), np.array([0.7, 0.2, 0.1])]
    moved = move_to_marginals(codes, tables, rng)
    for column, table in enumerate(tables):
        np.testing.assert_allclose(np.bincount(moved[:, column], minlength=len(table)) / 3000, table, atol=1 / 3000)
        before = np.bincount(codes[:, column], minlength=len(table))
        least = np.maximum(np.bincount(moved[:, column], minlength=len(table)) - before, 0).sum()
        assert (moved[:, column] != codes[:, column]).sum() == least


def test_swaps_keep_one_way_tables_exactly_and_reach_a_feasible_target(rows):
    codes, rng = rows
    target = 0.3 * table_of(codes, 0, 1, (4, 5))
    target += 0.7 * table_of(
        np.stack([codes[:, 0], np.sort(codes[:, 1])[np.argsort(np.argsort(codes[:, 0]))]], 1), 0, 1, (4, 5)
    )
    moved = move_to_pair(codes, (0, 1), target, rng, within=np.zeros(len(codes), int))
    for column in range(3):
        np.testing.assert_array_equal(np.bincount(moved[:, column]), np.bincount(codes[:, column]))
    before = np.abs(table_of(codes, 0, 1, (4, 5)) - target).sum()
    after = np.abs(table_of(moved, 0, 1, (4, 5)) - target).sum()
    assert after < 0.1 * before
    np.testing.assert_array_equal(moved[:, [0, 2]], codes[:, [0, 2]])


@pytest.mark.parametrize("seed", range(5))
def test_swaps_never_move_away_from_any_target_and_leave_settled_pairs_alone(seed):
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, 800) for size in (3, 4, 3)], axis=1)
    target = rng.dirichlet(np.full(12, 0.5)).reshape(3, 4)
    within = combinations_of(codes, [2])
    moved = move_to_pair(codes, (0, 1), target, rng, within=within)
    distance = [np.abs(table_of(c, 0, 1, (3, 4)) - target).sum() for c in (codes, moved)]
    assert distance[1] <= distance[0] + 1e-12
    np.testing.assert_array_equal(table_of(moved, 2, 1, (3, 4)), table_of(codes, 2, 1, (3, 4)))


def test_rows_are_built_to_the_chain_of_pairs():
    rng = np.random.default_rng(1)
    a = rng.integers(0, 3, 5000)
    b = np.where(rng.random(5000) < 0.7, a, rng.integers(0, 3, 5000))
    c = np.where(rng.random(5000) < 0.7, b, rng.integers(0, 3, 5000))
    real = np.stack([a, b, c], axis=1)
    pairs = {pair: table_of(real, *pair, (3, 3)) for pair in ((0, 1), (0, 2), (1, 2))}
    singles = [np.bincount(column, minlength=3) / 5000 for column in real.T]
    built = build_rows((3, 3, 3), singles, pairs, 5000, rng)
    for pair in pairs:  # not exactly: exchanges of two rows cannot undo cycles of three
        assert np.abs(table_of(built, *pair, (3, 3)) - pairs[pair]).sum() / 2 < 0.04


def test_inverting_a_pair_undoes_its_channels_and_the_variance_is_what_is_measured():
    rng = np.random.default_rng(0)
    truth = rng.dirichlet(np.ones(12)).reshape(3, 4)
    first, second = channel(0.6, 0.2, 3), channel(0.4, 0.2, 4)
    told = first @ truth @ second.T
    np.testing.assert_allclose(invert_pair(told, first, second), truth, atol=1e-12)
    even = np.full((3, 4), 1 / 12)
    counts = rng.multinomial(1000, (first @ even @ second.T).ravel(), 4000) / 1000
    estimates = np.stack([invert_pair(c.reshape(3, 4), first, second) for c in counts])
    expected = pair_variance((0.6, 0.2, 3), (0.4, 0.2, 4)) / 1000
    assert estimates.var(axis=0).mean() == pytest.approx(expected, rel=0.05)


def test_a_pure_noise_table_is_dropped_and_a_clear_one_kept_as_it_is():
    rng = np.random.default_rng(0)
    singles = [exact_single(np.array([0.6, 0.3, 0.1]), 0), exact_single(np.array([0.2, 0.3, 0.5]), 1)]
    independent = np.multiply.outer(singles[0].table, singles[1].table)
    dropped = 0
    for _ in range(200):
        noisy = NoisyTable((0, 1), independent + rng.normal(0, 0.05, (3, 3)), 0.05)
        dropped += towards_independence(noisy, singles) is None
    assert dropped > 140
    dependent = independent + 0.05 * np.outer([1, -1, 0], [1, 0, -1])
    kept = towards_independence(NoisyTable((0, 1), dependent, 1e-4), singles)
    np.testing.assert_allclose(kept.table, dependent, atol=1e-3)
    assert kept.stddev < 1e-3


def test_shrinking_lowers_the_error_of_a_noisy_table():
    rng = np.random.default_rng(0)
    singles = [exact_single(np.array([0.6, 0.3, 0.1]), 0), exact_single(np.array([0.2, 0.3, 0.5]), 1)]
    truth = np.multiply.outer(singles[0].table, singles[1].table) + 0.06 * np.outer([1, -1, 0], [1, 0, -1])
    plain, shrunk = [], []
    for _ in range(200):
        noisy = NoisyTable((0, 1), truth + rng.normal(0, 0.04, (3, 3)), 0.04)
        found = towards_independence(noisy, singles)
        guess = interaction(noisy, singles)[0] if found is None else found.table
        shrunk.append(np.abs(guess - truth).sum())
        plain.append(np.abs(noisy.table - truth).sum())
    assert np.mean(shrunk) < 0.85 * np.mean(plain)


def test_strongest_tables_join_all_columns_first():
    singles = [exact_single(np.array([0.5, 0.5]), column) for column in range(3)]
    strong, middle, weak = (
        NoisyTable(pair, 0.25 + size * np.array([[1, -1], [-1, 1]]), 1e-4)
        for pair, size in (((0, 1), 0.2), ((0, 2), 0.15), ((1, 2), 0.1))
    )
    chosen = strongest((2, 2, 2), [weak, middle, strong], singles)
    assert [table.columns for table in chosen] == [(0, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize("fit", [fit_shrunk_model, fit_consistent_model])
def test_models_of_clear_tables_hold_them(fit):
    first, second = np.array([[0.4, 0.1], [0.1, 0.4]]), np.array([[0.3, 0.2], [0.1, 0.4]])
    tree = fit((2, 2, 2), [NoisyTable((0, 1), first, 1e-3), NoisyTable((1, 2), second, 1e-3)])
    np.testing.assert_allclose(tree.marginal((0, 1)), first, atol=5e-3)
    np.testing.assert_allclose(tree.marginal((1, 2)), second, atol=5e-3)


def test_expectation_maximisation_begins_where_it_is_told():
    start = np.array([0.7, 0.2, 0.1])
    flat = np.ones((5, 3))
    np.testing.assert_allclose(maximise_likelihood(flat, start=start, iterations=20), start)
    np.testing.assert_allclose(maximise_likelihood(flat, iterations=20), np.full(3, 1 / 3))
