"""Where a VAE's codes lie: a normal distribution for each class; the standard one where nothing else is known.

An encoder that is held to the standard normal only weakly (a small beta) puts its codes elsewhere, and a decoder fed from the
standard normal then makes what it never learned. So the codes of examples that may be seen are measured after training, and
codes are drawn as they were found (Ghosh et al. 2020, section 4).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Codes:
    """Per class, of which a model without labels has one: a mean [classes, latent] and a root of the covariance."""

    means: Array
    roots: Array

    def drawn(self, labels: Array, noise: Array) -> Array:
        """Codes of these labels from standard normal `noise`, [n, latent]; with the standard distribution the noise itself."""

        def add(total: Array, item: tuple[Array, Array, Array]) -> tuple[Array, None]:
            label, mean, root = item
            of_class = mean + jnp.matmul(noise, root.T, precision="highest")
            return total + jnp.where((labels == label)[:, None], of_class, 0), None

        # One class after the other: a root for every example would not fit.
        numbers = jnp.arange(len(self.means))
        return jax.lax.scan(add, jnp.zeros_like(noise), (numbers, self.means, self.roots))[0]


def standard(classes: int, latent: int) -> Codes:
    """Standard normal in every class."""
    rows = max(1, classes)
    return Codes(means=jnp.zeros((rows, latent)), roots=jnp.tile(jnp.eye(latent), (rows, 1, 1)))


def codes_found(z: Array, labels: Array, classes: int) -> Codes:
    """What is measured of codes [n, latent]; a class of fewer than two keeps the standard distribution."""
    z = np.asarray(z, np.float64)
    labels = np.asarray(labels) if classes > 1 else np.zeros(len(z), int)
    means, roots = (np.array(part, np.float64) for part in dataclasses.astuple(standard(classes, z.shape[1])))
    for label in range(len(means)):
        some = z[labels == label]
        if len(some) < 2:
            continue
        means[label] = some.mean(axis=0)
        apart = some - means[label]
        sizes, axes = np.linalg.eigh(apart.T @ apart / (len(some) - 1))
        roots[label] = (axes * np.sqrt(np.maximum(sizes, 0))) @ axes.T  # the symmetric root: no sign is arbitrary
    return Codes(means=jnp.asarray(means, jnp.float32), roots=jnp.asarray(roots, jnp.float32))
