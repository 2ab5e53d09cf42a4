"""Slopes of a linear classifier on public features, by automatic differentiation; whole numbers that stand for them."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from populace.errors import SpecError
from populace.methods.blocks.gan_networks import DenseGan
from populace.methods.blocks.vae_networks import BasisVae
from populace.methods.genfl.linear import Bits, bits_for, generated_slope, in_whole, made, pairs, restored
from populace.methods.genfl.wavelets import Scattering

SIDE, LABELS = 6, 3
FEATURES = Scattering((SIDE, SIDE), 1)
GAN = DenseGan(maker=BasisVae(shape=(SIDE, SIDE), classes=LABELS, latent=2, width=4, waves=3), width=4)


@functools.lru_cache(maxsize=1)
def slope_of_one():
    """The slope of the cross-entropy of one example by automatic differentiation, flat."""

    def loss(weights, x, y):
        seen = jnp.append(FEATURES(jnp.asarray(x, jnp.float32)[None])[0], 1.0)
        return -jnp.sum(y * jax.nn.log_softmax(seen @ weights.reshape(-1, LABELS)))

    return jax.jit(jax.grad(loss))


def clipped(weights, x, y, bound):
    slope = np.asarray(slope_of_one()(weights, x, y), np.float64) / bound
    return slope / max(1.0, np.linalg.norm(slope)), np.linalg.norm(slope)


@pytest.fixture(scope="module")
def weights():
    return jnp.asarray(np.random.default_rng(1).normal(size=(FEATURES.size + 1) * LABELS), jnp.float32)


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(2)
    x = rng.integers(0, 256, (12, SIDE, SIDE)) * rng.integers(0, 2, (12, 1, 1))
    return x.astype(np.uint8), jax.nn.one_hot(rng.integers(0, LABELS, 12), LABELS)


def test_the_two_factors_of_a_record_make_its_clipped_slope(weights, images):
    """As real numbers, and up to the rounding of both factors as whole ones."""
    bound, (x, y), bits = 0.9, images, bits_for(FEATURES.size + 1, 12)
    seen, off = jax.jit(functools.partial(pairs, FEATURES, bound=bound))(weights, x=x, y=y)
    whole = [np.asarray(in_whole(part, each), np.int64) for part, each in ((seen, bits.seen), (off, bits.off))]
    lengths = []
    for row in range(len(x)):
        expected, length = clipped(weights, x[row] / 255, y[row], bound)
        lengths.append(length)
        np.testing.assert_allclose(np.outer(seen[row], off[row]).reshape(-1), expected, atol=1e-5)
        found = np.outer(whole[0][row], whole[1][row]).reshape(-1) / 2.0**bits.both * restored(bits)
        np.testing.assert_allclose(found, expected, atol=0.51 * (2.0**-bits.seen + 2.0**-bits.off))
    assert max(lengths) > 1 > min(lengths), "clipped or not: the test would not see both"


@pytest.mark.parametrize("bound", [0.3, 5.0])
def test_the_slope_of_generated_examples_is_the_mean_of_their_clipped_slopes(bound, weights):
    theta, key = jax.random.normal(jax.random.key(1), (GAN.generator_size,)), jax.random.key(7)
    found = generated_slope(GAN, FEATURES, weights, theta, 9, bound, key)
    x, y = made(GAN, theta, 9, key)
    slopes, lengths = zip(*(clipped(weights, *example, bound) for example in zip(x, y, strict=True)), strict=True)
    np.testing.assert_allclose(found, sum(slopes) / 9, atol=1e-5)
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
    found = np.asarray(in_whole(jnp.asarray(rows), bits), np.int64)
    assert (np.square(found).sum(axis=1) <= 4**bits).all()
    if length <= 1 and odd is None:
        assert np.abs(found - rows * (2**bits - 2)).max() < 1
    if length == 0.1 and odd is None:
        assert np.abs(found - rows * (2**bits - 2)).max() <= 0.5 + 1e-3


def test_bits_leave_room_for_the_sum_of_all_records():
    for size, count in ((1_297, 1), (1_297, 5_000), (1_297, 60_000), (12_961, 10**5), (97, 2**18)):
        bits = bits_for(size, count)
        assert count * 2**bits.both < 2**31
        assert size * 4**bits.seen < 2**31
        assert bits.at_once * 2**bits.both <= 2**24
    assert bits_for(1_297, 5_000) == Bits(10, 8)
    with pytest.raises(SpecError, match="do not add up"):
        bits_for(1_297, 2**20)
