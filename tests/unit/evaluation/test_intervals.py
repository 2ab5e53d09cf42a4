"""Intervals against repeated draws, exact baselines against full tables, and no figure without a value or a reason."""

import itertools
import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from populace.errors import DataError
from populace.evaluation import prediction
from populace.evaluation import sets as sets_module
from populace.evaluation.baselines import ABOUT, MAJORITY, PRODUCT, REAL, SHUFFLED, SYNTHETIC
from populace.evaluation.correlation import correlation_distance, distance_to_uncorrelated
from populace.evaluation.estimate import Estimate, left_out, over_seeds
from populace.evaluation.evaluate import TITLES, evaluate_table, evaluate_tables
from populace.evaluation.marginals import association, co_occurrence, compare_pairs, compare_product
from populace.evaluation.prediction import LEARNERS, area, logistic_regression, resamples, scores
from populace.evaluation.sets import average_distances, random_sets
from populace.evaluation.traffic import cost
from populace.tables.schema import Column, Schema
from populace.tables.table import Table, from_codes

SIZES = (2, 3, 4, 3)


@pytest.fixture(autouse=True)
def quick_learners(monkeypatch):
    """One model on cells is enough to see how documents are built; one test below runs all three."""
    monkeypatch.setattr(prediction, "LEARNERS", {"logistic regression": logistic_regression})


def schema_of(sizes):
    columns = [
        Column(name=f"c{i}", kind="categorical", categories=tuple(map(str, range(k)))) for i, k in enumerate(sizes)
    ]
    return Schema(columns=tuple(columns))


def draw(rng, rows, strength):
    """Columns that follow the first one with probability `strength`, of unequal shares."""
    first = rng.choice(SIZES[0], rows, p=(0.3, 0.7))
    columns = [first]
    for size in SIZES[1:]:
        shares = np.arange(1, size + 1) / (size * (size + 1) / 2)
        columns.append(np.where(rng.random(rows) < strength, first, rng.choice(size, rows, p=shares)))
    schema = schema_of(SIZES)
    codes = np.stack(columns, axis=1).astype(np.int32)
    return Table(schema=schema, codes=codes, frame=None)


def figures(real, synthetic):
    pairs, product = compare_pairs(real, synthetic), compare_product(real)
    widths = average_distances(real, {"s": synthetic}, 3, product="p")
    return {
        "one-way": pairs.mean_distance(ways=1),
        "two-way": pairs.mean_distance(ways=2),
        "column": pairs.one_way()[2],
        "relative error": pairs.relative_error(),
        "cmd": correlation_distance(real, synthetic),
        "3-way": widths["s"],
        "product, two-way": product.mean_distance(ways=2),
        "product, relative error": product.relative_error(),
        "product, cmd": distance_to_uncorrelated(real),
        "product, 3-way": widths["p"],
    }


def test_intervals_have_the_width_of_repeated_draws_and_not_half_or_twice():
    rng = np.random.default_rng(0)
    drawn = [figures(draw(rng, 1500, 0.6), draw(rng, 1000, 0.2)) for _ in range(120)]
    for name in drawn[0]:
        spread = np.std([found[name].value for found in drawn], ddof=1)
        stated = np.mean([(found[name].high - found[name].low) / 2 / 1.96 for found in drawn])
        assert 0.8 < stated / spread < 1.35, name
        assert all(found[name].low <= found[name].value <= found[name].high for found in drawn)


def test_the_interval_agrees_with_a_bootstrap_that_resamples():
    rng = np.random.default_rng(1)
    real, synthetic = draw(rng, 2000, 0.6), draw(rng, 2000, 0.2)
    found = average_distances(real, {"s": synthetic}, 2)["s"]
    again = [
        average_distances(_resampled(real, rng), {"s": _resampled(synthetic, rng)}, 2)["s"].value for _ in range(100)
    ]
    assert (found.high - found.low) / 2 / 1.96 == pytest.approx(np.std(again, ddof=1), rel=0.3)


def _resampled(table, rng):
    rows = rng.integers(0, len(table), len(table))
    return Table(schema=table.schema, codes=table.codes[rows], frame=None)


def test_intervals_from_some_rows_agree_with_those_from_all(monkeypatch):
    rng = np.random.default_rng(2)
    real, synthetic = draw(rng, 6000, 0.6), draw(rng, 6000, 0.2)
    whole = average_distances(real, {"s": synthetic}, 3)["s"]
    monkeypatch.setattr(sets_module, "INFLUENCE_ROWS", 1500)
    some = average_distances(real, {"s": synthetic}, 3)["s"]
    assert some.value == whole.value
    assert some.high - some.low == pytest.approx(whole.high - whole.low, rel=0.1)


