"""Gradients of a linear classifier on public features, by automatic differentiation; whole numbers that stand for them."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from populace.errors import SpecError
from populace.methods.blocks.dp_sgd import FactorBits, clip_rows, factor_bits, whole_rows
from populace.methods.blocks.vae_networks import BasisVae
from populace.methods.genfl.classifier import Scattering, generate_examples, generated_gradient, gradient_factors

SIDE, LABELS = 6, 3
FEATURES = Scattering((SIDE, SIDE), 1)
GENERATOR = BasisVae(shape=(SIDE, SIDE), classes=LABELS, latent=2, width=4, waves=3)


@functools.lru_cache(maxsize=1)
def gradient_of_one():
    """The gradient of the cross-entropy of one example by automatic differentiation, flat."""

    def loss(weights, x, y):
        seen = jnp.append(FEATURES(jnp.asarray(x, jnp.float32)[None])[0], 1.0)
        return -jnp.sum(y * jax.nn.log_softmax(seen @ weights.reshape(-1, LABELS)))

    return jax.jit(jax.grad(loss))


def clipped(weights, x, y, bound):
    gradient = np.asarray(gradient_of_one()(weights, x, y), np.float64) / bound
    return gradient / max(1.0, np.linalg.norm(gradient)), np.linalg.norm(gradient)


@pytest.fixture(scope="module")
def weights():
    return jnp.asarray(np.random.default_rng(1).normal(size=(FEATURES.size + 1) * LABELS), jnp.float32)


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(2)
    x = rng.integers(0, 256, (12, SIDE, SIDE)) * rng.integers(0, 2, (12, 1, 1))
    return x.astype(np.uint8), jax.nn.one_hot(rng.integers(0, LABELS, 12), LABELS)


def test_the_two_factors_of_a_record_make_its_clipped_gradient(weights, images):
    """As real numbers, and up to the rounding of both factors as whole ones."""
    bound, (x, y), bits = 0.9, images, factor_bits(FEATURES.size + 1, 12)
    features, errors = jax.jit(functools.partial(gradient_factors, FEATURES))(weights, x=x, y=y)
    errors = clip_rows(errors, bound)
    whole = [
        np.asarray(whole_rows(part, each), np.int64)
        for part, each in ((features, bits.features), (errors, bits.errors))
    ]
    lengths = []
    for row in range(len(x)):
        expected, length = clipped(weights, x[row] / 255, y[row], bound)
        lengths.append(length)
        np.testing.assert_allclose(np.outer(features[row], errors[row]).reshape(-1), expected, atol=1e-5)
        found = np.outer(whole[0][row], whole[1][row]).reshape(-1) / 2.0**bits.both * bits.correction
        np.testing.assert_allclose(found, expected, atol=0.51 * (2.0**-bits.features + 2.0**-bits.errors))
    assert max(lengths) > 1 > min(lengths), "clipped or not: the test would not see both"


@pytest.mark.parametrize("bound", [0.3, 5.0])
def test_the_gradient_of_generated_examples_is_the_mean_of_their_clipped_gradients(bound, weights):
    theta, key = jax.random.normal(jax.random.key(1), (GENERATOR.decoder_size,)), jax.random.key(7)
    found = jax.jit(generated_gradient, static_argnums=(0, 1, 4))(GENERATOR, FEATURES, weights, theta, 9, bound, key)
    x, y = jax.jit(generate_examples, static_argnums=(0, 2))(GENERATOR, theta, 9, key)
    gradients, lengths = zip(*(clipped(weights, *example, bound) for example in zip(x, y, strict=True)), strict=True)
    np.testing.assert_allclose(found, sum(gradients) / 9, atol=1e-5)
    assert max(lengths) > 1 if bound == 0.3 else max(lengths) < 1, "clipped or not: the test would not see both"


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6), bits=st.integers(4, 12), length=st.sampled_from([0.1, 1.0, 1.001, 7.0]),
    odd=st.sampled_from([None, math.nan, math.inf, 1e30]),
)  # fmt: skip
def test_whole_rows_are_never_longer_than_their_unit_and_close_to_what_they_stand_for(seed, bits, length, odd):
    rows = np.random.default_rng(seed).normal(size=(6, 50)).astype(np.float32)
    rows *= length / np.linalg.norm(rows, axis=1, keepdims=True)
    if odd is not None:
        rows[0, 3] = odd
    found = np.asarray(whole_rows(jnp.asarray(rows), bits), np.int64)
    assert (np.square(found).sum(axis=1) <= 4**bits).all()
    if length <= 1 and odd is None:
        assert np.abs(found - rows * (2**bits - 2)).max() < 1
    if length == 0.1 and odd is None:
        assert np.abs(found - rows * (2**bits - 2)).max() <= 0.5 + 1e-3


def test_bits_leave_room_for_the_sum_of_all_records():
    for size, count in ((1_297, 1), (1_297, 5_000), (1_297, 60_000), (12_961, 10**5), (97, 2**18)):
        bits = factor_bits(size, count)
        assert count * 2**bits.both < 2**31
        assert size * 4**bits.features < 2**31
        assert bits.at_once * 2**bits.both <= 2**24
    assert factor_bits(1_297, 5_000) == FactorBits(10, 8)
    with pytest.raises(SpecError, match="do not add up"):
        factor_bits(1_297, 2**20)
