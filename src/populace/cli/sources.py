"""The options of commands that read tables: which table of a database, or which query."""

from __future__ import annotations

import typer

KINDS = "CSV, Parquet or Arrow; a folder of Parquet files is one table; DuckDB or SQLite file; postgresql://host/db"
TABLE = typer.Option(
    None, "--table", metavar="NAME", help="Of a database: the table to read (in PostgreSQL also SCHEMA.NAME)."
)
QUERY = typer.Option(
    None,
    "--query",
    metavar="SELECT",
    help="Of a database: the rows of this SELECT. It is kept with the run: no secrets in it.",
)
