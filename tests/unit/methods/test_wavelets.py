"""Scattering features: their shape and length, what each wavelet answers to, and one image at a time as in a batch."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from populace.methods.genfl.classifier import ANGLES, PITCHES, Scattering, _bank, moduli, windows

#: Compiled whole: one operation after the other takes longer than all the rest.
look = jax.jit(lambda features, x: features(x), static_argnums=0)


def images(shape, count=6, seed=0):
    return jnp.asarray(np.random.default_rng(seed).random((count, *shape)), jnp.float32)


@pytest.mark.parametrize("shape", [(28, 28), (9, 12), (8, 8, 3)])
@pytest.mark.parametrize("cells", [1, 3])
def test_features_have_their_size_and_at_most_length_one(shape, cells):
    features = Scattering(shape, cells)
    found = np.asarray(look(features, images(shape)))
    assert found.shape == (6, features.size)
    assert features.size == (1 + 2 * ANGLES + ANGLES**2) * (shape[2] if len(shape) == 3 else 1) * cells**2
    lengths = np.linalg.norm(found, axis=1)
    assert (lengths <= 1 + 1e-6).all()
    assert (lengths > 0.9).all()


def test_colours_are_seen_apart():
    """Each as if it were the whole image, until all are scaled together."""
    x = images((8, 8, 3))
    whole = np.asarray(look(Scattering((8, 8, 3), 2), x)).reshape(len(x), 3, -1)
    for colour in range(3):
        alone = np.asarray(look(Scattering((8, 8), 2), x[..., colour]))
        part = whole[:, colour] / np.linalg.norm(whole[:, colour], axis=1, keepdims=True)
        np.testing.assert_allclose(part, alone / np.linalg.norm(alone, axis=1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("scale", [0, 1])
@pytest.mark.parametrize("angle", range(ANGLES))
def test_a_wavelet_answers_most_to_a_grating_of_its_direction_and_pitch(scale, angle):
    turn = math.pi * angle / ANGLES
    down, across = np.meshgrid(np.arange(28), np.arange(28), indexing="ij")
    grating = 0.5 + 0.5 * np.cos(PITCHES[scale] * (math.cos(turn) * down + math.sin(turn) * across))
    pixels = jnp.asarray(grating, jnp.float32)[None, None]
    inside = np.stack([np.asarray(moduli(pixels, _bank(s), 1))[0, :, 8:-8, 8:-8].mean(axis=(1, 2)) for s in (0, 1)])
    assert inside.argmax() == scale * ANGLES + angle
    assert inside[scale, angle] > 1.5 * inside[scale, (angle + ANGLES // 2) % ANGLES]


@pytest.mark.parametrize("scale", [0, 1])
def test_wavelets_do_not_see_even_light(scale):
    told = moduli(jnp.full((1, 1, 28, 28), 0.7), _bank(scale), 1)
    assert np.asarray(told)[0, :, 8:-8, 8:-8].max() < 0.01


def test_every_other_pixel_is_every_other_pixel():
    pixels = images((9, 12))[:, None]
    every, other = (np.asarray(jax.jit(moduli, static_argnums=2)(pixels, _bank(1), step)) for step in (1, 2))
    np.testing.assert_allclose(other, every[:, :, ::2, ::2], atol=1e-6)


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_an_even_image_has_finite_features_and_gradients(level):
    features, x = Scattering((10, 10), 2), jnp.full((1, 10, 10), level)
    assert np.isfinite(np.asarray(jax.jit(features.__call__)(x))).all()
    assert np.isfinite(np.asarray(jax.jit(jax.grad(lambda x: jnp.sum(features(x)[:, ::3])))(x))).all()


def test_compiled_and_one_at_a_time_it_is_the_same():
    features, x = Scattering((12, 10), 3), images((12, 10))
    batch = features(x)
    np.testing.assert_allclose(jax.jit(features.__call__)(x), batch, atol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.vmap(lambda one: features(one[None])[0]))(x), batch, atol=1e-5)


def test_windows_cover_the_side_evenly():
    found = np.asarray(windows(28, 4))
    np.testing.assert_allclose(found.sum(axis=0), 1, rtol=1e-5)
    np.testing.assert_allclose(found, found[::-1, ::-1], atol=1e-6)
    assert (np.diff(found.argmax(axis=0)) > 0).all()


def test_a_digit_moved_by_a_pixel_looks_more_alike_than_another():
    rng = np.random.default_rng(1)
    x = np.zeros((3, 28, 28), np.float32)
    x[0, 6:22, 12:15] = 1
    x[1] = np.roll(x[0], 1, axis=1)
    x[2] = np.rot90(x[0])
    seen = np.asarray(look(Scattering((28, 28)), jnp.asarray(x + 0.01 * rng.random(x.shape), jnp.float32)))
    assert seen[0] @ seen[1] > seen[0] @ seen[2] + 0.05
