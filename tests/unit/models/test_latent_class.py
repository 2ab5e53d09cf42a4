"""Latent classes: exact tables against enumeration, systematic samples, and fits that find what answers say."""

import itertools

import jax
import numpy as np
import pytest

from populace.errors import DataError
from populace.models.generator import load_generator
from populace.models.latent_class import LatentClass, mixture_of
from populace.models.latent_fit import Answers, Layout, Settings, fit, log_likelihood, log_tables


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


SIZES = (2, 3)


def cells_of_pair():
    return np.array([[a, 2 + b] for a in range(2) for b in range(3)], np.int32)


def noiseless(counts):
    """Answers that tell the cell of a pair almost exactly."""
    return Answers(
        sizes=SIZES, epsilon=12.0, cells=cells_of_pair(), counts=np.asarray(counts), lists=np.zeros((0, 1), np.int32),
        listed=np.zeros(0, np.int64), single=np.ones(6, bool),
    )  # fmt: skip


def table_of(parameters, layout):
    tables = np.exp(np.asarray(log_tables(parameters, layout)))
    weights = np.asarray(jax.nn.softmax(parameters["weights"]))
    return np.einsum("z,za,zb->ab", weights, tables[:, :2], tables[:, 2:])


def test_fit_finds_the_table_and_a_strong_pull_makes_it_independent():
    truth = np.array([[0.3, 0.15, 0.05], [0.05, 0.15, 0.3]])
    answers = noiseless((truth * 10_000).astype(int).ravel())
    layout = Layout(sizes=SIZES, twins=(0, 1))
    free = fit(answers, layout, Settings(classes=4, pull=0.1, steps=400), jax.random.key(0))
    np.testing.assert_allclose(table_of(free, layout), truth, atol=0.01)
    tied = fit(answers, layout, Settings(classes=4, pull=1e5, steps=400), jax.random.key(0))
    np.testing.assert_allclose(table_of(tied, layout), np.outer(truth.sum(axis=1), truth.sum(axis=0)), atol=0.02)
    assert log_likelihood(free, answers, layout) > log_likelihood(tied, answers, layout)


def test_answers_that_list_cells_say_the_same_as_their_likelihood():
    """Two cells told by each answer, one of them true more often: the fit puts the weight there."""
    rng = np.random.default_rng(0)
    lists = np.array([[0, rng.integers(1, 6)] for _ in range(4000)], np.int32)
    answers = Answers(
        sizes=SIZES, epsilon=3.0, cells=cells_of_pair(), counts=np.zeros(6, int), lists=lists,
        listed=np.ones(4000, int), single=np.zeros(6, bool),
    )  # fmt: skip
    layout = Layout(sizes=SIZES, twins=(0, 1))
    found = table_of(fit(answers, layout, Settings(classes=3, pull=0.1, steps=300), jax.random.key(0)), layout)
    assert found[0, 0] > 0.9
    rest, judge = answers.hold_out(0.25, rng)
    assert rest.total + judge.total == 4000
    assert 800 < judge.total < 1200


def test_no_answers_is_an_error():
    with pytest.raises(DataError, match="at least one answer"):
        noiseless(np.zeros(6, int))
