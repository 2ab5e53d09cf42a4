"""Gradient boosting on values against scikit-learn called directly; targets that are numbers; classes of several sorts."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score, roc_auc_score

from populace.evaluation import prediction
from populace.evaluation.baselines import ABOUT, MAJORITY, PRODUCT, REAL, SHUFFLED, SYNTHETIC
from populace.evaluation.boosting import BOOSTING, MOST_CATEGORIES, boosting_scores, value_features
from populace.evaluation.evaluate import evaluate_table
from populace.evaluation.prediction import logistic_regression, scores
from populace.evaluation.prediction_figures import worst_class
from populace.evaluation.regression import MODELS, r2, r_squared
from populace.evaluation.targets import target_of
from populace.evaluation.values import Categories, ValueTable
from populace.tables.schema import Column, Schema
from populace.tables.table import make_table

CITIES = ("a", "b", "c", "d")
SCHEMA = Schema(
    columns=(
        Column(
            name="x", kind="decimal", edges=(-100.0, 0.0, 100.0), nullable=True
        ),  # two cells: too coarse to predict from
        Column(name="day", kind="date", edges=(10_000.0, 11_000.0)),
        Column(name="city", kind="categorical", categories=CITIES),
        Column(name="rank", kind="ordinal", categories=("low", "mid", "high")),
        Column(name="y", kind="categorical", categories=("no", "yes")),
        Column(name="kind", kind="categorical", categories=("p", "q", "r")),
        Column(name="z", kind="decimal", edges=(-1_000.0, 1_000.0)),
        Column(name="flag", kind="integer", edges=(0.0, 1.0)),
    )
)


def frame(seed, rows=1500):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=rows)
    city = rng.integers(0, 4, rows)
    inside = (np.abs(x) < 0.7) ^ (city == 2)
    found = pd.DataFrame(
        {
            "x": np.where(rng.random(rows) < 0.05, np.nan, x),
            "day": pd.to_datetime(rng.integers(10_000, 11_000, rows), unit="D").date,
            "city": np.array(CITIES)[city],
            "rank": np.array(["low", "mid", "high"])[rng.integers(0, 3, rows)],
            "y": np.where(inside ^ (rng.random(rows) < 0.1), "yes", "no"),
            "z": np.sin(3 * x) * 10 + city + rng.normal(size=rows),
        }
    )
    found["kind"] = np.where(found.z < -5, "p", np.where(found.z < 4, "q", "r"))
    found["flag"] = (found.y == "yes").astype(int)
    return found


@pytest.fixture(scope="module")
def tables():
    return {name: make_table(frame(seed), SCHEMA) for name, seed in (("train", 0), ("test", 1))}


def design(table):
    """What a user would feed scikit-learn with."""
    found = table.to_pandas()
    return pd.DataFrame(
        {
            "x": found.x,
            "day": pd.to_datetime(found.day).astype("int64"),
            "city": pd.Categorical(found.city, categories=list(CITIES)),
            "rank": found["rank"].map({"low": 0, "mid": 1, "high": 2}),
            "kind": pd.Categorical(found.kind, categories=["p", "q", "r"]),
            "z": found.z,
            "flag": found.flag,
        }
    )


def test_boosting_is_scikit_learns_on_the_values(tables):
    train, test = tables["train"], tables["test"]
    own = boosting_scores({"": train}, test, target_of(train, "y"), draws=5)[""]
    model = HistGradientBoostingClassifier(early_stopping=False, categorical_features="from_dtype", random_state=0)
    columns = ["x", "day", "city", "rank", "kind", "z", "flag"]
    model.fit(design(train)[columns], train.to_pandas().y)
    expected = roc_auc_score(test.to_pandas().y == "yes", model.predict_proba(design(test)[columns])[:, 1])
    assert own.auc.value == pytest.approx(expected, abs=0.005)


def test_boosting_sees_values_where_the_other_models_see_cells(tables):
    schema = Schema(columns=tuple(c for c in SCHEMA.columns if c.name in ("x", "city", "y")))
    train, test = (make_table(tables[name].frame, schema) for name in ("train", "test"))
    assert boosting_scores({"": train}, test, target_of(train, "y"), draws=1)[""].auc.value > 0.85
    assert scores({"": train}, test, "y", learners={"l": logistic_regression}, draws=1)[""]["l"].auc.value < 0.8


def test_several_classes_have_the_macro_mean_over_one_against_the_rest(tables):
    train, test = tables["train"], tables["test"]
    own = boosting_scores({"": train}, test, target_of(train, "kind"), draws=5)[""]
    assert own.auc.value > 0.99  # z decides it
    assert own.accuracy.value > 0.97


def test_r_squared_is_scikit_learns(tables):
    train, test = tables["train"], tables["test"]
    target = target_of(train, "z")
    assert target.is_number
    found = r_squared({"": train}, test, target, draws=5)[""]
    assert set(found) == set(MODELS)
    y, truth = train.to_pandas().z, test.to_pandas().z
    columns = ["x", "day", "city", "rank", "kind", "flag"]
    model = HistGradientBoostingRegressor(early_stopping=False, categorical_features="from_dtype", random_state=0)
    expected = r2_score(truth, model.fit(design(train)[columns], y).predict(design(test)[columns]))
    assert found[BOOSTING].value == pytest.approx(expected, abs=0.01)
    x, x_test = (prediction.features_and_target(table, "z")[0] for table in (train, test))
    assert found["ridge regression"].value == pytest.approx(
        r2_score(truth, Ridge().fit(x, y).predict(x_test)), abs=0.01
    )
    assert found[BOOSTING].value > found["random forest"].value > 0.3


def test_r2_and_its_interval():
    rng = np.random.default_rng(0)
    y = rng.normal(size=500)
    guess = 0.7 * y + 0.3 * rng.normal(size=500)
    counts = prediction.resamples(500)
    found = r2(y, guess, counts)
    assert found.value == pytest.approx(r2_score(y, guess))
    slow = [r2_score(np.repeat(y, c), np.repeat(guess, c)) for c in counts[:60]]
    assert (found.high - found.low) / 3.92 == pytest.approx(np.std(slow), rel=0.25)
    assert "one value" in r2(np.ones(5), np.ones(5), prediction.resamples(5)).why


def test_two_numbers_are_classes_and_more_are_a_number(tables):
    train = tables["train"]
    two = target_of(train, "flag")
    assert not two.is_number
    np.testing.assert_array_equal(two.labels(train), train.to_pandas().flag)
    assert target_of(train, "x").is_number
    assert target_of(train, "day").is_number
    own = boosting_scores({"": train}, tables["test"], two, draws=1)[""]
    assert own.auc.value == 1  # y says it


def test_rare_categories_are_one(tables):
    rng = np.random.default_rng(4)
    codes = np.concatenate([np.arange(400), rng.integers(0, 300, 2000), [-1]])
    labels = tuple(map(str, range(400)))
    table = ValueTable(
        rows=len(codes), numbers=(),
        categories=(Categories(name="c", kind="categorical", labels=labels, codes=codes),),
    )  # fmt: skip
    found = value_features(table, table, without="y")
    assert found.categorical.all()
    assert np.nanmax(found.train) == MOST_CATEGORIES
    assert np.isnan(found.train[-1, 0])


def test_a_document_with_a_number_to_predict(tables, monkeypatch):
    monkeypatch.setattr(prediction, "TREES", 10)
    document = evaluate_table(tables["train"], tables["test"], target="z")
    assert document["prediction"]["task"] == "number"
    keys = [key for key in document["metrics"] if ":" in key]
    assert keys == [f"r2: {model}" for model in MODELS]
    for key in keys:
        values = document["metrics"][key]["values"]
        assert set(values) == {SYNTHETIC, *ABOUT}
        assert values[SYNTHETIC]["value"] > 0.1
        assert values[PRODUCT]["value"] == 0
        assert abs(values[MAJORITY]["value"]) < 0.05
        assert values[SHUFFLED]["value"] < 0.1 < values[REAL]["value"]


def test_wide_tables_are_one_hot_without_being_written_out(tables, monkeypatch):
    train, test = tables["train"], tables["test"]
    found = []
    for most in (prediction.MOST_DENSE, 1):
        monkeypatch.setattr(prediction, "MOST_DENSE", most)
        found.append(scores({"": train}, test, "y", draws=1, learners={"l": logistic_regression})[""]["l"].auc.value)
        dense = prediction.features_and_target(train, "y")[0]
    assert found[0] == pytest.approx(found[1], abs=1e-3)
    np.testing.assert_array_equal(dense.toarray().sum(axis=1), len(SCHEMA.columns) - 1)


def test_each_class_against_the_rest_as_scikit_learn_has_it():
    y = np.array([0, 1, 2, 2, 1, 0, 2, 1, 0, 0])
    guessed = np.random.default_rng(0).dirichlet(np.ones(3), len(y))
    found = prediction.areas(y, guessed)
    assert found == {label: pytest.approx(roc_auc_score(y == label, guessed[:, label])) for label in range(3)}
    assert prediction.areas(y % 2, guessed) == {}


def test_a_document_has_the_worst_class_of_a_target_with_three(tables, monkeypatch):
    monkeypatch.setattr(prediction, "TREES", 5)
    monkeypatch.setattr(prediction, "STEPS", 30)
    found = evaluate_table(tables["train"], tables["test"], target="kind")
    facts = found["prediction"]
    assert set(facts["by_class"]) == {SYNTHETIC, REAL}
    assert list(facts["by_class"][SYNTHETIC][BOOSTING]) == ["p", "q", "r"]
    areas = facts["by_class"][SYNTHETIC][BOOSTING]
    mean = found["metrics"][f"auc: {BOOSTING}"]["values"][SYNTHETIC]["value"]
    assert np.mean(list(areas.values())) == pytest.approx(mean)
    label, own, _ = worst_class(facts, BOOSTING)
    assert own == areas[label] == min(areas.values())
    assert "by_class" not in evaluate_table(tables["train"], tables["test"], target="y")["prediction"]
