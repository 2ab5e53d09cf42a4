"""Graphical models: one joint distribution fitted to many noisy marginals, held as tables over a tree of cliques.

`fit_graphical_model` chooses which noisy tables become cliques (`blocks/clique_tree.py` fits them), so that the tree of cliques
stays small, strongest dependence first; a table left out still counts through its single columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from populace.errors import DataError, out_of_range
from populace.methods.blocks.clique_tree import (
    CliqueTree,
    Columns,
    elimination_cells,
    fit_potentials,
    junction_tree,
    tables_of,
)
from populace.methods.blocks.frequency_estimation import NoisyTable, marginal, project_to_simplex, with_marginal
from populace.types import Array, NumpyArray

LEAST_DEVIATION = 1e-5  # of a frequency; less would leave single precision no room
TRIALS = 100  # tables tried as further cliques once all columns are joined


def fit_graphical_model(
    sizes: Sequence[int],
    measurements: Sequence[tuple[Columns, Array, float]],
    total: float = 1.0,
    *,
    most_cells: int = 2**14,
    iterations: int = 2000,
) -> CliqueTree:
    """The model of all columns from measured tables: `(columns, table, standard deviation of a cell)`.

    Each table sums to about `total`. `most_cells` bounds the cells of all cliques together, and with them memory and time.
    Edge cases: a column nobody measured is uniform and independent; a table whose dependence does not stand out from its
    noise, or that would make the tree too large, enters through its single columns only. Compiling a new set of cliques
    takes about 0.2 s per clique.
    """
    sizes = tuple(int(size) for size in sizes)
    tables = [_checked(sizes, measurement, total) for measurement in measurements]
    singles = pool_singles(sizes, tables)
    wide = [table for table in tables if len(table.columns) > 1]
    kept, extras = choose_cliques(sizes, wide, singles, most_cells)
    tree = junction_tree(sizes, [table.columns for table in (*kept, *extras)])
    while extras and sum(math.prod(sizes[c] for c in clique) for clique, _ in tree) > most_cells:
        extras.pop()  # mbi found a larger tree than `elimination_cells` did
        tree = junction_tree(sizes, [table.columns for table in (*kept, *extras)])
    chosen = kept + extras
    left_out = [table for table in tables if not any(table is other for other in chosen)]
    fitted = fit_potentials(sizes, chosen + _nontrivial(pool_singles(sizes, left_out)), iterations)
    return tables_of(sizes, tree, fitted)


def _checked(sizes: Columns, measurement: tuple[Columns, Array, float], total: float) -> NoisyTable:
    columns, table, stddev = measurement
    columns = tuple(int(column) for column in columns)
    if not set(columns) <= set(range(len(sizes))):
        raise DataError(f"expected columns in [0, {len(sizes)}), got {columns}")
    shape = tuple(sizes[column] for column in columns)
    if len(set(columns)) != len(columns) or np.size(table) != math.prod(shape):
        raise DataError(f"the table of columns {columns} does not have {math.prod(shape)} cells")
    if not (total > 0 and stddev >= 0 and math.isfinite(stddev)):
        raise out_of_range("stddev and total", "at least 0 and above 0", (stddev, total))
    frequencies = np.asarray(table, np.float64).reshape(shape) / total
    return NoisyTable(columns, frequencies, max(stddev / total, LEAST_DEVIATION))


def pool_singles(sizes: Columns, tables: Sequence[NoisyTable]) -> list[NoisyTable]:
    """One table per column: the mean of what all tables say about it, weighted with the inverse of its variance.

    A column that none of them holds gets the uniform table and an infinite deviation.
    """
    pooled = []
    for column, size in enumerate(sizes):
        weights: list[float] = [0.0]
        views: list[NumpyArray] = [np.zeros(size)]
        for columns, table, stddev in tables:
            if column in columns:
                weights.append(size / (table.size * stddev**2))
                views.append(marginal(table, columns, (column,)))
        weight = math.fsum(weights)
        if weight == 0:
            pooled.append(NoisyTable((column,), np.full(size, 1 / size), math.inf))
        else:
            mean = np.average(views, axis=0, weights=weights)
            pooled.append(NoisyTable((column,), mean, 1 / math.sqrt(weight)))
    return pooled


def _nontrivial(tables: list[NoisyTable]) -> list[NoisyTable]:
    return [table for table in tables if math.isfinite(table.stddev)]


def dependence(table: NoisyTable, singles: Sequence[NoisyTable]) -> float:
    """How far a table is from independence beyond its noise: the squared L2 distance times the number of cells.

    That is about the square of an L1 distance, and may be negative. The plain distance grows with the noise and would rank the
    noisiest tables first, so what the noise alone would give on average is taken off.
    """
    independent: NumpyArray = np.ones(())
    cells = table.table
    for column in table.columns:
        single = project_to_simplex(singles[column].table)
        independent = np.multiply.outer(independent, single)
        cells = with_marginal(cells, table.columns, (column,), single)
    return float(cells.size * ((cells - independent) ** 2).sum()) - noise_alone(table)


def noise_alone(table: NoisyTable) -> float:
    """How far its noise takes an independent table from independence, on average, in the measure of `dependence`."""
    free = table.table.size - 1 - sum(size - 1 for size in table.table.shape)
    return float(table.table.size * free * table.stddev**2)


def choose_cliques(
    sizes: Columns, tables: Sequence[NoisyTable], singles: Sequence[NoisyTable], most_cells: int
) -> tuple[list[NoisyTable], list[NoisyTable]]:
    """The tables that become cliques: first those that join columns not joined before, then, as room allows, others.

    Strongest dependence first, in both; the second list in the order in which it was added. A table whose noise is larger
    than the dependence it shows would add more error than it takes away, and is left out.
    """
    scored = [(dependence(table, singles), i) for i, table in enumerate(tables)]
    ranked = [tables[i] for score, i in sorted(scored, reverse=True) if score > noise_alone(tables[i])]
    component = {column: {column} for column in range(len(sizes))}
    forest: list[NoisyTable] = []
    used = sum(sizes)
    for table in ranked:
        joined = [component[column] for column in table.columns]
        if len({id(part) for part in joined}) == len(joined) and used + table.table.size <= most_cells:
            forest.append(table)
            used += table.table.size
            whole = set().union(*joined)
            component.update(dict.fromkeys(whole, whole))
    extras: list[NoisyTable] = []
    others = [table for table in ranked if not any(table is other for other in forest)]
    for table in others[:TRIALS]:
        columns = [other.columns for other in (*forest, *extras, table)]
        if elimination_cells(sizes, columns) <= most_cells:
            extras.append(table)
    return forest, extras
