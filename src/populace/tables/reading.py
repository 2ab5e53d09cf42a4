"""Reading and writing tables: CSV (all text), Parquet, Arrow; folders of Parquet files, which are one table; databases."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from populace.border.columnar import DAMAGED, read_arrow, read_parquet
from populace.border.databases.address import SUFFIXES as DATABASES
from populace.border.databases.address import is_database
from populace.border.databases.reading import read_database
from populace.border.delimited import csv_names, odd_line, sniffed_delimiter
from populace.border.regular import check_regular, first_line
from populace.errors import DataError, InputError
from populace.tables.files import replacing
from populace.types import JsonObject

SUFFIXES = (".csv", ".parquet", ".arrow", ".feather")
DELIMITER_KEY = b"populace.delimiter"


def check_file(path: str | Path) -> Path:
    path = Path(path)
    if path.is_dir():
        return path
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"expected a table in one of {', '.join((*SUFFIXES, *DATABASES))}, a folder of Parquet files, or postgresql://..., "
            f"got {(path.name or str(path))!r}"
        )
    if not check_regular(path, error=InputError).st_size:
        raise DataError(f"{path} is empty; expected a header and at least one row")
    return path


def files_in(path: Path) -> tuple[Path, ...]:
    """The files of a table: the one it is, or the Parquet files of a folder, in the order of their names.

    What begins with a dot or an underscore and is no Parquet file is what other programs leave in such folders.
    """
    if not path.is_dir():
        return (path,)
    listed = sorted(one for one in path.iterdir() if one.suffix == ".parquet" or one.name[0] not in "._")
    other = [one.name for one in listed if one.suffix != ".parquet" or not one.is_file()]
    if other:
        raise InputError(
            f"expected a folder of Parquet files alone, which are one table, and {path} also holds {other[0]!r}; take it out, "
            "or name the files"
        )
    if not listed:
        raise InputError(f"expected a folder of Parquet files, and {path} holds none")
    return tuple(map(check_file, listed))


def check_same_columns(first: Path, names: list[str], other: Path, others: list[str]) -> None:
    """Refuse files of one table that have different columns."""
    if set(names) != set(others):
        differ = ", ".join(sorted(set(names) ^ set(others)))
        raise DataError(
            f"expected the same columns in all files of a folder; {first} and {other.name} differ in {differ}"
        )


def read_frame(path: str | Path, *, without: Collection[str] = ()) -> pa.Table:
    """Read CSV, Parquet, Arrow, a folder or a database. What a CSV holds is text, null where a field is empty and unquoted.

    The columns in `without` are not wanted: those of a database are not read, whatever their type, and hold nothing.
    """
    if is_database(path):
        return distinct_names(read_database(str(path), without=without))
    path = check_file(path)
    if path.is_dir():
        return _read_folder(path)
    frame = {".csv": _read_csv, ".parquet": read_parquet}.get(path.suffix, read_arrow)(path)
    if frame.num_rows == 0:
        raise DataError(f"{path} has no rows; expected at least one")
    return distinct_names(frame)


def _read_csv(path: Path) -> pa.Table:
    try:
        options = csv_options(path)
        frame = pyarrow.csv.read_csv(path, **options)
    except DAMAGED as error:
        raise unreadable(path, error) from error
    return frame.replace_schema_metadata({DELIMITER_KEY: options["parse_options"].delimiter.encode()})


def _read_folder(path: Path) -> pa.Table:
    files = files_in(path)
    frames = [read_frame(file) for file in files]
    for file, frame in zip(files[1:], frames[1:], strict=True):
        check_same_columns(files[0], frames[0].column_names, file, frame.column_names)
    try:
        return pa.concat_tables(
            [frame.select(frames[0].column_names) for frame in frames], promote_options="permissive"
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"the files of {path} have columns of different types: {error}; give them the same") from error


def unreadable(path: Path, error: Exception) -> DataError:
    """What is wrong with a CSV that could not be read."""
    if isinstance(error, UnicodeDecodeError) or "UTF8" in str(error):
        return DataError(f"cannot read {path}: it is not UTF-8 text; save it as CSV in UTF-8")
    if odd := odd_line(path):
        return DataError(
            f"cannot read {path}: {odd}; complete that line, or put fields that hold a delimiter in quotes"
        )
    reason = first_line(str(error)) or type(error).__name__
    return DataError(f"cannot read {path}: {reason}; the file may be truncated or of another format")


def distinct_names(frame: pa.Table) -> pa.Table:
    names = frame.column_names
    if "" in names:
        raise DataError(f"column {names.index('') + 1} of the table has no name; name every column")
    if len(set(names)) != len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise DataError(f"the table has two columns named {twice!r}; rename or drop one")
    return frame


def delimiter_of(frame: pa.Table) -> str:
    """What stood between the fields of the CSV that a frame was read from; a comma where it was none."""
    return ((frame.schema.metadata or {}).get(DELIMITER_KEY) or b",").decode()


def csv_options(path: Path, *, columns: list[str] | None = None) -> JsonObject:
    """How to read a CSV: the delimiter its header shows, every column as text; of `columns` those named."""
    delimiter = sniffed_delimiter(path)
    names = csv_names(path, delimiter)
    return {
        "parse_options": pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        "convert_options": pyarrow.csv.ConvertOptions(
            column_types={name: pa.string() for name in names}, include_columns=columns or None, null_values=[""],
            strings_can_be_null=True, quoted_strings_can_be_null=False,
        ),
    }  # fmt: skip


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
