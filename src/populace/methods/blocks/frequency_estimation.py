"""From noisy counts to tables: what can be said about frequencies once randomised reports have been counted.

    invert                 unbiased, may be negative
    project_to_simplex     the nearest distribution
    regress                sparse non-negative regression (LASSO), where counts mix many values
    maximise_likelihood    expectation maximisation, where every report has a likelihood per value
    make_consistent        tables that share columns made to agree on them

All of it is post-processing: it reads reports, never records, and costs no privacy.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from populace.errors import DataError, out_of_range
from populace.types import Array, Number, NumpyArray

LEAST_DEVIATION = 1e-9  # stands in for a standard deviation of zero, where weights are its inverse square


class NoisyTable(NamedTuple):
    """An estimated joint table of some columns, one axis per column, and the standard deviation of a cell."""

    columns: tuple[int, ...]
    table: NumpyArray
    stddev: float


def invert(counts: Array, reports: Number, *, p: float, q: float) -> NumpyArray:
    """Unbiased frequencies from support counts: the own value counts with probability p, any other with q."""
    if not p > q:
        raise out_of_range("p", f"above q = {q}", p)
    return (np.asarray(counts, np.float64) / reports - q) / (p - q)


def project_to_simplex(estimate: Array) -> NumpyArray:
    """The distribution nearest to an estimate (norm-sub): shift all entries alike, cut at zero, until they add up to 1."""
    estimate = np.asarray(estimate, np.float64)
    values = np.sort(estimate, axis=None)[::-1]
    shifts = (np.cumsum(values) - 1) / np.arange(1, len(values) + 1)
    shift = shifts[np.flatnonzero(values > shifts)[-1]]
    table = np.maximum(estimate - shift, 0)
    projected: NumpyArray = table / table.sum()
    return projected


def regress(design: Array, observed: Array, *, penalty: float = 1e-4, iterations: int = 2000) -> NumpyArray:
    """Frequencies f with design @ f near the observations, few of them above zero (LASSO), scaled to add up to 1.

    `design[i, v]` is how much a client with value v adds to observation i on average: a Bloom filter's bits (LoPub, Ren
    et al. 2018) or a channel's probabilities (SamPrivSyn, subsection 4.2). `penalty` is the amount by which a frequency is cut
    where the columns of the design do not overlap.
    Edge cases: it is biased towards the frequent values; where nothing is left, the uniform table.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import Lasso

    design = np.asarray(design, np.float64)
    if not penalty > 0:
        raise out_of_range("penalty", "above 0", penalty)
    scale = float((design**2).sum(axis=0).mean()) / len(design)
    model = Lasso(alpha=penalty * scale, positive=True, fit_intercept=False, max_iter=iterations, tol=1e-8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a capped fit is still a table
        coefficients: NumpyArray = model.fit(design, np.asarray(observed, np.float64)).coef_
    total = coefficients.sum()
    frequencies: NumpyArray = coefficients / total if total > 0 else np.full(len(coefficients), 1 / len(coefficients))
    return frequencies


def support_likelihoods(supports: Array, ratio: float) -> NumpyArray:
    """Likelihoods of reports by what they support, for any oracle whose worst ratio (e^epsilon) is also its usual one."""
    return 1.0 + (ratio - 1.0) * np.asarray(supports, np.float64)


def pair_likelihoods(first: Array, second: Array) -> NumpyArray:
    """Likelihoods over pairs of values, first axis slowest, of clients that reported about both independently."""
    joint: NumpyArray = np.asarray(first)[:, :, None] * np.asarray(second)[:, None, :]
    return joint.reshape(len(joint), -1)


def maximise_likelihood(
    likelihoods: Array,
    counts: Array | None = None,
    *,
    prior: float = 0.0,
    start: Array | None = None,
    iterations: int = 200,
    tolerance: float = 1e-7,
) -> NumpyArray:
    """Frequencies that make the reports likely, by expectation maximisation (iterative Bayesian update).

    `likelihoods[i, v]` is the probability of report i under value v, up to a factor of its own per report; `counts[i]` is how
    often the report came. Few iterations keep the table smooth; `prior` adds so many imagined reports to each value
    (a Dirichlet prior with parameters 1 + prior). `start` is where to begin, by default the uniform table: it matters
    where reports say little and iterations are few.
    Edge cases: a value that no report allows gets zero, or its prior's share; a report that no value allows is refused.
    """
    likelihoods = np.asarray(likelihoods, np.float64)
    weights = np.ones(len(likelihoods)) if counts is None else np.asarray(counts, np.float64)
    if prior < 0:
        raise out_of_range("prior", "at least 0", prior)
    table = np.full(likelihoods.shape[1], 1 / likelihoods.shape[1])
    if start is not None:
        table = np.asarray(start, np.float64).reshape(-1)
    kept = weights > 0
    likelihoods, weights = likelihoods[kept], weights[kept]
    if (likelihoods.max(axis=1, initial=0.0) <= 0).any():
        raise DataError("a report has no probability under any value; its mechanism is not the one assumed")
    for _ in range(iterations if len(weights) else 0):
        # The floor keeps a report alive whose only values have been starved to zero by rounding.
        share = weights / np.maximum(likelihoods @ table, np.finfo(np.float64).tiny)
        update = table * (share @ likelihoods) + prior
        update /= update.sum()
        done = np.abs(update - table).max() < tolerance
        table = update
        if done:
            break
    return table


def make_consistent(
    measurements: Sequence[NoisyTable], *, rounds: int = 200, tolerance: float = 1e-6
) -> list[NumpyArray]:
    """Distributions near the measured tables that agree on what they share (CALM, Zhang et al. 2018).

    What several tables say about shared columns is averaged with the inverse of its variance as weight, and each table is moved
    to the average, its cells alike; small shared sets first, so that a later step keeps what an earlier one made. Then
    every table is projected on the simplex, which may part them again: both steps repeat until nothing moves.
    Edge cases: after `rounds` the tables are distributions but may still differ on shared columns by a little.
    """
    tables: list[NumpyArray] = [np.asarray(table, np.float64) for _, table, _ in measurements]
    shared_sets = _sharing(measurements)
    for _ in range(rounds):
        moved: list[NumpyArray] = [table + (1 - table.sum()) / table.size for table in tables]
        for shared, members in shared_sets:
            _agree(moved, measurements, shared, members)
        moved = [project_to_simplex(table) for table in moved]
        change = max((np.abs(new - old).max() for new, old in zip(moved, tables, strict=True)), default=0.0)
        tables = moved
        if change < tolerance:
            break
    return tables


def _sharing(measurements: Sequence[NoisyTable]) -> list[tuple[tuple[int, ...], list[int]]]:
    """The sets of columns that at least two tables hold, small ones first, and which tables hold them."""
    tables_with: dict[tuple[int, ...], list[int]] = {}
    for number, (columns, _, _) in enumerate(measurements):
        for length in range(1, len(columns) + 1):
            for subset in itertools.combinations(sorted(columns), length):
                tables_with.setdefault(subset, []).append(number)
    shared = [subset for subset, members in tables_with.items() if len(members) > 1]
    return [(subset, tables_with[subset]) for subset in sorted(shared, key=lambda subset: (len(subset), subset))]


def _agree(
    tables: list[NumpyArray], measurements: Sequence[NoisyTable], shared: tuple[int, ...], members: list[int]
) -> None:
    views = [marginal(tables[i], measurements[i].columns, shared) for i in members]
    weights = []
    for i in members:
        summed = tables[i].size / views[0].size
        weights.append(1 / (summed * max(measurements[i].stddev, LEAST_DEVIATION) ** 2))
    total: NumpyArray = functools.reduce(np.add, [weight * view for weight, view in zip(weights, views, strict=True)])
    mean = total / math.fsum(weights)
    for i in members:
        tables[i] = with_marginal(tables[i], measurements[i].columns, shared, mean)


def marginal(table: Array, columns: Sequence[int], kept: Sequence[int]) -> NumpyArray:
    """A joint table of `columns` summed down to `kept`, axes in the order of `kept`."""
    table = np.asarray(table)
    names = {column: label for label, column in enumerate(columns)}
    summed: NumpyArray = np.einsum(table, list(range(table.ndim)), [names[column] for column in kept])
    return summed


def with_marginal(table: NumpyArray, columns: Sequence[int], kept: Sequence[int], wanted: NumpyArray) -> NumpyArray:
    """The nearest table with this marginal: each cell moves by an equal share of what is missing."""
    missing = (wanted - marginal(table, columns, kept)) * (np.size(wanted) / np.size(table))
    order = sorted(range(len(kept)), key=lambda axis: list(columns).index(kept[axis]))
    shape = [size if column in kept else 1 for column, size in zip(columns, np.shape(table), strict=True)]
    return table + missing.transpose(order).reshape(shape)


def channel(p: float, q: float, size: int) -> NumpyArray:
    """How often a report supports value i of a client with value j: p on the diagonal, q elsewhere (eq. 3)."""
    return np.full((size, size), q) + (p - q) * np.eye(size)


def invert_pair(shares: Array, first: Array, second: Array) -> NumpyArray:
    """Unbiased joint table of two values randomised through two channels (eq. 7, by solving, not by inverting)."""
    return np.linalg.solve(second, np.linalg.solve(first, shares).T).T


def pair_variance(first: tuple[float, float, int], second: tuple[float, float, int]) -> float:
    """Variance of a cell of `invert_pair` from one report, for a cell of average weight, sampling of clients included.

    Each side is given as p, q and the size of its domain.
    """
    total, cells = 1.0, 1
    for p, q, size in (first, second):
        reported = q + (p - q) / size
        total *= (reported * (1 - q) ** 2 + (1 - reported) * q**2) / (p - q) ** 2
        cells *= size
    return total - (1 / cells) ** 2


def mean_squares(weights: NumpyArray, p: float, q: float) -> NumpyArray:
    """The mean square of the unbiased estimate of each value's frequency from one report of randomised response."""
    reported = q + (p - q) * np.asarray(weights)
    return (reported * (1 - q) ** 2 + (1 - reported) * q**2) / (p - q) ** 2 if p > q else np.ones_like(reported)