def test_the_product_is_that_of_the_true_one_way_tables():
    real = draw(np.random.default_rng(3), 500, 0.6)
    ways = [np.bincount(column, minlength=size) / 500 for column, size in zip(real.codes.T, SIZES, strict=True)]
    groups = random_sets(4, 3)
    expected = []
    for group in groups:
        true = np.zeros([SIZES[c] for c in group])
        np.add.at(true, tuple(real.codes[:, c] for c in group), 1 / 500)
        product = np.einsum("i,j,k->ijk", *(ways[c] for c in group))
        expected.append(np.abs(true - product).sum() / 2)
    assert average_distances(real, {}, 3, product="p")["p"].value == pytest.approx(np.mean(expected))
    pairs = [np.random.default_rng(i).choice(len(w), 400_000, p=w) for i, w in enumerate(ways)]
    far = compare_pairs(real, Table(schema=real.schema, codes=np.stack(pairs, axis=1).astype(np.int32), frame=None))
    assert compare_product(real).mean_distance(ways=2).value == pytest.approx(
        far.mean_distance(ways=2).value, abs=0.003
    )


def test_a_shuffled_table_is_as_far_off_as_the_product():
    document = evaluate_table(*(_with_target(draw(np.random.default_rng(i), 3000, 0.6)) for i in (4, 5)))
    values = document["metrics"]["avd_3"]["values"]
    assert values[SHUFFLED]["value"] == pytest.approx(values[PRODUCT]["value"], rel=0.08)
    assert values[SYNTHETIC]["value"] < values[PRODUCT]["value"] / 3
    assert values[REAL]["value"] < values[PRODUCT]["value"] / 3


def _with_target(table):
    return from_codes(table.codes, table.schema.with_target("c0"), np.random.default_rng(0))


def test_every_metric_has_a_value_or_a_reason_beside_every_baseline():
    rng = np.random.default_rng(6)
    documents = [
        evaluate_table(*(_with_target(draw(rng, 300, 0.6)) for _ in range(2))),
        evaluate_table(*(from_codes(draw(rng, 300, 0.6).codes, schema_of(SIZES), rng) for _ in range(2))),
        evaluate_table(*(from_codes(rng.integers(0, 2, (40, 1)).astype(np.int32), schema_of((2,)), rng) for _ in range(2))),
    ]  # fmt: skip
    for document in documents:
        assert set(TITLES) < set(document["metrics"])
        for metric in document["metrics"].values():
            values = metric["values"]
            assert set(values) == {SYNTHETIC, *ABOUT}
            for value in values.values():
                assert ("value" in value) != bool(value.get("left_out"))
                assert "low" in value or value.get("why") or value.get("left_out")
    missing = [set(document["left_out"].values()) for document in documents]
    assert any("4 columns" in why for why in missing[0])
    assert any("no target" in why for why in missing[1])
    assert any("one column" in why for why in missing[2])
    assert "left_out" in documents[2]["two_way"]


def test_too_many_classes_and_taken_names_are_refused_in_words():
    rng = np.random.default_rng(7)
    wide = schema_of((60, 2)).with_target("c0")
    codes = np.stack([rng.integers(0, 60, 200), rng.integers(0, 2, 200)], axis=1).astype(np.int32)
    table = from_codes(codes, wide, rng)
    assert "60 values" in evaluate_table(table, table)["prediction"]["left_out"]
    with pytest.raises(DataError, match="rename"):
        evaluate_tables({REAL: table}, table)


def test_constant_columns_are_named_and_leave_the_cmd_finite():
    table = draw(np.random.default_rng(8), 200, 0.6)
    codes = table.codes.copy()
    codes[:, 1] = 2
    constant = from_codes(codes, table.schema, np.random.default_rng(0))
    document = evaluate_table(constant, from_codes(table.codes, table.schema, np.random.default_rng(0)))
    assert document["constant_columns"] == {"synthetic": ["c1"]}
    assert 0 < document["metrics"]["correlation_distance"]["values"][SYNTHETIC]["value"] < 1


def test_area_is_scikit_learns_and_its_interval_that_of_a_loop():
    rng = np.random.default_rng(9)
    y = rng.integers(0, 2, 400)
    score = np.round(rng.random(400) + 0.4 * y, 1)  # with ties
    counts = resamples(400, seed=1)
    found = area(y, np.stack([1 - score, score], axis=1), counts)
    assert found.value == pytest.approx(roc_auc_score(y, score))
    slow = [roc_auc_score(np.repeat(y, c), np.repeat(score, c)) for c in counts[:40]]
    assert (found.high - found.low) / 3.92 == pytest.approx(np.std(slow), rel=0.3)
    three = rng.dirichlet(np.ones(3), 400)
    labels = rng.integers(0, 3, 400)
    expected = roc_auc_score(labels, three, multi_class="ovr", average="macro")
    assert area(labels, three, counts).value == pytest.approx(expected)
    assert "one class" in area(np.zeros(9, int), np.ones((9, 1)), resamples(9)).why


