"""Where a VAE's codes lie: a normal law for each class; the standard one where nothing else is known.

An encoder that is held to the standard normal only weakly (a small beta) puts its codes elsewhere, and a decoder fed from the
standard normal then makes what it never learned. So the codes of examples that may be seen are measured after training, and
codes are drawn as they were found (Ghosh et al. 2020, section 4).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import DataError
from populace.methods.blocks.matrices import power_of
from populace.types import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeLaw:
    """Means [classes, latent] and roots of the covariances [classes, latent, latent]; without labels there is one class."""

    means: Array
    roots: Array

    def draw(self, labels: Array, noise: Array) -> Array:
        """Codes of these labels from standard normal `noise`, [n, latent]; by the standard law the noise itself."""

        def add(total: Array, item: tuple[Array, Array, Array]) -> tuple[Array, None]:
            label, mean, root = item
            of_class = mean + jnp.matmul(noise, root.T, precision="highest")
            return total + jnp.where((labels == label)[:, None], of_class, 0), None

        # One class after the other: a root for every example would not fit.
        numbers = jnp.arange(len(self.means))
        return jax.lax.scan(add, jnp.zeros_like(noise), (numbers, self.means, self.roots))[0]

    @property
    def is_standard(self) -> bool:
        return not np.any(self.means) and bool(np.all(np.asarray(self.roots) == np.eye(np.shape(self.means)[1])))


def make_standard_law(classes: int, latent: int) -> CodeLaw:
    """Standard normal in every class."""
    rows = max(1, classes)
    return CodeLaw(means=jnp.zeros((rows, latent)), roots=jnp.tile(jnp.eye(latent), (rows, 1, 1)))


def measure_law(z: Array, labels: Array, classes: int) -> CodeLaw:
    """What codes [n, latent] of these labels show; a class of fewer than two keeps the standard law."""
    z = np.asarray(z, np.float64)
    if not np.isfinite(z).all():
        raise DataError("the encoder gives codes that are not finite: it did not train; choose smaller steps")
    labels = np.asarray(labels) if classes > 1 else np.zeros(len(z), int)
    standard = make_standard_law(classes, z.shape[1])
    means, roots = np.array(standard.means, np.float64), np.array(standard.roots, np.float64)
    for label in range(len(means)):
        some = z[labels == label]
        if len(some) < 2:
            continue
        means[label] = some.mean(axis=0)
        apart = some - means[label]
        roots[label] = power_of(apart.T @ apart / (len(some) - 1), 0.5)  # symmetric: no sign is arbitrary
    return CodeLaw(means=jnp.asarray(means, jnp.float32), roots=jnp.asarray(roots, jnp.float32))
