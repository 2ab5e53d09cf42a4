"""Private rows under a public schema, and reading and writing them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import narwhals.stable.v2 as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from narwhals.exceptions import NarwhalsError

from populace.errors import DataError, MissingExtra
from populace.tables import codec, proposal, sdv
from populace.tables.cells import EXACT, Grid
from populace.tables.reading import SUFFIXES as SUFFIXES
from populace.tables.reading import distinct_names
from populace.tables.reading import read_frame as read_frame
from populace.tables.reading import write_frame as write_frame
from populace.tables.schema import Column, Schema, load_schema
from populace.types import NumpyArray

if TYPE_CHECKING:
    from narwhals.typing import IntoDataFrame


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Rows as integer codes, with the values they stand for.

    `frame` holds the schema's columns and nothing else, and none of them where the rows were read in a stream
    (`tables/coded.py`), of which only codes are kept. `codes[i, j]` is the code of row i in column j, in 32 bits, or in fewer
    after a stream. `clipped` says how many values of which column lay outside the domain and were moved into it.
    """

    schema: Schema
    codes: NumpyArray
    frame: pa.Table
    clipped: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: NumpyArray) -> Table:
        """The rows with these numbers, or those a mask marks."""
        numbers = np.arange(len(self))[rows]
        frame = self.frame.take(pa.array(numbers)) if self.frame.num_columns else self.frame
        return Table(schema=self.schema, codes=self.codes[numbers], frame=frame)

    def one_hot(self) -> NumpyArray:
        return codec.one_hot(self.codes, self.schema.sizes)

    def to_arrow(self) -> pa.Table:
        """The rows as they are written to a file: columns in the order of the original, with fresh ids."""
        return output_frame(self.frame, self.schema)

    def to_pandas(self) -> Any:
        """The same as a pandas frame."""
        return self._frame_of("pandas")

    def to_polars(self) -> Any:
        """The same as a polars frame."""
        return self._frame_of("polars")

    def _frame_of(self, library: Literal["pandas", "polars"]) -> Any:
        try:
            return nw.from_arrow(self.to_arrow(), backend=library).to_native()
        except ImportError:
            raise MissingExtra(f"{library} is not installed: pip install {library}") from None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What reading these rows changed, a sentence each: columns that are not modelled, and values that were moved."""
        found = []
        for kind, what in (("text", "left out, being free text"), ("id", "made afresh in synthetic rows, being ids")):
            names = [other.name for other in self.schema.others if other.kind == kind]
            if names:
                found.append(f"{what}: {', '.join(names)}")
        for name, count in self.clipped.items():
            column = self.schema.column(name)
            if column.domain == "released":
                fate = f"are on none of its lists and count as {column.other!r}, or as no value at all where noise hides that"
            else:
                where = "the nearest cell" if column.is_scale else repr(column.other)
                fate = f"lie outside its domain and were moved to {where}"
            found.append(f"{name}: {count:,} of {len(self):,} values {fate}")
        return tuple(found)

    def save(self, path: str | Path, *, first_row: int = 0) -> None:
        """Write the rows with fresh ids, in the order of the original file; `first_row` counts rows written before."""
        write_frame(output_frame(self.frame, self.schema, first_row), path)


def make_table(frame: IntoDataFrame | pa.Table, schema: Schema) -> Table:
    """Encode a pyarrow, pandas or polars table; a row that breaks a declared rule is an error."""
    made = codec.encode_table(to_arrow(frame), schema)
    broken, rule = codec.broken_rows(made.frame, made.codes, schema)
    if broken.any():
        row = int(np.flatnonzero(broken)[0])
        raise DataError(f"row {row + 1} contradicts the declared rule {rule!r}; correct the rule or the row")
    return Table(schema=schema, codes=made.codes, frame=made.frame, clipped=made.clipped)


def from_codes(codes: NumpyArray, schema: Schema, rng: np.random.Generator) -> Table:
    """A table with these codes; values inside cells are drawn with `rng`."""
    return Table(schema=schema, codes=codes, frame=codec.decode(codes, schema, rng))


def to_arrow(frame: IntoDataFrame | pa.Table) -> pa.Table:
    if not isinstance(frame, pa.Table):
        try:
            frame = nw.from_native(frame, eager_only=True).to_arrow()
        except (TypeError, pa.ArrowInvalid, pa.ArrowTypeError, NarwhalsError) as error:
            reason = str(error).replace("\n", " ")
            raise DataError(
                f"expected a pyarrow, pandas or polars table, got {type(frame).__name__}: {reason}"
            ) from error
    return distinct_names(frame)


def read_table(path: str | Path, schema: Schema | str | Path | None = None, *, without: tuple[str, ...] = ()) -> Table:
    """Read CSV, Parquet or Arrow under a schema: an object, a TOML file, SDV metadata (JSON), or none.

    Without a schema, and for SDV metadata, domains are read from the data and marked so. Columns in `without` are left
    out of a proposed schema.
    """
    frame = read_frame(path)
    return make_table(frame, resolve_schema(frame, schema, without=without))


def resolve_schema(frame: pa.Table, schema: Schema | str | Path | None, *, without: tuple[str, ...] = ()) -> Schema:
    """The schema itself, the one in a file, or the one proposed for the frame."""
    if isinstance(schema, Schema):
        return schema
    if schema is None:
        return proposal.propose(frame, drop=[name for name in without if name in frame.column_names]).schema
    if Path(schema).suffix == ".json":
        return sdv.from_sdv(schema, frame)
    return load_schema(schema)


def output_frame(frame: pa.Table, schema: Schema, first_row: int = 0) -> pa.Table:
    """What is written: the modelled columns and fresh ids, in the order of the original file; text columns are left out.

    Dates are written in the form the column has, gaps in text with the marker it had. `first_row` counts the rows written
    before, so that ids stay unique.
    """
    made = {column.name: _written(frame.column(column.name), column) for column in schema.columns}
    for other in schema.others:
        if other.kind == "id":
            numbers = np.arange(first_row + 1, first_row + frame.num_rows + 1)
            whole = other.dtype == "integer"
            made[other.name] = pa.array(numbers if whole else [f"syn-{number:06d}" for number in numbers])
    names = [name for name in schema.order if name in made]
    return pa.table([made[name] for name in names], names=names)


def exact_decimals(frame: pa.Table, schema: Schema) -> pa.Table:
    """The same rows, in which numbers with so many decimal places as their column's step says are decimals of that many."""
    for column in schema.columns:
        places = round(np.log10(Grid(column.step).scale)) if column.kind == "decimal" and column.step else 0
        most = max((abs(end) for end in (*column.edges, *column.spikes)), default=0.0)
        index = frame.column_names.index(column.name)
        values = frame.column(index)
        if not places or not pa.types.is_floating(values.type) or most > EXACT / 8 / 10**places:
            continue
        kind = pa.decimal128(len(str(int(most))) + places, places)
        frame = frame.set_column(index, column.name, pc.round(values, places).cast(kind))
    return frame


def _written(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    if column.dtype == "string" and column.missing:
        return pc.fill_null(values, column.missing[0])
    if column.format and column.dtype in ("date", "datetime", "time"):
        moments = values.cast(pa.timestamp("s")) if column.dtype != "time" else values.cast(pa.time64("us"))
        return pc.strftime(moments, column.format)
    return values
