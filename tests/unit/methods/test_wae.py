"""The networks, their losses against plain arithmetic, and the rows a decoder makes."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from populace.errors import DataError
from populace.methods.blocks.networks import Blocks, Decoder, count_parameters, unpack
from populace.methods.registry import load_generator
from populace.methods.wae.autoencoders import ClassAutoencoder, DenseAutoencoder, discrepancy
from populace.methods.wae.training import adam_update

SIZES = (3, 2, 1, 4)


def all_records():
    return np.array(list(itertools.product(*(range(size) for size in SIZES))), np.int32)


def test_blocks_one_place_for_binary_columns():
    blocks = Blocks(SIZES)
    assert blocks.widths == (3, 1, 1, 4)
    x = np.asarray(blocks.encode(np.array([[2, 1, 0, 3], [0, 0, 0, 0]])))
    assert x.tolist() == [[0, 0, 1, 1, 1, 0, 0, 0, 1], [1, 0, 0, 0, 1, 1, 0, 0, 0]]


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
def test_logits_far_apart_have_probabilities_and_gradients(scale):
    """A block far below another, and binary columns of any size."""
    blocks = Blocks((2, 5, 3, 2, 4))
    logits = scale * jax.random.normal(jax.random.key(0), (6, blocks.width))
    p = np.asarray(jax.jit(blocks.probabilities)(logits), np.float64)
    each = np.eye(len(blocks.sizes))[blocks.owner]
    np.testing.assert_allclose((p @ each)[:, [1, 2, 4]], 1.0, rtol=1e-5)
    np.testing.assert_allclose(p[:, 0], jax.nn.sigmoid(logits[:, 0]), rtol=1e-6)
    gradients = jax.jit(
        jax.grad(lambda logits: jnp.sum(blocks.probabilities(logits) ** 2) + jnp.sum(blocks.log_normaliser(logits)))
    )
    assert np.isfinite(np.asarray(gradients(logits))).all()


def test_probabilities_of_all_records_sum_to_one():
    blocks = Blocks(SIZES)
    logits = np.random.default_rng(0).normal(size=(5, blocks.width)).astype(np.float32) * 3
    scores = np.asarray(blocks.encode(all_records())) @ logits.T - np.asarray(blocks.log_normaliser(logits))
    np.testing.assert_allclose(np.exp(scores).sum(axis=0), 1, rtol=1e-4)
    p = np.asarray(blocks.probabilities(logits))
    np.testing.assert_allclose(p[:, :3].sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(p[:, 3], 1 / (1 + np.exp(-logits[:, 3])), rtol=1e-5)


def random_theta(net, seed=0):
    return np.random.default_rng(seed).normal(size=count_parameters(net.shapes)).astype(np.float32)


def with_fixed_target(net, theta):
    """Parameters as they occur: classes and effects do not touch the target's places."""
    parts = {name: np.asarray(value) for name, value in unpack(net.shapes, theta).items()}
    for name in ("classes", "effect"):
        parts[name] = parts[name] * net.free
    return np.concatenate([parts[name].ravel() for name, _ in net.shapes])


def log_probability(net, theta, code):
    """log P(record), by plain sums over classes and columns."""
    parts = {name: np.asarray(value, np.float64) for name, value in unpack(net.shapes, theta).items()}
    value = 0 if net.target is None else code[net.target]

    def chances(logits, column):
        places = np.flatnonzero(net.blocks.owner == column)
        own = np.array([0.0, logits[places[0]]]) if net.blocks.sizes[column] == 2 else logits[places]
        return np.exp(own) / np.exp(own).sum()

    shares = np.ones(1) if net.target is None else chances(parts["base"], net.target)
    effect = (np.eye(len(shares))[value, 1:] - shares[1:]) @ parts["effect"]
    weights = np.exp(parts["weights"][value]) / np.exp(parts["weights"][value]).sum()
    total = 0.0
    for k in range(net.classes):
        logits = parts["base"] + parts["classes"][k] + effect
        columns = [c for c in range(len(code)) if c != net.target]
        total += weights[k] * math.prod(chances(logits, c)[code[c]] for c in columns)
    return math.log(shares[value] * total)


