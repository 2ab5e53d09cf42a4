"""Where randomness comes from.

`Keyed` carries a JAX key: traceable, vectorised, reproducible, for simulation. `System` is the operating system's generator
with exact sampling, for deployment. A protocol's `answer` takes either and never asks which.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from populace.privacy import secure_random

Array = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Keyed:
    """Randomness from a JAX key. Split where it is used up, never reused."""

    key: Array

    def split(self, count: int) -> tuple[Source, ...]:
        return tuple(Keyed(key) for key in jax.random.split(self.key, count))

    def one_of(self, mask: Array) -> Array:
        """Index of one of the true entries, evenly; index 0 if there is none."""
        rank = jax.random.randint(self.key, (), 0, jnp.maximum(mask.sum(), 1))
        return jnp.argmax(jnp.cumsum(mask) == rank + 1)

    def below(self, bound: Array) -> Array:
        """A whole number in [0, bound), evenly."""
        return jax.random.randint(self.key, (), 0, bound)


@dataclasses.dataclass(frozen=True)
class System:
    """Randomness from the operating system, exact."""

    def split(self, count: int) -> tuple[Source, ...]:
        return (self,) * count

    def one_of(self, mask: Array) -> Array:
        places = np.flatnonzero(np.asarray(mask))
        return places[secure_random.integers_below(len(places))] if len(places) else np.int64(0)

    def below(self, bound: Array) -> Array:
        return secure_random.integers_below(int(bound))


Source = Keyed | System
