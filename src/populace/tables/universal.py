"""Domains that no record decides: the same fine grid for every column of numbers, dates or times, and lists left open.

A schema is read from rows for its kinds alone: which columns there are, what kind each is, how fine its values are, how dates
and missing values are written, and which two values a truth value has. Everything else is forgotten. A column of numbers gets a
cell for each of the smallest multiples of its step and cells of a few per cent beyond them; a column of categories gets a list
without entries, to be filled by what silos release. A method that measures under privacy which cells are used needs no more.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from populace.tables.cells import Grid, same_law
from populace.tables.columns import LISTED, Column, Kind, category_text
from populace.tables.proposal import MOST_CATEGORIES, OTHER_NAME, propose
from populace.tables.schema import Schema
from populace.types import JsonObject, NumpyArray

SOURCE = "a universal grid, the same for every table"
TWO_VALUES = "its kind, which has two values"
SINGLE = 128  # multiples of the step, up and down, that have a cell each
GROWTH = 0.05  # the width of a cell beyond them, relative to where it begins
REACH = 1e9  # in steps; what lies beyond goes to the last cell
KNOWN_CODES = 128  # of a column of categories that are whole numbers: these from 0 on need no list
FLOAT_GROWTH, FLOAT_LEAST, FLOAT_MOST = 0.07, 1e-6, 1e9  # of numbers without a step
FIRST_YEAR, LAST_YEAR = 1900, 2100
FIRST_MONTHS, LAST_MONTHS = 1950, 2050  # between these years a cell is a month, outside a year
MINUTE, DAY = 60.0, 86_400.0
EPOCH = datetime.date(1970, 1, 1)


def open_schema(frame: pa.Table, *, target: str | None = None, drop: Sequence[str] = ()) -> Schema:
    """The schema of a table by its columns' names, kinds and precision alone; lists of categories are empty yet."""
    return opened(propose(frame, target=target, drop=drop).schema)


def opened(schema: Schema) -> Schema:
    """The schema with every domain that was read from data replaced by one that was not; other columns stay as they are."""
    columns = [
        _opened(column, is_target=column.name == schema.target) if column.domain == "read-from-data" else column
        for column in schema.columns
    ]
    return dataclasses.replace(schema, columns=tuple(columns), forbidden=(), comparisons=())


def _opened(column: Column, *, is_target: bool) -> Column:
    numbers = column.dtype in ("integer", "float")
    if column.kind == "boolean":
        listed = ("false", "true") if column.dtype == "boolean" else column.categories
        return dataclasses.replace(column, categories=listed, nullable=True, domain="declared", source=TWO_VALUES)
    if column.kind == "ordinal" and numbers and not is_target:
        kind: Kind = "integer" if column.dtype == "integer" else "decimal"
        return _on_grid(Column(name=column.name, kind=kind, spikes=(0.0,), step=1.0, missing=column.missing))
    if column.kind in LISTED:
        free = category_text(-1 if column.dtype == "integer" else -1.0) if numbers else OTHER_NAME
        listed = (*known_codes(column), free)
        return dataclasses.replace(
            column, kind="categorical", categories=listed, other=free, nullable=True, domain="released", source=""
        )
    return _on_grid(column)


def known_codes(column: Column) -> tuple[str, ...]:
    """Categories that are possible whatever the data are: small whole numbers, where categories are whole numbers."""
    return tuple(map(str, range(KNOWN_CODES))) if column.dtype == "integer" else ()


def _on_grid(column: Column) -> Column:
    edges, spikes = universal_cells(column.kind, column.step)
    return dataclasses.replace(
        column,
        edges=edges,
        spikes=spikes,
        laws=same_law("linear", len(edges) - 1),
        nullable=True,
        clip=True,
        domain="declared",
        source=SOURCE,
    )


def is_open(column: Column) -> bool:
    """Whether a column's domain is a universal grid or a released list."""
    return column.domain == "released" or (column.domain == "declared" and column.source == SOURCE)


def released(schema: Schema) -> tuple[Column, ...]:
    """The columns whose categories silos find under privacy."""
    return tuple(column for column in schema.columns if column.domain == "released")


