"""Counts along a scale in groups: the estimates are those of least squares, and their noise is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from census_cases import noisy_parts
from populace.methods.census.scales import GROUP, consistent, group_widths, groups_of, in_groups, sum_noise, supported

SIZES = [1, 5, 16, 17, 23, 64, 127, 128, 129, 131, 1_031]


def design(levels, widths):
    """Which codes each count is the sum of, a row for each: single codes first."""
    rows = []
    for width in widths:
        for start in range(0, levels, width):
            rows.append((np.arange(levels) >= start) & (np.arange(levels) < start + width))
    return np.array(rows, np.float64)


@pytest.mark.parametrize("levels", SIZES)
def test_estimates_are_those_of_a_dense_least_squares_solve(levels):
    rng, widths = np.random.default_rng(levels), group_widths(levels)
    parts = [rng.normal(0, 100, groups_of(levels, width)) for width in widths]
    wanted = np.linalg.lstsq(design(levels, widths), np.concatenate(parts), rcond=None)[0]
    np.testing.assert_allclose(consistent(parts, widths), wanted, atol=1e-8)


@pytest.mark.parametrize("widths", [(1, 2), (1, 3, 6), (1, 2, 4, 8, 16), (1, 5, 35)])
@pytest.mark.parametrize("levels", [1, 2, 7, 36, 41])
def test_trees_of_any_widths_and_odd_ends(widths, levels):
    rng = np.random.default_rng(levels)
    parts = [rng.normal(0, 1, (4, groups_of(levels, width))) for width in widths]
    found = consistent(parts, widths)
    matrix = design(levels, widths)
    for row in range(4):
        counts = np.concatenate([part[row] for part in parts])
        np.testing.assert_allclose(found[row], np.linalg.lstsq(matrix, counts, rcond=None)[0], atol=1e-9)


def test_counts_without_noise_stay_as_they_are():
    counts = np.random.default_rng(0).poisson(5, 777).astype(float)
    np.testing.assert_allclose(consistent(*noisy_parts(counts, 0.0, np.random.default_rng(0))), counts, atol=1e-9)


def test_widths_are_public_and_groups_sum_what_is_left():
    assert group_widths(2 * GROUP) == (1,)
    assert group_widths(2 * GROUP + 1) == (1, GROUP)
    assert group_widths(2 * GROUP**2 + 1) == (1, GROUP, GROUP**2)
    counts = np.arange(2 * 19).reshape(2, 19)
    assert in_groups(counts, 8).tolist() == [[28, 92, 51], [180, 244, 108]]
    traced = jax.jit(lambda given: in_groups(given, 8))(jnp.asarray(counts, jnp.int32))
    np.testing.assert_array_equal(traced, in_groups(counts, 8))
    assert groups_of(19, 8) == 3


def sums(levels, width, step):
    """Which codes stretches of a width hold, that begin at every `step`-th code."""
    return np.array([(np.arange(levels) >= start) & (np.arange(levels) < start + width)
                     for start in range(0, levels - width + 1, step)], np.float64)  # fmt: skip


@pytest.mark.parametrize("levels", [3, 16, 17, 40, 130, 150, 200])
def test_noise_of_sums_is_that_of_the_exact_covariance(levels):
    matrix = design(levels, group_widths(levels))
    covariance = np.linalg.inv(matrix.T @ matrix)
    found = sum_noise(levels, 7.0)
    for power in range(levels.bit_length()):
        width = 1 << power
        if width > levels:
            continue
        exact = {}
        for name, step in (("anywhere", 1), ("aligned", width)):
            chosen = sums(levels, width, step)
            exact[name] = 7.0 * np.sqrt(np.mean(np.einsum("ka,ab,kb->k", chosen, covariance, chosen)))
        assert found.of(float(width)) == pytest.approx(exact["anywhere"], rel=0.2)
        assert found.of_aligned(width) == pytest.approx(exact["aligned"], rel=0.2)
        if levels > 16 * GROUP and width == 8 * GROUP:  # the noise of codes by themselves would be far off
            assert exact["aligned"] < 0.5 * 7.0 * np.sqrt(width)


def test_noise_between_and_beyond_known_widths():
    found = sum_noise(500, 2.0)
    between = found.of(np.array([0.0, 1.0, 3.0, 4.0, 1e9]))
    assert between[0] == between[1] == found.anywhere[0]
    assert found.anywhere[1] < between[2] < between[3] == pytest.approx(found.anywhere[2])
    assert between[4] == pytest.approx(found.anywhere[-1])
    assert found.of_aligned(10**6) == found.aligned[-1]


@pytest.mark.parametrize("seed", range(4))
def test_few_records_on_many_codes_are_found_where_single_counts_drown(seed):
    """One record on a code, noise of ten: groups show the stretch, and hardly anything else."""
    levels, rng = 2_000, np.random.default_rng(seed)
    truth = np.where((np.arange(levels) >= 512) & (np.arange(levels) < 1_024), 1.0, 0.0)
    parts, widths = noisy_parts(truth, 10.0, rng)
    there = supported(consistent(parts, widths), sum_noise(levels, 10.0))
    assert there[512:1_024].mean() > 0.85
    assert there[:400].sum() + there[1_150:].sum() < 40
    assert (parts[0] > 40.0).sum() < 5  # what single codes surely show
