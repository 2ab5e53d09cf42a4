"""Which rows are wanted of a generator: single values, sets of values, ranges; all of them at once.

A condition is a text: `sex=Female`, `district=north,south`, `age=40..65` (both ends belong to it), `age>=40`,
`admitted<2024-03-01`, `ward!=C`. Of columns of which one code is left the generator is given those that it can draw from its
conditional law exactly (`Generator.exact_conditions`); for all other conditions rows are drawn and those that meet them kept,
which gives the same law. A number or date is that value itself, and a cell is meant by its label alone (`age=[40, 60)`). As in
SQL, rows without a value meet neither a range nor `!=`.
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from populace.errors import DataError, SpecError
from populace.methods.blocks.condition_codes import condition_code
from populace.tables.cells import Grid
from populace.tables.columns import Column
from populace.tables.schema import Schema
from populace.types import NumpyArray

OPERATORS = (">=", "<=", "!=", "=", ">", "<")
BETWEEN = ".."
FEW = 10_000  # values of a range that are looked at one by one before rows are drawn
CONDITION = re.compile(r"(?P<name>.+?)(?P<operator>>=|<=|!=|=|>|<)(?P<value>.*)", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """One end of a range, as a number of its column: days, seconds, or the number itself; of ordinal columns the code."""

    column: int
    operator: str
    number: float

    def holds(self, values: NumpyArray) -> NumpyArray:
        """Whether values lie on this side of the end; a gap (NaN) does not."""
        compare = {">=": np.greater_equal, ">": np.greater, "<=": np.less_equal, "<": np.less}[self.operator]
        return np.asarray(compare(values, self.number))

    def tick(self, grid: Grid) -> float:
        """The outermost tick on this side."""
        at = grid.first(self.number)
        same = float(grid.values(np.array(at))) == self.number
        if self.operator[0] == ">":
            return grid.above(at) if self.operator == ">" and same else at
        return at if self.operator == "<=" and same else grid.below(at)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Listed:
    """Values of a column with a scale, as ticks, and cells as a whole; with `excluded` all but them."""

    column: int
    cells: NumpyArray
    ticks: NumpyArray
    excluded: bool

    def holds(self, codes: NumpyArray, ticks: NumpyArray) -> NumpyArray:
        """Whether values, with these codes, are among those that are meant."""
        return np.asarray((self.cells[codes] | np.isin(ticks, self.ticks)) != self.excluded)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Wanted:
    """The rows that meet all conditions: the codes left of each column named, and ends of ranges and values inside cells."""

    schema: Schema
    allowed: Mapping[int, NumpyArray] = dataclasses.field(default_factory=dict)
    bounds: tuple[Bound, ...] = ()
    lists: tuple[Listed, ...] = ()

    @property
    def given(self) -> dict[int, int]:
        """The columns of which one code is left."""
        return {column: int(np.flatnonzero(codes)[0]) for column, codes in self.allowed.items() if codes.sum() == 1}

    @property
    def is_exact(self) -> bool:
        """Whether the generator's own conditions say it all."""
        return not self.bounds and not self.lists and len(self.given) == len(self.allowed)

    def narrowed(self, name: str, codes: NumpyArray) -> Wanted:
        """The same with these codes alone left of a column."""
        index = self.schema.index(name)
        both = codes & self.allowed[index] if index in self.allowed else codes
        if not both.any():
            raise DataError(f"no row can meet all conditions on {name!r}: they leave no value of it")
        return dataclasses.replace(self, allowed={**self.allowed, index: both})

    def meets(self, codes: NumpyArray, frame: pa.Table) -> NumpyArray:
        """Which of these rows are wanted."""
        good = np.ones(len(codes), bool)
        for index, allowed in self.allowed.items():
            good &= allowed[codes[:, index]]
        for bound in self.bounds:
            column = self.schema.columns[bound.column]
            good &= bound.holds(column.numbers(frame.column(column.name)))
        for listed in self.lists:
            column = self.schema.columns[listed.column]
            ticks = column.scale.grid.ticks(column.numbers(frame.column(column.name)))
            good &= listed.holds(codes[:, listed.column], ticks)
        return good


def wanted_rows(schema: Schema, conditions: Sequence[str]) -> Wanted:
    """The rows that meet all of these conditions."""
    wanted = Wanted(schema=schema)
    for text in conditions:
        wanted = _and(wanted, *split_condition(text, schema.names))
    return _possible(wanted)


def with_values(wanted: Wanted, name: str, values: Sequence[str], *, excluded: bool = False) -> Wanted:
    """The same with these values alone of a column, or with all but these and no gap."""
    column, index = wanted.schema.column(name), wanted.schema.index(name)
    named, cells, ticks = np.zeros(column.size, bool), np.zeros(column.size, bool), []
    for value in values:
        code = condition_code(wanted.schema, name, value)
        named[code] = True
        if not column.is_scale or code >= column.levels or value in column.labels() or code in _single_cells(column):
            cells[code] = True
        elif not column.step and not excluded:
            raise DataError(
                f"column {name!r} holds any number, of which {value} alone is never drawn; ask for a range, such as "
                f"{name}>={value}, or for its cell, {name}={column.labels()[code]}"
            )
        else:
            ticks.append(float(column.scale.grid.ticks(column.numbers(pa.array([value], pa.string())))[0]))
    narrowed = wanted.narrowed(name, ~cells & (np.arange(column.size) < column.levels) if excluded else named)
    if not ticks:
        return narrowed
    listed = Listed(column=index, cells=cells, ticks=np.array(ticks), excluded=excluded)
    return dataclasses.replace(narrowed, lists=(*narrowed.lists, listed))


