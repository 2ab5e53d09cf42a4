"""The Gaussian mechanism: what its docstrings promise, line by line. Its law is in tests/statistics."""

from __future__ import annotations

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import ndtr

from populace.errors import SpecError
from populace.privacy import accounting, secure_random
from populace.privacy.events import Composed, Gaussian
from populace.privacy.gaussian import (
    FINENESS,
    MARGIN,
    MOST_DEVIATION,
    MOST_TOTAL,
    GaussianSum,
    analytic_delta,
    calibrated,
    clip,
    clip_tree,
    count_sum,
    quantile_step,
    split_noise,
)
from populace.privacy.secure_random import REACH
from populace.privacy.source import Keyed, System

EXAMPLES = settings(max_examples=60, deadline=None)


# The mechanism.


@functools.partial(jax.jit, static_argnums=1)
def clip_rows(vectors, mechanism):
    return mechanism.on_grid(jax.vmap(lambda vector: clip(vector, mechanism.bound))(vectors))


sums = st.builds(
    GaussianSum,
    bound=st.floats(1e-6, 1e6),
    noise_multiplier=st.floats(0.01, 100.0),
    size=st.integers(1, 500_000),
)


@EXAMPLES
@given(sums)
def test_grid_is_a_power_of_two_that_costs_little(mechanism):
    assert math.frexp(mechanism.grid)[0] == 0.5
    share = mechanism.grid * math.sqrt(mechanism.size) / mechanism.bound
    assert share * (1 + 1e-12) > 1 / (2 * FINENESS)
    assert share <= (1 + 1e-12) / FINENESS
    assert mechanism.sensitivity == pytest.approx(mechanism.bound * (1 + share))
    assert mechanism.scale == mechanism.noise_multiplier * mechanism.sensitivity
    assert mechanism.event == Gaussian(mechanism.noise_multiplier)


@EXAMPLES
@given(
    st.integers(1, 300),
    st.floats(1e-3, 1e3),
    st.floats(0, 1e4),
    st.sampled_from(["spread", "one", "halves"]),
    st.integers(0, 2**32),
)
def test_sums_within_the_bound_round_to_within_the_sensitivity(size, bound, far, kind, seed):
    rng = np.random.default_rng(seed)
    mechanism = GaussianSum(bound=bound, noise_multiplier=1.0, size=size)
    first = rng.normal(size=size) * far * bound
    step = rng.normal(size=size) if kind == "spread" else (np.arange(size) == 0).astype(float)
    if kind == "halves":  # the worst case: all coordinates just below a half, moved just above
        first, step = (np.round(first / mechanism.grid) + 0.5 - 1e-9) * mechanism.grid, np.ones(size)
    second = first + step * bound / np.linalg.norm(step)
    apart = mechanism.on_grid(second).astype(np.float64) - mechanism.on_grid(first)
    assert np.linalg.norm(apart) * mechanism.grid <= mechanism.sensitivity * (1 + 1e-9)


def test_rounding_can_cost_all_of_the_sensitivity():
    """Without the grid's share the bound would be broken: coordinates just below a half, all moved over it."""
    mechanism = GaussianSum(bound=1.0, noise_multiplier=1.0, size=65536)
    units = 1 / math.sqrt(mechanism.size) / mechanism.grid  # of the grid, moved by each coordinate
    assert units == 256.0
    first = np.full(mechanism.size, (0.5 - 1e-6) * mechanism.grid)
    second = first + (256 - 1 + 2e-6) * mechanism.grid
    apart = (mechanism.on_grid(second) - mechanism.on_grid(first)) * mechanism.grid
    assert np.linalg.norm(second - first) < 0.9962
    assert np.linalg.norm(apart) == pytest.approx(1.0)


@EXAMPLES
@given(st.sampled_from([1, 6, 200]), st.integers(0, 2**32))
def test_vectors_put_on_the_grid_one_by_one_stay_within_the_sensitivity(size, seed):
    mechanism = GaussianSum(bound=0.7, noise_multiplier=1.0, size=size)
    vectors = np.random.default_rng(seed).normal(size=(40, size)).astype(np.float32)
    whole = np.asarray(clip_rows(vectors, mechanism), np.int64)
    assert np.linalg.norm(whole, axis=-1).max() * mechanism.grid <= mechanism.sensitivity
    total = jnp.asarray(whole.sum(0), jnp.int32)
    assert np.array_equal(mechanism.release(total, 0 * total), whole.sum(0).astype(np.float32) * mechanism.grid)


