"""A histogram of a column's values on a grid of its own: even or logarithmic steps by the shape of the real values.

Spikes and missing values are counted apart, so that they do not press everything else flat. The grid covers the middle
99.8 % of the real values; what lies below and above it is counted there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from populace.evaluation.value_figures import ColumnFigures
from populace.evaluation.values import Sample

Array = np.ndarray[Any, Any]

BINS = 24
TAIL = 0.001
LOG_FROM = 100.0  # the largest value over the smallest, from which steps are logarithmic if most values are small
WIDE = 20.0  # the range over the middle half of the values, from which columns with zero or negative values are bent
WHOLE = ("integer", "date")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Histogram:
    """Shares of all rows, real and synthetic, in [2, bins]; below and above the grid, at spikes, and missing: pairs."""

    name: str
    kind: str
    steps: str  # even, logarithmic, bent
    edges: Array
    shares: Array
    below: tuple[float, float]
    above: tuple[float, float]
    spikes: tuple[tuple[float, float, float], ...]  # value, real share, synthetic share
    missing: tuple[float, float]


def histogram(column: ColumnFigures) -> Histogram:
    atoms = np.array(column.spikes)
    rest = [part.ordered[~np.isin(part.ordered, atoms)] for part in (column.real, column.synthetic)]
    steps, edges = _edges(rest[0], column.kind)
    sides = (column.real, column.synthetic)
    found = [_counted(values, edges) / max(1, side.rows) for values, side in zip(rest, sides, strict=True)]
    return Histogram(
        name=column.name, kind=column.kind, steps=steps, edges=edges, shares=np.stack([part[1:-1] for part in found]),
        below=(float(found[0][0]), float(found[1][0])), above=(float(found[0][-1]), float(found[1][-1])),
        spikes=tuple((value, column.real.share(value), column.synthetic.share(value)) for value in column.spikes),
        missing=(column.real.missing, column.synthetic.missing),
    )  # fmt: skip


def _counted(ordered: Array, edges: Array) -> Array:
    """Counts below the grid, in its bins (the last with its upper edge), and above."""
    if len(edges) < 2:
        return np.array([0.0, len(ordered)])  # nothing but spikes in the real rows: all else lies outside
    places = np.searchsorted(ordered, edges[:-1], "left")
    end = np.searchsorted(ordered, edges[-1], "right")
    return np.diff(np.concatenate([[0], places, [end, len(ordered)]])).astype(np.float64)


def _edges(rest: Array, kind: str) -> tuple[str, Array]:
    if not len(rest):
        return "even", np.zeros(0)
    low, middle, high = (float(v) for v in Sample(ordered=rest, rows=len(rest)).quantiles((TAIL, 0.5, 1 - TAIL)))
    if kind in WHOLE:
        low, high = np.floor(low) - 0.5, np.ceil(high) + 0.5
    if high <= low:
        return "even", np.array([low - 0.5, low + 0.5])
    quarter, three = Sample(ordered=rest, rows=len(rest)).quantiles((0.25, 0.75))
    if low > 0 and high / low >= LOG_FROM and middle - low < 0.2 * (high - low):
        return "logarithmic", _whole(np.geomspace(low, high, BINS + 1), kind)
    if low <= 0 and kind in ("integer", "decimal") and high - low > WIDE * max(three - quarter, 1e-12):
        unit = max((three - quarter) / 2, 1e-9 * (high - low))
        return "bent", _whole(
            np.sinh(np.linspace(np.arcsinh(low / unit), np.arcsinh(high / unit), BINS + 1)) * unit, kind
        )
    if kind in WHOLE:
        width = np.ceil((high - low) / BINS) if high - low > 2 * BINS else 1.0
        return "even", np.arange(low, high + width - 0.25, width)
    return "even", np.linspace(low, high, BINS + 1)


def _whole(edges: Array, kind: str) -> Array:
    """Edges between whole numbers for columns of whole numbers."""
    return np.unique(np.floor(edges) + 0.5) if kind in WHOLE else edges
