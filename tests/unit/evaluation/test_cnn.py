"""The convolutional classifier: sees what does not depend on the place, and gives probabilities of the classes there are."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from populace.evaluation import cnn
from populace.evaluation.cnn import Cnn


def bars(rows, seed):
    """A bar somewhere on a noisy field: lying for class 3, standing for class 7. No single pixel tells."""
    rng = np.random.default_rng(seed)
    x = rng.random((rows, 12, 12, 1)).astype(np.float32) * 0.4
    y = rng.integers(0, 2, rows)
    for image, standing in zip(x, y, strict=True):
        along, across = rng.integers(0, 7), rng.integers(0, 12)
        part = image[along : along + 6, across] if standing else image[across, along : along + 6]
        part += 0.6
    return x, np.where(y, 7, 3)


@pytest.fixture(scope="module")
def trained():
    return Cnn(steps=240, batch=32).fit(*bars(1_500, 0))


def test_it_learns_what_a_linear_model_cannot(trained):
    x, y = bars(600, 1)
    right = trained.classes_[trained.predict_proba(x).argmax(axis=1)] == y
    train = bars(1_500, 0)
    plain = LogisticRegression(max_iter=200).fit(train[0].reshape(1_500, -1), train[1]).score(x.reshape(600, -1), y)
    assert right.mean() > 0.9
    assert plain < 0.75


def test_probabilities_are_of_the_classes_there_are(trained):
    x, _ = bars(cnn.AT_ONCE + 3, 2)
    found = trained.predict_proba(x)
    assert trained.classes_.tolist() == [3, 7]
    assert found.shape == (len(x), 2)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(found[:5], trained.predict_proba(x[:5]), atol=1e-5)
    assert trained.features(x).shape == (len(x), 128)


def test_the_layers_are_those_of_the_appendix():
    shapes = {name: value.shape for name, value in cnn._initial((28, 28, 1), 10, np.random.default_rng(0)).items()}
    assert shapes["kernel0"] == (3, 3, 1, 32)
    assert shapes["kernel1"] == (3, 3, 32, 64)
    assert shapes["kernel2"] == (3, 3, 64, 128)
    assert shapes["dense"] == (7 * 7 * 128, 128)
    assert shapes["out"] == (128, 10)
    parameters = cnn._initial((28, 28, 1), 10, np.random.default_rng(0))
    assert cnn._blocks(parameters, jnp.zeros((2, 28, 28, 1)), None).shape == (2, 7, 7, 128)


def test_the_same_seed_gives_the_same_classifier():
    x, y = bars(64, 3)
    first, second, other = (Cnn(steps=3, batch=32, seed=s).fit(x, y).predict_proba(x) for s in (0, 0, 1))
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - other).max() > 0
