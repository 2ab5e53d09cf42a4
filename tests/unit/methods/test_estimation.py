"""Every estimator against a known truth or a slow oracle: no noise gives the truth back."""

import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from populace.errors import DataError, SpecError
from populace.methods.baselines import marginals
from populace.methods.blocks.clique_tree import CliqueTree, elimination_cells
from populace.methods.blocks.frequency_estimation import (
    NoisyTable,
    invert,
    make_consistent,
    marginal,
    maximise_likelihood,
    pair_likelihoods,
    project_to_simplex,
    regress,
    support_likelihoods,
    with_marginal,
)
from populace.methods.marginals.graphical_model import (
    choose_cliques,
    dependence,
    fit_graphical_model,
    noise_alone,
    pool_singles,
)

TRUTH = np.array([0.5, 0.3, 0.15, 0.05, 0.0])


def test_inversion_undoes_p_and_q():
    expected = 1000 * (TRUTH * 0.7 + (1 - TRUTH) * 0.2)
    np.testing.assert_allclose(invert(expected, 1000, p=0.7, q=0.2), TRUTH, atol=1e-12)
    with pytest.raises(SpecError, match="above q"):
        invert(expected, 1000, p=0.2, q=0.2)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=12))
def test_projection_is_the_nearest_distribution(values):
    """Against the same problem solved by bisection on the shift."""
    values = np.array(values)
    low, high = values.min() - 2, values.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(values - middle, 0).sum() > 1 else (low, middle)
    found = project_to_simplex(values)
    assert found.sum() == pytest.approx(1)
    np.testing.assert_allclose(found, np.maximum(values - low, 0), atol=1e-9)


def test_projection_keeps_shapes_and_has_one_definition():
    table = np.array([[0.5, -0.1], [0.4, 0.3]])
    assert project_to_simplex(table).shape == (2, 2)
    np.testing.assert_allclose(project_to_simplex(table).ravel(), project_to_simplex(table.ravel()))
    assert marginals.project_to_simplex is project_to_simplex


def test_regression_recovers_a_sparse_table_from_fewer_observations_than_values():
    rng = np.random.default_rng(0)
    design = (rng.random((40, 100)) < 0.15).astype(float)
    truth = np.zeros(100)
    truth[[3, 17, 58, 90]] = (0.4, 0.3, 0.2, 0.1)
    np.testing.assert_allclose(regress(design, design @ truth, penalty=1e-5), truth, atol=1e-3)


def test_regression_through_a_channel_as_samprivsyn_does():
    """Two randomised responses side by side: the channel of a pair is the product of theirs."""
    first, second = (np.full((k, k), (1 - 0.6) / (k - 1)) + np.eye(k) * (0.6 - 0.4 / (k - 1)) for k in (3, 4))
    truth = np.random.default_rng(1).dirichlet(np.ones(12))
    channel = np.kron(first, second)
    np.testing.assert_allclose(regress(channel, channel @ truth, penalty=1e-7), truth, atol=1e-3)


def test_regression_on_nothing_is_uniform_and_penalties_are_positive():
    assert regress(np.eye(4), -np.ones(4)).tolist() == [0.25] * 4
    with pytest.raises(SpecError, match="penalty"):
        regress(np.eye(4), np.ones(4), penalty=0.0)


def test_likelihood_of_expected_counts_gives_the_truth():
    channel = np.full((5, 5), 0.1) + np.eye(5) * 0.5  # column v: probabilities of reports about v
    found = maximise_likelihood(channel, 1000 * channel @ TRUTH, iterations=5000, tolerance=1e-12)
    np.testing.assert_allclose(found, TRUTH, atol=1e-4)


def test_likelihood_stops_where_no_small_move_helps():
    """At the maximum the mean of L[i, v] / (L f)_i is 1 where f > 0 and at most 1 elsewhere: whatever the reports."""
    rng = np.random.default_rng(2)
    supports = rng.random((400, 6)) < np.array([0.6, 0.5, 0.3, 0.3, 0.3, 0.1])
    likelihoods = support_likelihoods(supports, math.exp(2.0))
    found = maximise_likelihood(likelihoods, iterations=20_000, tolerance=1e-14)
    gradient = (likelihoods / (likelihoods @ found)[:, None]).mean(axis=0)
    assert np.abs(gradient[found > 1e-6] - 1).max() < 1e-4
    assert gradient.max() < 1 + 1e-4


