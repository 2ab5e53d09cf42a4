"""Training of the halves: sums over Poisson batches of any size, padding that counts for nothing, sleep without records."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from populace.models.steps import Examples, drawn_at_once, fresh, total_of
from populace.models.vae import BasisVae
from populace.models.vae_training import fit, mean_loss, train_asleep, train_at_client

VAE = BasisVae(shape=(4, 4), classes=2, latent=2, width=4)
ROWS, AT_ONCE = 7, 3
VALUES = np.random.default_rng(0).integers(-100, 100, (ROWS, 2)).astype(np.int32)


@jax.jit
def total(drawn):
    return total_of(lambda row: (jnp.asarray(VALUES)[row], row + 0.5), drawn, AT_ONCE)


@pytest.mark.parametrize("count", range(ROWS + 1))
def test_a_sum_counts_every_row_drawn_once_however_many_they_are(count):
    """None, one, as many as are computed at once, more, all: never cut off, never twice."""
    drawn = np.zeros(ROWS, bool)
    drawn[np.random.default_rng(count).permutation(ROWS)[:count]] = True
    vectors, numbers = total(drawn)
    assert vectors.dtype == jnp.int32
    np.testing.assert_array_equal(vectors, sum((VALUES[row] for row in np.flatnonzero(drawn)), np.zeros(2)))
    assert float(numbers) == sum(row + 0.5 for row in np.flatnonzero(drawn))


@pytest.mark.parametrize(("rows", "probability"), [(1, 1.0), (600, 0.05), (600, 1.0), (20, 1e-6)])
def test_few_batches_take_a_second_pass_and_none_more_rows_than_there_are(rows, probability):
    at_once = drawn_at_once(rows, probability)
    assert 1 <= at_once <= rows
    drawn = np.random.default_rng(0).binomial(rows, probability, 10_000)
    assert (drawn > at_once).mean() < 1e-3


def client(rows=4, there=3):
    rng = np.random.default_rng(1)
    x, y = VAE.read({"x": rng.integers(0, 256, (rows, 4, 4)), "y": rng.integers(0, 2, rows)})
    return Examples(x, y, jnp.arange(rows) < there)


@jax.jit
def trained(examples, key):
    phi, theta = VAE.start(jax.random.key(0))
    encoder, after = train_at_client(VAE, fresh(phi, 0.01), theta, examples, key, epochs=2, batch=4, rate=0.01)
    return encoder.values, after, theta


def test_what_is_padding_does_not_matter_and_a_client_without_records_sends_no_change():
    whole = client()
    other = Examples(whole.x.at[3].set(0.5), whole.y.at[3].set(0.0), whole.mask)
    key = jax.random.key(2)
    for found, wanted in zip(trained(whole, key), trained(other, key), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert not np.array_equal(trained(whole, key)[0], trained(client(there=4), key)[0])
    _, after, theta = trained(client(there=0), key)
    np.testing.assert_array_equal(after, theta)


def test_asleep_the_encoder_learns_the_codes_of_the_decoders_samples():
    phi, theta = VAE.start(jax.random.key(0))
    y, z = VAE.labels(jnp.arange(40) % 2), jax.random.normal(jax.random.key(1), (40, 2))
    x = VAE.means(VAE.decode(theta, z, y))
    after = jax.jit(lambda half: train_asleep(VAE, half, theta, jax.random.key(2), steps=60, rate=0.02))(
        fresh(phi, 0.02)
    )
    before, later = (float(VAE.misses(each, x, y, z).mean()) for each in (phi, after.values))
    assert later < before - 0.05


def test_fitting_lowers_the_loss():
    phi, theta = VAE.start(jax.random.key(0))
    records = {"x": np.random.default_rng(0).integers(0, 2, (6, 4, 4)) * 255, "y": np.arange(6) % 2}
    after = fit(VAE, phi, theta, jax.tree.map(jnp.asarray, records), 6, jax.random.key(1), steps=30, rate=0.02)
    examples = Examples(*VAE.read(records), jnp.ones(6, bool))
    noise = jax.random.normal(jax.random.key(2), (6, 2))
    assert mean_loss(VAE, *after, examples, noise) < mean_loss(VAE, phi, theta, examples, noise) - 0.02
