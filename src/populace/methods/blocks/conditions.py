"""Which rows are wanted of a generator: single values, sets of values, ranges; all of them at once.

A condition is a text: `sex=Female`, `district=north,south`, `age=40..65` (both ends belong to it), `age>=40`,
`admitted<2024-03-01`, `ward!=C`. Of columns of which one code is left the generator is given those that it can draw from its
conditional law exactly (`Generator.exact_conditions`); for all other conditions rows are drawn and those that meet them kept,
which gives the same law.
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
from populace.tables.columns import Column
from populace.tables.schema import Schema
from populace.types import NumpyArray

OPERATORS = (">=", "<=", "!=", "=", ">", "<")
BETWEEN = ".."
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

    def excludes(self, other: Bound) -> bool:
        """Whether this lower end lies above that upper end of the same column."""
        if self.column != other.column or self.operator[0] != ">" or other.operator[0] != "<":
            return False
        touching = self.number == other.number and (self.operator, other.operator) != (">=", "<=")
        return self.number > other.number or touching


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Wanted:
    """The rows that meet all conditions: the codes left of each column named, and the ends of ranges inside cells."""

    schema: Schema
    allowed: Mapping[int, NumpyArray] = dataclasses.field(default_factory=dict)
    bounds: tuple[Bound, ...] = ()

    @property
    def given(self) -> dict[int, int]:
        """The columns of which one code is left."""
        return {column: int(np.flatnonzero(codes)[0]) for column, codes in self.allowed.items() if codes.sum() == 1}

    @property
    def is_exact(self) -> bool:
        """Whether the generator's own conditions say it all."""
        return not self.bounds and len(self.given) == len(self.allowed)

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
        return good


def wanted_rows(schema: Schema, conditions: Sequence[str]) -> Wanted:
    """The rows that meet all of these conditions."""
    wanted = Wanted(schema=schema)
    for text in conditions:
        wanted = _and(wanted, *split_condition(text, schema.names))
    return wanted


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
        return wanted.narrowed(name, ~_listed(wanted.schema, column, value))
    if operator != "=":
        return _bounded(wanted, column, operator, value)
    low, between, high = value.partition(BETWEEN)
    if between and value not in column.labels() and column.is_ordered:
        for end, each in ((">=", low.strip()), ("<=", high.strip())):
            wanted = _bounded(wanted, column, end, each) if each else wanted
        return wanted
    return wanted.narrowed(name, _listed(wanted.schema, column, value))


def _listed(schema: Schema, column: Column, value: str) -> NumpyArray:
    """The codes of one value, or of several with commas between them."""
    whole = value in column.labels() or "," not in value
    codes = np.zeros(column.size, bool)
    for each in (value,) if whole else next(csv.reader([value], skipinitialspace=True)):
        codes[condition_code(schema, column.name, each if whole else each.strip())] = True
    return codes


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
    if any(bound.excludes(other) or other.excludes(bound) for other in narrowed.bounds):
        raise DataError(f"no row can meet all conditions on {column.name!r}: they leave no value of it")
    return dataclasses.replace(narrowed, bounds=(*narrowed.bounds, bound))