def test_likelihood_with_counts_equals_repeated_reports_and_priors_pull():
    rng = np.random.default_rng(3)
    likelihoods = rng.random((6, 4)) + 0.1
    counts = np.array([3, 0, 1, 2, 5, 4])
    repeated = np.repeat(likelihoods, counts, axis=0)
    np.testing.assert_allclose(maximise_likelihood(likelihoods, counts), maximise_likelihood(repeated), atol=1e-12)
    pulled = maximise_likelihood(likelihoods, counts, prior=1e6)
    np.testing.assert_allclose(pulled, 0.25, atol=1e-3)
    assert maximise_likelihood(np.zeros((0, 4))).tolist() == [0.25] * 4
    with pytest.raises(DataError, match="no probability"):
        maximise_likelihood(np.zeros((2, 4)))
    with pytest.raises(SpecError, match="prior"):
        maximise_likelihood(likelihoods, prior=-1.0)


def test_joint_likelihood_of_pairs_finds_a_dependence():
    rng = np.random.default_rng(4)
    truth = np.array([[0.4, 0.1], [0.1, 0.4]])
    values = np.stack(np.unravel_index(rng.choice(4, 20_000, p=truth.ravel()), (2, 2)))
    kept = rng.random(values.shape) < 0.8
    reports = np.where(kept, values, 1 - values)
    first, second = (np.where(side[:, None] == np.arange(2), 0.8, 0.2) for side in reports)
    found = maximise_likelihood(pair_likelihoods(first, second), iterations=500).reshape(2, 2)
    assert np.abs(found - truth).sum() < 0.06


def random_joint(sizes, seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(math.prod(sizes), 0.3)).reshape(sizes)


def measure(joint, groups, stddev=0.0, seed=0):
    rng = np.random.default_rng(seed)
    columns = range(joint.ndim)
    tables = []
    for group in groups:
        table = marginal(joint, columns, group)
        tables.append(NoisyTable(group, table + stddev * rng.normal(size=table.shape), stddev))
    return tables


def test_marginals_are_taken_and_given_in_any_order():
    joint = random_joint((2, 3, 4))
    np.testing.assert_allclose(marginal(joint, (0, 1, 2), (2, 0)), joint.sum(axis=1).T)
    wanted = random_joint((4, 2), seed=1)
    moved = with_marginal(joint, (0, 1, 2), (2, 0), wanted)
    np.testing.assert_allclose(marginal(moved, (0, 1, 2), (2, 0)), wanted)


def test_consistent_tables_without_noise_stay():
    measured = measure(random_joint((2, 3, 4, 2)), [(0, 1), (1, 2), (2, 3, 0), (1,)])
    for table, found in zip(measured, make_consistent(measured), strict=True):
        np.testing.assert_allclose(found, table.table, atol=1e-9)


def test_shared_columns_become_the_weighted_mean():
    """By hand: a column measured alone and in a pair, no cell near zero, weights 1/variance of each view."""
    alone = NoisyTable((0,), np.array([0.6, 0.4]), 0.01)
    paired = NoisyTable((1, 0), np.array([[0.2, 0.3], [0.2, 0.3]]), 0.02)
    weights = np.array([1 / 0.01**2, 1 / (2 * 0.02**2)])
    mean = weights @ np.array([[0.6, 0.4], [0.4, 0.6]]) / weights.sum()
    first, second = make_consistent([alone, paired])
    np.testing.assert_allclose(first, mean)
    np.testing.assert_allclose(second.sum(axis=0), mean)
    np.testing.assert_allclose(second.sum(axis=1), [0.5, 0.5])


def test_consistency_agrees_on_pairs_shared_by_triples_and_comes_nearer_to_the_truth():
    joint = random_joint((3, 3, 2, 2))
    groups = [(0, 1, 2), (1, 0, 3), (2, 3), (0, 2)]
    measured = measure(joint, groups, stddev=0.03)
    found = make_consistent(measured, rounds=2000, tolerance=1e-9)
    for table in found:
        assert table.min() >= 0
        assert table.sum() == pytest.approx(1)
    for (i, a), (j, b) in itertools.combinations(enumerate(groups), 2):
        shared = tuple(sorted(set(a) & set(b)))
        np.testing.assert_allclose(marginal(found[i], a, shared), marginal(found[j], b, shared), atol=1e-4)

    def error(tables):
        return sum(np.abs(t - marginal(joint, range(4), g)).sum() for t, g in zip(tables, groups, strict=True))

    assert error(found) < error([project_to_simplex(table.table) for table in measured])


