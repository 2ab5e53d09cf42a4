"""`populace synthesize`: from data files to a run folder."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from populace.cli import completion
from populace.cli.sources import KINDS, QUERY, TABLE

if TYPE_CHECKING:
    from populace.runs.run import Run

LEDGER = "populace-ledger.sqlite"
MOST_NAMED = 8  # files in the line that says what to do next
EXAMPLE = (
    "Example:  populace synthesize north.csv south.csv --schema patients.toml --epsilon 1 --target died --out run, and from a "
    "database:  populace synthesize postgresql://db.clinic/ward --table patients --epsilon 1 --ledger ward.sqlite --out run"
)


def command(
    data: list[str] = typer.Argument(
        help=f"Tables ({KINDS}), or images (.npz with x and y); each is a silo, and so is each file that 'ward-*.csv' matches."
    ),
    epsilon: float = typer.Option(
        ..., "--epsilon", help="Privacy budget of one client (or record; see `populace methods`)."
    ),
    out: Path = typer.Option(
        ..., "--out", help="Folder of the run; an unfinished one with the same options is resumed."
    ),
    method: str | None = typer.Option(
        None,
        "--method",
        help="A method; see `populace methods`. Default, as `populace advise` explains: census for tables, moments for images.",
        autocompletion=completion.methods,
    ),
    delta: float | None = typer.Option(None, "--delta", help="Only for methods with an approximate guarantee."),
    schema: str | None = typer.Option(None, "--schema", help="A declared schema (TOML), or SDV metadata (JSON)."),
    target: str | None = typer.Option(None, "--target", help="The column that matters most."),
    trust: str | None = typer.Option(
        None,
        "--trust",
        help="silo, secure-sum or central, where the method offers it.",
        autocompletion=completion.trust,
    ),
    records_per_client: int | None = typer.Option(
        None,
        "--records-per-client",
        help="Simulate clients with this many rows each. Default: each file is a silo where the method protects records, each "
        "row a client where it protects clients.",
    ),
    client_column: str | None = typer.Option(
        None, "--client-column", help="Simulate one client per value of this column."
    ),
    most_records: int | None = typer.Option(
        None, "--most-records", help="The declared most rows of one client or silo, a public number."
    ),
    table: str | None = TABLE,
    query: str | None = QUERY,
    person: str | None = typer.Option(
        None, "--person", help="The column that names persons: protect a person with all their rows (census)."
    ),
    pairs: list[str] = typer.Option([], "--set", help="A parameter of the method, name=value.", metavar="NAME=VALUE"),
    rows: int = typer.Option(10_000, "--rows", help="How many synthetic rows, or images, to write."),
    seed: int | None = typer.Option(None, "--seed", help="Makes the run reproducible, and therefore not private."),
    ledger: Path | None = typer.Option(
        None,
        "--ledger",
        help=f"Book the run in this file; default: {LEDGER} beside DATA; needed for a database on a server.",
    ),
    no_ledger: bool = typer.Option(False, "--no-ledger", help="Book the run nowhere; the statement says so."),
    limit: float | None = typer.Option(
        None,
        "--limit",
        help="The most epsilon over all runs on the same rows; what passes it is refused. Kept in the ledger.",
    ),
    other_people: str | None = typer.Option(
        None,
        "--other-people",
        metavar="WORDS",
        help="Say why a table with the columns of an earlier one is about other people. Kept in the ledger.",
    ),
) -> None:
    """Write synthetic rows or images, made from those of DATA under differential privacy, with their privacy statement.

    Whoever holds a file is a silo. One file is one silo, which adds the noise itself: the usual central synthesizer, in the
    owner's hands. Several files are simulated silos, which each add their own. Methods that protect clients (`poll` and
    other local ones) ask every row as a client of its own.

    Every run is booked in a ledger before it begins, so that runs on the same rows add up (docs/ledger.md).
    """
    from populace.border.databases.address import locate
    from populace.cli import show
    from populace.errors import InputError
    from populace.report.statement import write_statement
    from populace.runs.ledger.history import Bookkeeping
    from populace.runs.run import synthesize
    from populace.runs.spec import default_in_words, make_spec

    spec = make_spec(
        data=locate(data, table=table, query=query), epsilon=epsilon, method=method, delta=delta, schema_file=schema,
        target=target, trust=trust,
        records_per_client=records_per_client, client_column=client_column, most_records=most_records,
        person=person, settings=show.settings(pairs), rows=rows, seed=seed,
    )  # fmt: skip
    if no_ledger and (ledger is not None or limit is not None or other_people is not None):
        raise InputError("--no-ledger books nothing: leave out --ledger and --limit and --other-people, or --no-ledger")
    if other_people is not None and not other_people.strip():
        raise InputError("--other-people wants words: who is in this table, or why they are others")
    keeping = Bookkeeping(ledger=ledger, limit=limit, kept=not no_ledger, other_people=other_people or "")
    if method is None:
        show.say(default_in_words(spec.data, trust=trust))
    with show.progress(spec.method_name) as report:
        run = synthesize(spec, out, progress=report, say=show.say, keeping=keeping, doing=report.doing)
        report.doing("writing the statement")
        write_statement(out)
    _say_what_was_made(run, out, rows, [*_real(spec.files), *(["--target", target] if target else [])])


def _real(files: Sequence[str]) -> list[str]:
    """The options that name the rows of a run as real ones; of very many files a word in their place."""
    from populace.border.databases.address import is_database, parse_address

    if len(files) == 1 and is_database(files[0]):
        address = parse_address(files[0])
        what = ["--table", address.table] if address.table is not None else ["--query", address.query or ""]
        return ["--real", address.place, *what]
    return ["--real", "FILE"] if len(files) > MOST_NAMED else [word for file in files for word in ("--real", file)]


def _say_what_was_made(run: Run, out: Path, rows: int, real: Sequence[str]) -> None:
    from populace.cli import show
    from populace.methods.blocks.generator import ImageGenerator

    show.say("")
    show.say_lines(run.lines)
    show.say("")
    images = isinstance(run.generator, ImageGenerator)
    file, what = ("synthetic.npz", "images") if images else ("synthetic.parquet", "rows")
    show.say(f"{out / file}  {rows:,} synthetic {what}")
    show.say(
        f"{out / 'privacy.html'}  the privacy statement, which may be published; `populace verify {out}` checks it"
    )
    if run.guarantee.read_from_data and not run.guarantee.seeded:
        show.say(
            "before you publish rows: check the lists of values that were read from the data, or declare them (--schema)"
        )
    for remark in run.remarks:
        show.say(remark)
    show.say(f"next: {shlex.join(['populace', 'evaluate', str(out), *real])}")
