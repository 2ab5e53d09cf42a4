"""The values of the rows themselves, never the schema's cells, and how far two columns of values are apart.

Kolmogorov-Smirnov distance    the largest gap between two distribution functions, exact: 0 equal, 1 nothing in common
Wasserstein-1 distance         the mean distance a value has to be moved; in the column's units, and over the real SD
spikes                         single values with 3 % of the real rows or more that stand out, and zero from 1 % on

Numbers are numbers, dates are days since 1970, date-times and times of day are seconds. Every column is sorted once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from populace.tables.columns import Column, Kind
from populace.tables.table import Table
from populace.types import NumpyArray

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
SPIKE, ZERO_SPIKE, LEAST_ROWS_OF_A_SPIKE, MOST_SPIKES = 0.03, 0.01, 10, 8
NEIGHBOURS, STANDS_OUT = 3, 2.0
GRADES: dict[str, Kind] = {"integer": "integer", "float": "decimal"}
MANTISSA = 36  # bits of a decimal that are compared: 0.1 + 0.2 and 0.3 are one value


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Numbers:
    """A column of numbers, dates or times: NaN where there is no value."""

    name: str
    kind: str
    values: NumpyArray

    def take(self, rows: NumpyArray) -> Numbers:
        return Numbers(name=self.name, kind=self.kind, values=self.values[rows])


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StoredNumbers:
    """The same of a table's column, read anew whenever it is asked for: of a large table only a few are in memory."""

    column: Column
    stored: pa.ChunkedArray

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def kind(self) -> str:
        return self.column.kind if self.column.is_scale else GRADES[self.column.dtype]

    @property
    def values(self) -> NumpyArray:
        return _numbers(self.stored, self.column, self.kind)

    def take(self, rows: NumpyArray) -> Numbers:
        return Numbers(
            name=self.name, kind=self.kind, values=_numbers(_taken(self.stored, rows), self.column, self.kind)
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Categories:
    """A column of categories: a number into `labels` per row, -1 where there is no value."""

    name: str
    kind: str
    labels: tuple[str, ...]
    codes: NumpyArray

    def take(self, rows: NumpyArray) -> Categories:
        return dataclasses.replace(self, codes=self.codes[rows])


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StoredCategories:
    """The same of a table's column, numbered anew whenever it is asked for; `listed` has the values behind the labels."""

    name: str
    kind: str
    labels: tuple[str, ...]
    listed: pa.Array
    stored: pa.ChunkedArray

    @property
    def codes(self) -> NumpyArray:
        return _numbered(self.stored, self.listed)

    def take(self, rows: NumpyArray) -> Categories:
        codes = _numbered(_taken(self.stored, rows), self.listed)
        return Categories(name=self.name, kind=self.kind, labels=self.labels, codes=codes)


NumberColumn = Numbers | StoredNumbers
CategoryColumn = Categories | StoredCategories


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ValueTable:
    """The values of a table, column by column."""

    rows: int
    numbers: tuple[NumberColumn, ...]
    categories: tuple[CategoryColumn, ...]

    def take(self, rows: NumpyArray) -> ValueTable:
        """The rows with these numbers, in memory."""
        return ValueTable(
            rows=len(rows),
            numbers=tuple(column.take(rows) for column in self.numbers),
            categories=tuple(column.take(rows) for column in self.categories),
        )


def sample_rows(rows: int, most: int) -> NumpyArray:
    """The numbers of at most so many rows of a table, always the same; a smaller sample is part of a larger one."""
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(11).permutation(rows)[:most])


def value_tables(tables: Sequence[Table], others: Sequence[Table] = ()) -> list[ValueTable]:
    """The values of tables under one schema, with one numbering of categories; `others` hold no category but theirs."""
    columns = tables[0].schema.columns
    listed = [column for column in columns if not holds_numbers(column)]
    labels = {column.name: _labels(column, [table.frame.column(column.name) for table in tables]) for column in listed}
    return [
        ValueTable(
            rows=table.frame.num_rows,
            numbers=tuple(
                StoredNumbers(column=c, stored=table.frame.column(c.name)) for c in columns if holds_numbers(c)
            ),
            categories=tuple(
                StoredCategories(
                    name=c.name, kind=c.kind, listed=labels[c.name][0], labels=labels[c.name][1],
                    stored=table.frame.column(c.name),
                )
                for c in listed
            ),
        )
        for table in (*tables, *others)
    ]  # fmt: skip


def _taken(stored: pa.ChunkedArray, rows: NumpyArray) -> pa.ChunkedArray:
    """Some rows of a column; all of them, in order, are the column itself."""
    return stored if len(rows) == len(stored) and (np.diff(rows) == 1).all() else stored.take(pa.array(rows))


def holds_numbers(column: Column) -> bool:
    """Numbers, dates, times; and grades that are written as numbers."""
    return column.is_scale or (column.kind == "ordinal" and column.dtype in GRADES)


def _numbers(values: pa.ChunkedArray, column: Column, kind: str) -> NumpyArray:
    read = column.numbers(values) if column.is_scale else values.cast(pa.float64()).to_numpy()
    found = np.asarray(read, np.float64)
    return snapped(found) if kind == "decimal" else found


def _labels(column: Column, parts: Sequence[pa.ChunkedArray]) -> tuple[pa.Array, tuple[str, ...]]:
    """The values that occur in any table, in the order the schema lists them where it does."""
    chunks = [chunk for part in parts for chunk in part.unique().drop_null().to_pylist()]
    rank = {category: place for place, category in enumerate(column.categories)}
    texts = {value: str(value).lower() if isinstance(value, bool) else str(value) for value in chunks}
    ordered = sorted(texts, key=lambda value: (rank.get(texts[value], len(rank)), texts[value]))
    return pa.array(ordered, parts[0].type), tuple(texts[value] for value in ordered)


