"""Cells: long columns seen in few groups of their codes, by a noisy one-way table of the codes; post-processing.

Along a scale, values that many records share get a cell of their own, and what lies between them is cut into cells of about
equal weight. Of a long list, the most frequent categories get a cell each, and the others share the rest. Inside a cell codes
follow the one-way table: noise that stands in empty parts of a scale is taken out first, by thresholding wavelet coefficients.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from populace.methods.blocks.frequency_estimation import project_to_simplex
from populace.methods.census.fit import Observed
from populace.methods.census.tables import PairTables
from populace.tables.schema import Column, Schema
from populace.types import NumpyArray

SCALE_CELLS = 24  # of a column with a scale, the one for "no value" not counted
LIST_CELLS = 40  # of a list of categories
REST_CELLS = 4  # of these, for categories too rare to have one of their own
SPIKE_SHARE = 0.03  # of the records, from which on a value has a cell of its own
SURE = 4.0  # standard deviations of noise above which a single count is taken to be there
SURE_SOMEWHERE = 4.5  # the same where any of thousands of stretches might show it
NEAR = 4  # codes beyond what is surely there of which little is asked to be there too
SHORT_GAP = 16  # codes between what is there
THRESHOLD = 1.0  # of wavelet coefficients, as a part of the largest that noise alone would give
CLEAR = 2.0  # standard deviations of noise


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
        weights = _nearest(cells, weights)
    else:
        cells, weights = _ranked(counts[: column.levels], wanted - int(column.nullable))
    if column.nullable:
        cells, weights = np.append(cells, wanted - 1), np.append(weights, max(counts[-1], 1.0))
    totals = np.bincount(cells, weights, minlength=wanted)
    numbers = np.bincount(cells, minlength=wanted)
    empty = totals[cells] <= 0
    shares = np.where(empty, 1 / np.maximum(numbers[cells], 1), weights / np.where(totals > 0, totals, 1.0)[cells])
    return cells.astype(np.int32), shares


def unseen(column: Column, counts: NumpyArray, deviation: float) -> NumpyArray:
    """Codes in cells of a scale in which the counts show nothing; and "no value"."""
    found = np.zeros(column.size, bool)
    found[column.levels :] = True
    if column.is_ordered:
        wanted = cells_of(column) - int(column.nullable)
        cells, weights = _cut_scale(np.asarray(counts[: column.levels], np.float64), deviation, wanted)
        found[: column.levels] = np.bincount(cells, weights)[cells] <= 0
    return found


def _cut_scale(counts: NumpyArray, deviation: float, wanted: int) -> tuple[NumpyArray, NumpyArray]:
    """Cells along a scale: values above `SPIKE_SHARE` by themselves, the stretches between them in parts of equal weight."""
    total = max(float(counts.sum()), 1.0)
    spikes = (counts > SPIKE_SHARE * total) & (counts > SURE * deviation)
    if spikes.sum() > wanted // 2:
        kept = np.argsort(-counts)[: wanted // 2]
        spikes = np.isin(np.arange(len(counts)), kept) & spikes
    between = denoised(np.where(spikes, 0.0, counts), deviation, spikes)
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


def _nearest(cells: NumpyArray, weights: NumpyArray) -> NumpyArray:
    """The weights, where a cell without any has those of its codes that lie nearest to what is there: a guess further out
    would be guided by noise, and a few rows at a far end of a universal grid outweigh all others in a mean."""
    found, held, codes = weights.copy(), np.flatnonzero(weights > 0), np.arange(len(weights))
    if not len(held):
        return found
    after = np.minimum(np.searchsorted(held, codes), len(held) - 1)
    far = np.minimum(np.abs(held[after] - codes), np.abs(held[np.maximum(after - 1, 0)] - codes))
    for cell in np.setdiff1d(cells, cells[held]):
        where = np.flatnonzero(cells == cell)
        found[where[far[where] < far[where].min() + SHORT_GAP]] = 1.0
    return found


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


def _ranked(counts: NumpyArray, wanted: int) -> tuple[NumpyArray, NumpyArray]:
    """Cells of a list: the most frequent categories one each, the others dealt to the rest by their rank."""
    order = np.argsort(-counts, kind="stable")
    single = max(1, wanted - REST_CELLS)
    cells = np.empty(len(counts), np.int64)
    cells[order[:single]] = np.arange(min(single, len(counts)))
    rest = order[single:]
    cells[rest] = single + (np.arange(len(rest)) * (wanted - single)) // max(len(rest), 1)
    total = max(float(counts.sum()), 1.0)
    return cells, total * project_to_simplex(counts / total)


def denoised(counts: NumpyArray, deviation: float, known: NumpyArray | None = None) -> NumpyArray:
    """Noisy counts along a scale without what noise alone would show: Haar coefficients below the largest of pure noise are
    taken as 0 (averaged over two shifts), and so are counts below 0 and where nothing is; scaled to their total. `known` are
    codes that are surely there beside them."""
    if len(counts) < 4 or deviation <= 0:
        return np.maximum(counts, 0.0)
    size = 1 << (len(counts) - 1).bit_length()
    least = THRESHOLD * deviation * math.sqrt(2 * math.log(size))
    shifts = (0, size // 3)
    found = np.zeros(len(counts))
    for shift in shifts:
        padded = np.roll(np.pad(counts, (0, size - len(counts))), shift)
        found += np.roll(_thresholded(padded, least), -shift)[: len(counts)]
    positive = np.where(supported(counts, deviation, known), np.maximum(found / len(shifts), 0.0), 0.0)
    total = max(float(counts.sum()), 0.0)
    return positive * (total / positive.sum()) if positive.sum() > 0 else positive


def supported(counts: NumpyArray, deviation: float, known: NumpyArray | None = None) -> NumpyArray:
    """Where along a scale anything is: noise alone leaves a little everywhere, also far from all values.

    Stretches that are surely there (and what is `known` to be) are widened on both sides by the next codes, few or many, as
    long as their sum is above noise: the more codes, the clearer. Short gaps are closed.
    """
    known = np.zeros(len(counts), bool) if known is None else known
    there = _surely(counts, deviation, something=bool(known.any())) | known
    before = np.concatenate([[0.0], np.cumsum(counts)])
    down, up = _ends(before, -1, deviation), _ends(before, 1, deviation)
    for first, last in _runs(there):
        there[down[first] : up[last]] = True
    for first, last in _runs(~there):
        if last - first <= SHORT_GAP and first > 0 and last < len(there):
            there[first:last] = True
    return there


def _surely(counts: NumpyArray, deviation: float, *, something: bool = False) -> NumpyArray:
    """Codes in the narrowest stretches (of a power of two codes) that are surely there; where there is
    none, and nothing else is known to be there, the likeliest code."""
    size = 1 << (len(counts) - 1).bit_length()
    score = np.pad(np.asarray(counts, np.float64) / deviation, (0, size - len(counts)))
    found = np.zeros(size, bool)
    likeliest = int(np.argmax(score))
    while len(score):
        width = size // len(score)
        inside = found.reshape(-1, width).any(axis=1)
        found |= np.repeat((score > SURE_SOMEWHERE) & ~inside, width)
        score = score.reshape(-1, 2).sum(axis=1) / math.sqrt(2) if len(score) > 1 else score[:0]
    found[likeliest] |= not (something or found.any())
    return found[: len(counts)]


def _runs(there: NumpyArray) -> list[tuple[int, int]]:
    """Beginnings and ends of what is true in a row."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], there.astype(np.int8), [0]])))
    return [(int(first), int(last)) for first, last in edges.reshape(-1, 2)]