def tree_of(joint):
    """A tree that holds 0-1, 1-2 and, apart, 3; its joint distribution by brute force."""
    parts = (marginal(joint, range(4), (0, 1)), marginal(joint, range(4), (2, 1)), marginal(joint, range(4), (3,)))
    tree = CliqueTree(sizes=joint.shape, cliques=((0, 1), (2, 1), (3,)), parents=(-1, 0, -1), tables=parts)
    middle = parts[1] / parts[1].sum(axis=0)
    return tree, np.einsum("ab,cb,d->abcd", parts[0], middle, parts[2])


def test_clique_tree_gives_the_marginals_of_its_joint_distribution():
    tree, joint = tree_of(random_joint((2, 3, 4, 2)))
    for group in [(0,), (2, 0), (3, 2, 0), (0, 1, 2, 3), (1, 3)]:
        np.testing.assert_allclose(tree.marginal(group), marginal(joint, range(4), group), atol=1e-12)
    with pytest.raises(SpecError, match="cells"):
        CliqueTree(
            sizes=(5000, 5000),
            cliques=((0,), (1,)),
            parents=(-1, -1),
            tables=(np.full(5000, 1 / 5000), np.full(5000, 1 / 5000)),
        ).marginal((0, 1))


def test_clique_tree_samples_its_joint_distribution_also_under_conditions():
    tree, joint = tree_of(random_joint((2, 3, 4, 2), seed=5))
    codes = tree.sample_codes(200_000, jax.random.key(0))
    assert codes.dtype == np.int32
    found = np.bincount(np.ravel_multi_index(codes.T, joint.shape), minlength=joint.size) / len(codes)
    expected = joint.ravel()
    assert (np.abs(found - expected) / np.sqrt(expected * (1 - expected) / len(codes) + 1e-12)).max() < 6
    given_two = tree.sample_codes(100_000, jax.random.key(1), {2: 1})
    assert (given_two[:, 2] == 1).all()
    conditional = joint[:, :, 1].sum(axis=(1, 2)) / joint[:, :, 1].sum()
    np.testing.assert_allclose(np.bincount(given_two[:, 0]) / 100_000, conditional, atol=0.01)


def test_impossible_conditions_and_broken_trees_are_refused():
    diagonal = np.eye(2) / 2
    tree = CliqueTree(sizes=(2, 2), cliques=((0, 1),), parents=(-1,), tables=(diagonal,))
    assert (tree.sample_codes(50, jax.random.key(0), {0: 1})[:, 1] == 1).all()
    with pytest.raises(DataError, match="no probability"):
        tree.sample_codes(5, jax.random.key(0), {0: 0, 1: 1})
    for sizes, parents, message in (((2, 3), (-1,), "shape"), ((2, 2, 2), (-1,), "cover"), ((2, 2), (0,), "parent")):
        with pytest.raises(DataError, match=message):
            CliqueTree(sizes=sizes, cliques=((0, 1),), parents=parents, tables=(diagonal,))


def test_graphical_model_of_a_tree_matches_what_was_measured():
    """No noise, counts of 1,000 people, one column nobody measured: the model is the tree, and so are its samples."""
    _, joint = tree_of(random_joint((2, 3, 4, 2), seed=6))
    measured = [(c, 1000 * t, 0.0) for c, t, _ in measure(joint, [(0, 1), (2, 1), (3,)])]
    model = fit_graphical_model((2, 3, 4, 2, 5), measured, 1000.0)
    for columns, table, _ in measured:
        np.testing.assert_allclose(model.marginal(columns), table / 1000, atol=2e-3)
    np.testing.assert_allclose(model.marginal((0, 2)), joint.sum(axis=(1, 3)), atol=4e-3)
    np.testing.assert_allclose(model.marginal((4,)), 0.2, atol=1e-6)
    codes = model.sample_codes(100_000, jax.random.key(0))
    for columns, table, _ in measured:
        sampled = np.zeros(table.shape)
        np.add.at(sampled, tuple(codes[:, column] for column in columns), 1 / len(codes))
        assert np.abs(sampled - table / 1000).sum() / 2 < 0.01


