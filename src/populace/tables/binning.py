"""The cells of a column of numbers: spikes for single frequent values, intervals for the rest, finer where it matters.

Near-equal masses first, then the interval whose law is farthest from its values is split, until mean, spread and
distribution function are near the data's or there are enough cells.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import math

import numpy as np

from populace.tables.cells import FINE, Law, same_law
from populace.tables.dates import EPOCH
from populace.types import NumpyArray

FEW = 16  # so many distinct values are all spikes
MASS = 0.055  # of an interval, before any is split
MOST_SPIKES, MOST_CELLS, LEAST_CELLS = 8, 24, 4
SPIKE = 0.03
STANDS_OUT = 2.0  # so many times as frequent as the median of its four neighbours
LEAST_SHARE, LEAST_ROWS = (
    0.002,
    20,
)  # of a cell: in one that is rarer, a method's noise would count for more than its rows
SPIKE_SHARE = 0.002
MOST_OUTLIERS, OUTLIER_SHARE, OUTLIER_GAP = 10, 0.0002, 1.0
TINY = 1_000
HELPS, STRETCHED = 0.8, 2.0  # how much moving outlying values must help, and how bad a tail must be before
GAP = 0.2  # an extreme value is isolated by a gap of this part of the others' range
MEAN_OFF, SD_OFF, KS_OFF = 0.01, 0.006, 0.012
WINDOW = 0.12  # of an interval's mass: how far an edge may move to be round
POINTS = (np.arange(256) + 0.5) / 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Binning:
    """Edges, spikes and laws of a column, and how many rows lie outside and are moved to the outermost edge."""

    edges: tuple[float, ...]
    spikes: tuple[float, ...]
    laws: tuple[Law, ...]
    moved: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Values:
    """Distinct numbers, rising, how often each occurs, and their grid."""

    numbers: NumpyArray
    counts: NumpyArray
    step: float
    kind: str
    rows: int
    unit: float
    mean: float
    deviation: float

    def between(self, start: int, end: int) -> Values:
        return dataclasses.replace(self, numbers=self.numbers[start:end], counts=self.counts[start:end])


def choose_cells(numbers: NumpyArray, step: float, kind: str) -> Binning:
    """The cells of these numbers."""
    distinct, counts = np.unique(numbers, return_counts=True)
    unit = step or max(FINE * float(np.abs(distinct).max()), 1e-300)
    with np.errstate(over="ignore"):  # squares of numbers near the largest float: such tails are not refined
        mean, deviation = float(np.average(distinct, weights=counts)), min(float(np.std(numbers)), 1e150)
    values = Values(numbers=distinct, counts=counts, step=step, kind=kind, rows=len(numbers), unit=unit,
                    mean=mean, deviation=deviation)  # fmt: skip
    spiky = _spikes(values) if len(distinct) > FEW else np.zeros(len(distinct), bool)
    spikes = tuple(distinct[spiky].tolist())
    rest, moved = _without_outliers(dataclasses.replace(values, numbers=distinct[~spiky], counts=counts[~spiky]))
    if len(rest.numbers) <= (LEAST_CELLS if spikes else FEW):
        return _each(np.sort(np.concatenate([rest.numbers, spikes])), step, moved)
    with np.errstate(over="ignore", invalid="ignore"):
        cuts = _refined(rest, _equal_masses(rest, len(spikes)), MOST_CELLS - len(spikes))
        return _finished(rest, cuts, spikes, moved)


def _each(distinct: NumpyArray, step: float, moved: int) -> Binning:
    """A cell for every value: an interval where the next step is a value too, a spike elsewhere."""
    listed = tuple(distinct.tolist())
    if step and len(listed) > 1 and bool(np.allclose(np.diff(distinct), step)):
        return Binning(edges=listed, spikes=listed[-1:], laws=same_law("linear", len(listed) - 1), moved=moved)
    return Binning(edges=(), spikes=listed, laws=(), moved=moved)


def _spikes(values: Values) -> NumpyArray:
    """Which distinct values get a cell of their own: those that stand out among their neighbours, zero, and extreme ones."""
    share = values.counts / values.rows
    near = np.stack([np.roll(share, shift) for shift in (-2, -1, 1, 2)])
    for row, shift in enumerate((-2, -1, 1, 2)):
        near[row, -abs(shift) :] = np.where(shift < 0, np.nan, near[row, -abs(shift) :])
        near[row, : abs(shift)] = np.where(shift > 0, np.nan, near[row, : abs(shift)])
    frequent = (share > SPIKE) & ((share > STANDS_OUT * np.nanmedian(near, axis=0)) | (values.numbers == 0))
    if frequent.sum() > MOST_SPIKES:
        frequent &= share >= np.sort(share[frequent])[-MOST_SPIKES]
    for place, inner in ((0, slice(1, None)), (-1, slice(None, -1))):
        rest = values.numbers[inner]
        gap = abs(values.numbers[place] - rest[place])
        enough = values.counts[place] >= max(LEAST_ROWS, SPIKE_SHARE * values.rows)
        alone = place == 0 and values.numbers[0] in (-1, -9, -99, -999) and values.numbers[1] >= 0
        if enough and (gap > GAP * np.ptp(rest) or alone):
            frequent[place] = True
    return np.asarray(frequent, bool)


def _without_outliers(rest: Values) -> tuple[Values, int]:
    """The values without the few at either end that no law could follow, and how many rows those are.

    They are moved to the outermost edge. A cell of their own would hold so few rows that noise would count for more.
    """
    moved = 0
    for side in (1, -1):
        while True:
            numbers = rest.numbers[::side]
            gone = numbers[::-1][: MOST_OUTLIERS + 1]
            counts = rest.counts[::side][::-1][: len(gone)]
            few = np.flatnonzero(np.cumsum(counts) <= _outliers(rest))
            far = [i for i in few if abs(gone[i] - gone[i + 1]) > OUTLIER_GAP * abs(gone[i + 1] - _middle(rest))
                   ] if len(gone) > MOST_OUTLIERS else []  # fmt: skip
            if not far:
                break
            last = int(far[-1]) + 1
            moved += int(counts[:last].sum())
            keep = slice(0, -last) if side > 0 else slice(last, None)
            rest = dataclasses.replace(rest, numbers=rest.numbers[keep], counts=rest.counts[keep])
    return rest, moved


def _outliers(rest: Values) -> int:
    """How many rows may be moved at an end: a handful of a large table, one of a small one, none of a tiny one."""
    return min(MOST_OUTLIERS, max(int(OUTLIER_SHARE * rest.rows), int(rest.rows >= TINY)))


def _middle(rest: Values) -> float:
    return float(rest.numbers[np.searchsorted(np.cumsum(rest.counts), rest.counts.sum() / 2)])


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


def _near(rest: Values, ends: NumpyArray, goal: float, slack: float) -> int:
    """A position near a mass at which a round edge can stand."""
    exact = int(np.searchsorted(ends, goal))
    exact += int(exact < len(ends) - 1 and ends[exact] - goal < goal - (ends[exact - 1] if exact else 0))
    low, high = int(np.searchsorted(ends, goal - slack)), int(np.searchsorted(ends, goal + slack))
    low, high = max(1, min(low, exact)), min(len(ends) - 1, max(high, exact))
    edge = roundest(rest.numbers[low - 1], rest.numbers[high], rest.step, rest.kind)
    return int(np.searchsorted(rest.numbers, edge))


def _refined(rest: Values, cuts: list[int], most: int) -> list[int]:
    """More cuts, while one helps: where an interval's law misses the values most."""
    while len(cuts) - 1 < most:
        scores = [_misfit(rest, a, b)[0] for a, b in itertools.pairwise(cuts)]
        best: tuple[float, int] | None = None
        for place in np.argsort(scores)[::-1][:6]:
            if scores[place] <= 1:
                break
            better = _best_split(rest, cuts[place], cuts[place + 1])
            if better is not None and better[0] < 0.95 * scores[place]:
                best = better
                break
        if best is None:
            return cuts
        cuts = sorted({*cuts, best[1]})
    return cuts