def _single_cells(column: Column) -> set[int]:
    """The cells that hold one value."""
    codes = [code for _, _, code in column.scale.pieces]
    return {code for low, high, code in column.scale.pieces if low == high and codes.count(code) == 1}


def _possible(wanted: Wanted) -> Wanted:
    """The same without cells that no value of a range lies in; conditions that no value can meet are refused before drawing."""
    for index in sorted({*(bound.column for bound in wanted.bounds), *(listed.column for listed in wanted.lists)}):
        column, bounds = wanted.schema.columns[index], [each for each in wanted.bounds if each.column == index]
        grid, lists = column.scale.grid, [each for each in wanted.lists if each.column == index]
        low = max((each.tick(grid) for each in bounds if each.operator[0] == ">"), default=-np.inf)
        high = min((each.tick(grid) for each in bounds if each.operator[0] == "<"), default=np.inf)
        runs = [
            (max(low, first), min(high, last), code)
            for first, last, code in column.scale.pieces
            if wanted.allowed[index][code] and max(low, first) <= min(high, last)
        ]
        codes = np.zeros(column.size, bool)
        codes[[code for _, _, code in runs]] = True
        codes[column.levels :] = not bounds
        wanted = wanted.narrowed(column.name, codes)
        gap = wanted.allowed[index][column.levels :].any()
        if lists and not gap and not _some_hold(column, wanted.allowed[index], runs, lists):
            raise DataError(f"no row can meet all conditions on {column.name!r}: they leave no value of it")
    return wanted


def _some_hold(
    column: Column, allowed: NumpyArray, runs: Sequence[tuple[float, float, int]], lists: Sequence[Listed]
) -> bool:
    """Whether one of the values in these runs of ticks meets all lists; of very many that is taken to be so."""
    single = [each for each in lists if not each.excluded and not each.cells.any()]
    if single:
        ticks = single[0].ticks
    elif column.step and sum(last - first + 1 for first, last, _ in runs) <= FEW:
        ticks = np.concatenate([np.arange(first, last + 1) for first, last, _ in runs])
    else:
        return True
    codes = column.scale.codes(column.scale.grid.values(ticks))
    good = allowed[codes] & np.any([(ticks >= first) & (ticks <= last) for first, last, _ in runs], axis=0)
    return bool(np.all([good, *(each.holds(codes, ticks) for each in lists)], axis=0).any())


def split_condition(text: str, names: Sequence[str]) -> tuple[str, str, str]:
    """Column, operator and value of a condition; the longest column name that fits is meant."""
    if not isinstance(text, str):
        raise SpecError(f"expected a condition as text, such as 'age>=40', got {text!r}")
    for name in sorted(names, key=len, reverse=True):
        rest = text[len(name) :].lstrip() if text.startswith(name) else ""
        operator = next((each for each in OPERATORS if rest.startswith(each)), None)
        if operator is not None:
            return name, operator, rest[len(operator) :].strip() if operator != "=" else rest[1:]
    found = CONDITION.fullmatch(text)
    if found is None:
        raise SpecError(f"expected a condition such as sex=Female, district=a,b, age=40..65 or age>=40, got {text!r}")
    return found["name"].strip(), found["operator"], found["value"]


def _and(wanted: Wanted, name: str, operator: str, value: str) -> Wanted:
    column = wanted.schema.column(name)
    if operator == "!=":
        return with_values(wanted, name, _values(column, value), excluded=True)
    if operator != "=":
        return _bounded(wanted, column, operator, value)
    low, between, high = value.partition(BETWEEN)
    if between and value not in column.labels() and column.is_ordered and not value.startswith('"'):
        for end, each in ((">=", low.strip()), ("<=", high.strip())):
            wanted = _bounded(wanted, column, end, each) if each else wanted
        return wanted
    return with_values(wanted, name, _values(column, value))


def _values(column: Column, value: str) -> Sequence[str]:
    """One value, or several with commas between them, in quotes where they hold a comma."""
    labels = column.labels()
    if value in labels or not ("," in value or value.startswith('"')):
        return (value,)
    try:
        listed = next(csv.reader([value], skipinitialspace=True))
    except csv.Error as error:
        raise SpecError(f"expected values of {column.name!r} with commas between them, got {value!r}") from error
    return [each if each in labels else each.strip() for each in listed]


def _bounded(wanted: Wanted, column: Column, operator: str, value: str) -> Wanted:
    if not column.is_ordered:
        raise DataError(
            f"the values of column {column.name!r} have no order; expected {column.name}=VALUE, or several with commas"
        )
    codes = np.zeros(column.size, bool)
    if not column.is_scale:
        code = condition_code(wanted.schema, column.name, value)
        end = Bound(column=0, operator=operator, number=code)
        codes[: column.levels] = end.holds(np.arange(column.levels))
        return wanted.narrowed(column.name, codes)
    number = float(column.numbers(pa.array([value], pa.string()))[0])
    if not np.isfinite(number):
        raise DataError(
            f"expected {column.name}{operator} with a value of the kind {column.kind} behind it, got {value!r}"
        )
    bound = Bound(column=wanted.schema.index(column.name), operator=operator, number=number)
    # the end of a cell that holds such a value at all; what lies inside is looked at row by row
    ends = np.array([cell.high if operator in (">=", ">") else cell.low for cell in column.cells])
    codes[: column.levels] = bound.holds(ends)
    if not codes.any():
        labels = column.labels()
        raise DataError(
            f"no {column.name}{operator}{value} in this model: its cells go from {labels[0]} to {labels[column.levels - 1]}"
        )
    narrowed = wanted.narrowed(column.name, codes)
    return dataclasses.replace(narrowed, bounds=(*narrowed.bounds, bound))
