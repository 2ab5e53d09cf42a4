"""Where codes lie: drawn as told, measured as drawn, and the standard distribution is the noise itself."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from populace.errors import DataError
from populace.models.codes import Codes, codes_found, standard
from populace.models.generator import load_generator
from populace.models.vae import BasisVae
from populace.models.vae_images import VaeImages

ROOT = np.array([[1.0, 0.6], [0.6, 0.7]])
KNOWN = Codes(means=jnp.asarray([[3.0, -1.0], [0.0, 0.5]]), roots=jnp.asarray([ROOT, 0.1 * np.eye(2)], jnp.float32))
NOISE = jax.random.normal(jax.random.key(0), (20_000, 2))
LABELS = jnp.arange(20_000) % 2
VAE = BasisVae(shape=(4, 4), classes=2, latent=2, width=3)
THETA = np.asarray(VAE.start(jax.random.key(0))[1])


def test_each_label_draws_from_its_own_distribution():
    """By hand for a few, and the standard distribution changes no bit."""
    drawn = np.asarray(KNOWN.drawn(LABELS[:6], NOISE[:6]))
    by_hand = [np.asarray(KNOWN.means[i % 2]) + np.asarray(KNOWN.roots[i % 2]) @ np.asarray(NOISE[i]) for i in range(6)]
    np.testing.assert_allclose(drawn, by_hand, atol=1e-6)
    np.testing.assert_array_equal(standard(2, 2).drawn(LABELS, NOISE), NOISE)


def test_what_was_drawn_is_found_again_and_something_else_is_not():
    found = codes_found(KNOWN.drawn(LABELS, NOISE), LABELS, 2)
    for name in ("means", "roots"):
        error = np.abs(np.asarray(getattr(found, name)) - np.asarray(getattr(KNOWN, name))).max()
        assert error < 0.03  # 4 deviations of a variance of 1 in 10,000 draws, halved by the root
        assert np.abs(np.asarray(getattr(found, name)) - np.asarray(getattr(standard(2, 2), name))).max() > 0.2


@pytest.mark.parametrize("classes", [0, 1])
def test_without_labels_there_is_one_distribution(classes):
    z = KNOWN.drawn(jnp.zeros(20_000, int), NOISE)
    found = codes_found(z, np.full(20_000, 7), classes)
    assert found.means.shape == (1, 2)
    np.testing.assert_allclose(found.means[0], KNOWN.means[0], atol=0.03)


def test_a_class_that_was_not_seen_twice_keeps_the_standard_distribution():
    found = codes_found(np.array([[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]), np.array([0, 0, 1]), 3)
    np.testing.assert_array_equal(found.means, [[2, 3], [0, 0], [0, 0]])
    np.testing.assert_array_equal(found.roots[1:], standard(2, 2).roots)
    np.testing.assert_allclose(found.roots[0] @ found.roots[0].T, [[2, 2], [2, 2]], atol=1e-5)  # one direction only


def test_images_are_decoded_from_those_codes_and_survive_their_file(tmp_path):
    generator = VaeImages(vae=VAE, theta=THETA, codes=KNOWN)
    generator.save(tmp_path)
    again = load_generator(tmp_path)
    key = jax.random.key(3)
    np.testing.assert_array_equal(again.sample(9, key).x, generator.sample(9, key).x)
    plain = dataclasses.replace(generator, codes=None)
    assert not np.array_equal(plain.sample(9, key).x, generator.sample(9, key).x)
    with_standard = dataclasses.replace(generator, codes=standard(2, 2))
    np.testing.assert_array_equal(with_standard.sample(9, key).x, plain.sample(9, key).x)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"roots": KNOWN.roots[:1]}, "expected codes of 2 classes"),
        ({"means": KNOWN.means * np.nan}, "not finite"),
    ],
)
def test_codes_that_do_not_fit_are_refused(wrong, message):
    with pytest.raises(DataError, match=message):
        VaeImages(vae=VAE, theta=THETA, codes=dataclasses.replace(KNOWN, **wrong))
    arrays = VaeImages(vae=VAE, theta=THETA, codes=KNOWN).arrays()
    del arrays["roots"]
    with pytest.raises(DataError, match="only the means"):
        VaeImages.from_arrays((4, 4), 2, arrays)