def _best_split(rest: Values, start: int, end: int) -> tuple[float, int] | None:
    """The place at which two intervals follow the values best, and how far the worse of them misses them."""
    part = rest.between(start, end)
    ends = np.cumsum(part.counts)
    least = max(LEAST_ROWS, LEAST_SHARE * rest.rows)
    low, width = part.numbers[0], np.ptp(part.numbers)
    goals = [share * ends[-1] for share in (0.15, 0.3, 0.5, 0.7, 0.85, 0.95)]
    places = np.searchsorted(part.numbers, [low + share * width for share in (0.1, 0.25, 0.5, 0.75)])
    goals += [ends[place - 1] for place in places if 0 < place < len(ends)]
    goals += [least, ends[-1] - least]
    found: list[tuple[float, int]] = []
    for goal in sorted(set(goals)):
        place = _near(part, ends, goal, WINDOW * min(goal, ends[-1] - goal))
        if 0 < place < len(ends) and least <= ends[place - 1] <= ends[-1] - least:
            middle = start + place
            found.append((max(_misfit(rest, start, middle)[0], _misfit(rest, middle, end)[0]), middle))
    return min(found) if found else None


def _round_between(rest: Values, place: int) -> float:
    return roundest(rest.numbers[place - 1], rest.numbers[place], rest.step, rest.kind)


def _misfit(rest: Values, start: int, end: int) -> tuple[float, Law]:
    """How far the better law misses the values of an interval, 1 being as much as is let pass; and that law."""
    part = rest.between(start, end)
    low = float(part.numbers[0]) if start == 0 else _round_between(rest, start)
    high = float(part.numbers[-1]) if end == len(rest.numbers) else _round_between(rest, end)
    if rest.step and end < len(rest.numbers):
        high -= rest.step
    return _law_misfit(rest, part, low, high)


