"""Counts of codes as the first stage of `census` estimates them: what tests of cells and scales begin with."""

import numpy as np

from populace.methods.census.scales import consistent, group_widths, in_groups


def noisy_parts(counts, deviation, rng):
    """The counts in every width, each with noise of its own, and the widths."""
    widths = group_widths(len(counts))
    parts = [in_groups(np.asarray(counts, np.float64), width) for width in widths]
    return [part + deviation * rng.normal(size=part.shape) for part in parts], widths


def estimates(column, counts, deviation, rng):
    """What the first stage makes of noisy counts of a column's codes."""
    counts = np.asarray(counts, np.float64)
    if not column.is_ordered:
        return counts + deviation * rng.normal(size=len(counts))
    along, widths = noisy_parts(counts[: column.levels], deviation, rng)
    beyond = counts[column.levels :]
    return np.concatenate([consistent(along, widths), beyond + deviation * rng.normal(size=len(beyond))])