@pytest.mark.parametrize("target", [None, 0, 1])
def test_classes_make_a_probability_and_the_decoder_has_the_same(target):
    net = ClassAutoencoder(Blocks(SIZES), classes=3, target=target)
    theta = with_fixed_target(net, random_theta(net))
    records = all_records()
    expected = np.array([math.exp(log_probability(net, theta, record)) for record in records])
    assert expected.sum() == pytest.approx(1, rel=1e-5)
    tables = jax.jit(net.tables)(theta)
    normaliser = jax.jit(net.blocks.log_normaliser)(tables["classes"])
    scores = jax.jit(net.blocks.encode)(records) @ tables["classes"].T - normaliser
    np.testing.assert_allclose(np.exp(scores) @ np.asarray(tables["chances"]), expected, atol=2e-6)


@pytest.mark.parametrize("target", [None, 0, 1])
def test_gradient_is_that_of_the_log_probability(target):
    """By differences, of every parameter a class's places, an effect or a weight has; scaled places undone."""
    net = ClassAutoencoder(Blocks(SIZES), classes=2, target=target)
    theta = with_fixed_target(net, random_theta(net, 1))
    codes = all_records()[[3, 17]]
    told = np.asarray(jax.jit(lambda theta: net.gradient(theta, *net.read(codes), np.ones(2)))(theta))
    width, small = net.blocks.width, 1e-4
    scales = np.asarray(net.scales(theta[:width]))
    assert len(told) == len(theta) - width
    per_place = np.concatenate([np.tile(scales, net.classes + net.outcomes - 1), np.ones(net.outcomes * net.classes)])
    for place in np.flatnonzero(per_place):
        moved = np.repeat(theta[None].astype(np.float64), 2, axis=0)
        moved[:, width + place] += (small, -small)
        up, down = (np.mean([log_probability(net, one, code) for code in codes]) for one in moved)
        assert told[place] / per_place[place] == pytest.approx((up - down) / (2 * small), abs=2e-3)
    assert not told[per_place == 0].any()


def test_gradients_leave_padding_out_and_nothing_gives_zero():
    net = ClassAutoencoder(Blocks(SIZES), classes=2, target=0)
    theta, codes = random_theta(net), all_records()[[3, 17]]
    x, value = net.read(codes)

    @jax.jit
    def first(x, value, mask):
        return net.base_gradient(theta[: net.blocks.width], x, mask)

    @jax.jit
    def later(x, value, mask):
        return net.gradient(theta, x, value, mask)

    for gradient in (first, later):
        alone = gradient(x[:1], value[:1], np.ones(1))
        np.testing.assert_allclose(gradient(x, value, np.array([1.0, 0.0])), alone, atol=1e-6)
        assert not np.asarray(gradient(x, value, np.zeros(2))).any()


def test_information_is_how_the_mean_gradient_falls():
    """With classes alike it is exact for weights apart, and for places: the diagonal of the curvature."""
    net = ClassAutoencoder(Blocks((2, 2, 3)), classes=1, target=0)
    theta = np.array(net.start(jax.random.key(0))) * 0
    theta[:5] = (0.4, -0.7, 0.1, 0.5, -0.2)
    codes = np.array(list(itertools.product(range(2), range(2), range(3))), np.int32)
    chances = np.exp([log_probability(net, theta, code) for code in codes])

    gradient = jax.jit(lambda where, code: net.gradient(where, *net.read(code), np.ones(1)))

    def mean_gradient(where):
        return sum(c * np.asarray(gradient(where, code[None])) for c, code in zip(chances, codes, strict=True))

    information = np.asarray(jax.jit(net.information)(theta))
    for place in (1, 2, 3, 4, 6, 7, 9):  # of the class, and of the effect
        moved = theta.copy()
        moved[5 + place] += 0.01
        fall = (mean_gradient(theta) - mean_gradient(moved))[place] / 0.01
        assert fall == pytest.approx(information[place], rel=0.03)


