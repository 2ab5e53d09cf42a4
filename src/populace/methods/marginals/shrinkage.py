"""Noisy tables pulled towards independence by as much as their noise asks for, before one model is fitted to all of them.

At a small epsilon most cells of a pair's table are noise, and a model that follows them is worse than no pairs at all.
Empirical Bayes decides how far to follow: the part of a table that is not explained by its single columns is taken as drawn
around zero with a variance that grows with the cell's weight under independence, in proportion to one number per table, its
strength. What strengths occur is learnt from all tables together, so that where hardly any pair depends, one that seems to is
taken for noise. The same belief says what further reports about a table would gain. All of it is post-processing of
randomised answers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from populace.methods.blocks.clique_tree import CliqueTree, elimination_cells
from populace.methods.blocks.frequency_estimation import NoisyTable, make_consistent, project_to_simplex, with_marginal
from populace.methods.marginals.graphical_model import fit_graphical_model, pool_singles
from populace.types import Array, NumpyArray

Columns = tuple[int, ...]

#: Prior variance of a cell's dependence, as a power of its weight under independence. Between 1 and 2 little changes.
POWER = 1.5
#: Strengths a table may have: the square of its L1 distance from independence. Two tables at most are 2 apart.
STRENGTHS = np.concatenate([[0.0], np.geomspace(1e-4, 4.0, 24)])
#: Before any table is seen: none at all as likely as some, every magnitude of it alike.
EVEN_BELIEF = np.concatenate([[0.5], np.full(24, 0.5 / 24)])
#: How many tables the even belief counts as, however many were seen.
IMAGINED_TABLES = 4.0
#: Cells of all cliques of a model together. Twice as many fit no better and take longer to converge.
MOST_CELLS = 2**13
NORMAL_L1 = math.sqrt(2 / math.pi)  # mean absolute value of a standard normal


def interaction(table: NoisyTable, singles: Sequence[NoisyTable]) -> tuple[NumpyArray, NumpyArray]:
    """The product of a table's single columns, and what the table says beyond it (all one-way sums zero)."""
    independent: NumpyArray = np.ones(())
    cells: NumpyArray = np.asarray(table.table, np.float64)
    for column in table.columns:
        single = project_to_simplex(singles[column].table)
        independent = np.multiply.outer(independent, single)
        cells = with_marginal(cells, table.columns, (column,), single)
    return independent, cells - independent


class Reading(NamedTuple):
    """A table as its single columns explain it, and what it says beyond them, cell by cell.

    `shape` is the prior's variance per unit of strength, scaled so that a strength is the square of an L1 distance.
    """

    columns: Columns
    independent: NumpyArray
    beyond: NumpyArray
    shape: NumpyArray
    noise: NumpyArray
    free: int

    def likelihoods(self) -> NumpyArray:
        """Logarithms, one per strength. The cells hold `free` numbers between them, and count for as many."""
        variance = np.multiply.outer(STRENGTHS, self.shape.ravel()) + self.noise.ravel()
        terms = np.log(variance) + self.beyond.ravel() ** 2 / variance
        logarithms: NumpyArray = -0.5 * self.free / self.beyond.size * terms.sum(axis=1)
        return logarithms


def read_table(table: NoisyTable, singles: Sequence[NoisyTable], variances: Array | None = None) -> Reading | None:
    """`variances` are those of the cells where they are known better than by the table's one deviation. None: no freedom."""
    independent, beyond = interaction(table, singles)
    free = _free(beyond.shape)
    if free <= 0:
        return None
    cells = np.full(beyond.shape, table.stddev**2) if variances is None else np.asarray(variances, np.float64)
    shape = independent**POWER
    shape = shape / (NORMAL_L1 * np.sqrt(shape).sum()) ** 2
    return Reading(table.columns, independent, beyond, shape, np.maximum(cells, 1e-15) * free / beyond.size, free)


