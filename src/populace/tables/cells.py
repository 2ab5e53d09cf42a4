"""The cells of a column with a scale: spikes and intervals, how values lie inside them, and on which grid.

A column's values lie on a grid: whole numbers, hundredths, days, minutes; with step 0 every float. Inside an interval they
follow a law: `linear` is uniform over the grid, `log` uniform in g(x) = sign(x) log(1 + |x| / unit), whose unit is the step
or, with step 0, a millionth of the largest edge.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

import numpy as np

from populace.types import NumpyArray

Law = Literal["linear", "log"]

LAWS: tuple[str, ...] = ("linear", "log")
EXACT = 2.0**53  # up to here a float holds every whole number, so cells of whole numbers have exact ends
FINE = 1e-6  # the unit of a logarithm without a step, as a part of the largest edge
SUMMED = 4_096  # up to so many values the mean of a logarithmic piece is summed, beyond it is integrated


def same_law(law: Law, intervals: int) -> tuple[Law, ...]:
    """One law for so many intervals."""
    return (law,) * max(0, intervals)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One level of a column with a scale: a single value, or low <= value < high (the last interval: <=)."""

    low: float
    high: float
    spike: bool = False
    law: Law = "linear"


class Grid:
    """The numbers a column may hold, as ticks: multiples of a step, or with step 0 the floats themselves."""

    def __init__(self, step: float, *, down: bool = False) -> None:
        """`down` rounds a number down to its tick (a time of day belongs to its minute), not to the nearest.

        Exact for numbers up to `most`. Parts of whole numbers have no exact float, so they need room for rounding.
        """
        self.step = step
        self.down = down
        exponent = Decimal(repr(float(step))).normalize().as_tuple().exponent
        self.scale = 10.0 ** max(0, -int(exponent))
        self.most = EXACT if self.scale == 1.0 else EXACT / 8 / self.scale
        self._times = float(np.rint(step * self.scale))

    @property
    def ratio(self) -> tuple[int, int]:
        """The tick of a number is the whole number next to number * first / second; (1, 1) where every float is one."""
        return (int(self.scale), int(self._times)) if self.step else (1, 1)

    def values(self, ticks: NumpyArray) -> NumpyArray:
        return np.asarray(ticks * self._times / self.scale if self.step else ticks, np.float64)

    def ticks(self, numbers: NumpyArray) -> NumpyArray:
        """The tick each number belongs to."""
        if not self.step:
            return np.asarray(numbers, np.float64)
        with np.errstate(over="ignore"):
            raw = np.asarray(numbers, np.float64) * self.scale / self._times
        near = np.rint(raw)
        return np.where(self.values(near) > numbers, near - 1, near) if self.down else near

    def first(self, number: float) -> float:
        """The first tick at or above a number."""
        near = float(self.ticks(np.array(number)))
        while self.step and float(self.values(np.array(near))) < number:
            near += 1
        while self.step and float(self.values(np.array(near - 1))) >= number:
            near -= 1
        return near

    def below(self, tick: float) -> float:
        return tick - 1 if self.step else math.nextafter(tick, -math.inf)

    def above(self, tick: float) -> float:
        return tick + 1 if self.step else math.nextafter(tick, math.inf)


