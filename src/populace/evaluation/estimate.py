"""A figure with the interval it lies in, or the reason why there is none.

A distance of two tables is a smooth function of the shares of rows in their cells almost everywhere, so its bootstrap interval
needs no resampling: to first order, what the bootstrap measures is the spread of each row's influence on it (the infinitesimal
jackknife, Efron 1982). Cells in which two tables differ by chance alone make it wider than it need be. For real rows i with
influence u_i and synthetic rows j with influence v_j

    standard error^2 = var(u) / n  +  var(v) / n'        interval: value +- 1.96 standard errors, cut to what is possible

Influences are added up over the sets of columns row by row, so that what the sets share is not counted twice. The interval
covers the choice of rows, not the noise of the method: repeat the run with other seeds for that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from populace.types import JsonObject, NumpyArray

NORMAL = 1.959964  # 97.5 % of a normal variable lie below
FROM_ROWS = "95 %, linearised bootstrap over the rows (infinitesimal jackknife); the method's own noise is not in it"
FROM_TESTS = "95 %, bootstrap over the test rows; the training itself is one"
FROM_SEEDS = "95 %, Student's t over runs that differ in their seed"
NO_DRAWS = "no draw of the test rows has two classes of the target, so there is no interval; give more real rows"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure and its 95 % interval. Without an interval, `why` says why; without a figure (NaN) it says that."""

    value: float
    low: float = math.nan
    high: float = math.nan
    why: str = ""

    @property
    def known(self) -> bool:
        return math.isfinite(self.value)

    def to_json(self) -> JsonObject:
        if not self.known:
            return {"left_out": self.why}
        document: JsonObject = {"value": self.value}
        if math.isfinite(self.low):
            document |= {"low": self.low, "high": self.high}
        return document | ({"why": self.why} if self.why else {})


def left_out(why: str) -> Estimate:
    return Estimate(value=math.nan, why=why)


def from_influence(value: float, *influences: NumpyArray, rows: Sequence[int], most: float = math.inf) -> Estimate:
    """The interval from the influence of each row (or of some rows, drawn at random) of tables of so many rows."""
    variance = sum(float(np.var(found)) / count for found, count in zip(influences, rows, strict=True))
    wide = NORMAL * math.sqrt(variance)
    return Estimate(value=float(value), low=max(0.0, value - wide), high=min(most, value + wide))


def from_draws(value: float, draws: NumpyArray) -> Estimate:
    """The percentile interval of bootstrap draws; those in which the figure is not defined are left out."""
    draws = draws[np.isfinite(draws)]
    if not len(draws):
        return Estimate(value=float(value), why=NO_DRAWS)
    low, high = np.percentile(draws, [2.5, 97.5])
    return Estimate(value=float(value), low=float(low), high=float(high))


def over_seeds(values: Sequence[float]) -> Estimate:
    """Mean over runs that differ in their seed, with the interval of Student's t; runs without a figure are counted."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return left_out("none of the runs has this figure")
    mean = float(np.mean(known))
    if len(known) < 2:
        return Estimate(value=mean, why="one run; run it with other seeds for an interval")
    wide = float(stdtrit(len(known) - 1, 0.975)) * float(np.std(known, ddof=1)) / math.sqrt(len(known))
    missing = f"{len(values) - len(known)} of {len(values)} have no figure" if len(known) < len(values) else ""
    return Estimate(value=mean, low=mean - wide, high=mean + wide, why=missing)