def test_release_is_the_continuous_mechanism_rounded():
    """round(x + N) = x + round(N) for x on the grid."""
    mechanism = GaussianSum(bound=2.0, noise_multiplier=1.3, size=1000)
    rng = np.random.default_rng(1)
    total = rng.normal(size=1000) * 30
    continuous = rng.normal(size=1000) * mechanism.scale
    found = mechanism.release(total, np.round(continuous / mechanism.grid).astype(np.int32))
    on_grid = np.round(total / mechanism.grid) * mechanism.grid
    expected = np.round((on_grid + continuous) / mechanism.grid) * mechanism.grid
    assert np.array_equal(found, expected.astype(np.float32))
    assert found.dtype == jnp.float32


def test_no_sum_and_no_noise_overflow():
    mechanism = GaussianSum(bound=1.0, noise_multiplier=1.0, size=4)
    total = np.array([1e30, -np.inf, np.nan, 3e38], np.float32)
    worst = int(REACH * MOST_DEVIATION) + 1
    expected = np.array([MOST_TOTAL + worst, -MOST_TOTAL - worst, worst, MOST_TOTAL + worst]) * mechanism.grid
    noise = np.array([worst, -worst, worst, worst], np.int32)
    for cast in (np.asarray, jnp.asarray):
        assert np.asarray(mechanism.release(cast(total), noise)) == pytest.approx(expected, rel=1e-6)


def test_whole_sums_wrap_around_as_a_group_so_that_one_unit_still_changes_little():
    """Sum and noise modulo 2^32 are the noisy sum modulo 2^32; cutting off a sum that had wrapped would tell a unit."""
    mechanism = GaussianSum(bound=1.0, noise_multiplier=1.0, size=4)
    total = np.array([2**31 - 1, 2**31 + 5, -(2**40) - 3, 7], np.int64)
    noise = np.array([9, -100, 2**29, -8], np.int32)
    expected = (total + noise).astype(np.int32).astype(np.float32) * np.float32(mechanism.grid)
    assert np.array_equal(mechanism.release(total, noise), expected)
    assert np.array_equal(mechanism.release(jnp.asarray(total.astype(np.int32)), noise), expected)


def test_a_float64_sum_is_rounded_once():
    """In float32 it would first move by half of 2^-24 of itself: here by 32 units of the grid."""
    mechanism = GaussianSum(bound=1.0, noise_multiplier=1.0, size=1)
    total = np.array([(2**29 + 5) * mechanism.grid])
    assert mechanism.on_grid(total).tolist() == [2**29 + 5]
    assert mechanism.on_grid(total[0]).tolist() == 2**29 + 5


@pytest.mark.parametrize("size", [1, 4096, 500_000])
def test_capacity_is_what_a_coordinate_can_hold(size):
    mechanism = GaussianSum(bound=1.5, noise_multiplier=1.0, size=size)
    assert mechanism.capacity >= {1: 2**20, 4096: 2**15, 500_000: 2**11}[size]
    full = np.zeros(size)
    full[0] = mechanism.capacity * mechanism.bound
    zeros = np.zeros(size, np.int32)
    assert np.asarray(mechanism.release(full, zeros)[0]) == pytest.approx(full[0], rel=1e-6)
    assert mechanism.release(3 * full, zeros)[0] < 2.1 * full[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bound": 0.0}, "expected bound in"),
        ({"bound": math.nan}, "expected bound in"),
        ({"size": 0}, "expected size at least 1"),
        ({"noise_multiplier": 0.0}, "expected noise_multiplier above 0"),
        ({"noise_multiplier": math.inf}, "expected noise_multiplier above 0"),
        ({"noise_multiplier": 1000.0}, "would not fit into 32 bits"),
    ],
)
def test_settings_out_of_range_are_refused(change, message):
    with pytest.raises(SpecError, match=message):
        GaussianSum(**{"bound": 1.0, "noise_multiplier": 1.0, "size": 500_000} | change)


@pytest.mark.parametrize("shape", [(3,), (5, 3), (4, 1), ()])
def test_a_sum_of_another_size_is_refused(shape):
    mechanism = GaussianSum(bound=1.0, noise_multiplier=1.0, size=4)
    with pytest.raises(SpecError, match="last axis of a sum of 4 coordinates"):
        mechanism.apply(np.zeros(shape, np.float32), System())


