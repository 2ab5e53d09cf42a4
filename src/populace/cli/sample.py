"""`populace sample`: more rows, or images, from a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from populace.cli import completion

if TYPE_CHECKING:
    from populace.runs.run import Run
    from populace.tables.table import Table

EXAMPLE = (
    "Example:  populace sample run --rows 1000 --where sex=Female --where 'age>=40' -o women.csv, and into a database:  "
    "populace sample run --rows 1000 --balance died -o postgresql://db.clinic/research --table synthetic"
)


def command(
    run: Path = typer.Argument(help="Folder of a finished run.", autocompletion=completion.runs),
    rows: int = typer.Option(..., "--rows", help="How many rows, or images."),
    output: str = typer.Option(
        ...,
        "--output",
        "-o",
        help="Where to write them: .csv, .parquet, .arrow or .feather; .npz for images; with --table a table of a DuckDB or "
        "SQLite file, or of postgresql://host/db.",
    ),
    where: list[str] = typer.Option(
        [],
        "--where",
        help="Only rows that meet this, and every other one: sex=Female, district=a,b, age=40..65 (with its ends), 'age>=40', "
        "'admitted<2024-03-01', 'ward!=C' (as in SQL, rows without a value meet none "
        "of the last four); of images label=NUMBER.",
        metavar="CONDITION",
    ),
    balance: list[str] = typer.Option(
        [],
        "--balance",
        help="Equally many rows of each value of COLUMN; or in shares: COLUMN=VALUE:0.3, again for other values, the rest as "
        "the model has it (COLUMN=0.3: the second of two values). Of images: label.",
        metavar="COLUMN",
    ),
    seed: int | None = typer.Option(None, "--seed", help="Draw the same rows every time."),
    table: str | None = typer.Option(None, "--table", help="The table of a database to write.", metavar="NAME"),
    replace: bool = typer.Option(False, "--replace", help="Write over a table that populace wrote."),
    metadata: bool = typer.Option(
        False, "--sdv-metadata", help="Write SDV metadata beside the rows: FILE.metadata.json."
    ),
) -> None:
    """Draw synthetic rows; costs no privacy.

    Rows under conditions have the law of the model's rows that meet them. Where a model cannot be drawn given a value, and for
    ranges and sets, rows are drawn until enough meet the conditions, which is refused where fewer than one in 10,000 does.
    """
    from populace.cli import show
    from populace.methods.blocks.generator import ImageGenerator
    from populace.runs.run import load_run
    from populace.tables.images import Images

    target = _target(output, table, replace=replace)
    beside = _metadata_path(target) if metadata else None
    found = load_run(run)
    images = isinstance(found.generator, ImageGenerator)
    _check_kind(target, images=images, metadata=metadata)
    _not_the_records(target, found)
    with show.progress("sample") as report:
        report.doing(f"drawing {rows:,} {'images' if images else 'rows'}")
        drawn = found.sample(rows, seed=seed, where=where, balance=balance)
        report.doing(f"writing {target}")
        if isinstance(drawn, Images):
            drawn.save(target)
        else:
            _write(drawn, target, first_row=found.details.get("rows", 0), replace=replace, metadata=beside)
    show.say(f"{target}  {rows:,} {'images' if images else 'rows'}; {found.guarantee.headline}")
    if beside is not None:
        show.say(f"{beside}  SDV metadata")


def _target(output: str, table: str | None, *, replace: bool) -> str:
    """Where the rows go, as one text; refuses a file that is there, and an ending that nobody can write."""
    from populace.border.databases.address import is_database, locate, parse_address
    from populace.errors import InputError, RunError
    from populace.tables.table import SUFFIXES

    if is_database(output):
        target = locate([output], table=table)[0]
        if parse_address(target).table is None:
            raise InputError(
                f"{parse_address(target).place} is a database: say which table to write, with --table NAME"
            )
        return target
    if table is not None or replace:
        raise InputError(
            f"--table and --replace are for databases (.duckdb, .sqlite, postgresql://...), got {output!r}"
        )
    path = Path(output)
    if path.suffix not in (*SUFFIXES, ".npz"):
        raise InputError(
            f"expected an output name ending in one of {', '.join(SUFFIXES)}, or a database with --table, got {path.name!r}"
        )
    if path.exists():
        raise RunError(f"{path} exists; choose another name, or remove it")
    return output


def _check_kind(target: str, *, images: bool, metadata: bool) -> None:
    from populace.errors import InputError
    from populace.tables.table import SUFFIXES

    if images != target.endswith(".npz"):
        made, endings = ("images", ".npz") if images else ("rows of a table", ", ".join(SUFFIXES))
        raise InputError(f"the run made {made}: expected an output name ending in {endings}, got {Path(target).name!r}")
    if images and metadata:
        raise InputError("SDV metadata describe tables, and the run made images; leave --sdv-metadata out")


def _not_the_records(target: str, run: Run) -> None:
    """Refuse to write over the table that the run was made from."""
    from populace.border.databases.address import is_database, resolved
    from populace.errors import InputError
    from populace.runs.named import files_of

    data = (run.details.get("spec") or {}).get("data") or ()
    if is_database(target) and resolved(target) in [resolved(file) for file in files_of(data) if is_database(file)]:
        raise InputError("the run was made from this very table, and would be written over it; choose another --table")


def _metadata_path(target: str) -> Path:
    """FILE.metadata.json; of a table on a server TABLE.metadata.json in this folder."""
    from populace.border.databases.address import file_of, is_database, parse_address
    from populace.errors import RunError

    file = file_of(target)
    name = parse_address(target).table if is_database(target) else None
    path = Path(f"{name}.metadata.json") if file is None else Path(f"{file}.metadata.json")
    if path.exists():
        raise RunError(f"{path} exists; choose another name, or remove it")
    return path


def _write(drawn: Table, target: str, *, first_row: int, replace: bool, metadata: Path | None) -> None:
    """The rows, whose ids go on after those of the run's own, and what SDV wants to know of them."""
    from populace.border.databases.address import is_database
    from populace.border.databases.writing import write_database
    from populace.tables.files import write_json
    from populace.tables.sdv import sdv_of_rows
    from populace.tables.table import exact_decimals, output_frame

    if is_database(target):
        rows = exact_decimals(output_frame(drawn.frame, drawn.schema, first_row), drawn.schema)
        write_database(rows, target, replace=replace)
    else:
        drawn.save(target, first_row=first_row)
    if metadata is not None:
        write_json(metadata, sdv_of_rows(drawn.schema))
