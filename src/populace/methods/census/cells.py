"""Cells: long columns seen in few groups of their codes, by a noisy one-way table of the codes; post-processing.

Along a scale, values that many records share get a cell of their own, and what lies between them is cut into cells of about
equal weight. Of a long list, the most frequent categories get a cell each, and the others share the rest. Inside a cell codes
follow the one-way table: noise that stands in empty parts of a scale is taken out first, by thresholding wavelet coefficients.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from populace.tables.schema import Column, Schema
from populace.types import NumpyArray

SCALE_CELLS = 24  # of a column with a scale, the one for "no value" not counted
LIST_CELLS = 40  # of a list of categories
REST_CELLS = 4  # of these, for categories too rare to have one of their own
SPIKE_SHARE = 0.03  # of the records, from which on a value has a cell of its own
SURE = 4.0  # standard deviations of noise above which a single count is taken to be there
THRESHOLD = 1.0  # of wavelet coefficients, as a part of the largest that noise alone would give


def cells_of(column: Column) -> int:
    """The cells that a column is seen in: a public number."""
    if not column.is_ordered:
        return min(column.size, LIST_CELLS + int(column.nullable))
    return min(column.size, SCALE_CELLS + int(column.nullable))


@dataclasses.dataclass(frozen=True)
class Coarse:
    """Which columns are seen in fewer cells than they have codes. `starts` are their places in a vector of all their codes."""

    schema: Schema

    @property
    def columns(self) -> tuple[int, ...]:
        return tuple(i for i, column in enumerate(self.schema.columns) if cells_of(column) < column.size)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(cells_of(column) for column in self.schema.columns)

    @property
    def numbers(self) -> int:
        """Codes of all these columns together."""
        return sum(self.schema.columns[column].size for column in self.columns)

    def starts(self) -> dict[int, int]:
        sizes = [self.schema.columns[column].size for column in self.columns]
        return {column: int(start) for column, start in zip(self.columns, np.cumsum([0, *sizes]), strict=False)}


def grouped(column: Column, counts: NumpyArray, deviation: float) -> tuple[NumpyArray, NumpyArray]:
    """The cell of every code, and each code's share of its cell, from noisy counts of codes and their noise's deviation."""
    wanted = cells_of(column)
    counts = np.asarray(counts, np.float64)
    if column.is_ordered:
        cells, weights = _cut_scale(counts[: column.levels], deviation, wanted - int(column.nullable))
    else:
        cells, weights = _ranked(counts[: column.levels], deviation, wanted - int(column.nullable))
    if column.nullable:
        cells, weights = np.append(cells, wanted - 1), np.append(weights, max(counts[-1], 1.0))
    totals = np.bincount(cells, weights, minlength=wanted)
    numbers = np.bincount(cells, minlength=wanted)
    empty = totals[cells] <= 0
    shares = np.where(empty, 1 / np.maximum(numbers[cells], 1), weights / np.where(totals > 0, totals, 1.0)[cells])
    return cells.astype(np.int32), shares


def _cut_scale(counts: NumpyArray, deviation: float, wanted: int) -> tuple[NumpyArray, NumpyArray]:
    """Cells along a scale: values above `SPIKE_SHARE` by themselves, the stretches between them in parts of equal weight."""
    total = max(float(counts.sum()), 1.0)
    spikes = (counts > SPIKE_SHARE * total) & (counts > SURE * deviation)
    if spikes.sum() > wanted // 2:
        kept = np.argsort(-counts)[: wanted // 2]
        spikes = np.isin(np.arange(len(counts)), kept) & spikes
    between = denoised(np.where(spikes, 0.0, counts), deviation)
    weights = np.where(spikes, np.maximum(counts, 0.0), between)
    stretches = np.cumsum(np.concatenate([[False], spikes[1:] | spikes[:-1]]))  # a new one at and after every spike
    left = wanted - int(spikes.sum())
    mass = np.bincount(stretches, np.where(spikes, 0.0, between))
    cuts = _share_out(mass, left, np.bincount(stretches, ~spikes))
    cells = np.zeros(len(counts), np.int64)
    cell = 0
    for stretch, parts in enumerate(cuts):
        where = np.flatnonzero(stretches == stretch)
        if spikes[where[0]]:
            cells[where] = cell
            cell += 1
            continue
        inner = _equal_parts(between[where], parts)
        cells[where] = cell + inner
        cell += int(inner.max()) + 1
    return np.minimum(cells, wanted - 1), weights


def _share_out(mass: NumpyArray, cells: int, codes: NumpyArray) -> NumpyArray:
    """How many cells each stretch gets: one each while there are any, then one after the other where most lies in a cell."""
    there = codes > 0
    given = there.astype(np.int64)
    for _ in range(max(0, cells - int(given.sum()))):
        free = there & (given < codes)
        if not free.any():
            break
        given[np.argmax(np.where(free, mass / np.maximum(given, 1), -1.0))] += 1
    return given


def _equal_parts(weights: NumpyArray, parts: int) -> NumpyArray:
    """Codes in a row in at most so many parts of about equal weight."""
    total = weights.sum()
    if total <= 0:
        return np.zeros(len(weights), np.int64)
    middles = (np.cumsum(weights) - weights / 2) / total
    return np.asarray(np.unique(np.minimum((middles * parts).astype(np.int64), parts - 1), return_inverse=True)[1])


def _ranked(counts: NumpyArray, deviation: float, wanted: int) -> tuple[NumpyArray, NumpyArray]:
    """Cells of a list: the most frequent categories one each, the others dealt to the rest by their rank."""
    order = np.argsort(-counts, kind="stable")
    single = max(1, wanted - REST_CELLS)
    cells = np.empty(len(counts), np.int64)
    cells[order[:single]] = np.arange(min(single, len(counts)))
    rest = order[single:]
    cells[rest] = single + (np.arange(len(rest)) * (wanted - single)) // max(len(rest), 1)
    weights = shrunk(counts, deviation)
    return cells, weights


def shrunk(counts: NumpyArray, deviation: float) -> NumpyArray:
    """Counts with their total kept, no count below 0: all lowered alike, cut at 0."""
    total = max(float(counts.sum()), 1.0)
    values = np.sort(counts)[::-1]
    shifts = (np.cumsum(values) - total) / np.arange(1, len(values) + 1)
    shift = shifts[np.flatnonzero(values > shifts)[-1]]
    return np.asarray(np.maximum(counts - shift, 0.0))


def denoised(counts: NumpyArray, deviation: float) -> NumpyArray:
    """Noisy counts along a scale without what noise alone would show: Haar coefficients below the largest of pure noise are
    taken as 0 (averaged over two shifts), and counts below 0 as 0; scaled to their total."""
    if len(counts) < 4 or deviation <= 0:
        return np.maximum(counts, 0.0)
    size = 1 << (len(counts) - 1).bit_length()
    least = THRESHOLD * deviation * math.sqrt(2 * math.log(size))
    shifts = (0, size // 3)
    found = np.zeros(len(counts))
    for shift in shifts:
        padded = np.roll(np.pad(counts, (0, size - len(counts))), shift)
        found += np.roll(_thresholded(padded, least), -shift)[: len(counts)]
    positive = np.maximum(found / len(shifts), 0.0)
    total = max(float(counts.sum()), 0.0)
    return positive * (total / positive.sum()) if positive.sum() > 0 else positive


def _thresholded(values: NumpyArray, least: float) -> NumpyArray:
    """Values (a power of two of them) whose orthonormal Haar coefficients below `least` are taken as 0."""
    details = []
    smooth = values.astype(np.float64)
    while len(smooth) > 1:
        even, odd = smooth[0::2], smooth[1::2]
        detail = (even - odd) / math.sqrt(2)
        details.append(np.where(np.abs(detail) > least, detail, 0.0))
        smooth = (even + odd) / math.sqrt(2)
    for detail in reversed(details):
        both = np.empty(2 * len(smooth))
        both[0::2], both[1::2] = (smooth + detail) / math.sqrt(2), (smooth - detail) / math.sqrt(2)
        smooth = both
    return smooth
