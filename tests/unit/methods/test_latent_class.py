"""Latent classes: exact tables against enumeration, systematic samples, and fits that find what answers say."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from populace.errors import DataError
from populace.methods.blocks.latent_class import LatentClass, mixture_of
from populace.methods.poll import answer_counts
from populace.methods.poll.answer_counts import AnswerCounts, Layout, one_hot_cells, value_probabilities
from populace.methods.poll.fit import Settings, fit, log_likelihood, log_tables, posterior_draws, rake
from populace.methods.registry import load_generator
from populace.privacy.randomizers.subset import SubsetSelection


@pytest.fixture(scope="module")
def model(small_schema):
    rng = np.random.default_rng(3)
    tables = np.concatenate([rng.dirichlet(np.ones(size), 3) for size in small_schema.sizes], axis=1)
    return LatentClass(schema=small_schema, weights=np.array([0.5, 0.3, 0.2]), tables=tables)


def joint(model):
    """The whole table, cell by cell."""
    sizes = model.schema.sizes
    bounds = np.cumsum([0, *sizes])
    table = np.zeros(sizes)
    for cell in itertools.product(*(range(size) for size in sizes)):
        each = [model.tables[:, bounds[c] + code] for c, code in enumerate(cell)]
        table[cell] = float((model.weights * np.prod(each, axis=0)).sum())
    return table


def test_marginals_conditionals_density_and_entropy_are_exact(model):
    table = joint(model)
    np.testing.assert_allclose(model.marginal((0, 2)), table.sum(axis=(1, 3)), atol=1e-12)
    np.testing.assert_allclose(model.marginal((3, 1)), table.sum(axis=(0, 2)).T, atol=1e-12)
    given = table[:, 1, :, 0] / table[:, 1, :, 0].sum()
    np.testing.assert_allclose(model.conditional((0, 2), {1: 1, 3: 0}), given, atol=1e-12)
    codes = np.array(list(itertools.product(*(range(size) for size in model.schema.sizes))))
    np.testing.assert_allclose(np.exp(model.log_density(codes)), table.ravel(), rtol=1e-9)
    pair = table.sum(axis=(1, 3)).ravel()
    assert model.entropy((0, 2)) == pytest.approx(-(pair * np.log(pair)).sum())


def test_samples_follow_the_model_more_evenly_than_independent_draws(model):
    codes = model.sample_codes(20_000, jax.random.key(0), {})
    table = joint(model)
    for columns in itertools.combinations(range(4), 2):
        others = tuple(c for c in range(4) if c not in columns)
        found = np.zeros([model.schema.sizes[c] for c in columns])
        np.add.at(found, tuple(codes[:, c] for c in columns), 1 / len(codes))
        np.testing.assert_allclose(found, table.sum(axis=others), atol=0.01)
    one = np.bincount(codes[:, 0], minlength=3) / len(codes)
    assert np.abs(one - model.marginal((0,))).max() < 5e-4  # independent draws: about 3e-3


def test_conditions_hold_and_shift_the_rest(model):
    codes = model.sample_codes(20_000, jax.random.key(1), {3: 1})
    assert (codes[:, 3] == 1).all()
    found = np.bincount(codes[:, 0], minlength=3) / len(codes)
    np.testing.assert_allclose(found, model.conditional((0,), {3: 1}), atol=0.01)


def test_mixture_is_the_average_and_survives_a_file(model, tmp_path):
    other = LatentClass(schema=model.schema, weights=np.array([1.0]), tables=model.tables[:1])
    both = mixture_of([model, other])
    np.testing.assert_allclose(both.marginal((0, 1)), (model.marginal((0, 1)) + other.marginal((0, 1))) / 2)
    both.save(tmp_path)
    again = load_generator(tmp_path)
    np.testing.assert_allclose(again.marginal((1, 2)), both.marginal((1, 2)), atol=1e-6)


def test_nonsense_is_refused(model):
    with pytest.raises(DataError, match="distribution"):
        LatentClass(schema=model.schema, weights=np.array([0.5, 0.1, 0.1]), tables=model.tables)
    with pytest.raises(DataError, match="shape"):
        LatentClass(schema=model.schema, weights=np.array([1.0]), tables=model.tables)


def test_draws_give_standard_errors_and_survive_a_file(model, tmp_path):
    assert model.deviations((0,)) is None
    rng = np.random.default_rng(0)
    shifted = np.stack([model.tables * rng.uniform(0.9, 1.1, model.tables.shape) for _ in range(200)])
    bounds = np.cumsum([0, *model.schema.sizes])
    for low, high in itertools.pairwise(bounds):
        shifted[:, :, low:high] /= shifted[:, :, low:high].sum(axis=2, keepdims=True)
    draws = (np.tile(model.weights, (200, 1)), shifted)
    with_draws = LatentClass(schema=model.schema, weights=model.weights, tables=model.tables, draws=draws)
    expected = np.std([model.weights @ shifted[i][:, :3] for i in range(200)], axis=0, ddof=1)
    np.testing.assert_allclose(with_draws.deviations((0,)), expected)
    with_draws.save(tmp_path)
    np.testing.assert_allclose(load_generator(tmp_path).deviations((1, 2)), with_draws.deviations((1, 2)), atol=1e-6)


SIZES = (2, 3)
TRUTH = np.array([[0.3, 0.15, 0.05], [0.05, 0.15, 0.3]])
LAYOUT = Layout(sizes=SIZES, shapes=(0, 1))


def answers_about_the_pair(epsilon, clients, *, seed=0, chosen=0, buckets=None):
    """Subset-selection answers about both columns; with `buckets`, about the bucket of the cell."""
    rng = np.random.default_rng(seed)
    reported = np.arange(6) if buckets is None else np.asarray(buckets)
    oracle = SubsetSelection(size=int(reported.max()) + 1, epsilon=epsilon, chosen=chosen)
    values = reported[rng.choice(6, clients, p=TRUTH.ravel())]
    counts = np.asarray(oracle.counts(oracle.simulate_batch(values, seed=seed)))
    return AnswerCounts(
        positions=sum(SIZES), epsilon=epsilon, cells=np.array([[a, 2 + b] for a in range(2) for b in range(3)], np.int32),
        reported=reported.astype(np.int32), counts=counts, reports=np.full(oracle.size, clients),
        p=np.full(oracle.size, oracle.p),
        q=np.full(oracle.size, oracle.q), single=np.full(oracle.size, oracle.chosen == 1), total=clients,
    )  # fmt: skip


def table_of(parameters, layout=LAYOUT):
    tables = np.exp(np.asarray(log_tables(parameters, layout)))
    weights = np.asarray(jax.nn.softmax(parameters["weights"]))
    return np.einsum("z,za,zb->ab", weights, tables[:, :2], tables[:, 2:])


@pytest.mark.parametrize("chosen", [1, 3])
def test_fit_finds_the_table_from_values_reported_alone_or_in_sets(chosen):
    answers = answers_about_the_pair(4.0, 200_000, chosen=chosen)
    free = fit(answers, LAYOUT, Settings(classes=4, prior_scale=2.0, steps=300), jax.random.key(0))
    np.testing.assert_allclose(table_of(free), TRUTH, atol=0.012)
    tied = fit(answers, LAYOUT, Settings(classes=4, prior_scale=0.003, steps=300), jax.random.key(0))
    np.testing.assert_allclose(table_of(tied), np.outer(TRUTH.sum(axis=1), TRUTH.sum(axis=0)), atol=0.03)
    assert log_likelihood(free, answers, LAYOUT) > log_likelihood(tied, answers, LAYOUT)


def test_a_folded_question_says_what_its_buckets_say():
    answers = answers_about_the_pair(6.0, 100_000, buckets=[0, 1, 2, 2, 1, 0])
    found = table_of(fit(answers, LAYOUT, Settings(classes=4, prior_scale=2.0, steps=300), jax.random.key(0)))
    for first, second in (((0, 0), (1, 2)), ((0, 1), (1, 1)), ((0, 2), (1, 0))):
        assert found[first] + found[second] == pytest.approx(TRUTH[first] + TRUTH[second], abs=0.02)


def test_draws_spread_as_far_as_the_fits_err():
    """Standardised errors over repeated collections are about one: not a half, not two."""
    settings = Settings(classes=4, prior_scale=1.3, langevin_steps=400, draws=32)
    errors, deviations = [], []
    for seed in range(12):
        answers = answers_about_the_pair(2.0, 4_000, seed=seed)
        mode = fit(answers, LAYOUT, settings, jax.random.key(seed))
        weights, tables = posterior_draws(answers, LAYOUT, settings, mode, jax.random.key(seed))
        found = np.einsum("dz,dza,dzb->dab", weights, tables[:, :, :2], tables[:, :, 2:])
        errors.append(found.mean(axis=0) - TRUTH)
        deviations.append(found.std(axis=0))
    ratio = np.sqrt(np.mean(np.square(errors)) / np.mean(np.square(deviations)))
    assert 0.6 < ratio < 1.6


def test_steps_along_a_scale_are_smooth_where_that_is_asked_for():
    sizes = (9,)
    counts = np.random.default_rng(0).multinomial(40, np.full(9, 1 / 9))
    answers = AnswerCounts(
        positions=sum(sizes), epsilon=8.0, cells=np.arange(9, dtype=np.int32)[:, None], reported=np.arange(9, dtype=np.int32),
        counts=counts, reports=np.full(9, 40), p=np.full(9, 0.99), q=np.full(9, 0.001), single=np.ones(9, bool), total=40,
    )  # fmt: skip
    layout = Layout(sizes=sizes, shapes=(0,), neighbours=tuple((v, v + 1) for v in range(7)))
    rough, smooth = (
        np.exp(np.asarray(log_tables(fit(answers, layout, Settings(classes=1, smooth=x), jax.random.key(0)), layout)))[
            0
        ]
        for x in (0.0, 9.0)
    )
    assert np.abs(np.diff(smooth[:8])).sum() < 0.9 * np.abs(np.diff(rough[:8])).sum()


def test_looking_values_up_and_multiplying_matrices_give_the_same_chances(monkeypatch):
    """Also the products of all two positions, and what each says of how the chances change."""
    rng = np.random.default_rng(0)
    layout = Layout(sizes=(3, 4), shapes=(0, 1), views=((1, (0, 0, 1, 1)),))
    cells = np.array([[a, 3 + b] for a in range(3) for b in range(4)] + [[7, 9], [8, 9]], np.int32)  # 9: nothing
    reported = np.concatenate([np.arange(12) // 2, [6, 7]]).astype(np.int32)  # pairs of cells reported as one
    arrays = (cells, reported, np.zeros(8), np.zeros(8), np.zeros(8), np.zeros(8), np.zeros(8, bool))
    tables = np.concatenate([rng.dirichlet(np.ones(3), 5), rng.dirichlet(np.ones(4), 5)], axis=1)
    logs = np.log(np.asarray(layout.with_views(tables)))
    weights = rng.dirichlet(np.ones(5))
    hot, ways = one_hot_cells(cells, layout.positions), []
    for one_hot, entries in ((hot, 0), (None, 0), (None, 100)):
        monkeypatch.setattr(answer_counts, "PAIR_MATRIX", entries)
        chances, pull_back = jax.vjp(lambda x, hot=one_hot: value_probabilities(x, weights, arrays, hot), logs)
        ways.append((np.asarray(chances), np.asarray(pull_back(np.arange(8, dtype=np.float32))[0])))
    slow = [sum(weights @ np.exp(logs[:, [p for p in cell if p < 9]].sum(axis=1)) for cell in cells[reported == t])
            for t in range(8)]  # fmt: skip
    for chances, gradient in ways:
        assert np.allclose(chances, slow, atol=1e-5)
        assert np.allclose(gradient, ways[0][1], atol=1e-5)


def test_a_view_has_the_probability_of_the_values_it_groups():
    layout = Layout(sizes=(2, 4), shapes=(0, 1), views=((1, (0, 0, 1, 2)), (0, (0, 0)), (1, (0, 1, 1, 1))))
    tables = np.random.default_rng(0).dirichlet(np.ones(4), (5, 3))
    tables = np.concatenate([np.random.default_rng(1).dirichlet(np.ones(2), (5, 3)), tables], axis=2)
    found = np.asarray(layout.with_views(tables))
    assert layout.positions == 6 + 3 + 1 + 2 == found.shape[-1]
    assert np.allclose(found[..., :6], tables, atol=1e-6)
    assert np.allclose(found[..., 6], tables[..., 2] + tables[..., 3], atol=1e-6)
    assert np.allclose(found[..., 9], 1, atol=1e-6)
    assert np.allclose(found[..., 11], tables[..., 3:].sum(axis=-1), atol=1e-6)


def test_a_tied_class_has_one_value_of_the_target_and_raking_sets_the_columns():
    layout = Layout(sizes=SIZES, shapes=(0, 1), target=0)
    answers = answers_about_the_pair(6.0, 50_000)
    free = fit(answers, layout, Settings(classes=4), jax.random.key(0))
    assert (np.exp(np.asarray(log_tables(free, layout)))[:, :2].max(axis=1) < 0.999).any()
    np.testing.assert_allclose(table_of(free, layout), TRUTH, atol=0.02)
    found = fit(answers, layout, Settings(classes=4, tied=True), jax.random.key(0))
    tables = np.exp(np.asarray(log_tables(found, layout), np.float64))
    assert ((tables[:, :2] > 0.999).sum(axis=1) == 1).all()
    np.testing.assert_allclose(table_of(found, layout), TRUTH, atol=0.02)
    weights = np.asarray(jax.nn.softmax(found["weights"]), np.float64)
    wanted = np.array([0.4, 0.6, 0.2, 0.3, 0.5])
    raked = rake(weights, tables, wanted, Layout(sizes=SIZES, shapes=(0, 1)))
    np.testing.assert_allclose((weights / weights.sum()) @ raked, wanted, atol=1e-3)


def test_no_answers_is_an_error():
    answers = answers_about_the_pair(1.0, 10)
    with pytest.raises(DataError, match="at least one answer"):
        dataclasses.replace(answers, total=0)