@pytest.mark.parametrize("target", [None, 0, 1])
def test_parameters_of_tables_make_the_same_rows(target):
    net = ClassAutoencoder(Blocks(SIZES), classes=3, target=target)
    tables_of, probabilities = jax.jit(net.tables), jax.jit(net.blocks.probabilities)
    tables = tables_of(with_fixed_target(net, 0.5 * random_theta(net)))
    again = tables_of(net.parameters_of(tables))
    np.testing.assert_allclose(again["chances"], tables["chances"], atol=2e-3)
    for one, other in zip(probabilities(again["classes"]), probabilities(tables["classes"]), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)
    with pytest.raises(DataError, match="classes to start from"):
        ClassAutoencoder(Blocks(SIZES), classes=4, target=target).parameters_of(tables)


def test_estimated_shares_become_logits_even_where_they_are_negative():
    net = ClassAutoencoder(Blocks((2, 3)), classes=1)
    base = net.base_of(np.array([-0.1, 0.2, 0.9, -0.1], np.float32))
    p = np.asarray(net.blocks.probabilities(base))
    assert p[0] == pytest.approx(0.003, rel=1e-3)
    assert p[1:].sum() == pytest.approx(1, abs=1e-5)
    assert p[2] / p[1] == pytest.approx(4.5, rel=1e-3)


@pytest.mark.slow
def test_published_network_has_the_printed_structures_parameters():
    """Table 2 prints 16,060, which leaves the latent layers out; with them it is 18,188."""
    net = DenseAutoencoder(Blocks((2,) * 124), hidden=64, latent=16)
    assert count_parameters(net.shapes) == 18_188
    x = net.blocks.encode(np.zeros((2, 124), np.int32))
    theta, prior = net.start(jax.random.key(0)), jax.random.normal(jax.random.key(1), (2, 16))
    assert np.isfinite(float(net.loss(theta, x, np.ones(2), prior)))
    assert not np.asarray(jax.grad(net.loss)(theta, x, np.zeros(2), prior)).any()


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
    rng = np.random.default_rng(seed)
    return {"classes": rng.normal(size=(2, width)).astype(np.float32) * 2, "chances": np.array([0.8, 0.2], np.float32)}


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
    each = np.asarray(blocks.probabilities(decoder.layers["classes"]))
    expected = decoder.layers["chances"] @ each
    assert np.abs(found - expected).max() < 0.015
    assert np.abs(found - each.mean(axis=0)).max() > 0.05


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


@pytest.mark.parametrize(("records", "there"), [(1, 1), (2, 2), (2, 1), (5, 4)])
def test_training_one_row_for_all_places_alike_is_adam_on_all_parameters(records, there):
    """Whether places share kinds (1 and 2 records: at most four kinds of six places) or are all of their own (5 records)."""
    net = DenseAutoencoder(Blocks((2, 3, 2, 2)), hidden=4, latent=2)
    theta, key = net.start(jax.random.key(0)), jax.random.key(1)
    mask = (np.arange(records) < there).astype(np.float32)
    x = net.blocks.encode(np.random.default_rng(3).integers(0, 2, (records, 4))) * mask[:, None]
    now, mean, square = theta, 0.0, 0.0
    for number in range(4):
        prior = jax.random.normal(jax.random.fold_in(key, number), (records, 2))
        slope = jax.grad(net.loss)(now, x, mask, prior)
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        step = mean / (1 - 0.9 ** (number + 1)) / (np.sqrt(square / (1 - 0.999 ** (number + 1))) + 1e-8)
        now = now - 0.01 * step
    change = adam_update(net, theta, x, mask, key, epochs=4, learning_rate=0.01)
    assert np.abs(np.asarray(now - theta)).max() > 0.02
    np.testing.assert_allclose(change, now - theta, atol=2e-6)
