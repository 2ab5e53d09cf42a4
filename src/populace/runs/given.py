"""Data as they are given: files, or in Python a frame of pandas, polars or Arrow, a Table or Images, or a list of silos."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from populace.border.databases.address import locate
from populace.errors import DataError, InputError
from populace.runs.ledger.history import NOWHERE, Bookkeeping
from populace.runs.named import IMAGES_IN_MEMORY, TABLE_IN_MEMORY, Files, files_of
from populace.runs.same_rows import check_different_rows
from populace.runs.sources import EMBEDDED, PrivateData, deal_rows, read_rows, with_person_column
from populace.tables.coded import code_frame
from populace.tables.images import Images, read_images
from populace.tables.partition import Clients, split, split_silos
from populace.tables.schema import Schema
from populace.tables.table import Table, make_table, read_frame, resolve_schema, to_arrow

EXPECTED = "a pandas, polars or Arrow table, the path of a file, a populace Table or Images, or a list of them (silos)"

NAMED_SILOS = 6  # whose sizes are printed


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Given:
    """Rows in memory: the table, or the images, with the frame they came from and the number of rows of each silo.

    `listed` is true where a list was given, which is a list of silos however short it is.
    """

    data: Table | Images
    frame: pa.Table | None
    sizes: tuple[int, ...]
    listed: bool


def is_path(data: object) -> bool:
    """Whether these data are a single file, or the table that ships with the package."""
    return isinstance(data, str | Path)


def in_files(data: object) -> bool:
    """Whether these data are files alone."""
    return is_path(data) or (isinstance(data, list | tuple) and all(is_path(part) for part in data))


def expanded(data: object) -> object:
    """The same data, with patterns (`ward-*.csv`) replaced by the files they match: several are several silos."""
    if isinstance(data, str | Path):
        files = locate([data])
        return data if len(files) == 1 and files[0] == str(data) else files[0] if len(files) == 1 else list(files)
    if isinstance(data, list | tuple):
        return [file for part in data for file in (locate([part]) if isinstance(part, str | Path) else (part,))]
    return data


def read_given(
    data: object,
    *,
    schema: Schema | str | Path | None = None,
    without: tuple[str, ...] = (),
    codes_only: bool = False,
) -> Given:
    """Read whatever was given; a table without a schema gets a proposed one, marked as read from the data.

    Columns in `without` are left out of a proposed schema. With `codes_only` the table of a given schema has no frame of its
    own beside the one it is read from.
    """
    _check_schema(schema)
    data = expanded(data)
    listed = isinstance(data, list | tuple)
    parts = list(data) if isinstance(data, list | tuple) else [data]
    if not parts:
        raise InputError("expected at least one table in the list of silos, got an empty list")
    opened = [open_data(part) for part in parts]
    images = [part for part in opened if isinstance(part, Images)]
    if images and len(images) < len(opened):
        raise InputError("expected tables only, or images only, in the list of silos, got both")
    if images:
        if schema is not None:
            raise InputError("images take none of a target, a schema and a client column; leave them out")
        sizes = tuple(len(part) for part in images)
        return Given(data=_joined_images(images), frame=None, sizes=sizes, listed=listed)
    tables = [part for part in opened if not isinstance(part, Images)]
    frame = joined_frames([part.frame if isinstance(part, Table) else part for part in tables])
    sizes = tuple(len(part) for part in tables)
    chosen = _own_schema(tables) if schema is None else schema
    if len(tables) == 1 and isinstance(tables[0], Table) and schema is None:
        return Given(data=tables[0], frame=frame, sizes=sizes, listed=listed)
    resolved = resolve_schema(frame, chosen, without=without)
    table = (code_frame if codes_only and chosen is not None else make_table)(frame, resolved)
    return Given(data=table, frame=frame, sizes=sizes, listed=listed)


def _check_schema(schema: object) -> None:
    if schema is not None and not isinstance(schema, Schema | str | Path):
        raise InputError(f"expected schema as a Schema or the path of a file, got {type(schema).__name__}")


def open_data(part: object) -> pa.Table | Table | Images:
    """One table or one set of images, with all its columns and no schema but its own."""
    if isinstance(part, Table | Images):
        return part
    if isinstance(part, str | Path):
        if str(part).startswith(EMBEDDED):
            return read_rows(str(part), None)[1]
        return read_images(part) if str(part).endswith(".npz") else read_frame(part)
    if isinstance(part, pa.RecordBatch):
        part = pa.Table.from_batches([part])
    if isinstance(part, Clients):
        raise InputError("these are clients already; give their table or images, or use simulate with them")
    if hasattr(part, "collect") and hasattr(part, "lazy"):
        raise InputError(f"expected rows in memory, got a {type(part).__name__}: collect it first")
    if not isinstance(part, pa.Table) and not hasattr(part, "columns"):
        raise InputError(f"expected data as {EXPECTED}, got {type(part).__name__}")
    return to_arrow(part)  # type: ignore[arg-type]  # what is no frame is refused there


def _own_schema(tables: Sequence[pa.Table | Table]) -> Schema | None:
    """The schema that all tables carry; None where they are plain frames."""
    schemas = [part.schema for part in tables if isinstance(part, Table)]
    if schemas and (len(schemas) < len(tables) or any(schema != schemas[0] for schema in schemas)):
        raise InputError("the tables in the list have different schemas, or some have none; give one with schema=")
    return schemas[0] if schemas else None


def joined_frames(frames: Sequence[pa.Table]) -> pa.Table:
    """All rows, silo after silo; columns go by name."""
    first = frames[0]
    for number, frame in enumerate(frames[1:], 2):
        if set(frame.column_names) != set(first.column_names):
            other = sorted(set(frame.column_names) ^ set(first.column_names))
            raise DataError(f"expected the same columns in every silo; table {number} differs in {', '.join(other)}")
    if len(frames) == 1:
        return first
    try:
        return pa.concat_tables([frame.select(first.column_names) for frame in frames], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"the silos' columns are of different types: {error}; give them the same") from error


def _joined_images(parts: Sequence[Images]) -> Images:
    first = parts[0]
    if len(parts) == 1:
        return first
    if any(part.shape != first.shape for part in parts):
        raise DataError(f"expected images of one shape in every silo, got {', '.join(str(p.shape) for p in parts)}")
    declared = all(part.domain == "declared" for part in parts)
    if declared and any(part.classes != first.classes for part in parts):
        raise DataError("expected the same number of classes in every silo; declare it for each")
    return Images(
        x=np.concatenate([part.x for part in parts]), y=np.concatenate([part.y for part in parts]),
        classes=max(part.classes for part in parts), domain="declared" if declared else "read-from-data",
    )  # fmt: skip


def read_private(
    data: Files,
    *,
    silos: int | None = None,
    schema: str | None = None,
    target: str | None = None,
    records_per_client: int = 1,
    client_column: str | None = None,
    most_records: int | None = None,
    person: str | None = None,
) -> PrivateData:
    """The rows of one or several data files, split into clients, and all they hold; with `silos` each file is a client.

    `most_records` is the public number of records of one client; a client with more is refused. `person` is the column that
    says whose each row is.
    """
    files = files_of(data)
    named = list(files) if len(files) > 1 else files[0]
    given = read_given(named, schema=schema, without=columns_named(client_column, person), codes_only=True)
    return deal_given(
        given, silos=silos, target=target, records_per_client=records_per_client, client_column=client_column,
        most_records=most_records, person=person, name=", ".join(files),
    )  # fmt: skip


def read_frames(files: Files) -> pa.Table:
    """All rows of one or several files of tables, as they stand there."""
    opened = [open_data(file) for file in files_of(files)]
    if any(isinstance(part, Images) for part in opened):
        raise InputError("expected tables, got images")
    return joined_frames([part.frame if isinstance(part, Table) else part for part in opened])


def columns_named(*columns: object) -> tuple[str, ...]:
    """The columns that a proposed schema leaves out: those that name clients and persons, where there are any."""
    return tuple(column for column in columns if isinstance(column, str))


def deal_given(
    given: Given,
    *,
    silos: int | None,
    target: str | None = None,
    records_per_client: int | None = None,
    client_column: str | None = None,
    most_records: int | None = None,
    person: str | None = None,
    name: str = "the table",
) -> PrivateData:
    """Rows split into clients, one per silo or as the command line splits them; `name` is theirs, for messages.

    Silos of which two hold the very same rows are refused.
    """
    private = _dealt(
        given, silos=silos, target=target, records_per_client=records_per_client, client_column=client_column,
        most_records=most_records, name=name,
    )  # fmt: skip
    check_different_rows(private, given.sizes)
    return private if person is None else with_person_column(private, person, name=name)


def _dealt(
    given: Given,
    *,
    silos: int | None,
    target: str | None,
    records_per_client: int | None,
    client_column: str | None,
    most_records: int | None,
    name: str,
) -> PrivateData:
    each = 1 if records_per_client is None else records_per_client
    if isinstance(given.data, Images):
        if target is not None or client_column is not None:
            raise InputError("images take none of a target, a schema and a client column; leave them out")
        clients = split(given.data, records_per_client=each) if silos is None else _silos(given, most_records)
        return PrivateData(clients=clients, frame=None)
    if given.frame is None:
        raise InputError("expected the frame of a table")
    private = deal_rows(
        given.frame, given.data, target=target, records_per_client=each, client_column=client_column,
        most_records=most_records, name=name,
    )  # fmt: skip
    if silos is None:
        return private
    return dataclasses.replace(
        private, clients=_silos(dataclasses.replace(given, data=private.clients.data), most_records)
    )


def _silos(given: Given, most: int | None) -> Clients:
    return split_silos(given.data, given.sizes, most=most)


def who_takes_part(clients: Clients, silos: int | None) -> str:
    """Who takes part, in words: the one who holds everything, silos, or simulated clients."""
    if silos == 1:
        return f"one silo, which holds all {len(clients.data):,} records and adds the noise itself"
    if silos is not None:
        held = ", ".join(f"{width:,}" for width in clients.widths[:NAMED_SILOS])
        more = " and others" if silos > NAMED_SILOS else ""
        return f"{silos} simulated silos of {held}{more} records"
    return f"{len(clients):,} simulated clients ({clients.how})"


def label_of(data: object, given: Given) -> str | tuple[str, ...]:
    """What the run's specification says of its data: the files, or that they were in memory."""
    if is_path(data):
        return str(data)
    if isinstance(data, list | tuple) and in_files(data):
        return tuple(str(part) for part in data)
    return IMAGES_IN_MEMORY if isinstance(given.data, Images) else TABLE_IN_MEMORY


def bookkeeping(data: object, ledger: object, *, limit: float | None, other_people: str) -> Bookkeeping:
    """Where the run is booked: in the file named, beside the data files, or nowhere."""
    if ledger is True or not (ledger is None or isinstance(ledger, bool | str | Path)):
        raise InputError(f"expected ledger as a file, False (book nowhere) or None, got {ledger!r}")
    if ledger is False or (ledger is None and not in_files(data)):
        if limit is not None or other_people:
            raise InputError("a limit and other_people are kept in a ledger: name one with ledger=FILE")
        return NOWHERE
    named = Path(ledger) if isinstance(ledger, str | Path) else None
    return Bookkeeping(ledger=named, limit=limit, other_people=other_people)
