"""Models of images: labels, conditions, tiles, files."""

import json

import jax
import numpy as np
import pytest

from populace.errors import DataError, PopulaceError, RunError, SpecError
from populace.methods.baselines.marginals import Marginals
from populace.methods.blocks.generator import ImageGenerator
from populace.methods.registry import load_generator, load_table_generator
from populace.methods.wae.images import ImageClasses, Mosaic
from populace.runs.folder import RunFolder
from populace.tables.images import read_images

KEY = jax.random.key(0)


def two_labels(**changes):
    """Label 0 is dark or black, label 1 bright; three times as many of label 1."""
    means = np.stack([np.full((2, 4), level) for level in (0.0, 0.8)])
    means[0, 1] = 0.2
    given = {"shape": (4, 4), "classes": 2, "tile": 2, "chances": np.array([[0.125, 0.125], [0.75, 0]]), "means": means}
    return ImageClasses(**{**given, **changes})


class Unlabelled(ImageGenerator):
    """Grey squares without labels."""

    kind = "unlabelled"
    shape, classes = (3, 3), 1

    def label_shares(self):
        return None

    def draw_pixels(self, labels, key):
        return np.full((len(labels), 3, 3), 0.5)

    def arrays(self):
        return {}

    @classmethod
    def from_arrays(cls, shape, classes, arrays):
        return cls()


def test_labels_and_classes_come_by_their_chances():
    images = two_labels().sample(20_000, KEY)
    assert images.x.shape == (20_000, 4, 4)
    assert images.y.mean() == pytest.approx(0.75, abs=0.01)
    assert set(np.unique(images.x[images.y == 1])) == {204}
    assert (images.x[images.y == 0] == 51).mean() == pytest.approx(0.5, abs=0.03)


def test_a_label_that_is_asked_for_is_the_only_one():
    images = two_labels().sample(50, KEY, {"label": "0"})
    assert set(images.y) == {0}
    assert images.classes == 2
    assert images.x.max() == 51


def test_grain_is_noise_of_that_deviation():
    means = np.full((2, 2, 4), 0.5)
    x = two_labels(means=means, grain=0.1, tile=2).sample(4_000, KEY).x / 255
    assert x[:, 0, 0].std() == pytest.approx(0.1, rel=0.05)
    assert x[:, 0, 0].mean() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ({"label": "2"}, "expected a label in 0 to 1, got '2'"),
        ({"label": "-1"}, "expected a label in 0 to 1"),
        ({"label": "one"}, "expected a label in 0 to 1"),
        ({"colour": "red"}, "no column 'colour'"),
    ],
)
def test_conditions_that_cannot_be_met_are_refused(conditions, reason):
    with pytest.raises(DataError, match=reason):
        two_labels().sample(3, KEY, conditions)


def test_a_model_without_labels_gives_one_class_and_refuses_conditions():
    images = Unlabelled().sample(5, KEY)
    assert (images.classes, set(images.y), set(np.unique(images.x))) == (1, {0}, {128})
    with pytest.raises(DataError, match="without labels"):
        Unlabelled().sample(5, KEY, {"label": "0"})
    with pytest.raises(SpecError, match="at least 1"):
        Unlabelled().sample(0, KEY)


def test_saved_and_loaded_it_draws_the_same(tmp_path):
    model = two_labels(grain=0.3)
    model.save(tmp_path)
    found = load_generator(tmp_path)
    np.testing.assert_array_equal(found.sample(100, KEY).x, model.sample(100, KEY).x)
    assert json.loads((tmp_path / "generator.json").read_text()) == {
        "format": 1, "kind": "image-classes", "shape": [4, 4], "classes": 2,
    }  # fmt: skip
    with pytest.raises(RunError, match="made images"):
        load_table_generator(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"means": np.zeros((2, 2, 5))},
        {"means": np.full((2, 2, 4), np.nan)},
        {"chances": np.zeros((2, 2))},
        {"tile": 5},
        {"grain": -1.0},
    ],
)
def test_damaged_models_are_refused(changes):
    with pytest.raises(PopulaceError):
        two_labels(**changes)


def test_synthetic_files_are_named_by_their_kind(tmp_path, small_schema):
    folder = RunFolder(tmp_path)
    images = two_labels().sample(7, KEY)
    assert folder.save_synthetic(images).name == "synthetic.npz"
    np.testing.assert_array_equal(read_images(tmp_path / "synthetic.npz").x, images.x)
    even = Marginals(schema=small_schema, tables=tuple(np.full(size, 1 / size) for size in small_schema.sizes))
    assert folder.save_synthetic(even.sample(7, KEY)).name == "synthetic.parquet"


@pytest.mark.parametrize(
    ("shape", "tile", "grid"), [((4, 6), 2, (2, 3, 1)), ((5, 5), 2, (3, 3, 1)), ((4, 4, 3), 4, (1, 1, 3))]
)
def test_tiles_hold_the_mean_of_their_pixels(shape, tile, grid):
    x = np.random.default_rng(0).integers(0, 256, (3, *shape)).astype(np.uint8)
    mosaic = Mosaic(shape, tile)
    tiles = np.asarray(mosaic.shrink(x)).reshape(3, *grid)
    assert (mosaic.grid, mosaic.places) == (grid, tiles[0].size)
    corner = x[:, :tile, :tile].reshape(3, tile * tile, -1).mean(axis=1) / 255
    np.testing.assert_allclose(tiles[:, 0, 0], corner, rtol=1e-5)
    assert mosaic.enlarge(tiles.reshape(3, -1)).shape == x.shape


def test_an_even_image_comes_back_and_single_pixels_do():
    even = np.full((1, 5, 7), 51, np.uint8)
    mosaic = Mosaic((5, 7), 3)
    np.testing.assert_allclose(mosaic.enlarge(mosaic.shrink(even)), 0.2, rtol=1e-5)
    x = np.random.default_rng(1).integers(0, 256, (2, 4, 5, 3)).astype(np.uint8)
    whole = Mosaic((4, 5, 3))
    np.testing.assert_allclose(whole.enlarge(whole.shrink(x)), x / 255, atol=1e-6)