def _numbered(values: pa.ChunkedArray, listed: pa.Array) -> NumpyArray:
    """Where each value stands in the list, in the narrowest whole numbers; -1 where there is no value."""
    narrow = np.int16 if len(listed) < 2**15 else np.int32
    if not len(listed):
        return np.full(len(values), -1, narrow)
    return np.asarray(pc.fill_null(pc.index_in(values, value_set=listed), -1).to_numpy().astype(narrow))


def snapped(values: NumpyArray) -> NumpyArray:
    """Decimals without the last bits, so that one value computed in two ways is one value."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(np.ldexp(mantissa, MANTISSA)), exponent - MANTISSA))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """One column's present values in rising order, out of so many rows."""

    ordered: NumpyArray
    rows: int

    @property
    def missing(self) -> float:
        return 1 - len(self.ordered) / self.rows if self.rows else 0.0

    @property
    def mean(self) -> float:
        return float(self.ordered.mean()) if len(self.ordered) else float("nan")

    @property
    def sd(self) -> float:
        return float(self.ordered.std()) if len(self.ordered) else float("nan")

    def quantiles(self, shares: Sequence[float] = QUANTILES) -> list[float]:
        """Linear between neighbouring values, as numpy's default."""
        if not len(self.ordered):
            return [float("nan")] * len(shares)
        place = np.asarray(shares) * (len(self.ordered) - 1)
        low = np.floor(place).astype(int)
        high = np.minimum(low + 1, len(self.ordered) - 1)
        found = self.ordered[low] + (place - low) * (self.ordered[high] - self.ordered[low])
        return [float(value) for value in found]

    def share(self, value: float) -> float:
        """The share of all rows that have exactly this value."""
        low, high = np.searchsorted(self.ordered, value, "left"), np.searchsorted(self.ordered, value, "right")
        return float(high - low) / self.rows if self.rows else 0.0


def sample(values: NumpyArray) -> Sample:
    return Sample(ordered=np.sort(values[~np.isnan(values)]), rows=len(values))


def halved(values: NumpyArray, first: NumpyArray) -> tuple[Sample, Sample, Sample]:
    """The whole column, and its two halves: the rows marked by `first`, and the others."""
    return sample(values), sample(values[first]), sample(values[~first])


def distinct(ordered: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """The different values of a sorted array, and how often each occurs."""
    if not len(ordered):
        return ordered, np.zeros(0, np.int64)
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return ordered[starts], np.diff(np.append(starts, len(ordered)))


def spikes(real: Sample) -> tuple[float, ...]:
    """Single values that many real rows have, rising: at most eight, those with the largest shares.

    A spike stands out: it has twice as many rows as the values next to it (their median, three on either side). Zero, and
    the values of a column that has eight or fewer, need not.
    """
    points, counts = distinct(real.ordered)
    least = np.where(points == 0, ZERO_SPIKE, SPIKE) * real.rows
    chosen = np.flatnonzero(counts >= np.maximum(least, LEAST_ROWS_OF_A_SPIKE))
    if len(points) > MOST_SPIKES:
        chosen = np.array([i for i in chosen if points[i] == 0 or _stands_out(counts, int(i))], np.int64)
    chosen = chosen[np.argsort(-counts[chosen], kind="stable")][:MOST_SPIKES]
    return tuple(float(value) for value in np.sort(points[chosen]))


def _stands_out(counts: NumpyArray, at: int) -> bool:
    around = np.concatenate([counts[max(0, at - NEIGHBOURS) : at], counts[at + 1 : at + 1 + NEIGHBOURS]])
    return bool(counts[at] >= STANDS_OUT * np.median(around))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Gap:
    """Two distribution functions less one another at every value that occurs."""

    points: NumpyArray
    gaps: NumpyArray

    @property
    def ks(self) -> float:
        return float(np.abs(self.gaps).max())

    @property
    def wasserstein(self) -> float:
        return float((np.abs(self.gaps[:-1]) * np.diff(self.points)).sum())

    def ks_influence(self, values: NumpyArray) -> NumpyArray:
        """What each present value adds to the KS distance through its own distribution function, but for a constant."""
        at = int(np.abs(self.gaps).argmax())
        return np.where(values <= self.points[at], np.sign(self.gaps[at]), 0.0)

    def wasserstein_influence(self, values: NumpyArray) -> NumpyArray:
        """The same of the Wasserstein distance: minus the integral of the gap's sign up to the value."""
        steps = np.concatenate([[0.0], np.cumsum(np.sign(self.gaps[:-1]) * np.diff(self.points))])
        return np.asarray(-np.interp(values, self.points, steps))


def gap_between(real: NumpyArray, synthetic: NumpyArray) -> Gap:
    """The gap between two sorted, non-empty arrays, by one merge."""
    both = np.concatenate([real, synthetic])
    steps = np.repeat([1 / len(real), -1 / len(synthetic)], [len(real), len(synthetic)])
    order = np.argsort(both, kind="stable")  # two sorted runs: linear
    both, total = both[order], np.cumsum(steps[order])
    last = np.concatenate([both[1:] != both[:-1], [True]])
    return Gap(points=both[last], gaps=np.append(total[last][:-1], 0.0))
