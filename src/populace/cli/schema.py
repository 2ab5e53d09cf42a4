"""`populace schema`: propose a schema for a table."""

from __future__ import annotations

from pathlib import Path

import typer

EXAMPLE = "Example:  populace schema adult.parquet -o adult.toml"


def command(
    data: Path = typer.Argument(help="A table: CSV, Parquet or Arrow."),
    output: Path = typer.Option(..., "--output", "-o", help="Where to write the schema (TOML)."),
) -> None:
    """Propose a schema, marking what was read from the data.

    Edit the file: replace what was read by what is publicly known, and set domain = "declared". Only then does a privacy
    statement cover the domains.
    """
    from populace.cli import show
    from populace.errors import InputError, RunError
    from populace.tables.proposal import propose
    from populace.tables.table import read_frame

    if output.suffix != ".toml":
        raise InputError(f"expected an output name ending in .toml, got {output.name!r}")
    if output.exists():
        raise RunError(f"{output} exists; choose another name, or remove it")
    proposed = propose(read_frame(data)).schema
    proposed.save(output)
    show.table(
        ["column", "kind", "values", "nullable", "domain"],
        [[c.name, c.kind, str(c.size), "yes" if c.nullable else "no", c.domain] for c in proposed.columns],
    )
    show.say(
        f"\n{output}: every domain was read from the data. Declare what is publicly known before you rely on a guarantee."
    )
