"""Exact noise inside compiled code: the host draws it from the operating system while the program waits.

The call is an effect, not a function of its argument: JAX neither merges two calls, nor repeats one, nor moves it out of a
loop. The key that a caller would have drawn from says only how many draws there are: under `vmap` one for each key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback

from populace.privacy import secure_random

Array = Any


def rounded_normal(key: Array, deviation: float, shape: tuple[int, ...]) -> Array:
    """Whole numbers distributed as round(N(0, deviation^2)), int32, by `secure_random.rounded_normal`; traceable.

    Guarantee: that of `secure_random.rounded_normal`, whatever the key; of which nothing is used. Each execution draws anew,
    and under `vmap` over keys each key has draws of its own.
    Edge cases: what is mapped without its key shares its draws, as with a keyed draw. A program that is differentiated or
    recomputed (`jax.grad`, `jax.checkpoint`) through the draw is refused by JAX.
    """
    return _sampler(float(deviation), shape)(jax.random.key_data(key)[None])[0]


@functools.lru_cache(maxsize=256)
def _sampler(deviation: float, shape: tuple[int, ...]) -> Callable[[Array], Array]:
    """Draws for each row of words, all rows of a batch in one call of the host."""

    def on_host(words: Array) -> Array:  # NumPy alone: JAX inside a callback may wait for itself
        return secure_random.rounded_normal(deviation, (words.shape[0], *shape)).astype(np.int32)

    @custom_vmap
    def draws(words: Array) -> Array:
        wanted = jax.ShapeDtypeStruct((words.shape[0], *shape), jnp.int32)  # type: ignore[no-untyped-call]
        return io_callback(on_host, wanted, words)

    @draws.def_vmap  # type: ignore[untyped-decorator]
    def _(size: int, mapped: list[bool], words: Array) -> tuple[Array, bool]:
        del mapped  # the one argument: without it there is nothing to map
        together = draws(words.reshape(-1, words.shape[-1]))
        return together.reshape(size, -1, *shape), True

    return draws
