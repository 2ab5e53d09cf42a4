"""Cells: long columns seen in few groups of their codes, by noisy one-way counts of the codes; post-processing.

Along a scale, values that many records share get a cell of their own, and what lies between them is cut into cells of about
equal weight. Of a long list, the most frequent categories get a cell each, and the others share the rest. Inside a cell codes
follow the one-way counts, without what noise alone would show.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from populace.methods.blocks.frequency_estimation import project_to_simplex
from populace.methods.census.fit import Observed
from populace.methods.census.scales import SHORT_GAP, SumNoise, denoised, sum_noise
from populace.methods.census.tables import PairTables
from populace.tables.schema import Column, Schema
from populace.tables.universal import known_codes
from populace.types import NumpyArray

SCALE_CELLS = 24  # of a column with a scale, the one for "no value" not counted
LIST_CELLS = 40  # of a list of categories
REST_CELLS = 4  # of these, for categories too rare to have one of their own
MOST_POSITIONS = 4_096  # cells of all columns together, above which columns have fewer: a fit takes minutes
LEAST_CELLS = 8  # of a column, however many there are
SPIKE_SHARE = 0.03  # of the records, from which on a value has a cell of its own
SURE = 4.0  # standard deviations of noise above which a single count is taken to be there
LIKELY = 3.0  # the same for numbers that may be categories, of which there are `universal.KNOWN_CODES`
CLEAR = 2.0  # standard deviations of noise


def cells_of(column: Column, most: int = LIST_CELLS) -> int:
    """The cells that a column is seen in, "no value" beside at most `most`: a public number."""
    return min(column.size, min(SCALE_CELLS if column.is_ordered else LIST_CELLS, most) + int(column.nullable))


@dataclasses.dataclass(frozen=True)
class Coarse:
    """Which columns are seen in fewer cells than they have codes, and in how many: all from the schema alone."""

    schema: Schema

    @functools.cached_property
    def most(self) -> int:
        """The most cells of a column: `LIST_CELLS`, and fewer where there are so many columns that all of them together would
        have more than `MOST_POSITIONS`."""
        return next(filter(self._fits, range(LIST_CELLS, LEAST_CELLS, -1)), LEAST_CELLS)

    def _fits(self, most: int) -> bool:
        return sum(cells_of(column, most) for column in self.schema.columns) <= MOST_POSITIONS

    @property
    def columns(self) -> tuple[int, ...]:
        return tuple(
            i for i, (cells, size) in enumerate(zip(self.sizes, self.schema.sizes, strict=True)) if cells < size
        )

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(cells_of(column, self.most) for column in self.schema.columns)


@dataclasses.dataclass(frozen=True, eq=False)
class Grouping:
    """The cells of one column: the `cell` of every code, and its `share` of that cell; which codes the counts do not show
    (`doubtful`, "no value" always), and which cells hold one value that many records share (`spikes`)."""

    cell: NumpyArray
    share: NumpyArray
    doubtful: NumpyArray
    spikes: NumpyArray


def codes_as_cells(column: Column) -> Grouping:
    """Every code its own cell, of a column that is short enough."""
    return Grouping(
        np.arange(column.size, dtype=np.int32), np.ones(column.size), np.arange(column.size) >= column.levels,
        np.zeros(column.size, bool),
    )  # fmt: skip


def grouped(column: Column, counts: NumpyArray, deviation: float, most: int = LIST_CELLS) -> Grouping:
    """The cells of a long column, `most` or fewer, from estimates of its codes' counts; `deviation` is the noise of one count
    as it was sent."""
    wanted, levels = cells_of(column, most), column.levels
    counts = np.asarray(counts, np.float64)
    doubtful, spikes = np.arange(column.size) >= levels, np.zeros(wanted, bool)
    if column.is_ordered:
        cells, weights, alone = _cut_scale(counts[:levels], sum_noise(levels, deviation), wanted - int(column.nullable))
        doubtful[:levels] = np.bincount(cells, weights)[cells] <= 0
        weights = _nearest(cells, weights)
        spikes[cells[alone]] = True
    else:
        cells, weights = _ranked(counts[:levels], wanted - int(column.nullable))
        if column.domain == "released" and known_codes(column):
            doubtful[:levels] = counts[:levels] < LIKELY * deviation
            weights = _likeliest(cells, np.where(doubtful[:levels], 0.0, weights), counts[:levels])
    if column.nullable:
        cells, weights = np.append(cells, wanted - 1), np.append(weights, max(counts[-1], 1.0))
    totals = np.bincount(cells, weights, minlength=wanted)
    numbers = np.bincount(cells, minlength=wanted)
    empty = totals[cells] <= 0
    shares = np.where(empty, 1 / np.maximum(numbers[cells], 1), weights / np.where(totals > 0, totals, 1.0)[cells])
    return Grouping(cells.astype(np.int32), shares, doubtful, spikes)


def _cut_scale(counts: NumpyArray, noise: SumNoise, wanted: int) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
    """Cells along a scale: values above `SPIKE_SHARE` by themselves, the stretches between them in parts of equal weight.
    Returns the cell and the weight of every code, and which codes stand alone."""
    total = max(float(counts.sum()), 1.0)
    spikes = (counts > SPIKE_SHARE * total) & (counts > SURE * noise.of_aligned(1))
    if spikes.sum() > wanted // 2:
        kept = np.argsort(-counts)[: wanted // 2]
        spikes = np.isin(np.arange(len(counts)), kept) & spikes
    between = denoised(np.where(spikes, 0.0, counts), noise, spikes)
    weights = np.where(spikes, np.maximum(counts, 0.0), between)
    return cut_stretches(between, spikes, wanted), weights, spikes


def cut_stretches(weights: NumpyArray, alone: NumpyArray, wanted: int) -> NumpyArray:
    """The part of every code along a scale, `wanted` parts or fewer: what stands `alone` is one by itself, and the stretches
    between are cut into parts of about equal weight."""
    stretches = np.cumsum(np.concatenate([[False], alone[1:] | alone[:-1]]))  # a new one at and after every one alone
    left = wanted - int(alone.sum())
    mass = np.bincount(stretches, np.where(alone, 0.0, weights))
    cuts = _share_out(mass, left, np.bincount(stretches, ~alone))
    parts = np.zeros(len(weights), np.int64)
    part = 0
    for stretch, number in enumerate(cuts):
        where = np.flatnonzero(stretches == stretch)
        if alone[where[0]]:
            parts[where] = part
            part += 1
            continue
        inner = _equal_parts(weights[where], number)
        parts[where] = part + inner
        part += int(inner.max()) + 1
    return np.minimum(parts, wanted - 1)


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


def _likeliest(cells: NumpyArray, weights: NumpyArray, counts: NumpyArray) -> NumpyArray:
    """The weights, where a cell without any has that of its most frequent code: the others are likelier to be noise."""
    found = weights.copy()
    for cell in np.setdiff1d(cells, cells[weights > 0]):
        where = np.flatnonzero(cells == cell)
        found[where[np.argmax(counts[where])]] = 1.0
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


def present_cells(tables: PairTables, observed: Observed, groupings: Sequence[Grouping] = ()) -> list[NumpyArray]:
    """For each column, which of its cells are clearly there; the largest is in any case. Cells that have no code, which
    `groupings` tells, are not.

    Tables of pairs decide. The first stage's counts made the cells, the largest noise among them cells of its own: they would
    find the same noise again, and are asked only about columns that no pair shows.
    """
    found = []
    both = zip(dataclasses.replace(observed, cell_shares={}).one_way(tables), observed.one_way(tables), strict=True)
    for column, (pairs, everything) in enumerate(both):
        mean, deviation = pairs if np.isfinite(pairs[1]).all() else everything
        held = np.bincount(groupings[column].cell, minlength=len(mean)) > 0 if groupings else True
        found.append(_present(np.where(held, mean, -np.inf), deviation))
    return found


def _present(mean: NumpyArray, deviation: NumpyArray) -> NumpyArray:
    there = mean > CLEAR * deviation
    there[np.argmax(mean)] = True
    return np.asarray(there)
