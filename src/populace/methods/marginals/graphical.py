"""One graphical model for many noisy tables: Private-PGM (McKenna, Sheldon and Miklau 2019), through `mbi`.

Of the distributions that fit the tables best, each table weighted with the inverse of its variance, the one of greatest
entropy. The tables that become cliques are chosen so that the tree of cliques stays small, strongest dependence first; a
table left out still tells what it knows about its single columns.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from populace.errors import DataError, out_of_range
from populace.methods.blocks.frequency_estimation import NoisyTable, marginal, project_to_simplex, with_marginal
from populace.methods.marginals.clique_tree import CliqueTree
from populace.types import Array

Columns = tuple[int, ...]

LEAST_DEVIATION = 1e-5  # of a frequency; less would leave single precision no room
TRIALS = 100  # tables tried as further cliques once all columns are joined
TOLERANCE = 1e-5


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
    tree = _junction_tree(sizes, [table.columns for table in (*kept, *extras)])
    while extras and sum(math.prod(sizes[c] for c in clique) for clique, _ in tree) > most_cells:
        extras.pop()  # mbi found a larger tree than `elimination_cells` did
        tree = _junction_tree(sizes, [table.columns for table in (*kept, *extras)])
    chosen = kept + extras
    left_out = [table for table in tables if not any(table is other for other in chosen)]
    fitted = _fit(sizes, chosen + _nontrivial(pool_singles(sizes, left_out)), iterations)
    return _as_tree(sizes, tree, fitted)


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
        weights, views = [0.0], [np.zeros(size)]
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
    independent: Array = np.ones(())
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


def elimination_cells(sizes: Columns, cliques: Sequence[Columns]) -> int:
    """Cells of a tree of cliques that holds these, found by removing the column with the smallest clique each time."""
    near: dict[int, set[int]] = {column: {column} for column in range(len(sizes))}
    for clique in cliques:
        for column in clique:
            near[column].update(clique)
    cost = {column: math.prod(sizes[c] for c in group) for column, group in near.items()}
    cells = 0
    while near:
        column = min(cost, key=lambda c: (cost[c], c))
        cells += cost.pop(column)
        rest = near.pop(column) - {column}
        for other in rest:
            near[other] = (near[other] | rest) - {column}
            cost[other] = math.prod(sizes[c] for c in near[other])
    return cells


def _mbi() -> Any:
    """mbi, without its remarks on import about precision and caches: the frequencies fitted here sum to 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mbi
    return mbi


def _junction_tree(sizes: Columns, cliques: Sequence[Columns]) -> list[tuple[Columns, int]]:
    """The cliques of a junction tree, parents before children, each with the place of its parent (-1: none)."""
    mbi = _mbi()
    graph, _ = mbi.junction_tree.make_junction_tree(mbi.Domain(range(len(sizes)), sizes), cliques)
    ordered: list[tuple[Columns, int]] = []
    place: dict[Columns, int] = {}
    for root in sorted(graph.nodes):
        stack = [] if root in place else [(root, -1)]
        while stack:
            clique, parent = stack.pop()
            place[clique] = len(ordered)
            ordered.append((clique, parent))
            stack += [(other, place[clique]) for other in sorted(graph.neighbors(clique)) if other not in place]
    return ordered


def _fit(sizes: Columns, tables: Sequence[NoisyTable], iterations: int) -> Any:
    mbi = _mbi()
    domain = mbi.Domain(range(len(sizes)), sizes)
    linear = [
        mbi.LinearMeasurement(np.asarray(table, np.float32).reshape(-1), columns, stddev)
        for columns, table, stddev in tables
    ]
    if not linear:
        return None
    return mbi.estimation.MirrorDescent().estimate(domain, linear, known_total=1.0, iters=iterations, tol=TOLERANCE)


def _as_tree(sizes: Columns, tree: list[tuple[Columns, int]], fitted: Any) -> CliqueTree:
    """The tree's tables, from the potentials that were fitted, by one pass of messages."""
    cliques = tuple(clique for clique, _ in tree)
    if fitted is None:
        tables = [np.full([sizes[c] for c in clique], 1 / math.prod(sizes[c] for c in clique)) for clique in cliques]
    else:
        oracle = _mbi().marginal_oracles.message_passing_stable
        # Compiled as one: step by step it takes longer than the fit.
        beliefs = jax.jit(lambda potentials: oracle(potentials.expand(list(cliques)), 1.0))(fitted.potentials)
        tables = [np.asarray(beliefs.project(clique).datavector(flatten=False), np.float64) for clique in cliques]
    return CliqueTree(sizes=sizes, cliques=cliques, parents=tuple(parent for _, parent in tree), tables=tuple(tables))