def _law_misfit(rest: Values, part: Values, low: float, high: float) -> tuple[float, Law]:
    """The same for some values and an interval from `low` to `high`, in which not all of them need lie."""
    mass = part.counts.sum() / rest.rows
    weights = part.counts / part.counts.sum()
    if rest.step and high - low < rest.step / 2:
        return 0.0, "linear"
    mean, deviation = rest.mean, rest.deviation
    centre = float(np.dot(weights, part.numbers))
    square = float(np.dot(weights, (part.numbers - mean) ** 2))
    scores: list[tuple[float, Law]] = []
    for law in _laws(low, high, rest):
        drawn = _quantiles(low, high, law, rest)
        off = abs(float(drawn.mean()) - centre)
        spread = abs(float(((drawn - mean) ** 2).mean()) - square) / max(deviation, 1e-300) ** 2
        limit = SD_OFF * deviation or 1.0
        if rest.kind in ("integer", "decimal") and mean:  # a date is not measured by its distance from 1970
            limit = min(limit, MEAN_OFF * abs(mean))
        under = np.cumsum(weights)
        place = np.searchsorted(np.sort(drawn), part.numbers + rest.step / 2, side="right") / len(drawn)
        ks = float(np.maximum(np.abs(under - place), 0).max())
        scores.append((max(mass * off / limit, mass * spread / (2 * SD_OFF), mass * ks / KS_OFF), law))
    return scores[0] if len(scores) == 1 or scores[0][0] < max(0.3, 1.2 * scores[1][0]) else scores[1]


def _laws(low: float, high: float, rest: Values) -> tuple[Law, ...]:
    dated = rest.kind in ("date", "datetime", "time")
    return ("linear",) if dated or (rest.step and high - low < 3 * rest.step) else ("linear", "log")


def _quantiles(low: float, high: float, law: Law, rest: Values) -> NumpyArray:
    """Evenly spaced quantiles of a law between two values."""
    half = rest.step / 2
    start, end = low - half, high + half
    if law == "linear":
        return np.asarray(start + (end - start) * POINTS)
    a, b = (math.copysign(math.log1p(abs(x) / rest.unit), x) for x in (start, end))
    stretched = a + (b - a) * POINTS
    return np.asarray(np.sign(stretched) * np.expm1(np.abs(stretched)) * rest.unit)


def _finished(rest: Values, cuts: list[int], spikes: tuple[float, ...], moved: int) -> Binning:
    laws = tuple(_misfit(rest, a, b)[1] for a, b in itertools.pairwise(cuts))
    inner = [_round_between(rest, place) for place in cuts[1:-1]]
    first, last, more = _outer_edges(rest, cuts)
    moved += more
    if inner and last == inner[-1]:  # one value alone: the interval before it holds its upper edge, so that is a spike
        return Binning(edges=(first, *inner), spikes=tuple(sorted((*spikes, last))), laws=laws[:-1], moved=moved)
    if rest.kind in ("integer", "decimal"):
        slack = 0.02 * ((inner[0] if inner else last) - first)
        lower = 0.0 - roundest(-first - (rest.step or slack) / 2, -first + slack, rest.step, rest.kind)
        first = lower if lower <= first and (lower >= 0) == (first >= 0) else first
        slack = 0.02 * (last - (inner[-1] if inner else first))
        upper = roundest(last - (rest.step or slack) / 2, last + slack, rest.step, rest.kind)
        last = upper if upper >= last else last
    return Binning(edges=(first, *inner, last), spikes=spikes, laws=laws, moved=moved)


def _outer_edges(rest: Values, cuts: list[int]) -> tuple[float, float, int]:
    """The outermost edges, and how many rows lie beyond: where few far values stretch a tail, the interval that follows all
    its values best ends before them."""
    first, last, moved = float(rest.numbers[0]), float(rest.numbers[-1]), 0
    budget = _outliers(rest)
    for side, start, end in ((1, cuts[-2], cuts[-1]), (-1, cuts[0], cuts[1])):
        part = rest.between(start, end)
        beyond = np.cumsum(part.counts[::-side]) - part.counts[::-side]
        choices = part.numbers[::-side][beyond <= budget]
        if _misfit(rest, start, end)[0] <= STRETCHED or len(choices) < 2 or len(choices) == len(part.numbers):
            continue
        inner = _round_between(rest, start) if start else first
        outer = _round_between(rest, end) - rest.step if end < len(rest.numbers) else last
        scores = [_law_misfit(rest, part, *((inner, one) if side > 0 else (one, outer)))[0] for one in choices]
        best = int(np.argmin(scores))
        if scores[best] < HELPS * scores[0]:
            moved += int(beyond[best])
            first, last = (first, float(choices[best])) if side > 0 else (float(choices[best]), last)
    return first, last, moved


def roundest(low: float, high: float, step: float, kind: str) -> float:
    """The roundest number above `low` and up to `high`: few digits, or the first of a year, a month, a day."""
    if kind in ("date", "datetime"):
        return _round_date(low, high, 86_400.0 if kind == "datetime" else 1.0, step)
    if kind == "time":
        return _round_to(low, high, (21_600, 3_600, 1_800, 900, 60, 10, 1))
    if not high - low > 0:
        return float(high)
    exponent = min(308, math.floor(math.log10(max(abs(low), abs(high)))) + 1)  # 10^309 is no float
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
