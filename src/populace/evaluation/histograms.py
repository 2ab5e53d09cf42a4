"""A histogram of a column's values on a grid of its own: even or logarithmic steps by the shape of the real values.

Spikes and missing values are counted apart, so that they do not press everything else flat. The grid covers the
middle 99.8 % of the real values, and all of them where tails are short; what lies below and above it is counted there.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from populace.evaluation.value_figures import ColumnFigures
from populace.evaluation.values import Sample
from populace.types import NumpyArray

BINS = 24
TAIL = 0.001
MARGIN = 0.1  # of the grid: tails no longer than that are part of it
LOG_FROM = 100.0  # the largest value over the smallest, from which steps are logarithmic if most values are small
WIDE = 20.0  # the range over the middle half of the values, from which columns with zero or negative values are bent
WHOLE = ("integer", "date")
NUMBERS = ("integer", "decimal")
SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0, 43_200.0, 86_400.0)
DAYS = (1, 2, 7, 14, 28, 91, 182, 365)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Histogram:
    """Shares of all rows, real and synthetic, in [2, bins]; below and above the grid, at spikes, and missing: pairs."""

    name: str
    kind: str
    steps: str  # even, logarithmic, bent
    edges: NumpyArray
    shares: NumpyArray
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


def _counted(ordered: NumpyArray, edges: NumpyArray) -> NumpyArray:
    """Counts below the grid, in its bins (the last with its upper edge), and above."""
    if len(edges) < 2:
        return np.array([0.0, len(ordered)])  # nothing but spikes in the real rows: all else lies outside
    places = np.searchsorted(ordered, edges[:-1], "left")
    end = np.searchsorted(ordered, edges[-1], "right")
    return np.diff(np.concatenate([[0], places, [end, len(ordered)]])).astype(np.float64)


def _edges(rest: NumpyArray, kind: str) -> tuple[str, NumpyArray]:
    """What the steps are, and the edges between them."""
    if not len(rest):
        return "even", np.zeros(0)
    own = Sample(ordered=rest, rows=len(rest))
    low, quarter, middle, three, high = own.quantiles((TAIL, 0.25, 0.5, 0.75, 1 - TAIL))
    margin = MARGIN * (high - low)
    low, high = max(low - margin, float(rest[0])), min(high + margin, float(rest[-1]))
    if high <= low:
        return "even", np.array([low - 0.5, low + 0.5])
    if low > 0 and high / low >= LOG_FROM and middle - low < 0.2 * (high - low) and kind in NUMBERS:
        return "logarithmic", _whole(np.geomspace(low, high, BINS + 1), kind)
    if low <= 0 and kind in NUMBERS and high - low > WIDE * max(three - quarter, 1e-12):
        unit = max((three - quarter) / 2, 1e-9 * (high - low))
        return "bent", _whole(
            np.sinh(np.linspace(np.arcsinh(low / unit), np.arcsinh(high / unit), BINS + 1)) * unit, kind
        )
    width = _width((high - low) / BINS, kind)
    first, last = np.floor(low / width), np.floor(high / width) + 1
    return "even", np.arange(first, last + 1) * width - (0.5 if kind in WHOLE else 0.0)


def _width(least: float, kind: str) -> float:
    """The smallest round step that is large enough: 1, 2 or 5 times a power of ten; days; minutes and hours."""
    if kind in ("datetime", "time"):
        return next((step for step in SECONDS if step >= least), float(np.ceil(least / 86_400) * 86_400))
    if kind == "date":
        return float(next((step for step in DAYS if step >= least), np.ceil(least / 365) * 365))
    scale = 10.0 ** np.floor(np.log10(least))
    width = next(scale * m for m in (1, 2, 5, 10) if scale * m >= least * 0.999)
    return float(max(width, 1.0)) if kind in WHOLE else float(width)


def _whole(edges: NumpyArray, kind: str) -> NumpyArray:
    """Edges between whole numbers for columns of whole numbers."""
    return np.unique(np.append(np.floor(edges[:-1]) - 0.5, np.floor(edges[-1]) + 0.5)) if kind in WHOLE else edges
