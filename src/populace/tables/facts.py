"""The outside of data files: how many rows, and which columns. Values are counted, never looked at."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pyarrow.csv

from populace.border.arrays import array_shapes
from populace.border.columnar import DAMAGED, arrow_batches, arrow_schema, parquet_facts
from populace.border.databases.address import is_database, parse_address
from populace.border.databases.reading import database_columns, database_rows, one_snapshot
from populace.border.delimited import csv_names, sniffed_delimiter
from populace.errors import DataError
from populace.tables.reading import check_file, csv_options, files_in, unreadable


@dataclasses.dataclass(frozen=True)
class TableFacts:
    """The names of the columns, and how many rows there are."""

    names: tuple[str, ...]
    rows: int


@dataclasses.dataclass(frozen=True)
class ImageFacts:
    """How many images there are, and how many values each has."""

    rows: int
    values: int


def table_facts(path: str | Path) -> TableFacts:
    """Columns and rows of a table: from the header where the format has one, by counting rows where it has not."""
    if is_database(path):
        return _database(str(path))
    files = files_in(check_file(path))
    found = [{".csv": _csv, ".parquet": _parquet}.get(file.suffix, _arrow)(file) for file in files]
    if not (rows := sum(one.rows for one in found)):
        raise DataError(f"{path} has no rows; expected at least one")
    return TableFacts(names=found[0].names, rows=rows)


def image_facts(path: str | Path) -> ImageFacts:
    """The number of images in an npz file, and of values in each, by the header of its array x."""
    shapes = array_shapes(Path(path), error=DataError)
    shape = shapes.get("x", shapes.get("x_train"))
    if shape is None or len(shape) < 2 or not shape[0]:
        raise DataError(f"expected images in {path} as an array x with at least one, got {sorted(shapes)}")
    return ImageFacts(rows=shape[0], values=math.prod(shape[1:]))


def _database(data: str) -> TableFacts:
    with one_snapshot(data):
        names, rows = database_columns(data), database_rows(data)
    if not rows:
        raise DataError(f"{parse_address(data).shown} has no rows; expected at least one")
    return TableFacts(names=tuple(names), rows=rows)


def _parquet(path: Path) -> TableFacts:
    schema, rows = parquet_facts(path)
    return TableFacts(names=tuple(schema.names), rows=rows)


def _arrow(path: Path) -> TableFacts:
    names = tuple(arrow_schema(path).names)
    return TableFacts(names=names, rows=sum(batch.num_rows for batch in arrow_batches(path, columns=names[:1])))


def _csv(path: Path) -> TableFacts:
    """One column is parsed, since a field in quotes may hold a line's end."""
    names = csv_names(path, sniffed_delimiter(path))
    try:
        with pyarrow.csv.open_csv(path, **csv_options(path, columns=names[:1])) as reader:
            rows = sum(batch.num_rows for batch in reader)
    except DAMAGED as error:
        raise unreadable(path, error) from error
    return TableFacts(names=tuple(names), rows=rows)