@pytest.mark.parametrize("source", [Keyed(jax.random.key(0)), System()])
def test_both_faces_give_whole_noise_of_the_shape_asked_for(source):
    mechanism = GaussianSum(bound=1.0, noise_multiplier=1.0, size=5)
    assert mechanism.noise(source).shape == (5,)
    assert mechanism.noise(source, (7, 5)).shape == (7, 5)
    assert mechanism.noise(source).dtype == np.int32
    assert mechanism.apply(np.zeros((2, 5), np.float32), source).shape == (2, 5)
    assert count_sum(10.0).apply(np.float32(3.5), source).shape == ()


def test_keyed_face_is_traceable_and_vectorised():
    mechanism = GaussianSum(bound=1.0, noise_multiplier=1.0, size=5)
    keys = jax.random.split(jax.random.key(2), 3)
    totals = jnp.arange(15, dtype=jnp.float32).reshape(3, 5)

    def apply(total, key):
        return mechanism.apply(total, Keyed(key))

    together = jax.jit(jax.vmap(apply))(totals, keys)
    for place in range(3):
        assert np.array_equal(together[place], apply(totals[place], keys[place]))
    assert not np.array_equal(together[0] - totals[0], together[1] - totals[1])


def test_system_face_never_touches_a_key(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("a key was used")

    for name in ("bits", "split", "normal", "bernoulli", "uniform", "randint", "key", "PRNGKey"):
        monkeypatch.setattr(jax.random, name, refuse)
    mechanism = GaussianSum(bound=1.0, noise_multiplier=1.0, size=100)
    with pytest.raises(RuntimeError, match="a key was used"):
        mechanism.noise(Keyed(np.zeros(2, np.uint32)))
    noise = mechanism.noise(System())
    assert isinstance(noise, np.ndarray)
    assert not np.array_equal(noise, mechanism.noise(System()))
    mechanism.apply(np.zeros(100, np.float32), System())
    System().coins(0.3, 10)
    System().normal(10)
    assert not hasattr(secure_random, "jax")


# Clipping.

magnitudes = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True),
    st.floats(-4, 4, width=32),
    st.sampled_from([0.0, 1e-45, 1e-38, 3e38, -3e38, math.inf, -math.inf, math.nan, 1.0]),
)
clip_compiled = jax.jit(clip)


@settings(max_examples=300, deadline=None)
@given(st.lists(magnitudes, min_size=8, max_size=8), st.floats(1e-20, 1e20))
def test_whatever_the_vector_its_norm_is_within_the_bound(numbers, bound):
    vector = np.array(numbers, np.float32)
    found = np.asarray(clip_compiled(vector, bound), np.float64)
    assert np.all(np.isfinite(found))
    assert np.linalg.norm(found) <= np.float32(bound) * (1 - MARGIN)
    bad = ~np.isfinite(vector)
    assert np.all(found[bad] == 0)
    kept = np.where(bad, 0, vector).astype(np.float64)
    if np.linalg.norm(kept) < bound * (1 - 4 * MARGIN) and np.all((np.abs(kept) > 1e-37) | (kept == 0)):
        assert np.array_equal(found, kept)
    elif np.abs(kept).max() < 1e30 and np.linalg.norm(kept) > bound:
        assert np.linalg.norm(found) == pytest.approx(bound, rel=4 * MARGIN)
        assert found == pytest.approx(kept / np.linalg.norm(kept) * bound, rel=1e-5, abs=1e-7 * bound)


@pytest.mark.parametrize("size", [1, 3, 1000, 2**17 + 1, 2**20])
@pytest.mark.parametrize("kind", ["equal", "normal", "one large", "growing"])
def test_long_vectors_stay_within_the_bound(size, kind):
    """Plain float32 sums lose what is small beside what was added before."""
    vector = {
        "equal": np.full(size, 0.1),
        "normal": np.random.default_rng(0).normal(size=size),
        "one large": np.r_[1.0, np.full(size - 1, 2.0**-13)],
        "growing": np.geomspace(1, 1e-6, size)[::-1],
    }[kind].astype(np.float32)
    for scale in (1e-12, 1.0, 1e12):
        found = np.asarray(clip_compiled(vector * np.float32(scale), 1e-13), np.float64)
        assert 1 - 4 * MARGIN <= np.linalg.norm(found) * 1e13 <= 1 - MARGIN


def test_zero_stays_zero_and_rows_are_clipped_alone():
    rows = jnp.asarray([[0.0, 0.0], [3.0, 4.0], [0.3, 0.4]])
    found = jax.vmap(lambda row: clip(row, 1.0))(rows)
    assert np.array_equal(found[0], rows[0])
    assert np.asarray(found[1]) == pytest.approx([0.6, 0.8], rel=1e-5)
    assert np.array_equal(found[2], rows[2])


