"""Training of the halves: sums over Poisson batches of any size, padding that counts for nothing, sleep without records."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from populace.methods.blocks.dp_sgd import Examples, examples_at_once, start_training, sum_over_batch
from populace.methods.blocks.vae_generator import CodeLaw, make_standard_law
from populace.methods.blocks.vae_networks import BasisVae
from populace.methods.vae.training import fit, mean_loss, measure_codes, train_at_client, train_on_own_samples

VAE = BasisVae(shape=(4, 4), classes=2, latent=2, width=4)
ROWS, AT_ONCE = 7, 3
VALUES = np.random.default_rng(0).integers(-100, 100, (ROWS, 2)).astype(np.int32)


@jax.jit
def total(drawn):
    return sum_over_batch(lambda row: (jnp.asarray(VALUES)[row], row + 0.5), drawn, AT_ONCE)


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
    at_once = examples_at_once(rows, probability)
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
    encoder, after = train_at_client(
        VAE, start_training(phi, 0.01), theta, examples, key, epochs=2, batch_size=4, learning_rate=0.01
    )
    return encoder.parameters, after, theta


def test_what_is_padding_does_not_matter_and_a_client_without_records_sends_no_change():
    whole = client()
    other = Examples(whole.x.at[3].set(0.5), whole.y.at[3].set(0.0), whole.mask)
    key = jax.random.key(2)
    for found, wanted in zip(trained(whole, key), trained(other, key), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert not np.array_equal(trained(whole, key)[0], trained(client(there=4), key)[0])
    _, after, theta = trained(client(there=0), key)
    np.testing.assert_array_equal(after, theta)


STANDARD = make_standard_law(2, 2)
FAR = CodeLaw(means=jnp.asarray([[2.0, 0.0], [-2.0, 1.0]]), roots=0.3 * STANDARD.roots)


@jax.jit
def asleep(phi, theta, law):
    return train_on_own_samples(
        VAE, start_training(phi, 0.02), theta, law, jax.random.key(2), steps=60, learning_rate=0.02
    ).parameters


@pytest.mark.slow
@pytest.mark.parametrize("law", [STANDARD, FAR], ids=["standard", "elsewhere"])
def test_asleep_the_encoder_learns_the_codes_of_the_decoders_samples(law):
    """Of those that lie where its codes do: trained on the others it knows them less well."""
    phi, theta = VAE.start(jax.random.key(0))
    labels = jnp.arange(40) % 2
    z = law.draw(labels, jax.random.normal(jax.random.key(1), (40, 2)))
    x, y = VAE.means(VAE.decode(theta, z, VAE.labels(labels))), VAE.labels(labels)
    other = STANDARD if law is FAR else FAR
    before, wrong, later = (
        float(VAE.code_losses(each, x, y, z).mean())
        for each in (phi, asleep(phi, theta, other), asleep(phi, theta, law))
    )
    assert later < min(before, wrong) - 0.05


def test_codes_are_measured_of_every_record_once_and_by_class(monkeypatch):
    """In pieces of one size, of which the last is filled up with records that must not count."""
    monkeypatch.setattr("populace.methods.vae.training.CODED_AT_ONCE", 4)
    phi, key = VAE.start(jax.random.key(0))[0], jax.random.key(1)
    rng = np.random.default_rng(0)
    records = {"x": jnp.asarray(rng.integers(0, 256, (9, 4, 4))), "y": jnp.asarray(np.arange(9) % 3 % 2)}
    found = measure_codes(VAE, phi, records, key)
    noise = np.concatenate([jax.random.normal(jax.random.fold_in(key, at), (4, 2)) for at in (0, 4, 8)])[:9]
    z = np.asarray(VAE.codes(phi, *VAE.read(records), noise)[0])
    for label in range(2):
        some = z[np.asarray(records["y"]) == label]
        np.testing.assert_allclose(found.means[label], some.mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(found.roots[label] @ found.roots[label].T, np.cov(some.T), atol=1e-5)


def test_fitting_lowers_the_loss():
    phi, theta = VAE.start(jax.random.key(0))
    records = {"x": np.random.default_rng(0).integers(0, 2, (6, 4, 4)) * 255, "y": np.arange(6) % 2}
    after = fit(VAE, phi, theta, jax.tree.map(jnp.asarray, records), 6, jax.random.key(1), steps=30, learning_rate=0.02)
    examples = Examples(*VAE.read(records), jnp.ones(6, bool))
    noise = jax.random.normal(jax.random.key(2), (6, 2))
    assert mean_loss(VAE, *after, examples, noise) < mean_loss(VAE, phi, theta, examples, noise) - 0.02
