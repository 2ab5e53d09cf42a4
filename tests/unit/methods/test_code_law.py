"""Where codes lie: drawn by their law, measured as drawn, and by the standard law the noise itself."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from populace.errors import DataError
from populace.methods.blocks.vae_generator import CodeLaw, VaeImages, make_standard_law, measure_law, read_design
from populace.methods.blocks.vae_networks import BasisVae
from populace.methods.registry import load_generator

TURNED = np.array([[1.0, 0.6], [-0.2, 0.7]])  # not symmetric: turned the wrong way it is another
LAW = CodeLaw(means=jnp.asarray([[3.0, -1.0], [0.0, 0.5]]), roots=jnp.asarray([TURNED, 0.1 * np.eye(2)], jnp.float32))
STANDARD = make_standard_law(2, 2)
DRAWS = 20_000
NOISE = np.random.default_rng(0).normal(size=(DRAWS, 2)).astype(np.float32)
LABELS = np.arange(DRAWS, dtype=np.int32) % 2
VAE = BasisVae(shape=(4, 4), classes=2, latent=2, width=3)


@functools.cache
def theta():
    return np.asarray(VAE.start(jax.random.key(0))[1])


def test_each_label_draws_by_its_own_law():
    """By hand for a few, and the standard law changes no bit."""
    drawn = np.asarray(LAW.draw(LABELS[:6], NOISE[:6]))
    by_hand = [np.asarray(LAW.means[i % 2]) + np.asarray(LAW.roots[i % 2]) @ np.asarray(NOISE[i]) for i in range(6)]
    np.testing.assert_allclose(drawn, by_hand, atol=1e-6)
    np.testing.assert_array_equal(STANDARD.draw(LABELS, NOISE), NOISE)


def furthest(found, law):
    """The largest error of a mean or of a covariance, in standard deviations of what so many draws show."""
    count = DRAWS // 2
    errors = []
    for mean, root, known_mean, known_root in zip(found.means, found.roots, law.means, law.roots, strict=True):
        wide, covariance = np.asarray(root @ root.T), np.asarray(known_root @ known_root.T)
        variance = np.diag(covariance)
        errors += list(np.abs(mean - known_mean) / np.sqrt(variance / count))
        spread = np.sqrt((covariance**2 + np.outer(variance, variance)) / count)
        errors += list((np.abs(wide - covariance) / spread).ravel())
    return max(map(float, errors))


def test_what_was_drawn_is_found_again_and_a_law_nearly_the_same_is_told_from_it():
    found = measure_law(LAW.draw(LABELS, NOISE), LABELS, 2)
    assert furthest(found, LAW) < 4.5
    for wrong in ({"roots": 1.1 * LAW.roots}, {"means": LAW.means + 0.1}, {"means": LAW.means[::-1]}):
        assert furthest(found, dataclasses.replace(LAW, **wrong)) > 4.5
    np.testing.assert_array_equal(found.roots, found.roots.swapaxes(1, 2))


@pytest.mark.parametrize("classes", [0, 1])
def test_without_labels_there_is_one_law(classes):
    z = LAW.draw(jnp.zeros(DRAWS, int), NOISE)
    found = measure_law(z, np.full(DRAWS, 7), classes)
    assert found.means.shape == (1, 2)
    np.testing.assert_allclose(found.means[0], LAW.means[0], atol=0.05)


def test_a_class_that_was_not_seen_twice_keeps_the_standard_law():
    found = measure_law(np.array([[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]), np.array([0, 0, 1]), 3)
    np.testing.assert_array_equal(found.means, [[2, 3], [0, 0], [0, 0]])
    np.testing.assert_array_equal(found.roots[1:], STANDARD.roots)
    np.testing.assert_allclose(found.roots[0] @ found.roots[0].T, [[2, 2], [2, 2]], atol=1e-5)  # one direction only


def test_codes_of_an_encoder_that_did_not_train_are_refused_in_words():
    with pytest.raises(DataError, match="did not train"):
        measure_law(np.array([[1.0, np.nan], [0.0, 0.0]]), np.zeros(2, int), 1)


def test_only_the_standard_law_is_standard():
    assert STANDARD.is_standard
    assert not dataclasses.replace(STANDARD, means=STANDARD.means.at[1, 0].set(1e-6)).is_standard
    assert not dataclasses.replace(STANDARD, roots=STANDARD.roots.at[1, 0, 1].set(1e-6)).is_standard


def test_images_are_decoded_from_those_codes_and_survive_their_file(tmp_path):
    generator = VaeImages(vae=VAE, theta=theta(), law=LAW)
    generator.save(tmp_path)
    again = load_generator(tmp_path)
    key = jax.random.key(3)
    np.testing.assert_array_equal(again.sample(9, key).x, generator.sample(9, key).x)
    plain = dataclasses.replace(generator, law=None)
    assert not np.array_equal(plain.sample(9, key).x, generator.sample(9, key).x)
    with_standard = dataclasses.replace(generator, law=STANDARD)
    np.testing.assert_array_equal(with_standard.sample(9, key).x, plain.sample(9, key).x)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"roots": LAW.roots[:1]}, "expected a law of codes of 2 numbers in 2"),
        ({"means": LAW.means * np.nan}, "not finite"),
    ],
)
def test_laws_that_do_not_fit_are_refused(wrong, message):
    with pytest.raises(DataError, match=message):
        VaeImages(vae=VAE, theta=theta(), law=dataclasses.replace(LAW, **wrong))


@pytest.mark.parametrize("missing", ["means", "roots"])
def test_half_a_law_is_refused_and_so_is_a_law_by_who_does_not_know_of_it(missing):
    arrays = VaeImages(vae=VAE, theta=theta(), law=LAW).arrays()
    with pytest.raises(DataError, match="does not describe a decoder"):
        read_design((4, 4), 2, arrays)
    del arrays[missing]
    with pytest.raises(DataError, match="holds only the"):
        VaeImages.from_arrays((4, 4), 2, arrays)