def learn_strengths(readings: Sequence[Reading], *, steps: int = 60) -> tuple[NumpyArray, NumpyArray]:
    """What is believed of each table's strength, [tables, strengths], and of a table not seen yet.

    The distribution of strengths is the one of greatest likelihood for all tables together (Kiefer and Wolfowitz 1956, by
    expectation maximisation), with `IMAGINED_TABLES` of the even belief added, so that few tables do not decide it.
    """
    overall = EVEN_BELIEF
    logarithms = np.array([reading.likelihoods() for reading in readings]).reshape(-1, len(STRENGTHS))
    likelihoods = np.exp(logarithms - logarithms.max(axis=1, keepdims=True))
    beliefs = likelihoods * overall
    for _ in range(steps):
        beliefs = likelihoods * overall
        beliefs = beliefs / beliefs.sum(axis=1, keepdims=True)
        overall = (beliefs.sum(axis=0) + IMAGINED_TABLES * EVEN_BELIEF) / (len(beliefs) + IMAGINED_TABLES)
    return beliefs, overall


def towards_independence(
    table: NoisyTable, singles: Sequence[NoisyTable], variances: Array | None = None
) -> NoisyTable | None:
    """One table on its own, as `shrink_tables` does it for many."""
    shrunk = shrink_tables([table], singles, None if variances is None else {table.columns: variances})
    return shrunk[0] if shrunk else None


def shrink_tables(
    tables: Sequence[NoisyTable], singles: Sequence[NoisyTable], variances: Mapping[Columns, Array] | None = None
) -> list[NoisyTable]:
    """Posterior means of the tables as distributions, with the deviations that are left; without those likely independent.

    With D the part beyond independence, v its noise variance and s the prior's shape, D is scaled cell by cell by the
    mean of t s / (t s + v) over what is believed of the strength t.
    """
    readings = read_tables(tables, singles, variances)
    shrunk = []
    for reading, belief in zip(readings, learn_strengths(readings)[0], strict=True):
        if belief[0] > 0.5:
            continue
        prior = np.multiply.outer(STRENGTHS, reading.shape)
        kept = np.tensordot(belief, prior / (prior + reading.noise), axes=1)
        posterior = project_to_simplex(reading.independent + kept * reading.beyond)
        deviation = math.sqrt(float((kept * reading.noise).mean()))
        shrunk.append(NoisyTable(reading.columns, posterior, deviation))
    return shrunk


def read_tables(
    tables: Sequence[NoisyTable], singles: Sequence[NoisyTable], variances: Mapping[Columns, Array] | None = None
) -> list[Reading]:
    """All tables of several columns that can depend at all."""
    joint = [table for table in tables if len(table.columns) > 1]
    readings = [read_table(table, singles, (variances or {}).get(table.columns)) for table in joint]
    return [reading for reading in readings if reading is not None]


def fit_shrunk_model(
    sizes: Sequence[int],
    tables: Sequence[NoisyTable],
    singles: Sequence[NoisyTable] | None = None,
    variances: Mapping[Columns, Array] | None = None,
) -> CliqueTree:
    """One graphical model from noisy tables, each pulled towards independence first.

    `singles` are the one-way tables where they are known better than by summing the others, `variances` those of the cells
    of each table where they are known better than by one deviation.
    """
    columns = tuple(int(size) for size in sizes)
    one_way = list(singles) if singles is not None else pool_singles(columns, tables)
    measured = strongest(columns, shrink_tables(tables, one_way, variances), one_way)
    known = [table._replace(table=project_to_simplex(table.table)) for table in one_way if math.isfinite(table.stddev)]
    return fit_graphical_model(columns, [*measured, *known], most_cells=MOST_CELLS)


def strongest(sizes: tuple[int, ...], tables: Sequence[NoisyTable], singles: Sequence[NoisyTable]) -> list[NoisyTable]:
    """The tables farthest from independence (L1, which is what they add to a model) that fit into one small tree.

    First a forest, so that every column that depends on something is joined; then as many others as there is room for.
    """
    distance = [float(np.abs(interaction(table, singles)[1]).sum()) for table in tables]
    ranked = [tables[i] for i in np.argsort(distance)[::-1]]
    chosen: list[NoisyTable] = []
    for joins_only in (True, False):
        for table in ranked:
            if any(table is other for other in chosen):
                continue
            known = [other.columns for other in chosen]
            if joins_only and _connected(known, table.columns):
                continue
            if elimination_cells(sizes, [*known, table.columns]) <= MOST_CELLS:
                chosen.append(table)
    return chosen


