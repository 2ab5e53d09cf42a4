"""Private rows under a public schema, and reading and writing them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import narwhals.stable.v2 as nw
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
from narwhals.exceptions import NarwhalsError

from populace.errors import DataError, InputError
from populace.tables import codec, inference
from populace.tables.files import replacing
from populace.tables.schema import Schema, load_schema

if TYPE_CHECKING:
    from narwhals.typing import IntoDataFrame

Array = np.ndarray[Any, Any]

SUFFIXES = (".csv", ".parquet", ".arrow", ".feather")
CSV_NULLS = ("", "NaN", "nan")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Rows as integer codes, with the values they stand for.

    `frame` holds the schema's columns and nothing else; `codes[i, j]` is the code of row i in column j.
    """

    schema: Schema
    codes: Array
    frame: pa.Table

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: Array) -> Table:
        """The rows with these numbers, or those a mask marks."""
        numbers = np.arange(len(self))[rows]
        return Table(schema=self.schema, codes=self.codes[numbers], frame=self.frame.take(pa.array(numbers)))

    def one_hot(self) -> Array:
        return codec.one_hot(self.codes, self.schema.sizes)

    def to_pandas(self) -> Any:
        return self.frame.to_pandas()

    def save(self, path: str | Path) -> None:
        write_frame(self.frame, path)


def make_table(frame: IntoDataFrame | pa.Table, schema: Schema) -> Table:
    """Encode a pyarrow, pandas or polars table; a row that breaks a declared rule is an error."""
    kept = codec.store(to_arrow(frame), schema)
    codes = codec.encode(kept, schema)
    broken, rule = codec.broken_rows(kept, codes, schema)
    if broken.any():
        row = int(np.flatnonzero(broken)[0])
        raise DataError(f"row {row + 1} contradicts the declared rule {rule!r}; correct the rule or the row")
    return Table(schema=schema, codes=codes, frame=kept)


def from_codes(codes: Array, schema: Schema, rng: np.random.Generator) -> Table:
    """A table with these codes; values inside bins are drawn with `rng`."""
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
    return _distinct_names(frame)


def _distinct_names(frame: pa.Table) -> pa.Table:
    names = frame.column_names
    if len(set(names)) != len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise DataError(f"the table has two columns named {twice!r}; rename or drop one")
    return frame


def read_table(path: str | Path, schema: Schema | str | Path | None = None, *, without: tuple[str, ...] = ()) -> Table:
    """Read CSV, Parquet or Arrow under a schema: an object, a TOML file, SDV metadata (JSON), or none.

    Without a schema, and for SDV metadata, domains are read from the data and marked so. Columns in `without` are left
    out of an inferred schema.
    """
    frame = read_frame(path, text_columns=text_columns(schema))
    return make_table(frame, resolve_schema(frame, schema, without=without))


def resolve_schema(frame: pa.Table, schema: Schema | str | Path | None, *, without: tuple[str, ...] = ()) -> Schema:
    if isinstance(schema, Schema):
        return schema
    if schema is None:
        return inference.infer(frame.drop_columns([name for name in without if name in frame.column_names]))
    if Path(schema).suffix == ".json":
        return inference.from_sdv(schema, frame)
    return load_schema(schema)


def text_columns(schema: Schema | str | Path | None) -> dict[str, tuple[str, ...]]:
    """The text columns a declared schema lists, with their categories; none before a schema is inferred.

    Reading CSV needs them, so that it does not turn the category "007" into 7, or the category "" into null.
    """
    if isinstance(schema, str | Path):
        schema = load_schema(schema) if Path(schema).suffix != ".json" else None
    if schema is None:
        return {}
    return {column.name: column.categories for column in schema.columns if column.dtype == "string"}


def read_frame(path: str | Path, *, text_columns: Mapping[str, tuple[str, ...]] = MappingProxyType({})) -> pa.Table:
    """Read CSV, Parquet or Arrow. In CSV an empty field and NaN are null, in quotes too unless they are a category."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(f"expected a table in one of {', '.join(SUFFIXES)}, got {path.name!r}")
    if not path.is_file():
        raise InputError(f"no file {path}")
    try:
        if path.suffix == ".csv":
            frame = _read_csv(path, text_columns)
        elif path.suffix == ".parquet":
            frame = pyarrow.parquet.ParquetFile(path).read()
        else:
            frame = pyarrow.feather.read_table(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"cannot read {path}: {reason}; the file may be truncated or of another format") from error
    if frame.num_rows == 0:
        raise DataError(f"{path} has no rows; expected at least one")
    return _distinct_names(frame)


def _read_csv(path: Path, text_columns: Mapping[str, tuple[str, ...]]) -> pa.Table:
    literal = any(null in categories for categories in text_columns.values() for null in CSV_NULLS)
    return pyarrow.csv.read_csv(
        path,
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={name: pa.string() for name in text_columns},
            null_values=list(CSV_NULLS),
            strings_can_be_null=True,
            quoted_strings_can_be_null=not literal,
        ),
    )


def write_frame(frame: pa.Table, path: str | Path) -> None:
    """Write under a temporary name, then rename: a failed write leaves nothing under the final one."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(f"expected an output name ending in one of {', '.join(SUFFIXES)}, got {path.name!r}")
    with replacing(path) as temporary:
        if path.suffix == ".csv":
            pyarrow.csv.write_csv(frame, temporary)
        elif path.suffix == ".parquet":
            pyarrow.parquet.write_table(frame, temporary, compression="zstd")
        else:
            pyarrow.feather.write_feather(frame, str(temporary), compression="zstd")
