"""One column of a table: its kind, its public domain, and how its values are stored."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Literal

import numpy as np
import pyarrow as pa

from populace.errors import SchemaError
from populace.tables import conversion
from populace.tables.cells import LAWS, Cell, Cells, Grid, Law, same_law
from populace.tables.constraints import NULL
from populace.tables.dates import number_text
from populace.types import NumpyArray

Kind = Literal["categorical", "boolean", "ordinal", "integer", "decimal", "date", "datetime", "time"]
Dtype = Literal["string", "integer", "float", "boolean", "date", "datetime", "time"]
Domain = Literal["declared", "read-from-data", "public-data", "released"]
OtherKind = Literal["id", "text"]

LISTED: tuple[str, ...] = ("categorical", "boolean", "ordinal")
STORED = {"integer": "integer", "decimal": "float", "date": "date", "datetime": "datetime", "time": "time"}
STEPS = {"integer": 1.0, "decimal": 0.0, "date": 1.0, "datetime": 1.0, "time": 1.0}
FINEST = {"integer": 1.0, "date": 1.0, "datetime": 0.001, "time": 0.001}
KINDS: tuple[str, ...] = (*LISTED, *STORED)
OTHER_KINDS: tuple[str, ...] = ("id", "text")
DTYPES: tuple[str, ...] = ("string", "integer", "float", "boolean")
DOMAINS: tuple[str, ...] = ("declared", "read-from-data", "public-data", "released")
DAY = 86_400.0
EXAMPLES = {"date": "%d.%m.%Y", "datetime": "%d.%m.%Y %H:%M:%S", "time": "%H:%M:%S"}
SPANS = {
    "date": (-719_162.0, 2_932_896.0),
    "datetime": (-62_135_596_800.0, 253_402_300_799.999),
    "time": (0.0, 86_399.999),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Other:
    """A column that is not modelled: an `id` is made afresh, a `text` is left out. `position` is its place in the file."""

    name: str
    kind: OtherKind
    position: int = 0
    dtype: Literal["string", "integer"] = "string"

    def __post_init__(self) -> None:
        _check_name(self.name)
        for field, allowed in (("kind", OTHER_KINDS), ("dtype", ("string", "integer"))):
            if getattr(self, field) not in allowed:
                raise SchemaError(
                    f"column {self.name!r}: expected {field} in {', '.join(allowed)}, got {getattr(self, field)!r}"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """One modelled column.

    A categorical, boolean or ordinal column lists `categories` (as text; `dtype` says how they are stored). A column with a
    scale has cells: `spikes`, single values, and the intervals edges[i] <= value < edges[i + 1] (the last one holds its upper
    edge too) without the spikes in them; `laws` says how values lie inside each, `step` how fine they are (0: any float).
    Edges and spikes are numbers: days since 1970 of a date, seconds since 1970 of a datetime, seconds of a time of day. A
    nullable column has one more code, the last, for "no value"; `missing` lists what else is read as that. With `clip`, a
    value outside goes to the nearest cell; with `other`, an unlisted category goes there. `format` is how text is read.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    spikes: tuple[float, ...] = ()
    laws: tuple[Law, ...] = ()
    step: float = -1.0  # the kind's own: 1, or 0 for decimal
    dtype: Dtype = "string"
    nullable: bool = False
    missing: tuple[str, ...] = ()
    clip: bool = False
    other: str = ""
    format: str = ""
    domain: Domain = "declared"
    source: str = ""

    def __post_init__(self) -> None:
        _check_name(self.name)
        self._check_words()
        if self.is_scale:
            object.__setattr__(self, "dtype", STORED[self.kind])
            if self.step < 0:
                object.__setattr__(self, "step", STEPS[self.kind])
            if not self.laws:
                object.__setattr__(self, "laws", same_law("linear", len(self.edges) - 1))
            self._check_scale()
        else:
            object.__setattr__(self, "step", 0.0)
            self._check_categories()
        self._check_format()

    def _check_words(self) -> None:
        dtypes = DTYPES if self.kind in LISTED else (*DTYPES, *STORED.values())
        for field, allowed in (("kind", KINDS), ("dtype", dtypes), ("domain", DOMAINS)):
            value = getattr(self, field)
            if value not in allowed:
                raise SchemaError(f"column {self.name!r}: expected {field} in {', '.join(allowed)}, got {value!r}")
        for text in (*self.missing, self.other, self.format, self.source):
            if not isinstance(text, str) or not _is_text(text):
                raise SchemaError(f"column {self.name!r}: expected text, got {text!r}; quote it")

    def _check_format(self) -> None:
        """Dates have a strptime form; numbers know the comma alone."""
        if not self.format:
            return
        if self.kind in ("date", "datetime", "time"):
            if not conversion.can_write(self.format, self.kind):
                raise SchemaError(
                    f"column {self.name!r}: expected a strptime form that says a whole {self.kind} as format, such as "
                    f"{EXAMPLES[self.kind]!r}, got {self.format!r}"
                )
        elif self.kind not in ("integer", "decimal") or self.format != conversion.COMMA:
            raise SchemaError(
                f"column {self.name!r}: expected format 'comma' of numbers, or a strptime form of dates and times, got "
                f"{self.format!r}; drop it"
            )

    def _check_scale(self) -> None:
        name = f"column {self.name!r}"
        if self.categories or self.other:
            raise SchemaError(f"{name}: a column of kind {self.kind} has edges, not categories; drop one of the two")
        if len(self.edges) < 2 and not (self.spikes and not self.edges):
            raise SchemaError(f"{name}: expected at least two edges, got {len(self.edges)}; list the public edges")
        numbers = (*self.edges, *self.spikes)
        if not all(math.isfinite(number) for number in numbers):
            raise SchemaError(f"{name}: expected finite edges and spikes, got {list(numbers)}")
        for what, rising in (("edges", self.edges), ("spikes", self.spikes)):
            if any(low >= high for low, high in itertools.pairwise(rising)):
                raise SchemaError(f"{name}: expected rising {what}, got {list(rising)}")
        if len(self.laws) != max(0, len(self.edges) - 1) or not all(law in LAWS for law in self.laws):
            raise SchemaError(f"{name}: expected law 'linear' or 'log', or one of them per interval, got {self.laws!r}")
        self._check_grid()

    def _check_grid(self) -> None:
        name, numbers = f"column {self.name!r}", (*self.edges, *self.spikes)
        finest = FINEST.get(self.kind, 0.0)
        if not math.isfinite(self.step) or self.step < finest:
            raise SchemaError(f"{name}: expected a step of at least {finest:g}, got {self.step!r}")
        if self.kind in ("integer", "date") and self.step != int(self.step):
            raise SchemaError(f"{name}: expected a whole number as step, got {self.step!r}")
        grid = Grid(self.step)
        if self.step and max(map(abs, numbers)) > grid.most:
            raise SchemaError(
                f"{name}: expected edges up to {grid.most:.3g} with a step of {self.step:g}, got {list(self.edges)}; "
                "say kind = 'id' if it is an identifier, or step = 0"
            )
        low, high = SPANS.get(self.kind, (-math.inf, math.inf))
        if min(numbers) < low or max(numbers) > high:
            raise SchemaError(f"{name}: expected every {self.kind} in the years 1 to 9999 and in the day's 24 hours")
        off = [spike for spike in self.spikes if float(grid.values(np.array(grid.first(spike)))) != spike]
        if off:
            raise SchemaError(f"{name}: the spike {off[0]!r} is not a multiple of the step {self.step:g}")
        if not self.cells:
            raise SchemaError(f"{name}: no multiple of {self.step:g} lies between its edges; widen them")

    def _check_categories(self) -> None:
        if self.edges or self.spikes or self.laws:
            raise SchemaError(
                f"column {self.name!r}: edges, spikes and laws are for columns with a scale; drop them or say "
                "kind = 'integer' or 'decimal'"
            )
        if not self.categories:
            raise SchemaError(f"column {self.name!r}: expected at least one category, got none")
        for category in self.categories:
            if not isinstance(category, str) or not _is_text(category):
                raise SchemaError(f"column {self.name!r}: expected categories as text, got {category!r}; quote them")
            parse_category(category, self.dtype, self.name)
        if len(set(self.categories)) != len(self.categories):
            twice = next(c for i, c in enumerate(self.categories) if c in self.categories[:i])
            raise SchemaError(f"column {self.name!r}: category {twice!r} is listed twice")
        if self.kind == "boolean" and len(self.categories) > 2:
            raise SchemaError(f"column {self.name!r}: a boolean has two categories, got {len(self.categories)}")
        if self.other and self.other not in self.categories:
            raise SchemaError(f"column {self.name!r}: {self.other!r}, for unlisted values, is not among the categories")
        if self.nullable and NULL in self.categories:
            raise SchemaError(
                f"column {self.name!r}: {NULL!r} stands for null in a nullable column; rename the category"
            )

    @property
    def is_scale(self) -> bool:
        """Whether it holds numbers, dates or times."""
        return self.kind in STORED

    @property
    def is_ordered(self) -> bool:
        """Whether its codes stand in an order that means something."""
        return self.is_scale or self.kind == "ordinal"

    @functools.cached_property
    def scale(self) -> Cells:
        """The cells of a column with a scale, and what they can do."""
        return Cells(
            self.edges, self.spikes, self.laws, grid=Grid(self.step, down=self.kind not in ("integer", "decimal"))
        )

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of a column with a scale, in the order of codes, ascending; none for other kinds."""
        return self.scale.cells if self.is_scale else ()

    @property
    def levels(self) -> int:
        """Number of codes without the null code."""
        return len(self.cells) if self.is_scale else len(self.categories)

    @property
    def size(self) -> int:
        """Number of codes, the null code included."""
        return self.levels + int(self.nullable)

    def labels(self) -> tuple[str, ...]:
        """One readable label per code."""
        names = tuple(self._label(cell) for cell in self.cells) if self.is_scale else self.categories
        return (*names, NULL) if self.nullable else names

    def _label(self, cell: Cell) -> str:
        low, high = number_text(cell.low, self.kind), number_text(cell.high, self.kind)
        return low if cell.spike else f"[{low}, {high}{']' if cell.high == self.edges[-1] else ')'}"

    def centres(self) -> NumpyArray:
        """The mean of each level: of a cell's values under its law, or the rank of a category."""
        return self.scale.centres() if self.is_scale else np.arange(self.levels, dtype=np.float64)

    def numbers(self, values: pa.Array | pa.ChunkedArray) -> NumpyArray:
        """Values as floats: numbers, days or seconds since 1970, seconds of the day; NaN where there is none."""
        return conversion.to_numbers(values, self).numbers


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or not _is_text(name):
        raise SchemaError(f"expected a column name, got {name!r}; name every column")


def _is_text(value: str) -> bool:
    """Whether it can be written to a file: a lone surrogate cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def parse_category(text: str, dtype: str, column: str) -> str | int | float | bool:
    """A category as stored: text, whole number, number or truth value."""
    if dtype == "string":
        return text
    if dtype == "boolean":
        if text in ("true", "false"):
            return text == "true"
    else:
        try:
            value = int(text) if dtype == "integer" else float(text)
        except ValueError:
            pass
        else:
            storable = math.isfinite(value) if dtype == "float" else -(2**63) <= value < 2**63
            if storable and category_text(value) == text:
                return value
    raise SchemaError(f"column {column!r}: category {text!r} is not a {dtype} in its plain form; set dtype = 'string'")


def category_text(value: object) -> str:
    """The plain text of a stored category; the inverse of `parse_category`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value + 0.0)  # minus zero is zero
    return str(value)
