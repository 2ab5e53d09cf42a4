"""What the methods that train networks share."""

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.base import Population
from populace.methods.blocks.vae_generator import CodeLaw, generator_of
from populace.methods.vae.fed_vae import FedVae


def test_rows_take_the_law_of_their_codes_into_the_first_layer(small_schema):
    population = Population(schema=small_schema, clients=2, records=2)
    vae = FedVae(rounds=1, hidden_size=3, latent_size=2).vae(population)
    theta = vae.start(jax.random.key(0))[1] + 0.1
    law = CodeLaw(means=jnp.asarray([[2.0, -1.0]]), roots=jnp.asarray([[[1.0, 0.6], [-0.2, 0.7]]]))
    layers = generator_of(vae, theta, population, law).layers
    noise = np.asarray(jax.random.normal(jax.random.key(1), (8, 2)))
    found = np.maximum(noise @ layers["up"] + layers["up_bias"], 0) @ layers["out"] + layers["out_bias"]
    z = law.draw(jnp.zeros(8, int), jnp.asarray(noise))
    np.testing.assert_allclose(found, vae.decode(theta, z, jnp.zeros((8, 0))), atol=1e-5)
    assert np.abs(found - np.asarray(vae.decode(theta, jnp.asarray(noise), jnp.zeros((8, 0))))).max() > 0.1
