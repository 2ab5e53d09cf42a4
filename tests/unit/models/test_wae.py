"""The networks, their losses against plain arithmetic, and the rows a decoder makes."""

import itertools
import math

import jax
import numpy as np
import pytest

from populace.errors import DataError
from populace.models.generator import load_generator
from populace.models.wae import Blocks, ClassAutoencoder, Decoder, DenseAutoencoder, count_parameters, discrepancy

SIZES = (3, 2, 1, 4)


def all_records():
    return np.array(list(itertools.product(*(range(size) for size in SIZES))), np.int32)


def test_blocks_one_place_for_binary_columns():
    blocks = Blocks(SIZES)
    assert blocks.widths == (3, 1, 1, 4)
    x = np.asarray(blocks.encode(np.array([[2, 1, 0, 3], [0, 0, 0, 0]])))
    assert x.tolist() == [[0, 0, 1, 1, 1, 0, 0, 0, 1], [1, 0, 0, 0, 1, 1, 0, 0, 0]]


def test_probabilities_of_all_records_sum_to_one():
    blocks = Blocks(SIZES)
    logits = np.random.default_rng(0).normal(size=(5, blocks.width)).astype(np.float32) * 3
    scores = np.asarray(blocks.encode(all_records())) @ logits.T - np.asarray(blocks.log_normaliser(logits))
    np.testing.assert_allclose(np.exp(scores).sum(axis=0), 1, rtol=1e-4)
    p = np.asarray(blocks.probabilities(logits))
    np.testing.assert_allclose(p[:, :3].sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(p[:, 3], 1 / (1 + np.exp(-logits[:, 3])), rtol=1e-5)


def test_class_loss_is_minus_log_probability_and_leaves_padding_out():
    net = ClassAutoencoder(Blocks(SIZES), classes=3)
    theta = net.start(jax.random.key(0))
    x = net.blocks.encode(all_records())
    total = sum(math.exp(-float(net.loss(theta, x[i : i + 1], np.ones(1)))) for i in range(len(x)))
    assert total == pytest.approx(1, rel=1e-4)
    alone = float(net.loss(theta, x[:1], np.ones(1)))
    assert float(net.loss(theta, x[:2], np.array([1.0, 0.0]))) == pytest.approx(alone, rel=1e-5)
    empty = jax.grad(net.loss)(theta, x[:2], np.zeros(2))
    assert not np.asarray(empty).any()


def test_published_network_has_the_printed_structures_parameters():
    """Table 2 prints 16,060, which leaves the latent layers out; with them it is 18,188."""
    net = DenseAutoencoder(Blocks((2,) * 124), hidden=64, latent=16)
    assert count_parameters(net.shapes) == 18_188
    x = net.blocks.encode(np.zeros((2, 124), np.int32))
    theta = net.start(jax.random.key(0))
    assert np.isfinite(float(net.loss(theta, x, np.ones(2), jax.random.key(1))))
    assert not np.asarray(jax.grad(net.loss)(theta, x, np.zeros(2), jax.random.key(1))).any()


def test_discrepancy_is_equation_4():
    rng = np.random.default_rng(0)
    p, q = rng.normal(size=(3, 2)).astype(np.float32), rng.normal(size=(3, 2)).astype(np.float32)

    def kernel(a, b):
        return 4 / (4 + ((a - b) ** 2).sum())

    n = 3
    within = sum(kernel(p[i], p[j]) + kernel(q[i], q[j]) for i in range(n) for j in range(n) if i != j)
    across = sum(kernel(a, b) for a in p for b in q)
    expected = within / (n * (n - 1)) - 2 * across / n**2
    assert float(discrepancy(p, q, np.ones(3))) == pytest.approx(expected, rel=1e-5)


def classes_of(schema, seed=0):
    width = Blocks(schema.sizes).width
    return {"classes": np.random.default_rng(seed).normal(size=(2, width)).astype(np.float32) * 2}


def dense_of(schema, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {
        "up": (3, 5),
        "up_bias": (5,),
        "out": (5, Blocks(schema.sizes).width),
        "out_bias": (Blocks(schema.sizes).width,),
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_sampled_shares_are_the_decoders(small_schema):
    decoder = Decoder(schema=small_schema, layers=classes_of(small_schema))
    blocks = Blocks(small_schema.sizes)
    codes = decoder.sample_codes(40_000, jax.random.key(0), {})
    found = np.asarray(blocks.encode(codes)).mean(axis=0)
    expected = np.asarray(blocks.probabilities(decoder.layers["classes"])).mean(axis=0)
    assert np.abs(found - expected).max() < 0.015
    assert np.abs(found - expected[::-1]).max() > 0.05


@pytest.mark.parametrize("arg_max", [False, True])
def test_conditions_change_the_other_columns_as_bayes_says(small_schema, arg_max):
    decoder = Decoder(schema=small_schema, layers=dense_of(small_schema), arg_max=arg_max)
    free = decoder.sample_codes(60_000, jax.random.key(1), {})
    code = int(np.bincount(free[:, 0]).argmax())
    given = decoder.sample_codes(20_000, jax.random.key(2), {0: code})
    assert (given[:, 0] == code).all()
    expected = np.bincount(free[free[:, 0] == code, 1], minlength=6) / (free[:, 0] == code).sum()
    assert np.abs(np.bincount(given[:, 1], minlength=6) / len(given) - expected).max() < 0.03


def test_save_and_load_without_pickle(small_schema, tmp_path):
    for layers, arg_max in ((classes_of(small_schema), False), (dense_of(small_schema), True)):
        decoder = Decoder(schema=small_schema, layers=layers, arg_max=arg_max)
        decoder.save(tmp_path)
        again = load_generator(tmp_path)
        assert again.arg_max == arg_max
        first, second = (one.sample(50, jax.random.key(0)) for one in (decoder, again))
        np.testing.assert_array_equal(first.codes, second.codes)


def test_a_decoder_that_does_not_fit_or_is_not_finite_is_refused(small_schema):
    with pytest.raises(DataError, match="outputs"):
        Decoder(schema=small_schema, layers={"classes": np.zeros((2, 3))})
    with pytest.raises(DataError, match="not finite"):
        Decoder(schema=small_schema, layers={"classes": np.full((2, Blocks(small_schema.sizes).width), np.nan)})
