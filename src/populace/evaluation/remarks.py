"""Smaller findings about synthetic rows, in sentences: what is wrong without being a red flag, and no less to be known.

values outside the real range      how many rows, whatever the share
an SD off by more than half        that chance may explain, a few far values making most of it
categories that are gone           and those that no real row has, such as "(other)"
"""

from __future__ import annotations

import numpy as np

from populace.evaluation.flags import (
    Flag,
    absent,
    gone_words,
    outside,
    spread_size,
    spread_words,
)  # fmt: skip
from populace.evaluation.value_figures import CategoryCounts, ColumnFigures, ValueComparison
from populace.evaluation.value_text import share_text, value_text


def remarks(comparison: ValueComparison, flags: list[Flag]) -> list[str]:
    """A sentence per finding that no red flag tells, column by column."""
    told = {(flag.columns, flag.sort) for flag in flags}
    found = []
    for column in comparison.columns:
        if column.gap is None:
            continue
        if ((column.name,), "range") not in told:
            found += _outside(column)
        if ((column.name,), "sd") not in told and spread_size(column) > 1:
            found.append(
                f"{column.name}: {spread_words(column)}; a few far values make most of it, so that chance may do this"
            )
    for counted in comparison.categories:
        if ((counted.name,), "gone") not in told:
            found += _gone(counted, comparison.rows[0])
        if ((counted.name,), "category") not in told:
            found += _new(counted, comparison.rows[1])
    return found


def _outside(column: ColumnFigures) -> list[str]:
    rows = outside(column)
    if not rows:
        return []
    real, synthetic = ((side.ordered[0], side.ordered[-1]) for side in (column.real, column.synthetic))
    low, high, least, most = (value_text(column.kind, float(value)) for value in (*real, *synthetic))
    who = f"{rows:,} synthetic row{' lies' if rows == 1 else 's lie'}"
    return [f"{column.name}: {who} outside the range of the real rows, {low} to {high} (synthetic: {least} to {most})"]


def _gone(column: CategoryCounts, rows: int) -> list[str]:
    gone = absent(column)
    return [f"{column.name}: {gone_words(column, gone, rows)}"] if gone else []


def _new(column: CategoryCounts, rows: int) -> list[str]:
    new = np.flatnonzero((column.real[1:] == 0) & (column.synthetic[1:] > 0))
    if not len(new):
        return []
    share = float(column.synthetic[1:][new].sum()) / rows
    names = ", ".join(column.labels[place] for place in new[:4])
    return [f"{column.name}: {share_text(share)} of the synthetic rows have a value that no real row has: {names}"]
