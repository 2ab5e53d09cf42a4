"""Noisy tables pulled towards independence by as much as their noise asks for, before one model is fitted to all of them.

At a small epsilon most cells of a pair's table are noise, and a model that follows them is worse than no pairs at all.
Empirical Bayes decides how far to follow: the part of a table that is not explained by its single columns is taken as drawn
around zero with a variance that grows with the cell's weight under independence, in proportion to one number per table, and
that number is read off the table itself. All of it is post-processing of randomised answers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from populace.models.clique_tree import CliqueTree
from populace.models.estimation import NoisyTable, make_consistent, project_to_simplex, with_marginal
from populace.models.graphical import elimination_cells, fit_graphical_model, pool_singles

Array = Any

#: Prior variance of a cell's dependence, as a power of its weight under independence. Between 1 and 2 little changes.
POWER = 1.5
#: Standard errors by which a table's dependence must stand out before any of it is followed.
CAUTION = 1.0
#: Cells of all cliques of a model together. Twice as many fit no better and take longer to converge.
MOST_CELLS = 2**13


def interaction(table: NoisyTable, singles: Sequence[NoisyTable]) -> tuple[Array, Array]:
    """The product of a table's single columns, and what the table says beyond it (all one-way sums zero)."""
    independent: Array = np.ones(())
    cells = np.asarray(table.table, np.float64)
    for column in table.columns:
        single = project_to_simplex(singles[column].table)
        independent = np.multiply.outer(independent, single)
        cells = with_marginal(cells, table.columns, (column,), single)
    return independent, cells - independent


def dependence_energy(table: NoisyTable, singles: Sequence[NoisyTable]) -> float:
    """How far a table is from independence beyond its noise: about the square of an L1 distance, at least 0."""
    _, beyond = interaction(table, singles)
    free = _free(beyond.shape)
    return float(beyond.size * max(0.0, (beyond**2).sum() - free * table.stddev**2))


def towards_independence(table: NoisyTable, singles: Sequence[NoisyTable]) -> NoisyTable | None:
    """The table's posterior mean as a distribution, with the deviation that is left; None if only noise is seen.

    With D the part beyond independence, v its noise variance and s the prior's shape, D is scaled cell by cell by
    t s / (t s + v); t is the regression of D^2 - v on s, less `CAUTION` of its standard error under independence.
    """
    independent, beyond = interaction(table, singles)
    free = _free(beyond.shape)
    if free <= 0:
        return None
    noise = table.stddev**2 * free / beyond.size
    shape = independent**POWER
    shape = shape / shape.mean()
    error = noise * math.sqrt(2 / float((shape**2).sum()))
    strength = float((shape * (beyond**2 - noise)).sum() / (shape**2).sum()) - CAUTION * error
    if strength <= 0:
        return None
    kept = strength * shape / (strength * shape + noise)
    posterior = project_to_simplex(independent + kept * beyond)
    return NoisyTable(table.columns, posterior, math.sqrt(float((kept * noise).mean())))


def fit_shrunk_model(
    sizes: Sequence[int], tables: Sequence[NoisyTable], singles: Sequence[NoisyTable] | None = None
) -> CliqueTree:
    """One graphical model from noisy tables, each pulled towards independence first.

    `singles` are the one-way tables where they are known better than by summing the others.
    """
    columns = tuple(int(size) for size in sizes)
    found = list(singles) if singles is not None else pool_singles(columns, tables)
    shrunk = [towards_independence(table, found) for table in tables if len(table.columns) > 1]
    measured = strongest(columns, [table for table in shrunk if table is not None], found)
    known = [table._replace(table=project_to_simplex(table.table)) for table in found if math.isfinite(table.stddev)]
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
