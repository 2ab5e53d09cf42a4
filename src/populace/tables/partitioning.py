"""The cells of a column of numbers: spikes for single frequent values, intervals for the rest, finer where it matters.

Near-equal masses first, then the interval whose law is farthest from its values is split, until mean, spread and
distribution function are near the data's or there are enough cells.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from typing import Any

import numpy as np

from populace.tables.cells import FINE, Law
from populace.tables.dates import EPOCH

Array = np.ndarray[Any, Any]

FEW = 16  # so many distinct values are all spikes
MASS = 0.055  # of an interval, before any is split
MOST_SPIKES, MOST_CELLS, LEAST_CELLS = 8, 24, 4
SPIKE = 0.03
LEAST_SHARE, LEAST_ROWS = 0.002, 20
GAP = 0.2  # an extreme value is isolated by a gap of this part of the others' range
MEAN_OFF, SD_OFF, KS_OFF = 0.015, 0.01, 0.008
WINDOW = 0.12  # of an interval's mass: how far an edge may move to be round
POINTS = (np.arange(256) + 0.5) / 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Partition:
    edges: tuple[float, ...]
    spikes: tuple[float, ...]
    laws: tuple[Law, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Values:
    """Distinct numbers, rising, how often each occurs, and their grid."""

    numbers: Array
    counts: Array
    step: float
    kind: str
    rows: int
    unit: float

    def between(self, start: int, end: int) -> Values:
        return dataclasses.replace(self, numbers=self.numbers[start:end], counts=self.counts[start:end])


def partition(numbers: Array, step: float, kind: str) -> Partition:
    """The cells of these numbers."""
    distinct, counts = np.unique(numbers, return_counts=True)
    if len(distinct) <= FEW:
        return Partition(edges=(), spikes=tuple(distinct.tolist()), laws=())
    unit = step or max(FINE * float(np.abs(distinct).max()), 1e-300)
    values = Values(numbers=distinct, counts=counts, step=step, kind=kind, rows=len(numbers), unit=unit)
    spiky = _spikes(values)
    spikes = tuple(distinct[spiky].tolist())
    rest = dataclasses.replace(values, numbers=distinct[~spiky], counts=counts[~spiky])
    if len(rest.numbers) + len(spikes) <= FEW:
        return Partition(edges=(), spikes=tuple(distinct.tolist()), laws=())
    cuts = _equal_masses(rest, len(spikes))
    mean, deviation = float(np.average(distinct, weights=counts)), float(np.std(numbers))
    if kind in ("date", "datetime", "time"):
        mean = 0.0  # a date's mean is measured against its spread alone
    cuts = _refined(rest, cuts, MOST_CELLS - len(spikes), mean, deviation)
    return _finished(rest, cuts, spikes, mean, deviation)


def _spikes(values: Values) -> Array:
    """Which distinct values get a cell of their own."""
    share = values.counts / values.rows
    frequent = share > SPIKE
    if frequent.sum() > MOST_SPIKES:
        frequent = share >= np.sort(share)[-MOST_SPIKES]
    for place, inner in ((0, slice(1, None)), (-1, slice(None, -1))):
        rest = values.numbers[inner]
        gap = abs(values.numbers[place] - rest[place])
        enough = values.counts[place] >= max(LEAST_ROWS, LEAST_SHARE * values.rows)
        alone = values.numbers[0] < 0 <= values.numbers[1] if place == 0 else False
        if enough and (gap > GAP * np.ptp(rest) or (alone and values.numbers[0] in (-1, -9, -99, -999))):
            frequent[place] = True
    return np.asarray(frequent, bool)


def _equal_masses(rest: Values, spikes: int) -> list[int]:
    """Positions among the distinct values at which intervals begin, the end included."""
    mass = rest.counts.sum() / rest.rows
    wanted = max(round(mass / MASS), LEAST_CELLS - spikes, 1)
    wanted = min(wanted, max(rest.counts.sum() // LEAST_ROWS, LEAST_CELLS - spikes, 1), len(rest.numbers))
    ends = np.cumsum(rest.counts)
    cuts = {0, len(rest.numbers)}
    for number in range(1, int(wanted)):
        goal = ends[-1] * number / wanted
        cuts.add(_near(rest, ends, goal, WINDOW * ends[-1] / wanted))
    return sorted(cuts)


def _near(rest: Values, ends: Array, goal: float, slack: float) -> int:
    """A position near a mass at which a round edge can stand."""
    exact = int(np.searchsorted(ends, goal))
    exact += int(exact < len(ends) - 1 and ends[exact] - goal < goal - (ends[exact - 1] if exact else 0))
    low, high = int(np.searchsorted(ends, goal - slack)), int(np.searchsorted(ends, goal + slack))
    low, high = max(1, min(low, exact)), min(len(ends) - 1, max(high, exact))
    edge = roundest(rest.numbers[low - 1], rest.numbers[high], rest.step, rest.kind)
    return int(np.searchsorted(rest.numbers, edge))


def _refined(rest: Values, cuts: list[int], most: int, mean: float, deviation: float) -> list[int]:
    """More cuts, while one helps: where an interval's law misses the values most."""
    while len(cuts) - 1 < most:
        scores = [_misfit(rest, a, b, mean, deviation)[0] for a, b in zip(cuts, cuts[1:], strict=False)]
        best: tuple[float, int] | None = None
        for place in np.argsort(scores)[::-1][:6]:
            if scores[place] <= 1:
                break
            better = _best_split(rest, cuts[place], cuts[place + 1], mean, deviation)
            if better is not None and better[0] < 0.95 * scores[place]:
                best = better
                break
        if best is None:
            return cuts
        cuts = sorted({*cuts, best[1]})
    return cuts


