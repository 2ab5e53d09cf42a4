"""Cells along a scale move together: which do, and what that is worth."""

import dataclasses

import jax
import numpy as np
import pyarrow as pa
import pytest

from populace.engines import simulation
from populace.engines.runtime import population_of
from populace.methods.base import Population
from populace.methods.census.cells import codes_as_cells
from populace.methods.census.fit import SHORTEST_SCALE, fit_mixture, smoothing
from populace.methods.census.protocol import Census
from populace.tables.partition import split_silos
from populace.tables.schema import Column, Schema
from populace.tables.table import make_table

ROWS = 5_000


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4, 5, 24, 60])
def test_the_covariance_is_positive_definite_and_neighbours_are_alike(size, nullable):
    spikes = np.zeros(size + int(nullable), bool)
    root = smoothing(spikes, nullable=nullable)
    covariance = root @ root.T
    assert root.shape == (len(spikes), len(spikes))
    assert np.linalg.eigvalsh(covariance).min() > 0.05
    assert np.isfinite(np.linalg.inv(root)).all()
    if nullable:
        assert covariance[-1].tolist() == [0.0] * size + [1.0]
    if size >= 24:
        along = covariance[size // 2, :size]
        assert along[size // 2 + 1] > along[size // 2 + 4] > along[-1] > 0
        assert along[size // 2 + 1] / along[size // 2] > 0.7  # the next cell moves along


@pytest.mark.parametrize("nullable", [False, True])
def test_spikes_and_no_value_stand_alone(nullable):
    spikes = np.zeros(20 + int(nullable), bool)
    spikes[[0, 7, 19]] = True
    root = smoothing(spikes, nullable=nullable)
    covariance = root @ root.T
    assert np.linalg.eigvalsh(covariance).min() > 0.05
    for alone in (0, 7, 19, *((20,) if nullable else ())):
        np.testing.assert_array_equal(covariance[alone], np.eye(len(spikes))[alone])
        np.testing.assert_array_equal(root[alone], np.eye(len(spikes))[alone])
    assert covariance[6, 8] > 0.5  # those on both sides of a spike are still near each other
    everywhere = np.ones(20 + int(nullable), bool)
    np.testing.assert_array_equal(smoothing(everywhere, nullable=nullable), np.eye(len(everywhere)))


def numbers(name, codes, *, nullable=False):
    return Column(name=name, kind="integer", edges=tuple(float(edge) for edge in range(codes + 1)), nullable=nullable)


def correlated(seed):
    """Two smooth numbers that depend on each other, and a list that does not."""
    rng = np.random.default_rng(seed)
    drawn = rng.multivariate_normal([0, 0], [[1, -0.66], [-0.66, 1]], ROWS)
    values = np.clip(np.rint(50 + 12 * drawn), 0, 99).astype(int)
    ward = Column(name="ward", kind="categorical", categories=("x", "y", "z"))
    schema = Schema(columns=(numbers("a", 100), numbers("b", 100), ward))
    frame = {"a": values[:, 0], "b": values[:, 1], "ward": rng.choice(list("xyz"), ROWS)}
    return make_table(pa.table(frame), schema)


def correlation(table):
    return float(np.corrcoef(*(table.frame.column(name).to_numpy() for name in "ab"))[0, 1])


@pytest.fixture(scope="module")
def runs():
    """For each seed the rows, the learner, the end of a run, and its groupings."""
    protocol = Census(epsilon=1.0, delta=1e-6, components=12, members=4, fit_steps=400, prior_precision=1.0)
    found = []
    for seed in range(3):
        clients = split_silos(correlated(seed), [ROWS])
        outcome = simulation.run(protocol, clients, root=jax.random.key(seed))
        found.append((clients.data, protocol.parts(population_of(clients)).learner, outcome))
    return found


def test_scales_of_enough_cells_have_a_root_and_nothing_else_does(runs):
    _, learner, outcome = runs[0]
    first, second, ward = learner._roots(learner._groupings(outcome.state.learner))
    assert first.shape == second.shape == (24, 24)
    assert ward is None
    short, enough = (numbers(f"s{codes}", codes, nullable=True) for codes in (SHORTEST_SCALE - 1, SHORTEST_SCALE))
    schema = Schema(columns=(short, enough))
    small = Census(epsilon=1.0, delta=1e-6).parts(Population(schema=schema, clients=1, records=9)).learner
    none, some = small._roots([codes_as_cells(column) for column in schema.columns])
    assert none is None
    assert some.shape == (SHORTEST_SCALE + 1, SHORTEST_SCALE + 1)


def test_numbers_that_depend_on_each_other_do_so_far_more_clearly(runs):
    """One silo, epsilon 1. The identity in place of the roots is a fit that knows nothing of scales, from the same sums; both
    without the counts in groups, which tell most of it by themselves (`test_census_scale_pairs`)."""
    for seed, (table, learner, outcome) in enumerate(runs):
        state = outcome.state.learner
        real, found = correlation(table), correlation(outcome.generator.sample(20_000, jax.random.key(9)))
        groupings, observed = learner._groupings(state), dataclasses.replace(learner.observed(state), grouped=None)
        roots = learner._roots(groupings)
        smooth, rough = (
            correlation(learner._at_codes(groupings, observed, mixture).sample(20_000, jax.random.key(9)))
            for mixture in (
                fit_mixture(learner.tables, observed, learner.settings, jax.random.key(seed), some)
                for some in (roots, [None if root is None else np.eye(len(root)) for root in roots])
            )
        )
        assert real == pytest.approx(-0.66, abs=0.02)
        assert found == pytest.approx(real, abs=0.2)
        assert smooth < rough - 0.04, (real, found, smooth, rough)  # both below 0