def test_graphical_model_stays_within_its_bound_and_keeps_the_single_columns():
    """All pairs of 8 dependent columns of 5 values: a free choice would make one clique of 390,625 cells."""
    rng = np.random.default_rng(7)
    hidden = rng.integers(0, 5, 20_000)
    codes = np.where(rng.random((8, 20_000)) < 0.7, hidden, rng.integers(0, 5, (8, 20_000)))
    measured = []
    for pair in itertools.combinations(range(8), 2):
        table = np.zeros((5, 5))
        np.add.at(table, (codes[pair[0]], codes[pair[1]]), 1 / 20_000)
        measured.append((pair, table + 0.002 * rng.normal(size=table.shape), 0.002))
    model = fit_graphical_model((5,) * 8, measured, most_cells=700)
    assert sum(table.size for table in model.tables) <= 700
    assert len({frozenset(clique) for clique in model.cliques}) >= 3
    for column in range(8):
        true = np.bincount(codes[column], minlength=5) / 20_000
        assert np.abs(model.marginal((column,)) - true).sum() / 2 < 0.01


def test_cliques_are_chosen_by_dependence_and_noise_is_not_dependence():
    joint = np.einsum("ab,c->abc", np.array([[0.4, 0.1], [0.1, 0.4]]), np.array([0.5, 0.5]))
    tables = measure(joint, [(0, 1), (1, 2), (0, 2)], stddev=0.01, seed=8)
    singles = pool_singles((2, 2, 2), tables)
    strong, *weak = (dependence(table, singles) for table in tables)
    assert strong == pytest.approx(4 * 4 * 0.15**2, rel=0.2)
    assert max(weak) < 0.05 * strong
    assert noise_alone(tables[0]) == pytest.approx(4 * 0.01**2)
    forest, extras = choose_cliques((2, 2, 2), tables[:1], singles, most_cells=100)
    assert [table.columns for table in forest] == [(0, 1)]
    assert extras == []
    silent = measure(np.full((5, 5), 0.04), [(0, 1)] * 500, stddev=0.01, seed=9)
    flat = measure(np.full((5, 5), 0.04), [(0,), (1,)])
    spread = np.array([dependence(table, flat) for table in silent])
    assert abs(spread.mean()) < 6 * spread.std() / math.sqrt(500)  # noise alone counts for nothing, on average
    loud = [table._replace(stddev=0.25) for table in tables]
    assert choose_cliques((2, 2, 2), loud, singles, most_cells=100) == ([], [])
    assert choose_cliques((2, 2, 2), tables[:1], singles, most_cells=5) == ([], [])


def test_pooled_single_columns_are_the_weighted_mean():
    tables = [NoisyTable((0,), np.array([0.7, 0.3]), 0.1), NoisyTable((0, 1), np.array([[0.2, 0.3], [0.4, 0.1]]), 0.1)]
    first, second, third = pool_singles((2, 2, 3), tables)
    np.testing.assert_allclose(first.table, (2 * np.array([0.7, 0.3]) + 0.5) / 3)
    assert first.stddev == pytest.approx(0.1 * math.sqrt(2 / 3))
    np.testing.assert_allclose(second.table, [0.6, 0.4])
    assert third.table.tolist() == [1 / 3] * 3
    assert math.isinf(third.stddev)


def test_elimination_counts_the_cells_of_a_tree_of_cliques():
    assert elimination_cells((2, 3, 4), [(0, 1), (1, 2)]) == 6 + 12 + 4  # leaves first, then what is left of the last
    assert elimination_cells((2, 2, 2), [(0, 1), (1, 2), (0, 2)]) >= 8
    cycle = [(i, (i + 1) % 6) for i in range(6)]
    assert 4 * 8 <= elimination_cells((2,) * 6, cycle) <= 6 * 8


def test_malformed_measurements_are_refused():
    with pytest.raises(DataError, match="cells"):
        fit_graphical_model((2, 3), [((0, 1), np.ones(5), 0.1)])
    with pytest.raises(DataError, match="columns"):
        fit_graphical_model((2, 3), [((0, 2), np.ones(6), 0.1)])
    with pytest.raises(SpecError, match="stddev"):
        fit_graphical_model((2, 3), [((0, 1), np.ones(6), -0.1)])


def test_without_measurements_everything_is_uniform():
    model = fit_graphical_model((2, 3), [])
    np.testing.assert_allclose(model.marginal((0, 1)), 1 / 6)