def _best_split(rest: Values, start: int, end: int, mean: float, deviation: float) -> tuple[float, int] | None:
    counts = np.cumsum(rest.counts[start:end])
    least = max(LEAST_ROWS, LEAST_SHARE * rest.rows)
    found: list[tuple[float, int]] = []
    width = rest.numbers[end - 1] - rest.numbers[start]
    places = {
        start + int(np.searchsorted(counts, share * counts[-1])) + 1 for share in (0.15, 0.3, 0.5, 0.7, 0.85, 0.95)
    }
    places |= {
        int(np.searchsorted(rest.numbers, rest.numbers[start] + share * width)) for share in (0.1, 0.25, 0.5, 0.75)
    }
    for place in sorted(places):
        if not start < place < end:
            continue
        place = int(np.searchsorted(rest.numbers, _round_between(rest, place)))
        left = counts[place - start - 1]
        if left < least or counts[-1] - left < least:
            continue
        score = max(_misfit(rest, start, place, mean, deviation)[0], _misfit(rest, place, end, mean, deviation)[0])
        found.append((score, place))
    return min(found) if found else None


def _round_between(rest: Values, place: int) -> float:
    return roundest(rest.numbers[place - 1], rest.numbers[place], rest.step, rest.kind)


def _misfit(rest: Values, start: int, end: int, mean: float, deviation: float) -> tuple[float, Law]:
    """How far the better law misses the values of an interval, 1 being as much as is let pass; and that law."""
    part = rest.between(start, end)
    low = float(part.numbers[0]) if start == 0 else _round_between(rest, start)
    high = float(part.numbers[-1]) if end == len(rest.numbers) else _round_between(rest, end)
    if rest.step and end < len(rest.numbers):
        high -= rest.step
    mass = part.counts.sum() / rest.rows
    weights = part.counts / part.counts.sum()
    if rest.step and high - low < rest.step / 2:
        return 0.0, "linear"
    centre = float(np.dot(weights, part.numbers))
    square = float(np.dot(weights, (part.numbers - mean) ** 2))
    scores: list[tuple[float, Law]] = []
    for law in _laws(low, high, rest.step):
        drawn = _quantiles(low, high, law, rest)
        off = abs(float(drawn.mean()) - centre)
        spread = abs(float(((drawn - mean) ** 2).mean()) - square) / max(deviation, 1e-300) ** 2
        limit = min(MEAN_OFF * abs(mean) or math.inf, SD_OFF * deviation) or 1.0
        under = np.cumsum(weights)
        place = np.searchsorted(np.sort(drawn), part.numbers + rest.step / 2, side="right") / len(drawn)
        ks = float(np.maximum(np.abs(under - place), 0).max())
        scores.append((max(mass * off / limit, mass * spread / (2 * SD_OFF), mass * ks / KS_OFF), law))
    return min(scores)


