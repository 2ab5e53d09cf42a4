"""Cohorts of one size in a public random order, so that every client is asked once a pass."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

Array = Any


def rounds_of_pass(clients: int, cohort: int) -> int:
    """Rounds in which every client is asked once."""
    return -(-clients // cohort)


def order_of_passes(*, clients: int, cohort: int, passes: int, key: Array) -> Array:
    """[rounds, cohort]: all clients in a random order, anew in every pass; -1 where they run out."""
    rounds = rounds_of_pass(clients, cohort)
    numbers = jnp.arange(clients, dtype=jnp.int32)
    padding = (0, rounds * cohort - clients)
    return jnp.concatenate(
        [
            jnp.pad(jax.random.permutation(one, numbers), padding, constant_values=-1).reshape(rounds, cohort)
            for one in jax.random.split(key, passes)
        ]
    )
