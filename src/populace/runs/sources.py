"""Where rows come from: a file, or the table that ships with the package."""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from populace.errors import DataError, InputError
from populace.tables import embedded
from populace.tables.partition import Clients, split, split_by_column, with_persons
from populace.tables.schema import Schema
from populace.tables.table import Table, make_table, read_frame, resolve_schema

EMBEDDED = "embedded:"


def read_rows(data: str, schema: Schema | str | None, *, without: tuple[str, ...] = ()) -> tuple[pa.Table, Table]:
    """The frame as it stands in the file, and the table under the schema (declared, or proposed and marked)."""
    if data.startswith(EMBEDDED):
        if data != "embedded:harbour":
            raise InputError(f"expected embedded:harbour, got {data!r}")
        table = embedded.harbour()
        return table.frame, (table if schema is None else make_table(table.frame, resolve_schema(table.frame, schema)))
    frame = read_frame(data)
    return frame, make_table(frame, resolve_schema(frame, schema, without=without))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PrivateData:
    """Rows split into clients, and the whole frame they were read from; None for images, which have no other columns."""

    clients: Clients
    frame: pa.Table | None


def with_person_column(private: PrivateData, person: str, *, name: str = "the table") -> PrivateData:
    """The same rows, of which a column of the frame says whose each is; it is no column of the schema."""
    data = private.clients.data
    if private.frame is None or not isinstance(data, Table):
        raise InputError("images have no column that names persons; leave the person column out")
    if person not in private.frame.column_names:
        columns = ", ".join(private.frame.column_names)
        raise DataError(f"no person column {person!r} in {name}; columns are {columns}")
    if person in data.schema.names:
        raise DataError(
            f"the person column {person!r} is also a column of the schema, and would be synthesised; take it out of the schema"
        )
    clients = with_persons(private.clients, private.frame.column(person), name=person)
    return dataclasses.replace(private, clients=clients)


def deal_rows(
    frame: pa.Table,
    table: Table,
    *,
    target: str | None = None,
    records_per_client: int = 1,
    client_column: str | None = None,
    most_records: int | None = None,
    name: str = "the table",
) -> PrivateData:
    """Rows split into clients: so many each, in their order, or one client per value of a column of the frame."""
    if target is not None:
        table = dataclasses.replace(table, schema=table.schema.with_target(target))
    if client_column is None:
        return PrivateData(clients=split(table, records_per_client=records_per_client), frame=frame)
    if client_column not in frame.column_names:
        raise DataError(f"no client column {client_column!r} in {name}; columns are {', '.join(frame.column_names)}")
    if client_column in table.schema.names:
        raise DataError(
            f"the client column {client_column!r} is also a column of the schema; take it out of the schema"
        )
    clients = split_by_column(frame.column(client_column), table, name=client_column, most=most_records)
    return PrivateData(clients=clients, frame=frame)
