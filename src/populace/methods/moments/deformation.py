"""Small deformations of images: shifts, stretches, rotation and shear about the middle, read with bilinear weights.

Images of a class differ by such moves, which a Gaussian over pixels can only blur. How far follows from the measured
variance along the directions in which a move changes a class's mean image.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from populace.types import Array

#: What a move is: pixels down and across as shares of the height and width, logarithms of stretches, radians, and a slope.
MOVES = ("down", "across", "taller", "wider", "turned", "sheared")
TRIED = np.array([0.02, 0.02, 0.05, 0.05, 0.07, 0.1])  # moves whose effect on the mean image is looked at


def deformed(x: Array, moves: Array) -> Array:
    """Images [n, height, width, ...] moved by [n, 6]; what comes in from outside repeats the border. Traceable."""
    height, width = x.shape[1:3]
    down, across, taller, wider, turned, sheared = jnp.asarray(moves).T[:, :, None]
    rows, columns = np.mgrid[:height, :width].reshape(2, -1).astype(np.float32)
    y, x_ = rows - (height - 1) / 2, columns - (width - 1) / 2
    cos, sin = jnp.cos(turned), jnp.sin(turned)
    from_row = jnp.exp(taller) * cos * y - sin * x_ + down * height + (height - 1) / 2
    from_column = (sin + sheared) * y + jnp.exp(wider) * cos * x_ + across * width + (width - 1) / 2
    top, over = _split(from_row, height)
    left, beyond = _split(from_column, width)
    flat = x.reshape(len(x), height * width, -1)

    def at(step_down: int, step_across: int) -> Array:
        row, column = jnp.minimum(top + step_down, height - 1), jnp.minimum(left + step_across, width - 1)
        return jnp.take_along_axis(flat, (row * width + column)[:, :, None], axis=1)

    over, beyond = over[:, :, None], beyond[:, :, None]
    upper = (1 - beyond) * at(0, 0) + beyond * at(0, 1)
    lower = (1 - beyond) * at(1, 0) + beyond * at(1, 1)
    return ((1 - over) * upper + over * lower).reshape(x.shape)


def _split(place: Array, size: int) -> tuple[Array, Array]:
    """The pixel below a place, and how far above it the place lies."""
    inside = jnp.clip(place, 0, size - 1)
    below = jnp.floor(inside)
    return below.astype(jnp.int32), inside - below