def test_a_tree_is_clipped_as_one_vector():
    rng = np.random.default_rng(3)
    tree = {"weights": rng.normal(size=(4, 5)), "biases": [rng.normal(size=3), np.zeros(0)], "scalar": np.float32(2)}
    found = clip_tree(tree, 0.5)
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
    together = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)])
    assert together == pytest.approx(np.asarray(clip(flat, 0.5)), rel=1e-6)


# Accounting.


@pytest.mark.parametrize(
    ("noise_multiplier", "delta"), [(0.4, 1e-5), (1.0, 1e-3), (1.0, 1e-9), (3.0, 1e-5), (20.0, 1e-5)]
)
def test_the_accountant_agrees_with_the_closed_form(noise_multiplier, delta):
    exact = brentq(lambda epsilon: analytic_delta(epsilon, noise_multiplier) - delta, 0, 200, xtol=1e-12)
    found = accounting.epsilon_of(Gaussian(noise_multiplier), delta=delta)
    assert found == pytest.approx(exact, rel=1e-3)
    assert found >= exact * (1 - 1e-9)


def test_closed_form_is_stable_at_its_ends():
    assert analytic_delta(0.0, 2.0) == pytest.approx(2 * ndtr(0.25) - 1, rel=1e-12)
    assert analytic_delta(0.0, 1e6) == pytest.approx(1e-6 / math.sqrt(2 * math.pi), rel=1e-6)
    assert 0 <= analytic_delta(500.0, 1.0) < 1e-300
    assert analytic_delta(1.0, 1e-3) == pytest.approx(1.0)
    values = [analytic_delta(epsilon, 1.0) for epsilon in np.linspace(0, 30, 301)]
    assert all(first > second > 0 for first, second in itertools.pairwise(values))
    with pytest.raises(SpecError, match="expected epsilon and noise_multiplier"):
        analytic_delta(1.0, 0.0)


@pytest.mark.parametrize(("probability", "steps"), [(1.0, 1), (0.3, 3)])
def test_calibrated_noise_is_enough_and_little_more(probability, steps):
    mechanism = calibrated(epsilon=1.0, delta=1e-5, bound=2.0, size=10, probability=probability, steps=steps)
    assert (mechanism.bound, mechanism.size) == (2.0, 10)

    def spent(noise_multiplier):
        event = accounting.sampled_gaussian(noise_multiplier=noise_multiplier, probability=probability, steps=steps)
        return accounting.epsilon_of(event, delta=1e-5)

    assert spent(mechanism.noise_multiplier) <= 1.0 < spent(0.99 * mechanism.noise_multiplier)
    if steps == 1:
        assert analytic_delta(1.0, mechanism.noise_multiplier) <= 1e-5


# The adaptive bound.


@pytest.mark.parametrize(("noise_multiplier", "count_multiplier"), [(1.0, 0.6), (1.0, 5.0), (3.0, 2.0)])
def test_vector_and_count_together_cost_one_release(noise_multiplier, count_multiplier):
    vector = split_noise(noise_multiplier, count_multiplier)
    assert vector > noise_multiplier
    both = Composed((Gaussian(vector), count_sum(count_multiplier).event))
    one = accounting.epsilon_of(Gaussian(noise_multiplier), delta=1e-5)
    assert accounting.epsilon_of(both, delta=1e-5) == pytest.approx(one, rel=2e-3)
    unsplit = Composed((Gaussian(noise_multiplier), count_sum(count_multiplier).event))
    assert accounting.epsilon_of(unsplit, delta=1e-5) > 1.004 * one


def test_the_count_is_centred_and_its_noise_counts_units():
    mechanism = count_sum(10.0)
    assert mechanism.bound == 0.5
    assert mechanism.scale == pytest.approx(10.0, rel=1 / FINENESS)


def test_a_count_that_costs_all_is_refused():
    with pytest.raises(SpecError, match=r"expected count_multiplier above 0\.5"):
        split_noise(1.0, 0.5)


def test_the_bound_goes_to_the_quantile():
    norms = np.random.default_rng(0).lognormal(size=2000)
    assert quantile_step(1.0, 0.3, 0.5, 0.2) > 1.0 > quantile_step(1.0, 0.7, 0.5, 0.2)
    assert float(quantile_step(3.0, 0.5, 0.5, 0.2)) == pytest.approx(3.0)
    bound = 50.0
    for _ in range(150):
        bound = float(quantile_step(bound, float(np.mean(norms <= bound)), 0.8, 0.2))
    assert np.mean(norms <= bound) == pytest.approx(0.8, abs=0.01)
