"""What is predicted: a class, or a number.

A target of categories is a class, as its codes say. A target of numbers, dates or times is a number (R^2), however few
different values it has: their order and distance mean something. Only one that has two different values in the real rows is a
class, so that a yes or no written as 0 and 1 has an AUC; a synthetic value counts as the nearer of the two.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from populace.tables.table import Table
from populace.types import NumpyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A column to predict; `border` lies between the two values of a number that is taken for a class."""

    column: str
    is_number: bool = False
    border: float | None = None

    def labels(self, table: Table) -> NumpyArray:
        """Whole numbers from 0: codes of categories, or which of two numbers it is (no value: 2)."""
        index = table.schema.index(self.column)
        if self.border is None:
            return table.codes[:, index]
        values = self.numbers(table)
        return np.where(np.isnan(values), 2, values > self.border).astype(np.int64)

    def numbers(self, table: Table) -> NumpyArray:
        """The values, NaN where there is none; days and seconds since 1970 for dates."""
        column = table.schema.column(self.column)
        return np.asarray(column.numbers(table.frame.column(self.column)), np.float64)

    def known(self, table: Table) -> Table:
        """The rows that have a value."""
        present = ~np.isnan(self.numbers(table))
        return table if present.all() else table.take(present)


def target_of(real: Table, column: str) -> Target:
    """How a column of the real rows is predicted."""
    if not real.schema.column(column).is_scale:
        return Target(column=column)
    number = Target(column=column, is_number=True)
    values = number.numbers(real)
    different = np.unique(values[~np.isnan(values)])
    if len(different) == 2:
        return Target(column=column, border=float(different.mean()))
    return number
