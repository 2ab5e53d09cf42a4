"""Cohorts in a public random order, every client once a pass."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from populace.types import Array


def rounds_of_pass(clients: int, cohort: int) -> int:
    """How many rounds ask every client once."""
    return -(-clients // cohort)


def order_of_passes(*, clients: int, cohort: int, passes: int, key: Array) -> Array:
    """All clients in a random order, anew in every pass, [rounds, cohort]; -1 where they run out."""
    rounds = rounds_of_pass(clients, cohort)
    numbers = jnp.arange(clients, dtype=jnp.int32)
    padding = (0, rounds * cohort - clients)
    return jnp.concatenate(
        [
            jnp.pad(jax.random.permutation(one, numbers), padding, constant_values=-1).reshape(rounds, cohort)
            for one in jax.random.split(key, passes)
        ]
    )
