"""Metrics against slow oracles and known cases."""

import itertools

import numpy as np
import pytest

from populace.errors import DataError
from populace.evaluation.evaluate import evaluate_table
from populace.evaluation.marginals import mean_over_pairs, one_way_distances, two_way_distances
from populace.evaluation.prediction import logistic_score, majority_score
from populace.tables.schema import Column, Schema
from populace.tables.table import from_codes


def slow_distance(a, b, columns):
    cells = {}
    for sign, codes in ((1 / len(a.codes), a.codes), (-1 / len(b.codes), b.codes)):
        for row in codes:
            key = tuple(row[list(columns)])
            cells[key] = cells.get(key, 0) + sign
    return sum(abs(value) for value in cells.values()) / 2


@pytest.fixture(scope="module")
def halves(small_table):
    return small_table.take(np.arange(350)), small_table.take(np.arange(200, 600))


def test_distances_against_a_slow_oracle(halves):
    a, b = halves
    one = one_way_distances(a, b)
    two = two_way_distances(a, b)
    for i, name in enumerate(a.schema.names):
        assert one[name] == pytest.approx(slow_distance(a, b, (i,)), abs=1e-6)
        assert two[i, i] == pytest.approx(one[name], abs=1e-6)
    for i, j in itertools.combinations(range(4), 2):
        assert two[i, j] == two[j, i] == pytest.approx(slow_distance(a, b, (i, j)), abs=1e-6)
    assert mean_over_pairs(two) == pytest.approx(np.mean([two[i, j] for i, j in itertools.combinations(range(4), 2)]))


def test_equal_tables_have_no_distance_and_disjoint_ones_have_one(small_schema):
    rng = np.random.default_rng(0)
    zeros = from_codes(np.zeros((20, 4), np.int32), small_schema, rng)
    ones = from_codes(np.ones((30, 4), np.int32), small_schema, rng)
    assert set(one_way_distances(zeros, zeros).values()) == {0.0}
    assert set(one_way_distances(zeros, ones).values()) == {1.0}


def test_different_schemas_do_not_compare(small_table):
    other = Schema(columns=(Column(name="x", kind="categorical", categories=("a",)),))
    with pytest.raises(DataError, match="different columns"):
        one_way_distances(small_table, from_codes(np.zeros((3, 1), np.int32), other, np.random.default_rng(0)))


def test_prediction_finds_what_is_there_and_nothing_where_nothing_is(small_table):
    real = logistic_score(small_table, small_table, "sold")
    rng = np.random.default_rng(0)
    shuffled = from_codes(rng.permuted(small_table.codes, axis=0), small_table.schema, rng)
    assert real.auc.value > 0.75
    assert abs(logistic_score(shuffled, small_table, "sold").auc.value - 0.5) < 0.2
    assert majority_score(small_table, small_table, "sold").accuracy.value >= 0.5


def test_one_class_says_why(small_table):
    codes = small_table.codes.copy()
    codes[:, 3] = 1
    one_class = from_codes(codes, small_table.schema, np.random.default_rng(0))
    score = logistic_score(one_class, small_table, "sold")
    assert not score.auc.known
    assert "one class" in score.auc.why


def test_evaluate_has_every_part_and_says_what_is_missing(small_table, small_schema):
    document = evaluate_table(small_table, small_table)
    assert document["prediction"]["target"] == "sold"
    assert "not covered" in document["warning"]
    no_target = Schema(columns=small_schema.columns)
    plain = from_codes(small_table.codes, no_target, np.random.default_rng(0))
    assert "left_out" in evaluate_table(plain, plain)["prediction"]
    with pytest.raises(DataError, match="at least 10"):
        evaluate_table(small_table, small_table.take(np.arange(5)))