@functools.lru_cache(maxsize=64)
def universal_cells(kind: str, step: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Edges and spikes of the universal grid for values of a kind that are multiples of a step."""
    if kind == "date":
        return _months(1.0), ()
    if kind == "datetime":
        return _months(DAY), ()
    if kind == "time":
        if step >= MINUTE:
            return (), tuple(np.arange(0.0, DAY, step).tolist())
        return (*np.arange(0.0, DAY, MINUTE).tolist(), DAY - step), ()
    if not step:
        count = math.ceil(math.log(FLOAT_MOST / FLOAT_LEAST) / math.log1p(FLOAT_GROWTH))
        rising = (FLOAT_LEAST * (1 + FLOAT_GROWTH) ** np.arange(count + 1)).tolist()
        return (*(-edge for edge in reversed(rising)), 0.0, *rising), (0.0,)
    ticks = [SINGLE + 1]
    while ticks[-1] < REACH:
        ticks.append(math.ceil(ticks[-1] * (1 + GROWTH)))
    grid = Grid(step)
    up = grid.values(np.array(ticks, np.float64))
    down = grid.values(1 - np.array(ticks[::-1], np.float64))
    return (*down.tolist(), *up.tolist()), tuple(grid.values(np.arange(-SINGLE, SINGLE + 1.0)).tolist())


def _months(day: float) -> tuple[float, ...]:
    """The first days of months, and of years where they are long ago or far ahead."""
    firsts = [
        (year, month)
        for year in range(FIRST_YEAR, LAST_YEAR + 1)
        for month in (range(1, 13) if FIRST_MONTHS <= year < LAST_MONTHS else (1,))
    ]
    return tuple((datetime.date(*first, 1) - EPOCH).days * day for first in firsts)


def with_lists(schema: Schema, lists: Sequence[Mapping[str, Mapping[str, int]]]) -> Schema:
    """The schema whose released columns list what silos found: `lists` holds each silo's noisy counts by column and value.

    The union is the domain, of very many values the most frequent; whatever else there is goes to one category more.
    """
    columns = [
        _filled(column, _union([one.get(column.name, {}) for one in lists])) if column.domain == "released" else column
        for column in schema.columns
    ]
    return dataclasses.replace(schema, columns=tuple(columns))


def _union(lists: Sequence[Mapping[str, int]]) -> list[str]:
    """All values, the most frequent first, as far as a list goes."""
    total: Counter[str] = Counter()
    for one in lists:
        total.update(one)
    return sorted(total, key=lambda value: (-total[value], value))[:MOST_CATEGORIES]


def _filled(column: Column, values: list[str]) -> Column:
    if column.dtype == "string":
        other, listed = OTHER_NAME, sorted(value for value in values if value != OTHER_NAME)
    else:
        listed = sorted({*known_codes(column), *values}, key=float)
        least = min(0.0, *map(float, listed), 0.0) - 1
        other = category_text(int(least) if column.dtype == "integer" else least)
    return dataclasses.replace(column, categories=(*listed, other), other=other)


def trimmed_schema(schema: Schema, used: NumpyArray) -> tuple[Schema, Callable[[NumpyArray], NumpyArray]]:
    """The schema with unused codes of its open columns taken out, and what moves numbers about codes to their new places.

    `used` says of the codes of all columns, end to end, whether any row has them; on the last axis of an array that is 0 where
    a code is not used, the function returned does the same. Other columns stay as they are.
    """
    columns, places, start = [], [], 0
    for column, part in zip(schema.columns, np.split(used, np.cumsum(schema.sizes)[:-1]), strict=True):
        made, codes = trimmed(column, part) if is_open(column) else (column, np.arange(column.size))
        columns.append(made)
        places.append(np.where(codes >= 0, codes + start, -1))
        start += made.size
    place = np.concatenate(places)

    def moved(values: NumpyArray) -> NumpyArray:
        made = np.zeros((*values.shape[:-1], start), values.dtype)
        made[..., place[used]] = values[..., used]
        return made

    if all(made is column for made, column in zip(columns, schema.columns, strict=True)):
        return schema, lambda values: values
    return dataclasses.replace(schema, columns=tuple(columns)), moved


def trimmed(column: Column, kept: NumpyArray) -> tuple[Column, NumpyArray]:
    """The column with the codes that are kept, and the new code of every old one, -1 where there is none.

    Cells of a scale that are not kept become one cell between those that are, so that values in it still have a code; those
    before the first and after the last are dropped. Categories, and "no value", are dropped. One value stays in any case.
    """
    kept = np.array(kept, bool)
    if not kept[: column.levels].any():  # nothing but "no value": a column has to have some value
        kept[0] = True
    if column.is_scale:
        made, codes = _trimmed_scale(column, kept[: column.levels])
    else:
        codes = np.where(kept[: column.levels], np.cumsum(kept[: column.levels]) - 1, -1)
        categories = tuple(itertools.compress(column.categories, kept[: column.levels]))
        other = column.other if column.other in categories else ""
        kind = "categorical" if column.kind == "boolean" and len(categories) < 2 else column.kind
        made = dataclasses.replace(column, kind=kind, categories=categories, other=other)
    if not column.nullable:
        return made, codes
    made = dataclasses.replace(made, nullable=bool(kept[-1]))
    return made, np.append(codes, made.levels if kept[-1] else -1)


def _trimmed_scale(column: Column, kept: NumpyArray) -> tuple[Column, NumpyArray]:
    cells = column.cells
    if not column.step:  # a value that stands inside an interval stays
        kept = kept | np.array([cell.spike for cell in cells])
    first, last = (int(np.flatnonzero(kept)[end]) for end in (0, -1))
    grid = column.scale.grid
    edges, spikes, codes = set[float](), list[float](), np.full(len(cells), -1, np.int64)
    code, hole = -1, False
    for number in range(first, last + 1):
        cell = cells[number]
        if kept[number] or not hole:
            code += 1
        codes[number] = code
        if kept[number] and cell.spike:
            spikes.append(cell.low)
        else:
            after = cell.high if not cell.spike else float(grid.values(np.array(grid.first(cell.low) + 1)))
            starts = kept[number] or not hole
            edges |= {cell.low, after} if starts else {after}
            if not starts:
                edges.discard(cell.low)
        hole = not kept[number]
    return _with_cells(column, sorted(edges), sorted(spikes)), codes


def _with_cells(column: Column, edges: list[float], spikes: list[float]) -> Column:
    """The column with these cells; the last interval does not hold what lies beyond it."""
    grid = column.scale.grid
    if edges and grid.step and edges[-1:] != list(column.edges[-1:]):
        inside = float(grid.values(np.array(grid.first(edges[-1]) - 1)))
        if inside > edges[-2]:
            edges[-1] = inside
        else:  # one value alone
            edges, spikes = edges[:-1], sorted({*spikes, inside})
    changes: JsonObject = {"edges": tuple(edges) if len(edges) > 1 else (), "spikes": tuple(spikes)}
    return dataclasses.replace(column, **changes, laws=same_law("linear", len(changes["edges"]) - 1))
