"""Columns asked about in fewer values: neighbouring cells of a scale together, categories of a long list in groups.

A question about several columns has as many cells as their sizes multiply to, and an answer about many cells says little.
On a scale little is lost by asking in a few groups of neighbouring cells, and much is won: one answer tells how several
ordered columns depend on each other. Where groups are cut differs from question to question, so that no cut is mistaken for
the shape of the data. Categories have no neighbours: a long list of them is cut into groups by a public draw, a new one for
each variant.
"""

from __future__ import annotations

import functools

import numpy as np

from populace.tables.schema import Column

View = tuple[int, int]  # number of groups (0: every value by itself), and which way of cutting

WHOLE: View = (0, 0)
VARIANTS = 6
JITTER = 0.8  # of a group's width, by which cuts of other variants lie elsewhere
SPIKE_WEIGHT = 3.0  # a value with a cell of its own is expected to be as frequent as three intervals
LEAST_SCALE = 4  # levels from which on an order is worth anything
LONG = 64  # categories from which on a list is asked about in groups, together with other columns


def is_scale(column: Column) -> bool:
    """Whether the order of its levels is used at all."""
    return column.is_ordered and column.levels >= LEAST_SCALE


def spikes_of(column: Column) -> tuple[bool, ...]:
    """For each level, whether it is a single value among intervals."""
    return tuple(cell.spike for cell in column.cells) if column.is_scale else (False,) * column.levels


@functools.lru_cache(maxsize=4_096)
def groups_of(column: Column, view: View) -> tuple[int, ...]:
    """The group of every code of a column; "no value" is a group of its own, the last. Labels do not matter."""
    groups, variant = view
    if groups == 0 or groups >= column.levels:
        return tuple(range(column.size))
    if is_scale(column):
        inner = _neighbouring(spikes_of(column), groups, variant)
    else:
        draw = np.random.default_rng([column.levels, groups, variant])
        inner = tuple(draw.permutation(np.arange(column.levels) % groups).tolist())
    return (*inner, max(inner) + 1) if column.nullable else inner


def _neighbouring(spikes: tuple[bool, ...], groups: int, variant: int) -> tuple[int, ...]:
    """Levels in runs of about equal weight; a single value at an end of the scale (zero, above all) stays by itself."""
    weights = np.where(spikes, SPIKE_WEIGHT, 1.0)
    if spikes[0]:
        return (0, *(1 + group for group in _runs(weights[1:], groups - 1, variant)))
    if spikes[-1]:
        inner = _runs(weights[:-1], groups - 1, variant)
        return (*inner, max(inner) + 1)
    return _runs(weights, groups, variant)


def _runs(weights: np.ndarray[tuple[int], np.dtype[np.float64]], groups: int, variant: int) -> tuple[int, ...]:
    middles = (np.cumsum(weights) - weights / 2) / weights.sum()
    draw = np.random.default_rng([variant, len(weights), groups])
    moved = JITTER * draw.uniform(-0.5, 0.5, groups - 1) if variant else np.zeros(groups - 1)
    cuts = (np.arange(1, groups) + moved) / groups
    found = np.unique(np.searchsorted(cuts, middles, side="right"), return_inverse=True)[1]
    return tuple(int(group) for group in found)


def asked_size(column: Column, view: View) -> int:
    return max(groups_of(column, view)) + 1


def kept(column: Column, view: View) -> float:
    """How much of what a column says is still told through a view: 1 of all of it.

    Of a trend along a scale, m even groups of s levels tell (1 - 1/m^2) / (1 - 1/s^2); of a list, (1 - 1/m) / (1 - 1/s).
    """
    levels, groups = column.levels, view[0]
    if groups == 0 or groups >= levels:
        return 1.0
    power = 2 if is_scale(column) else 1
    return float((1 - groups**-power) / (1 - levels**-power))
