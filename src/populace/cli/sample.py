"""`populace sample`: more rows, or images, from a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from populace.cli import completion

if TYPE_CHECKING:
    from populace.tables.schema import Schema

EXAMPLE = "Example:  populace sample run --rows 1000 --where sex=Female -o women.csv"


def command(
    run: Path = typer.Argument(help="Folder of a finished run.", autocompletion=completion.runs),
    rows: int = typer.Option(..., "--rows", help="How many rows, or images."),
    output: Path = typer.Option(
        ..., "--output", "-o", help="Where to write them: .csv, .parquet or .arrow; .npz for images."
    ),
    where: list[str] = typer.Option(
        [], "--where", help="Only rows with this value; of images label=NUMBER.", metavar="COLUMN=VALUE"
    ),
    seed: int | None = typer.Option(None, "--seed", help="Draw the same rows every time."),
) -> None:
    """Draw synthetic rows; costs no privacy."""
    from populace.cli import show
    from populace.errors import InputError, RunError
    from populace.methods.blocks.generator import ImageGenerator
    from populace.runs.run import load_run
    from populace.tables.images import Images
    from populace.tables.table import SUFFIXES

    if output.suffix not in (*SUFFIXES, ".npz"):
        raise InputError(f"expected an output name ending in one of {', '.join(SUFFIXES)}, got {output.name!r}")
    if output.exists():
        raise RunError(f"{output} exists; choose another name, or remove it")
    conditions = {}
    for pair in where:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"expected --where column=value, got {pair!r}")
        if name in conditions:
            raise InputError(f"--where names column {name!r} twice; a row has one value in it")
        conditions[name] = value
    found = load_run(run)
    images = isinstance(found.generator, ImageGenerator)
    if images != (output.suffix == ".npz"):
        made, endings = ("images", ".npz") if images else ("rows of a table", ", ".join(SUFFIXES))
        raise InputError(f"the run made {made}: expected an output name ending in {endings}, got {output.name!r}")
    with show.progress("sample") as report:
        report.doing(f"drawing {rows:,} {'images' if images else 'rows'}")
        drawn = found.sample(rows, seed=seed, conditions=conditions)
        report.doing(f"writing {output}")
        if isinstance(drawn, Images):
            drawn.save(output)
        else:
            for name, value, cell in _wider(drawn.schema, conditions):
                show.say(f"{name}={value} stands for its cell {cell}: rows are drawn from all of it")
            drawn.save(output, first_row=found.details.get("rows", 0))  # ids go on after those of the run's own rows
    show.say(f"{output}  {rows:,} {'images' if images else 'rows'}; {found.guarantee.headline}")


def _wider(schema: Schema, conditions: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Conditions on a single number or date whose cell holds others too: column, value, and the cell's label."""
    from populace.methods.blocks.generator import condition_code

    found = []
    for name, value in conditions.items():
        column = schema.column(name)
        code = condition_code(schema, name, value)
        if not column.is_scale or code >= column.levels or value == column.labels()[code]:
            continue
        cell = column.cells[code]
        single = cell.spike or (column.step and cell.high - cell.low <= column.step and cell.high != column.edges[-1])
        if not single:
            found.append((name, value, column.labels()[code]))
    return found