def test_draws_that_miss_a_class_are_left_out_and_with_none_left_there_is_no_interval():
    y, probabilities = np.array([0, 0, 1]), np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]])
    found = area(y, probabilities, np.array([[3, 0, 0], [1, 2, 0]], np.int16))
    assert found.value == 1
    assert "two classes" in found.why
    assert not math.isfinite(found.low)
    assert area(y, probabilities, np.array([[3, 0, 0], [1, 1, 1]], np.int16)).low == 1


def test_a_table_of_a_few_rows_is_evaluated():
    """Three test rows, of which a bootstrap draw often has one class only."""
    rng = np.random.default_rng(12)
    for seed in range(6):
        codes = np.stack([rng.integers(0, 2, 10), rng.integers(0, 3, 10)], axis=1).astype(np.int32)
        table = from_codes(codes, schema_of((2, 3)).with_target("c0"), rng)
        for value in evaluate_table(table, table, seed=seed)["metrics"]["auc: logistic regression"]["values"].values():
            assert "low" in value or value.get("why") or value.get("left_out")


def test_all_three_models_learn_what_is_there(small_table):
    found = scores({"real": small_table}, small_table, "sold", learners=LEARNERS, draws=10)["real"]
    assert set(found) == {"logistic regression", "random forest", "MLP"}
    assert all(score.auc.value > 0.75 and score.accuracy.value > 0.6 for score in found.values())


def test_majority_and_product_predict_by_definition():
    table = _with_target(draw(np.random.default_rng(10), 400, 0.6))
    values = evaluate_table(table, table)["metrics"]["auc: logistic regression"]["values"]
    assert values[MAJORITY]["value"] == values[PRODUCT]["value"] == 0.5
    assert "definition" in values[MAJORITY]["why"]
    assert "construction" in values[PRODUCT]["why"]
    assert values[SHUFFLED]["low"] < values[SHUFFLED]["value"] < values[SHUFFLED]["high"]


def test_association_is_cramers_v():
    codes = np.array([[0, 0, 0], [1, 1, 0], [0, 0, 1], [1, 1, 1]], np.int32)
    table = Table(schema=schema_of((2, 2, 3)), codes=codes, frame=None)
    np.testing.assert_allclose(
        association(co_occurrence(table), (2, 2, 3)), [[1, 1, 0], [1, 1, 0], [0, 0, 1]], atol=1e-12
    )


def test_both_ways_of_counting_pairs_agree():
    rng = np.random.default_rng(11)
    narrow = Table(schema=schema_of((2,) * 30), codes=rng.integers(0, 2, (50, 30)).astype(np.int32), frame=None)
    found = co_occurrence(narrow)
    for a, b in itertools.combinations(range(30), 2):
        assert found[2 * a + 1, 2 * b] == pytest.approx(((narrow.codes[:, a] == 1) & (narrow.codes[:, b] == 0)).mean())


def test_estimates_say_why():
    assert left_out("because").to_json() == {"left_out": "because"}
    assert not math.isfinite(left_out("because").value)
    assert Estimate(value=1.0, low=0.5, high=2.0).to_json() == {"value": 1.0, "low": 0.5, "high": 2.0}
    seeds = over_seeds([1.0, 2.0, 3.0])
    assert seeds.value == 2
    assert seeds.high == pytest.approx(2 + 4.303 / math.sqrt(3), rel=1e-3)
    assert "seeds" in over_seeds([1.0]).why
    assert over_seeds([1.0, math.nan, 3.0]).value == 2
    assert over_seeds([1.0, math.nan, 3.0]).why == "1 of 3 have no figure"
    assert not over_seeds([math.nan, math.nan]).known
    many = over_seeds(list(np.random.default_rng(0).normal(size=400)))
    assert (many.high - many.low) / 2 == pytest.approx(1.966 / 20, rel=0.1)


def test_cost_stands_beside_the_record_itself():
    details = {
        "clients": 10, "rounds": 1, "seconds": {"total": 2.0},
        "traffic": {"bytes_from_clients": 20, "bytes_to_clients": 40, "messages": 10},
    }  # fmt: skip
    found = cost(details, (2, 3, 16))
    assert found["traffic"]["bits_from_one_client"] == 16
    assert found["traffic"]["baseline: one record itself, packed"] == 1 + 2 + 4
    assert "no interval" in found["time"]["interval"]
    assert "left_out" in cost({}, ())["traffic"]
