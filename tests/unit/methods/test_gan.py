"""GANs: shapes, the critic's loss with its penalty, groups of parameters, labels, and steps that see what they should."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from builders import mark_slow
from populace.methods.blocks.dp_sgd import Examples, start_training
from populace.methods.blocks.gan_networks import ConvGan, DenseGan
from populace.methods.blocks.gan_training import (
    draw_labels,
    generator_step,
    mean_clipped_gradient,
    replay_examples,
    row_gradient,
)
from populace.methods.blocks.networks import Blocks
from populace.methods.blocks.vae_networks import BasisVae, RowsVae, SmallVae

BLOCKS = Blocks((3, 2, 4))
GANS = {
    "basis": DenseGan(generator=BasisVae(shape=(5, 4), classes=3, latent=2, width=4, waves=3), hidden_size=4),
    "conv": ConvGan(generator=SmallVae(shape=(5, 4), classes=3, latent=2, width=2), hidden_size=2),
    "colour": ConvGan(generator=SmallVae(shape=(4, 4, 3), classes=2, latent=2, width=2), hidden_size=2),
    "alone": DenseGan(generator=BasisVae(shape=(5, 4), classes=1, latent=2, width=4, waves=3), hidden_size=4),
    "rows": DenseGan(
        generator=RowsVae(shape=(BLOCKS.width,), classes=0, latent=2, width=4, blocks=BLOCKS), hidden_size=4
    ),
}


def examples(gan, count=5, seed=0):
    rng = np.random.default_rng(seed)
    if isinstance(gan.generator, RowsVae):
        records = np.stack([rng.integers(0, size, count) for size in BLOCKS.sizes], axis=1)
    else:
        records = {
            "x": rng.integers(0, 256, (count, *gan.generator.shape)),
            "y": rng.integers(0, 3, count) % gan.generator.classes,
        }
    return jax.jit(gan.read)(jax.tree.map(jnp.asarray, records), jnp.ones(count, bool))


# Compiled, as the methods call them: one operation after the other takes many compilations.
start = jax.jit(lambda gan, seed: gan.start(jax.random.key(seed)), static_argnums=0)
score = jax.jit(lambda gan, omega, x, y: gan.score(gan.arrays(omega), x, y), static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def gradient_of_row(gan, omega, theta, seen, key, row):
    return gan.flatten(row_gradient(gan, omega, theta, seen, key)(row))


@pytest.fixture(params=GANS)
def gan(request):
    return GANS[request.param]


def test_what_is_made_is_seen_in_the_same_shape_as_what_is_real(gan):
    omega, theta = start(gan, 0)
    seen = examples(gan)
    made = jax.jit(gan.generate)(theta, jnp.ones((5, 2)), seen.y)
    assert made.shape == seen.x.shape
    assert score(gan, omega, made, seen.y).shape == (5,)
    assert (omega.shape, theta.shape) == ((gan.critic_size,), (gan.generator_size,))


def test_the_loss_is_that_of_the_paper_with_the_gradient_of_the_score_by_differences():
    gan = GANS["basis"]
    omega, _ = start(gan, 1)
    omega = omega * 3
    seen = examples(gan)
    real, made, y, place = seen.x[0], seen.x[1], seen.y[0], 0.3
    between = np.asarray(place * real + (1 - place) * made, np.float64)

    def score_at(x):
        return float(score(gan, omega, np.asarray(x, np.float32)[None], y[None])[0])

    step = 1e-2
    sides = [(score_at(between + step * e), score_at(between - step * e)) for e in np.eye(len(between))]
    gradient = [(up - down) / (2 * step) for up, down in sides]
    expected = score_at(made) - score_at(real) + 10 * (np.linalg.norm(gradient) - 1) ** 2
    loss = jax.jit(lambda omega: gan.loss_of_one(gan.arrays(omega), real, made, y, place))(omega)
    assert float(loss) == pytest.approx(expected, rel=2e-2)


def test_the_waves_are_no_longer_than_the_image_so_the_penalty_means_the_same():
    gan = GANS["basis"]
    x = jax.random.uniform(jax.random.key(0), (4, 5, 4))
    assert (jnp.linalg.norm(gan.features(x), axis=1) <= jnp.linalg.norm(x.reshape(4, -1), axis=1) + 1e-5).all()


def test_labels_change_the_score_where_there_are_several_and_not_where_there_is_one():
    for name, matters in (("basis", True), ("conv", True), ("alone", False)):
        gan = GANS[name]
        omega, _ = start(gan, 2)
        seen = examples(gan)
        other = jnp.roll(seen.y, 1, axis=1)
        changed = (score(gan, omega, seen.x, seen.y) != score(gan, omega, seen.x, other)).any()
        assert changed == matters, name


def test_a_gan_without_labels_reads_every_record_as_the_one_class():
    gan = GANS["alone"]
    read = gan.read({"x": jnp.zeros((3, 5, 4)), "y": jnp.array([0, 7, 2])}, jnp.ones(3, bool))
    assert (read.y == 1).all()


def test_groups_are_the_units_parameters_lead_to(gan):
    groups = gan.groups()
    assert groups.shape == (gan.critic_size,)
    assert sorted(set(groups.tolist())) == list(range(groups.max() + 1))
    name, shape = gan.critic_shapes[0]
    first = groups[: shape[0] * shape[1]].reshape(shape)
    assert name == "in"
    assert (first == np.arange(shape[1])).all()


@pytest.mark.parametrize("gan", mark_slow(GANS, ("conv", "colour")), indirect=True)
def test_a_row_s_gradient_depends_on_no_other_row(gan):
    omega, theta = start(gan, 3)
    seen, key = examples(gan), jax.random.key(4)
    other = Examples(seen.x.at[1:].multiply(0.3), seen.y, seen.mask)
    one, two = (gradient_of_row(gan, omega, theta, each, key, 0) for each in (seen, other))
    np.testing.assert_array_equal(one, two)

    @jax.jit
    def alone(omega, theta, seen):
        codes, places = jax.random.split(jax.random.fold_in(key, 0))
        fake = gan.generate(theta, jax.random.normal(codes, (1, 2)), seen.y[:1])[0]
        place = jax.random.uniform(places)
        return gan.flatten(jax.grad(gan.loss_of_one)(gan.arrays(omega), seen.x[0], fake, seen.y[0], place))

    np.testing.assert_allclose(one, alone(omega, theta, seen), atol=1e-6)


def test_the_mean_over_samples_is_of_gradients_clipped_one_by_one():
    gan = GANS["basis"]
    omega, theta = start(gan, 5)
    seen, key, bound = examples(gan), jax.random.key(6), 0.7
    expected = np.zeros(gan.critic_size)
    for row in range(5):
        gradient = np.asarray(gradient_of_row(gan, omega, theta, seen, key, row), np.float64) / bound
        expected += gradient / max(1, np.linalg.norm(gradient)) / 5
    found = jax.jit(mean_clipped_gradient, static_argnums=(0, 5))(gan, omega, theta, seen, key, bound)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_labels_come_by_their_shares():
    y = draw_labels(GANS["basis"].generator, jnp.array([0.0, 0.25, 0.75]), 4000, jax.random.key(0))
    assert np.asarray(y.mean(axis=0)) == pytest.approx([0, 0.25, 0.75], abs=0.03)
    assert draw_labels(GANS["rows"].generator, jnp.ones(1), 4, jax.random.key(0)).shape == (4, 0)


def test_replayed_examples_are_the_generator_s(gan):
    _, theta = start(gan, 7)
    replay = jax.jit(replay_examples, static_argnums=(0, 3))
    again = replay(gan, theta, jnp.ones(max(1, gan.generator.classes)), 6, jax.random.key(8))
    assert len(again.x) == len(again.y) == 6
    assert again.mask.all()
    other = replay(gan, 2 * theta, jnp.ones(max(1, gan.generator.classes)), 6, jax.random.key(8))
    assert (again.x != other.x).any()


@pytest.mark.parametrize("gan", mark_slow(GANS, ("conv", "colour", "rows")), indirect=True)
def test_a_step_of_the_generator_raises_its_score(gan):
    omega, theta = start(gan, 9)
    generator, shares = start_training(theta, 1e-3, (0.5, 0.9)), jnp.ones(max(1, gan.generator.classes))
    labels, codes = jax.random.split(jax.random.key(10))
    z, y = jax.random.normal(codes, (32, 2)), draw_labels(gan.generator, shares, 32, labels)
    step = jax.jit(generator_step, static_argnums=(0, 4, 6))
    after = step(gan, generator, omega, shares, 32, jax.random.key(10), 1e-3)
    loss = jax.jit(gan.generator_loss)
    assert loss(after.parameters, omega, z, y) < loss(theta, omega, z, y)
