"""The server's model: a tree of cliques fitted to all marginals measured so far, and which further ones it has room for."""

from __future__ import annotations

import numpy as np

from populace.methods.blocks.clique_tree import CliqueTree, elimination_cells, fit_potentials, junction_tree, tables_of
from populace.methods.blocks.frequency_estimation import NoisyTable
from populace.methods.flaim.workload import Columns, Workload
from populace.types import NumpyArray

LEAST_DEVIATION = 1e-5  # of a frequency; less would leave single precision no room


def fit_model(
    workload: Workload,
    weighted: NumpyArray,
    precision: NumpyArray,
    deviation: float,
    *,
    most_cells: int,
    fit_steps: int,
) -> CliqueTree:
    """The distribution of greatest entropy among those that fit the measured marginals best.

    Each measurement y of a marginal of N records has frequencies y / N with a standard deviation of `deviation` / N. `weighted`
    is the sum of N y over a marginal's measurements, for all cells end to end, and `precision` that of N^2: their quotient is
    the average with weights inverse to the variances.
    """
    measured = in_model(workload, precision, most_cells)
    tables = [
        NoisyTable(
            workload.sets[number],
            workload.table(weighted, number) / precision[number],
            max(deviation / float(np.sqrt(precision[number])), LEAST_DEVIATION),
        )
        for number in measured
    ]
    tree = junction_tree(workload.sizes, [table.columns for table in tables])
    return tables_of(workload.sizes, tree, fit_potentials(workload.sizes, tables, fit_steps))


def in_model(workload: Workload, precision: NumpyArray, most_cells: int) -> list[int]:
    """The measured marginals that the model holds: single columns, then the others, most precise first, while the tree of
    cliques has at most `most_cells` cells. What does not fit any more is left out, although it was paid for."""
    measured = [int(number) for number in np.argsort(-precision, kind="stable") if precision[number] > 0]
    kept = [number for number in measured if workload.orders[number] == 1]
    cliques: list[Columns] = [workload.sets[number] for number in kept]
    for number in measured:
        one = workload.sets[number]
        if len(one) > 1 and elimination_cells(workload.sizes, [*cliques, one]) <= most_cells:
            cliques.append(one)
            kept.append(number)
    return kept


def with_room(
    workload: Workload, precision: NumpyArray, most_cells: int, *, share: float, least_order: int
) -> NumpyArray:
    """[sets] Which marginals may be chosen next: those with which the model has at most a `share` of `most_cells` cells.

    Edge cases: where none has room, those that need the fewest cells may be chosen, so that there is always one.
    """
    held = [workload.sets[number] for number in in_model(workload, precision, most_cells)]
    cells = np.array([elimination_cells(workload.sizes, [*held, one]) for one in workload.sets], np.float64)
    cells[workload.orders < least_order] = np.inf
    allowed: NumpyArray = cells <= max(share * most_cells, cells.min())
    return allowed


def answers_of(workload: Workload, tree: CliqueTree) -> NumpyArray:
    """What the model says about every cell of every marginal, float32."""
    parts = [tree.marginal(one).reshape(-1) for one in workload.sets]
    answers: NumpyArray = np.concatenate(parts).clip(0, 1).astype(np.float32)
    return answers
