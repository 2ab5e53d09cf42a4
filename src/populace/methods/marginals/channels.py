"""What randomisation does to a table, as matrices, and how to undo it where two values were randomised one by one."""

from __future__ import annotations

import numpy as np

from populace.types import Array


def channel(p: float, q: float, size: int) -> Array:
    """How often a report supports value i of a client with value j: p on the diagonal, q elsewhere (eq. 3)."""
    return np.full((size, size), q) + (p - q) * np.eye(size)


def invert_pair(shares: Array, first: Array, second: Array) -> Array:
    """Unbiased joint table of two values randomised through two channels (eq. 7, by solving, not by inverting)."""
    return np.linalg.solve(second, np.linalg.solve(first, shares).T).T


def pair_variance(first: tuple[float, float, int], second: tuple[float, float, int]) -> float:
    """Variance of a cell of `invert_pair` from one report, for a cell of average weight, sampling of clients included.

    Each side is given as p, q and the size of its domain.
    """
    total, cells = 1.0, 1
    for p, q, size in (first, second):
        told = q + (p - q) / size
        total *= (told * (1 - q) ** 2 + (1 - told) * q**2) / (p - q) ** 2
        cells *= size
    return total - (1 / cells) ** 2
