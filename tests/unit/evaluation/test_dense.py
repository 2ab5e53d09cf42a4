"""The dense classifiers: as good as scikit-learn's, and the same from the same seed."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from populace.evaluation.dense import Logistic, Mlp


def clouds(rows, seed):
    """Four classes: two directions, and whether they agree, which no linear model sees."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 6))
    y = 2 * (x[:, 0] > 0) + (x[:, 1] * x[:, 2] > 0)
    return x, np.array([3, 5, 7, 9])[y]


def accuracy(model, x, y):
    return (model.classes_[model.predict_proba(x).argmax(axis=1)] == y).mean()


def test_logistic_regression_is_scikit_learns():
    x, y = clouds(600, 0)
    ours, theirs = Logistic().fit(x, y), LogisticRegression(max_iter=500).fit(x, y)
    other, _ = clouds(300, 1)
    np.testing.assert_allclose(ours.predict_proba(other), theirs.predict_proba(other), atol=2e-3)


def test_the_mlp_learns_what_a_linear_model_cannot():
    x, y = clouds(4_000, 0)
    other = clouds(1_000, 1)
    mlp = Mlp(steps=600).fit(x, y)
    assert accuracy(mlp, *other) > 0.85 > 0.65 > accuracy(Logistic().fit(x, y), *other)
    assert mlp.classes_.tolist() == [3, 5, 7, 9]
    np.testing.assert_allclose(mlp.predict_proba(other[0]).sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(("seed", "same"), [(0, True), (1, False)])
def test_the_same_seed_gives_the_same_classifier(seed, same):
    x, y = clouds(200, 3)
    first, second = (Mlp(steps=5, seed=s).fit(x, y).predict_proba(x) for s in (0, seed))
    assert np.array_equal(first, second) == same
