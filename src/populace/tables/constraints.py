"""What no row may be: impossible combinations, and comparisons between two columns.

Both are public knowledge and part of the schema. They hold for every synthetic row, because rows that break one are
drawn again, and for every real row, because encoding refuses a table that breaks one (then the declaration is wrong).
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from populace.errors import SchemaError
from populace.types import JsonObject, NumpyArray

if TYPE_CHECKING:
    from populace.tables.schema import Column


RELATIONS: dict[str, Callable[[NumpyArray, NumpyArray], NumpyArray]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
NULL = "(no value)"
NUMBERS = ("integer", "decimal")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forbidden:
    """A structural zero: no row has, in every named column, one of the listed values.

    Values are category labels (for a scale, cell labels as `Column.labels` prints them); "(no value)" is null.
    """

    values: tuple[tuple[str, tuple[str, ...]], ...]

    def check(self, columns: Mapping[str, Column]) -> None:
        if not self.values or not all(labels for _, labels in self.values):
            raise SchemaError("an empty [[forbid]] entry forbids nothing; name columns and values")
        names = [name for name, _ in self.values]
        if len(set(names)) != len(names):
            raise SchemaError(f"[[forbid]] names a column twice in {', '.join(names)}; list its values once")
        for name, labels in self.values:
            if name not in columns:
                raise SchemaError(f"[[forbid]] names {name!r}, which is not a column")
            for label in labels:
                if label not in columns[name].labels():
                    raise SchemaError(f"[[forbid]]: {label!r} is not in the domain of column {name!r}")
        if all(set(labels) == set(columns[name].labels()) for name, labels in self.values):
            raise SchemaError(f"[[forbid]] {self}: that forbids every row; leave out some values")

    def broken_by(self, codes: NumpyArray, columns: tuple[Column, ...]) -> NumpyArray:
        """Which rows (of integer codes) are this impossible combination."""
        hit = np.ones(len(codes), bool)
        names = [column.name for column in columns]
        for name, labels in self.values:
            index = names.index(name)
            wanted = [columns[index].labels().index(label) for label in labels]
            hit &= np.isin(codes[:, index], wanted)
        return hit

    def __str__(self) -> str:
        return " and ".join(f"{name} in {{{', '.join(labels)}}}" for name, labels in self.values) + " never occurs"

    def to_dict(self) -> JsonObject:
        return {name: list(labels) for name, labels in self.values}

    @classmethod
    def from_dict(cls, entry: JsonObject) -> Forbidden:
        values = []
        for name, labels in entry.items():
            listed = [labels] if isinstance(labels, str) else labels
            if not isinstance(listed, list) or not listed or not all(isinstance(label, str) for label in listed):
                raise SchemaError(f"[[forbid]]: expected a list of values for column {name!r}, as text, got {labels!r}")
            values.append((name, tuple(listed)))
        return cls(values=tuple(values))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """`left relation right` between two columns of numbers, of dates or of times, or two ordinal ones of the same categories.

    A row in which either side has no value satisfies it.
    """

    left: str
    relation: str
    right: str

    def check(self, columns: Mapping[str, Column]) -> None:
        if self.relation not in list(RELATIONS):
            raise SchemaError(f"[[constraint]]: expected relation in {' '.join(RELATIONS)}, got {self.relation!r}")
        for name in (self.left, self.right):
            if name not in list(columns):
                raise SchemaError(f"[[constraint]] names {name!r}, which is not a column")
        if self.left == self.right:
            raise SchemaError(f"[[constraint]] {self}: compares a column with itself; name two columns")
        left, right = columns[self.left], columns[self.right]
        numbers = left.kind in NUMBERS and right.kind in NUMBERS
        same = left.kind == right.kind and (left.is_scale or left.categories == right.categories)
        if not (numbers or (same and left.is_ordered)):
            raise SchemaError(
                f"[[constraint]] {self}: expected two columns of numbers, two of dates, datetimes or times, or two ordinal "
                "columns with the same categories"
            )

    def broken_by(self, left: NumpyArray, right: NumpyArray) -> NumpyArray:
        """Which rows break it; NaN stands for no value."""
        holds = RELATIONS[self.relation](left, right)
        return ~(holds | np.isnan(left) | np.isnan(right))

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"

    def to_dict(self) -> JsonObject:
        return {"left": self.left, "relation": self.relation, "right": self.right}

    @classmethod
    def from_dict(cls, entry: JsonObject) -> Comparison:
        if set(entry) != {"left", "relation", "right"}:
            raise SchemaError(f"[[constraint]]: expected left, relation and right, got {sorted(entry)}")
        return cls(**entry)