class Cells:
    """What a scale column's codes stand for: finding codes, drawing values, moving values into the domain."""

    def __init__(self, edges: Sequence[float], spikes: Sequence[float], laws: Sequence[Law], *, grid: Grid) -> None:
        self.grid = grid
        self._unit = 1.0 if grid.step else max(FINE * max(map(abs, (*edges, *spikes)), default=1.0), 1e-300)
        self._spikes = np.array([grid.first(spike) for spike in spikes], np.float64)
        lows = [grid.first(edge) for edge in edges]
        highs = [grid.below(low) for low in lows[1:]]
        if edges and float(grid.values(np.array(lows[-1]))) == edges[-1]:
            highs[-1] = lows[-1]
        self._span = (edges[0], edges[-1]) if edges else ()
        self._lows, self._highs = np.array(lows[:-1], np.float64), np.array(highs, np.float64)
        pieces = [self._pieces(low, high) for low, high in zip(lows[:-1], highs, strict=True)]
        made: list[tuple[Cell, list[tuple[float, float]], int]] = [
            (Cell(low=value, high=value, spike=True), [(tick, tick)], -1)
            for value, tick in zip(spikes, self._spikes.tolist(), strict=True)
        ]
        for index, ((low, high), law) in enumerate(zip(itertools.pairwise(edges), laws, strict=True)):
            if pieces[index]:
                made.append((Cell(low=low, high=high, law=law), pieces[index], index))
        made.sort(key=lambda one: (one[0].low, not one[0].spike))
        self.cells: tuple[Cell, ...] = tuple(cell for cell, _, _ in made)
        self.empty: tuple[int, ...] = tuple(i for i, listed in enumerate(pieces) if not listed)
        self._index(made)

    def _pieces(self, low: float, high: float) -> list[tuple[float, float]]:
        """What is left of an interval of ticks when its spikes are taken out."""
        found, start = [], low
        for spike in sorted(s for s in self._spikes.tolist() if low <= s <= high):
            if start <= self.grid.below(spike):
                found.append((start, self.grid.below(spike)))
            start = self.grid.above(spike)
        return [*found, (start, high)] if start <= high else found

    def _index(self, made: list[tuple[Cell, list[tuple[float, float]], int]]) -> None:
        self._spike_codes = np.array([i for i, one in enumerate(made) if one[0].spike], np.int32)
        self._spike_ticks = np.array([one[1][0][0] for one in made if one[0].spike], np.float64)
        self._interval_codes = np.full(len(self._lows), -1, np.int32)
        for code, (_, _, interval) in enumerate(made):
            if interval >= 0:
                self._interval_codes[interval] = code
        flat = [(code, low, high, cell.law) for code, (cell, parts, _) in enumerate(made) for low, high in parts]
        self._cell = np.array([one[0] for one in flat], np.int64)
        self._low, self._high = np.array([one[1] for one in flat]), np.array([one[2] for one in flat])
        self._log = np.array([one[3] == "log" for one in flat], bool)
        weight = np.where(self._log, self._stretch(self._high, 0.5) - self._stretch(self._low, -0.5), self._width())
        total = np.bincount(self._cell, weight, len(made))
        even = 1.0 / np.bincount(self._cell, minlength=len(made)).clip(1)
        share = weight / np.where(total > 0, total, 1.0)[self._cell]
        self._share = np.where(total[self._cell] > 0, share, even[self._cell])
        ends = (
            np.cumsum(self._share)
            - np.concatenate([[0.0], np.cumsum(np.bincount(self._cell, self._share))])[self._cell]
        )
        self._ends = self._cell + np.clip(ends, 0.0, 1.0)

    def _width(self) -> NumpyArray:
        return self._high - self._low + 1 if self.grid.step else self._high / 2 - self._low / 2

    def _stretch(self, ticks: NumpyArray, half: float) -> NumpyArray:
        """g of a tick's outer end."""
        ticks = ticks + (half if self.grid.step else 0.0)
        return np.asarray(np.sign(ticks) * np.log1p(np.abs(ticks) / self._unit))

    def _shrink(self, stretched: NumpyArray) -> NumpyArray:
        return np.asarray(np.sign(stretched) * np.expm1(np.abs(stretched)) * self._unit)

    @property
    def pieces(self) -> tuple[tuple[float, float, int], ...]:
        """First tick, last tick and code of every run of ticks with one code, ascending."""
        runs = zip(self._low.tolist(), self._high.tolist(), self._cell.tolist(), strict=True)
        return tuple(sorted((low, high, code) for low, high, code in runs))

    @property
    def inner(self) -> tuple[float, float] | None:
        """First and last tick between the outermost edges; None where there is none."""
        return (
            (float(self._lows[0]), float(self._highs[-1])) if self._span and self._lows[0] <= self._highs[-1] else None
        )

    def codes(self, numbers: NumpyArray) -> NumpyArray:
        """The code of each number; -1 where it lies in no cell. NaN lies in none."""
        ticks = self._inner_ticks(numbers)
        codes = np.full(len(ticks), -1, np.int32)
        if len(self._lows):
            interval = np.searchsorted(self._lows, ticks, side="right") - 1
            inside = (interval >= 0) & (ticks <= self._highs[interval])
            codes = np.where(inside, self._interval_codes[interval], codes)
        if len(self._spike_ticks):
            near = np.minimum(np.searchsorted(self._spike_ticks, ticks), len(self._spike_ticks) - 1)
            codes = np.where(self._spike_ticks[near] == ticks, self._spike_codes[near], codes)
        return codes.astype(np.int32)

    def _inner_ticks(self, numbers: NumpyArray) -> NumpyArray:
        """Ticks, where rounding does not push a number that lies between the edges over the last or the first one."""
        ticks = self.grid.ticks(numbers)
        if self.inner is None or not self._span:
            return ticks
        inside = (numbers >= self._span[0]) & (numbers <= self._span[1])
        return np.where(inside, np.clip(ticks, *self.inner), ticks)

    def nearest(self, numbers: NumpyArray) -> NumpyArray:
        """Each number moved to the nearest one of the domain; one that lies in it stays."""
        ticks = self._inner_ticks(numbers)
        order = np.argsort(self._low, kind="stable")
        lows, highs = self._low[order], self._high[order]
        place = np.searchsorted(lows, ticks, side="right") - 1
        under = np.where(place >= 0, highs[place], -np.inf)
        over = np.where(place + 1 < len(lows), lows[np.minimum(place + 1, len(lows) - 1)], np.inf)
        with np.errstate(over="ignore", invalid="ignore"):
            moved = np.where(ticks - under <= over - ticks, under, over)
        return np.where((place >= 0) & (ticks <= under), np.asarray(numbers, np.float64), self.grid.values(moved))

    def draw(self, codes: NumpyArray, rng: np.random.Generator) -> NumpyArray:
        """A value for each code, by the law of its cell."""
        piece = np.minimum(
            np.searchsorted(self._ends, codes + rng.random(len(codes)), side="right"), len(self._cell) - 1
        )
        piece = np.where(self._cell[piece] > codes, piece - 1, piece)
        low, high, share = self._low[piece], self._high[piece], rng.random(len(codes))
        # low + (high - low) * share would overflow between far edges
        even = low + np.floor(share * (high - low + 1)) if self.grid.step else low * (1.0 - share) + high * share
        start, end = self._stretch(low, -0.5), self._stretch(high, 0.5)
        curved = self._shrink(start + share * (end - start))
        curved = np.rint(curved) if self.grid.step else curved
        return self.grid.values(np.clip(np.where(self._log[piece], curved, even), low, high))

    def centres(self) -> NumpyArray:
        """The mean of each cell's values under its law."""
        means = np.array([self._mean(*one) for one in zip(self._low, self._high, self._log, strict=True)], np.float64)
        with np.errstate(over="ignore"):
            return np.asarray(np.bincount(self._cell, self.grid.values(means) * self._share), np.float64)

    def _mean(self, low: float, high: float, log: bool) -> float:
        if not log or low == high:
            return low / 2 + high / 2
        if self.grid.step and high - low < SUMMED:
            ticks = np.arange(low, high + 1)
            weight = self._stretch(ticks, 0.5) - self._stretch(ticks, -0.5)
            return float(np.average(ticks, weights=weight))
        start, end = float(self._stretch(np.array(low), -0.5)), float(self._stretch(np.array(high), 0.5))
        if end - start < 1e-6:
            return low / 2 + high / 2
        whole = np.expm1(abs(end)) - abs(end) - np.expm1(abs(start)) + abs(start)
        return float(np.clip(whole / (end - start) * self._unit, low, high))
