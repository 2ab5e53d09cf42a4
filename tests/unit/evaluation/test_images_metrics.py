"""Figures of images: known cases, and a generator that misses a class."""

import numpy as np
import pytest

from populace.errors import DataError
from populace.evaluation.baselines import MAJORITY, PRODUCT, REAL, SHUFFLED, SYNTHETIC
from populace.evaluation.images import _jackknife, evaluate_images, frechet
from populace.tables.images import Images


@pytest.fixture(autouse=True)
def short_training(monkeypatch):
    monkeypatch.setattr("populace.evaluation.images.CNN_STEPS", 60)
    monkeypatch.setattr("populace.evaluation.images.CNN_BATCH", 16)


def bars(rng, rows, classes=3, missing=()):
    """Images with a bright line at the place of their class."""
    y = rng.choice([c for c in range(classes) if c not in missing], rows)
    x = rng.integers(0, 90, (rows, 8, 8)).astype(np.uint8)
    x[np.arange(rows), 2 * y] = 200
    return Images(x=x, y=y, classes=classes)


def test_frechet_of_gaussians_is_the_known_distance():
    rng = np.random.default_rng(0)
    first = rng.normal(size=(200_000, 2))
    second = rng.normal(size=(200_000, 2)) * [2, 1] + [0, 3]
    assert frechet(first, first) == pytest.approx(0, abs=1e-9)
    assert frechet(first, second) == pytest.approx(9 + 1, rel=0.02)


def test_the_interval_of_the_distance_has_the_width_of_repeated_draws():
    rng = np.random.default_rng(3)
    drawn = [_jackknife(rng.normal(size=(400, 3)), rng.normal([1, 0, 0], size=(300, 3)), rng) for _ in range(100)]
    spread = np.std([found.value for found in drawn], ddof=1)
    stated = np.mean([(found.high - found.low) / 2 / 1.96 for found in drawn])
    assert 0.8 < stated / spread < 1.3


@pytest.mark.slow
def test_too_few_images_leave_the_distance_out_in_words():
    rng = np.random.default_rng(4)
    values = evaluate_images(bars(rng, 2), bars(rng, 60))["metrics"]["frechet"]["values"]
    assert values[SYNTHETIC]["left_out"] == "expected at least 20 images on either side, got 2"
    assert "value" in values[REAL]


@pytest.mark.slow
def test_a_class_that_is_missing_shows_and_every_figure_has_its_baselines():
    rng = np.random.default_rng(1)
    document = evaluate_images(bars(rng, 150, missing=(2,)), bars(rng, 300))
    metrics = document["metrics"]
    assert metrics["class_coverage"]["values"][SYNTHETIC]["value"] == pytest.approx(2 / 3)
    assert metrics["class_distance"]["values"][SYNTHETIC]["value"] == pytest.approx(1 / 3, abs=0.1)
    assert metrics["accuracy: MLP"]["values"][REAL]["value"] > 0.9
    assert metrics["accuracy: MLP"]["values"][SYNTHETIC]["value"] < 0.8
    assert metrics["frechet"]["values"][REAL]["value"] < metrics["frechet"]["values"][PRODUCT]["value"]
    assert metrics["accuracy: CNN"]["values"][REAL]["value"] > 0.9
    assert metrics["accuracy: CNN"]["values"][SYNTHETIC]["value"] < 0.8
    for metric in metrics.values():
        assert set(metric["values"]) == {SYNTHETIC, REAL, PRODUCT, SHUFFLED, MAJORITY}
        assert all("value" in value or value["left_out"] for value in metric["values"].values())


def test_images_of_another_shape_are_refused():
    rng = np.random.default_rng(2)
    with pytest.raises(DataError, match="shape"):
        evaluate_images(bars(rng, 40), Images(x=np.zeros((40, 9, 9), np.uint8), y=np.zeros(40, int), classes=1))