def _laws(low: float, high: float, step: float) -> tuple[Law, ...]:
    return ("linear",) if step and high - low < 3 * step else ("linear", "log")


def _quantiles(low: float, high: float, law: Law, rest: Values) -> Array:
    """Evenly spaced quantiles of a law between two values."""
    half = rest.step / 2
    start, end = low - half, high + half
    if law == "linear":
        return np.asarray(start + (end - start) * POINTS)
    a, b = (math.copysign(math.log1p(abs(x) / rest.unit), x) for x in (start, end))
    stretched = a + (b - a) * POINTS
    return np.asarray(np.sign(stretched) * np.expm1(np.abs(stretched)) * rest.unit)


def _finished(rest: Values, cuts: list[int], spikes: tuple[float, ...], mean: float, deviation: float) -> Partition:
    laws = tuple(_misfit(rest, a, b, mean, deviation)[1] for a, b in zip(cuts, cuts[1:], strict=False))
    inner = [_round_between(rest, place) for place in cuts[1:-1]]
    first, last = float(rest.numbers[0]), float(rest.numbers[-1])
    widths = np.diff([first, *inner, last])
    low = -roundest(-first - rest.step / 2, -first + 0.02 * widths[0], rest.step, rest.kind) if rest.kind in (
        "integer", "decimal") and widths[0] > 0 else first  # fmt: skip
    if not first - 0.02 * widths[0] <= low <= first or (low < 0 <= first):
        low = first
    return Partition(edges=(low, *inner, last if last > (inner[-1] if inner else low) else last + (rest.step or 1.0)),
                     spikes=spikes, laws=laws)  # fmt: skip


def roundest(low: float, high: float, step: float, kind: str) -> float:
    """The roundest number above `low` and up to `high`: few digits, or the first of a year, a month, a day."""
    if kind in ("date", "datetime"):
        return _round_date(low, high, 86_400.0 if kind == "datetime" else 1.0, step)
    if kind == "time":
        return _round_to(low, high, (21_600, 3_600, 1_800, 900, 60, 10, 1))
    if not high - low > 0:
        return float(high)
    exponent = math.floor(math.log10(max(abs(low), abs(high)))) + 1
    while exponent > -300:
        for part in (1.0, 0.5):
            unit = part * 10.0**exponent
            if step and unit < step:
                break
            found = float(f"{math.floor(high / unit * (1 + 1e-15)) * unit:.15g}")
            if low < found <= high:
                return found
        if step and 10.0**exponent < step:
            break
        if 10.0**exponent < 1e-16 * max(abs(low), abs(high)):
            break
        exponent -= 1
    return float(high)


def _round_to(low: float, high: float, units: tuple[float, ...]) -> float:
    for unit in units:
        found = math.floor(high / unit) * unit
        if low < found <= high:
            return float(found)
    return float(high)


def _round_date(low: float, high: float, day: float, step: float) -> float:
    last = EPOCH + datetime.timedelta(days=math.floor(high / day))
    starts = [last.replace(month=month, day=1) for month in (1, 7, *((last.month - 1) // 3 * 3 + 1,), last.month)]
    for start in starts:
        found = (start - EPOCH).days * day
        if low < found <= high:
            return float(found)
    return _round_to(low, high, tuple(unit * day for unit in (1.0, 1 / 24, 1 / 1440) if unit * day >= max(step, 1.0)))