def _connected(groups: Sequence[tuple[int, ...]], columns: tuple[int, ...]) -> bool:
    """Whether two of these columns are already joined through the groups."""
    parts = [{column} for column in columns]
    for part in parts:
        grown = True
        while grown:
            near = set(part).union(*(group for group in groups if part & set(group)))
            grown = len(near) > len(part)
            part |= near
    return any(first & second for first, second in itertools.combinations(parts, 2))


def fit_consistent_model(sizes: Sequence[int], tables: Sequence[NoisyTable]) -> CliqueTree:
    """The model of greatest entropy with tables made consistent first, nothing shrunk (CALM, Zhang et al. 2018)."""
    consistent = zip(tables, make_consistent(tables), strict=True)
    return fit_graphical_model(sizes, [noisy._replace(table=table) for noisy, table in consistent])


def _free(shape: tuple[int, ...]) -> int:
    """Degrees of freedom of a table whose one-way sums are fixed."""
    return math.prod(shape) - 1 - sum(size - 1 for size in shape)


class Questions(NamedTuple):
    """What can be asked: columns one by one or in pairs, a cell's variance from one report, and reports so far."""

    sizes: Columns
    groups: Sequence[Columns]
    variances: Array
    answers: Array


def allocate_reports(
    asked: Questions, left: float, readings: Sequence[Reading] = (), *, steps: int = 80
) -> tuple[NumpyArray, float]:
    """How to spread the reports that are left over the questions for the least predicted two-way error: shares, and the
    total variation distance to expect, mean over pairs (0 without any).

    The error of a pair is predicted as the root of three squared L1 distances: of its two columns, whose noise all
    questions about them lower, and of its dependence, of which g c/(g n + c) is left after n reports at strength g if one
    report has the noise c, in the mean over what is believed of g. Shares are multiplied with the root of the gain per
    report until gains are equal (where something is asked at all), which is the minimum: the error is convex in them.
    """
    beliefs, overall = learn_strengths(readings)
    number_of = {reading.columns: i for i, reading in enumerate(readings)}
    sizes = np.asarray(asked.sizes, np.float64)
    member = np.zeros((len(asked.groups), len(sizes)))
    for row, group in zip(member, asked.groups, strict=True):
        row[list(group)] = 1
    cells = np.exp(member @ np.log(sizes))
    pairs = np.flatnonzero(member.sum(axis=1) == 2)
    # Per report, what a question adds to the precision of a cell of each column's table.
    precision = member * sizes / (cells * np.maximum(asked.variances, 1e-12))[:, None]
    believed, noise = [], []
    for pair in pairs.tolist():
        group = tuple(asked.groups[pair])
        free = (asked.sizes[group[0]] - 1) * (asked.sizes[group[1]] - 1)
        seen = number_of.get(group)
        believed.append(overall if seen is None else beliefs[seen])
        # What a unit of variance in every cell is as a strength; cells of equal weight before anything is known.
        reach = (NORMAL_L1 * cells[pair]) ** 2 if seen is None else 1 / readings[seen].shape.mean()
        noise.append(max(asked.variances[pair] * free / cells[pair] * reach, 1e-12))
    belief, cost = np.array(believed).reshape(-1, len(STRENGTHS)), np.array(noise)[:, None]
    shares, error = np.full(len(asked.groups), 1 / len(asked.groups)), np.zeros(0)
    for _ in range(steps):
        reports = np.asarray(asked.answers, np.float64) + left * shares
        known = reports @ precision + sizes**2  # before any report a cell errs by its weight: 1 / size if all are alike
        column = NORMAL_L1**2 * sizes * (sizes - 1) / known
        remaining = STRENGTHS * reports[pairs, None] + cost
        error = np.sqrt(member[pairs] @ column + (belief * STRENGTHS * cost / remaining).sum(axis=1) + 1e-12)
        per_column = (member[pairs] / error[:, None]).sum(axis=0) if len(pairs) else np.ones(len(sizes))
        gains = precision @ (per_column * column / known)
        gains[pairs] += (belief * STRENGTHS**2 * cost / remaining**2).sum(axis=1) / error
        if not gains.any():
            break
        shares = shares * np.sqrt(gains)
        shares = shares / shares.sum()
    return shares, float(error.mean()) / 2 if len(pairs) else 0.0
