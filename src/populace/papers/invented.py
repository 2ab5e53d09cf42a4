"""Invented rows of a schema's shape: a population of latent classes with dependence and skew, drawn at random.

They are nobody's rows, and not like any rows in particular: what they share with the user's are the columns, the cells, the
rules of the schema, and the number of rows. So they tell how methods compare at this size, not how good the user's result will
be.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from populace.errors import DataError
from populace.tables import codec
from populace.tables.columns import Column
from populace.tables.schema import Schema
from populace.tables.table import Table
from populace.types import NumpyArray

CLASSES = 8
SKEW = 0.7  # of the Dirichlet distribution of a column's categories; below 1 some are rare
SHARED = 0.15  # of a column's distribution that all classes have in common
AT_ONCE = 2**15
HOPELESS = 0.01  # of drawn rows that obey the schema's rules


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Population:
    """Classes with their shares, and for each column the distribution of its codes in each class, [classes, codes]."""

    schema: Schema
    shares: NumpyArray
    columns: tuple[NumpyArray, ...]

    def draw(self, rows: int, rng: np.random.Generator) -> Table:
        """So many people, all of whom obey the schema's rules: those who break one are drawn again."""
        codes: list[NumpyArray] = []
        frames: list[pa.Table] = []
        have = drawn = 0
        while have < rows:
            some = self._codes(min(AT_ONCE, max(1_000, rows - have)), rng)
            frame = codec.decode(some, self.schema, rng)
            broken, rule = codec.broken_rows(frame, some, self.schema)
            good = np.flatnonzero(~broken)[: rows - have]
            codes.append(some[good])
            frames.append(frame.take(pa.array(good)))
            have, drawn = have + len(good), drawn + len(some)
            if drawn >= 4 * AT_ONCE and have < HOPELESS * drawn:
                raise DataError(
                    f"nearly no invented row obeys the schema's rules ({rule}); rehearse on public rows with --public FILE"
                )
        return Table(schema=self.schema, codes=np.concatenate(codes), frame=pa.concat_tables(frames))

    def _codes(self, rows: int, rng: np.random.Generator) -> NumpyArray:
        member = rng.choice(len(self.shares), size=rows, p=self.shares)
        found = np.empty((rows, len(self.columns)), np.int32)
        for index, table in enumerate(self.columns):
            steps = np.cumsum(table, axis=1)[member]
            found[:, index] = np.minimum((rng.random((rows, 1)) > steps).sum(axis=1), table.shape[1] - 1)
        return found


def invent(schema: Schema, seed: int) -> Population:
    """A population for this schema; another seed is another population."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(CLASSES))
    return Population(schema=schema, shares=shares, columns=tuple(_column(column, rng) for column in schema.columns))


def _column(column: Column, rng: np.random.Generator) -> NumpyArray:
    """Codes of a column by class: a shared part with skew, and a part of each class's own; along a scale both are hills."""
    own = np.stack([_shape(column, rng) for _ in range(CLASSES)])
    table = SHARED * _shape(column, rng) + (1 - SHARED) * own
    if not column.nullable:
        return table
    missing = rng.beta(1, 9, size=(CLASSES, 1))
    return np.concatenate([table * (1 - missing), missing], axis=1)


def _shape(column: Column, rng: np.random.Generator) -> NumpyArray:
    if not column.is_ordered:
        return rng.dirichlet(np.full(column.levels, SKEW)) * (1 - 1e-6) + 1e-6 / column.levels
    place = (np.arange(column.levels) + 0.5) / column.levels
    hill = np.exp(-0.5 * ((place - rng.beta(1, 2)) / rng.uniform(0.06, 0.25)) ** 2) + 1e-3
    found: NumpyArray = hill / hill.sum()
    return found