def _ends(before: NumpyArray, way: int, deviation: float) -> NumpyArray:
    """For every place where a stretch may end, how far it goes on from there, up or down; `before` are the sums of all counts
    before each code."""
    places = np.arange(len(before))
    widths = 2 ** np.arange(len(before).bit_length())
    asked = deviation * np.sqrt(widths) * (1 + np.log2(1 + widths / NEAR) / 2)
    ends = np.clip(places[:, None] + way * widths, 0, len(before) - 1)
    clear = way * (before[ends] - before[:, None]) > asked
    clear[[0, -1]] = False
    following = np.where(clear.any(axis=1), ends[places, clear.argmax(axis=1)], places)
    while not np.array_equal(further := following[following], following):
        following = further
    return following


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


def present_cells(tables: PairTables, observed: Observed) -> list[NumpyArray]:
    """For each column, which of its cells are clearly there; the largest is in any case."""
    sums: list[list[tuple[NumpyArray, float]]] = [[] for _ in tables.sizes]
    start = 0
    for (first, second), shape in zip(tables.pairs, tables.shapes, strict=True):
        end = start + shape[0] * shape[1]
        table = observed.shares[:, start:end].reshape(-1, *shape)
        variance = float(observed.deviations[start]) ** 2
        if first == second:
            sums[first].append((np.einsum("yaa->a", table), variance * len(table)))
        else:
            sums[first].append((table.sum(axis=(0, 2)), variance * len(table) * shape[1]))
            sums[second].append((table.sum(axis=(0, 1)), variance * len(table) * shape[0]))
        if tables.target is not None:
            sums[tables.target].append((table.sum(axis=(1, 2)), variance * shape[0] * shape[1]))
        start = end
    return [_present(parts) for parts in sums]


def _present(parts: list[tuple[NumpyArray, float]]) -> NumpyArray:
    precision = np.array([1 / max(variance, 1e-300) for _, variance in parts])
    mean = np.average([table for table, _ in parts], axis=0, weights=precision)
    there = mean > CLEAR * precision.sum() ** -0.5
    there[np.argmax(mean)] = True
    return np.asarray(there)
