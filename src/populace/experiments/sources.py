"""Where rows come from: a file, or the table that ships with the package."""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from populace.errors import DataError, InputError
from populace.tables import embedded
from populace.tables.images import read_images
from populace.tables.partition import Clients, split, split_by_column
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


def read_clients(
    data: str,
    *,
    schema: str | None = None,
    target: str | None = None,
    records_per_client: int = 1,
    client_column: str | None = None,
) -> Clients:
    """The rows of a data file, split into clients."""
    if data.endswith(".npz"):
        if target or schema or client_column:
            raise InputError("images take none of --target, --schema and --client-column; leave them out")
        return split(read_images(data), records_per_client=records_per_client)
    frame, table = read_rows(data, schema, without=(client_column,) if client_column else ())
    if target is not None:
        table = dataclasses.replace(table, schema=table.schema.with_target(target))
    if client_column is None:
        return split(table, records_per_client=records_per_client)
    if client_column not in frame.column_names:
        raise DataError(f"no client column {client_column!r} in {data}; columns are {', '.join(frame.column_names)}")
    if client_column in table.schema.names:
        raise DataError(
            f"the client column {client_column!r} is also a column of the schema; take it out of the schema"
        )
    return split_by_column(frame.column(client_column), table, name=client_column)
