"""What methods that train networks share: checks of their settings, keys, a baseline's statement."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from populace.errors import out_of_range
from populace.methods.base import Population
from populace.privacy.guarantee import Guarantee
from populace.privacy.source import Source
from populace.types import Array

NUMBER = 4.0  # bytes of one number on the wire
NO_ERROR = "no error is predicted: training has no closed form"


def check_counts(**values: int) -> None:
    """Refuse a number below 1."""
    for name, value in values.items():
        if value < 1:
            raise out_of_range(name, "at least 1", value)


def check_sizes(**values: float) -> None:
    """Refuse a number that is not above 0 and finite."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise out_of_range(name, "above 0", value)


def check_not_negative(**values: float) -> None:
    """Refuse a number that is negative or not finite."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise out_of_range(name, "at least 0", value)


def check_shares(**values: float) -> None:
    """Refuse a number that is not in [0, 1)."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise out_of_range(name, "in [0, 1)", value)


def check_rates(**values: float) -> None:
    """Refuse a sampling rate that is not in (0, 1]."""
    for name, value in values.items():
        if not 0 < value <= 1:
            raise out_of_range(name, "in (0, 1]", value)


def training_key(source: Source) -> Array:
    """A key for orders of batches, codes and labels: nothing that protects anybody."""
    words = [jnp.asarray(part.below(2**31 - 1), jnp.uint32) for part in source.split(2)]
    key: Array = jax.random.wrap_key_data(jnp.stack(words))
    return key


def not_private(population: Population, reason: str) -> Guarantee:
    """The guarantee of a baseline: none."""
    return Guarantee(
        epsilon=math.inf, unit="client", neighbours="replace", trust="not-private", mechanism="none", reason=reason,
        read_from_data=population.read_from_data,
        domain_sources=population.domain_sources,
    )  # fmt: skip
