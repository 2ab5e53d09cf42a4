"""A classifier with the generators beside it: kept, loaded, drawn from, asked; and what it refuses."""

import dataclasses

import jax
import numpy as np
import pytest

from populace.errors import DataError, SpecError
from populace.methods.blocks.vae_networks import BasisVae, SmallVae
from populace.methods.genfl.classifier import AT_ONCE, ClassifierImages, logits
from populace.methods.registry import load_generator
from populace.tables.images import Images

SHAPE, LABELS, CELLS = (8, 8), 3, 2


def model(kind=BasisVae, generators=2, shape=SHAPE, seed=0, **options):
    rng = np.random.default_rng(seed)
    options = {"waves": 3, **options} if kind is BasisVae else options
    vae = kind(shape=shape, classes=LABELS, latent=2, width=4, **options)
    thetas = rng.normal(0, 1, (generators, vae.decoder_size)).astype(np.float32)
    size = 81 * CELLS**2 * (shape[2] if len(shape) == 3 else 1)
    weights = rng.normal(0, 5, (size + 1, LABELS)).astype(np.float32)
    return ClassifierImages(vae=vae, thetas=thetas, weights=weights, cells=CELLS)


def images(count=20, shape=SHAPE):
    rng = np.random.default_rng(1)
    return Images(
        x=rng.integers(0, 256, (count, *shape)).astype(np.uint8), y=rng.integers(0, LABELS, count), classes=LABELS
    )


@pytest.mark.parametrize("kind", [BasisVae, SmallVae])
@pytest.mark.parametrize("shape", [SHAPE, (8, 8, 3)])
def test_it_is_the_same_after_saving(kind, shape, tmp_path):
    first = model(kind, shape=shape)
    first.save(tmp_path)
    again = load_generator(tmp_path)
    assert isinstance(again, ClassifierImages)
    assert (again.vae, again.cells) == (first.vae, first.cells)
    one, other = (each.sample(30, jax.random.key(3)) for each in (first, again))
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.y, other.y)
    np.testing.assert_array_equal(first.scores(images(shape=shape)), again.scores(images(shape=shape)))


def test_labels_and_generators_come_evenly_and_a_label_can_be_asked_for():
    """Two generators whose images differ in their light: half of the images are of each."""
    both = model()
    shapes = dict(both.vae.decoder_shapes)
    assert shapes, "the generator has parameters"
    alone = [dataclasses.replace(both, thetas=both.thetas[i : i + 1]) for i in range(2)]
    labels = np.arange(300) % LABELS
    drawn = np.asarray(both.draw_pixels(labels, jax.random.key(0)))
    each = [np.asarray(one.draw_pixels(labels, jax.random.key(0))) for one in alone]
    mine = np.stack([np.isclose(drawn, one, atol=1e-6).all(axis=(1, 2)) for one in each])
    assert (mine.sum(axis=0) == 1).all(), "each image is of one generator"
    assert 0.4 < mine[0].mean() < 0.6
    made = both.sample(600, jax.random.key(1))
    assert np.bincount(made.y, minlength=LABELS).min() > 150
    assert (both.sample(9, jax.random.key(1), {"label": "2"}).y == 2).all()


def test_scores_are_those_of_the_linear_classifier_whatever_the_number_of_images():
    one, data = model(), images(AT_ONCE + 3)
    found = one.scores(data)
    assert found.shape == (AT_ONCE + 3, LABELS)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
    few = data.take(np.arange(AT_ONCE - 2, AT_ONCE + 3))
    expected = jax.jit(lambda x: jax.nn.softmax(logits(one.weights.reshape(-1), one.features(x)), axis=1))(few.x / 255)
    np.testing.assert_allclose(found[AT_ONCE - 2 :], expected, atol=1e-5)
    np.testing.assert_array_equal(one.classify(data), found.argmax(axis=1))


def test_without_generators_it_classifies_and_refuses_to_draw(tmp_path):
    alone = model(generators=0)
    alone.save(tmp_path)
    again = load_generator(tmp_path)
    assert len(again.classify(images())) == 20
    with pytest.raises(DataError, match="nothing to draw from"):
        again.sample(3, jax.random.key(0))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"thetas": np.zeros((2, 3))}, "expected generators of"),
        ({"thetas": np.zeros(3)}, "expected generators of"),
        ({"weights": np.zeros((3, LABELS))}, "expected a classifier of"),
        ({"cells": 3}, "expected a classifier of"),
    ],
)
def test_parts_that_do_not_fit_are_refused(wrong, words):
    with pytest.raises(DataError, match=words):
        dataclasses.replace(model(), **wrong)


def test_what_did_not_train_is_refused():
    one = model()
    for name in ("thetas", "weights"):
        with pytest.raises(DataError, match="did not train"):
            dataclasses.replace(one, **{name: np.full_like(getattr(one, name), np.nan)})


@pytest.mark.parametrize(
    ("design", "said"),
    [
        (b"", "cannot read the model's design: it is not JSON"),
        (b"[]", "does not describe"),
        (b"{}", "does not describe"),
        (b'{"net": "none", "features": 2}', "does not describe"),
    ],
)
def test_a_damaged_file_is_refused(design, said):
    arrays = {**model().arrays(), "design": np.frombuffer(design, np.uint8)}
    with pytest.raises(DataError, match=said):
        ClassifierImages.from_arrays(SHAPE, LABELS, arrays)


def test_conditions_it_does_not_know_are_refused():
    with pytest.raises(DataError, match="expected a label in 0 to 2"):
        model().sample(3, jax.random.key(0), {"label": "3"})
    with pytest.raises(DataError, match="no column 'hue'"):
        model().sample(3, jax.random.key(0), {"hue": "1"})
    with pytest.raises(SpecError, match="rows"):
        model().sample(0, jax.random.key(0))
