"""Distances over sets of columns, correlation distance and relative error, against slow oracles."""

import itertools
from collections import Counter

import numpy as np
import pytest

from populace.errors import DataError, SpecError
from populace.evaluation import sets as sets_module
from populace.evaluation.correlation import correlation_distance, correlation_matrix
from populace.evaluation.marginals import relative_error, two_way_distances
from populace.evaluation.sets import all_sets, average_distance, random_sets, set_distances
from populace.tables.schema import Column, Schema
from populace.tables.table import Table, from_codes


def table(codes, sizes):
    schema = Schema(
        columns=tuple(
            Column(name=f"c{i}", kind="categorical", categories=tuple(map(str, range(k)))) for i, k in enumerate(sizes)
        )
    )
    return from_codes(np.asarray(codes, np.int32), schema, np.random.default_rng(0))


@pytest.fixture(scope="module")
def two_tables():
    rng = np.random.default_rng(0)
    sizes = (2, 3, 5, 4, 7)
    return tuple(table(np.stack([rng.integers(0, k, n) for k in sizes], axis=1), sizes) for n in (400, 300))


def slow_distance(real, synthetic, columns):
    counts = [Counter(map(tuple, t.codes[:, list(columns)].tolist())) for t in (real, synthetic)]
    cells = set(counts[0]) | set(counts[1])
    return sum(abs(counts[0][c] / len(real) - counts[1][c] / len(synthetic)) for c in cells) / 2


@pytest.mark.parametrize("most_dense", [1, 2**16])
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_set_distances_match_a_dictionary(two_tables, width, most_dense, monkeypatch):
    monkeypatch.setattr(sets_module, "MOST_DENSE", most_dense)
    real, synthetic = two_tables
    chosen = all_sets(5, width)
    expected = [slow_distance(real, synthetic, columns) for columns in chosen]
    np.testing.assert_allclose(set_distances(real, synthetic, chosen), expected, atol=1e-12)


def test_codes_that_would_overflow_are_renumbered(monkeypatch, two_tables):
    monkeypatch.setattr(sets_module, "LARGEST_CODE", 50)
    real, synthetic = two_tables
    expected = [slow_distance(real, synthetic, range(5))]
    np.testing.assert_allclose(set_distances(real, synthetic, [range(5)]), expected, atol=1e-12)


def test_two_columns_agree_with_the_matrix_of_pairs(two_tables):
    real, synthetic = two_tables
    matrix = two_way_distances(real, synthetic)
    pairs = all_sets(5, 2)
    np.testing.assert_allclose(set_distances(real, synthetic, pairs), [matrix[p] for p in pairs], atol=1e-9)
    assert average_distance(real, real, 3) == 0


def test_the_fixed_sets_stay_fixed():
    assert random_sets(124, 2)[:2] == [tuple(c) for c in _drawn(124, 2, 2)]
    assert len(random_sets(124, 4)) == 100
    with pytest.raises(SpecError, match="width"):
        random_sets(3, 4)


def _drawn(columns, width, count):
    rng = np.random.default_rng(7)
    return [rng.choice(columns, width, replace=False).tolist() for _ in range(count)]


def test_a_set_must_name_different_columns(two_tables):
    with pytest.raises(DataError, match="different columns"):
        set_distances(*two_tables, [(1, 1)])


def test_relative_error_matches_a_loop(two_tables):
    real, synthetic = two_tables
    errors = []
    for a, b in itertools.combinations(range(5), 2):
        counts = [Counter(map(tuple, t.codes[:, [a, b]].tolist())) for t in (real, synthetic)]
        errors += [abs(n / 400 - counts[1][cell] / 300) / (n / 400) for cell, n in counts[0].items()]
    assert relative_error(real, synthetic) == pytest.approx(np.mean(errors), rel=1e-6)
    assert relative_error(real, real) == 0


def test_correlation_distance_is_zero_for_the_same_and_uses_correlations(two_tables):
    real, synthetic = two_tables
    assert correlation_distance(real, real).value == pytest.approx(0, abs=1e-12)
    first, second = np.corrcoef(real.codes.T), np.corrcoef(synthetic.codes.T)
    expected = 1 - np.trace(first @ second) / np.linalg.norm(first) / np.linalg.norm(second)
    assert correlation_distance(real, synthetic).value == pytest.approx(expected, rel=1e-9)


def test_a_constant_column_is_uncorrelated(two_tables):
    codes = two_tables[0].codes.copy()
    codes[:, 2] = 1
    matrix = correlation_matrix(codes)
    assert np.isfinite(matrix).all()
    assert matrix[2].tolist() == [0, 0, 1, 0, 0]
    constant = Table(schema=two_tables[0].schema, codes=codes, frame=two_tables[0].frame)
    assert 0 <= correlation_distance(two_tables[0], constant).value < 1
