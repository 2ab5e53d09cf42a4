"""Powers of symmetric matrices."""

from __future__ import annotations

import numpy as np

from populace.types import NumpyArray


def power_of(matrix: NumpyArray, exponent: float, floor: float = 0.0) -> NumpyArray:
    """The power of a symmetric matrix; eigenvalues below `floor` times the largest, or below 0, count as that much."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    values = np.maximum(values, floor * max(values[-1], 1e-12))
    power: NumpyArray = (vectors * values**exponent) @ vectors.T
    return power
