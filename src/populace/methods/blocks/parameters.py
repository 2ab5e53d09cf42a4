"""Networks as named arrays in one flat vector: what is clipped, noised and sent is the vector."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from populace.types import Array

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


def count_parameters(shapes: Shapes) -> int:
    return sum(math.prod(shape) for _, shape in shapes)


def unpack(shapes: Shapes, theta: Array) -> dict[str, Array]:
    """The named arrays a flat vector of parameters holds; what is unpacked already stays.

    Slopes of single examples are taken by the arrays: by the flat vector they cost several times more.
    """
    if isinstance(theta, dict):
        return theta
    found, start = {}, 0
    for name, shape in shapes:
        found[name] = theta[start : start + math.prod(shape)].reshape(shape)
        start += math.prod(shape)
    return found


def pack(shapes: Shapes, parts: Mapping[str, Array]) -> Array:
    """The flat vector of named arrays."""
    return jnp.concatenate([parts[name].reshape(-1) for name, _ in shapes])


def glorot(shapes: Shapes, key: Array) -> Array:
    """A flat vector of parameters: Glorot's uniform weights, zero biases."""
    parts = []
    for (name, shape), k in zip(shapes, jax.random.split(key, len(shapes)), strict=True):
        bound = 0.0 if name.endswith("bias") else math.sqrt(6 / (shape[0] + shape[1]))
        parts.append(jax.random.uniform(k, (math.prod(shape),), minval=-bound, maxval=bound))
    return jnp.concatenate(parts)
