"""The networks: shapes, one example alone as among others, equation 1 as it is written, decoders on disk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from populace.errors import DataError
from populace.methods.blocks.networks import Blocks
from populace.methods.blocks.vae_generator import VaeImages
from populace.methods.blocks.vae_networks import NETS, BasisVae, LargeVae, RowsVae, SmallVae
from populace.methods.registry import load_generator

GREY, COLOUR = (6, 5), (5, 6, 3)
BLOCKS = Blocks((3, 2, 4))


def network(name, shape=GREY):
    if name == "rows":
        return RowsVae(shape=(BLOCKS.width,), classes=0, latent=2, width=3, blocks=BLOCKS)
    return NETS[name](shape=shape, classes=3, latent=2, width=2)


def examples(vae, count, seed=0):
    rng = np.random.default_rng(seed)
    if isinstance(vae, RowsVae):
        return vae.read(np.stack([rng.integers(0, size, count) for size in BLOCKS.sizes], axis=1).astype(np.int32))
    pixels = rng.integers(0, 256, (count, *vae.shape)).astype(np.uint8)
    return vae.read({"x": pixels, "y": rng.integers(0, 3, count)})


@pytest.mark.parametrize(("name", "shape"), [("small", COLOUR), ("large", GREY), ("basis", COLOUR), ("rows", ())])
def test_an_examples_loss_does_not_depend_on_the_others(name, shape):
    """What clipping by example needs: nothing couples the examples of a batch. Odd sides, grey and in colour."""
    vae = network(name, shape)
    phi, theta = vae.start(jax.random.key(0))
    assert (phi.shape, theta.shape) == ((vae.encoder_size,), (vae.decoder_size,))
    (x, y), (others, labels) = examples(vae, 3), examples(vae, 3, seed=1)
    assert x.shape == (3, *vae.shape)
    noise = jax.random.normal(jax.random.key(1), (3, vae.latent))
    losses = jax.jit(vae.losses)
    before = losses(phi, theta, x, y, noise)
    after = losses(phi, theta, x.at[1:].set(others[1:]), y.at[1:].set(labels[1:]), 2 * noise.at[0].divide(2))
    assert float(before[0]) == pytest.approx(float(after[0]), rel=1e-6)
    assert abs(float(before[1] - after[1])) > 1e-6


def test_the_loss_is_equation_one():
    vae = BasisVae(shape=GREY, classes=3, latent=2, width=3, beta=0.3)
    phi, theta = vae.start(jax.random.key(0))
    x, y = examples(vae, 4)
    noise = np.asarray(jax.random.normal(jax.random.key(1), (4, 2)))
    mean, log_variance = map(np.asarray, vae.encode(phi, x, y))
    z = mean + np.exp(log_variance / 2) * noise
    p = 1 / (1 + np.exp(-np.asarray(vae.decode(theta, jnp.asarray(z), y), np.float64)))
    x = np.asarray(x, np.float64)
    entropy = -(x * np.log(p) + (1 - x) * np.log(1 - p)).mean(axis=(1, 2))
    divergence = 0.5 * (np.exp(log_variance) + mean**2 - 1 - log_variance).sum(axis=1)
    np.testing.assert_allclose(vae.losses(phi, theta, x, y, noise), entropy + 0.3 * divergence, rtol=1e-4)


def test_the_loss_of_a_row_is_its_columns_log_probability():
    vae = network("rows")
    x, _ = examples(vae, 4)
    logits = np.random.default_rng(1).normal(0, 1, x.shape)
    wanted, at = np.zeros(4), 0
    for size in BLOCKS.sizes:  # a binary column has one place, the logit of its second value
        width = 1 if size == 2 else size
        part, seen = logits[:, at : at + width], np.asarray(x)[:, at : at + width]
        choices = np.concatenate([np.zeros((4, 1)), part], axis=1) if size == 2 else part
        wanted += (np.log(np.exp(choices).sum(axis=1)) - (part * seen).sum(axis=1)) / 3
        at += width
    np.testing.assert_allclose(vae.reconstruction(jnp.asarray(logits, jnp.float32), x), wanted, rtol=1e-4)


def test_codes_that_the_encoder_finds_likely_are_missed_least():
    """-log q up to a constant, so that the encoder's own mean is the best code; log-variances stay within bounds."""
    vae = network("basis")
    phi, _ = vae.start(jax.random.key(0))
    x, y = examples(vae, 2)
    mean, log_variance = vae.encode(phi, x, y)
    at_mean = vae.code_losses(phi, x, y, mean)
    np.testing.assert_allclose(at_mean, 0.5 * np.sum(log_variance, axis=1), rtol=1e-4, atol=1e-6)
    assert (vae.code_losses(phi, x, y, mean + 1) > at_mean).all()
    assert np.abs(np.asarray(vae.encode(1e3 * phi, x, y)[1])).max() <= 10


def test_sizes_of_the_papers_networks():
    """Figures 9 and 10 for MNIST's shape: the label enters both halves."""
    small = SmallVae(shape=(28, 28), classes=10)
    assert dict(small.encoder_shapes)["code"] == (7 * 7 * 32 + 10, 16)
    assert dict(small.decoder_shapes)["up"] == (8 + 10, 7 * 7 * 32)
    large = LargeVae(shape=(28, 28), classes=10)
    assert large.depths == (32, 64, 128, 256, 512)
    assert large.grid == (2, 2, 512)


@pytest.mark.parametrize("name", list(NETS))
def test_a_decoder_survives_its_file(name, tmp_path):
    vae = network(name)
    generator = VaeImages(vae=vae, theta=np.asarray(vae.start(jax.random.key(0))[1]))
    generator.save(tmp_path)
    again = load_generator(tmp_path)
    assert isinstance(again, VaeImages)
    assert again.vae == vae
    np.testing.assert_array_equal(again.theta, generator.theta)


def test_decoders_that_do_not_fit_or_did_not_train_are_refused():
    vae = network("basis")
    theta = np.zeros(vae.decoder_size, np.float32)
    with pytest.raises(DataError, match="expected a decoder of"):
        VaeImages(vae=vae, theta=theta[1:])
    with pytest.raises(DataError, match="not finite"):
        VaeImages(vae=vae, theta=np.full_like(theta, np.nan))
    with pytest.raises(DataError, match="does not describe a decoder"):
        VaeImages.from_arrays((2, 2), 2, {"theta": theta, "design": np.frombuffer(b'{"net": "huge"}', np.uint8)})
