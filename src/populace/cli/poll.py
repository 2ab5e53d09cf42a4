"""`populace poll`: answers of many people, to and from files."""

from __future__ import annotations

from pathlib import Path

import typer

from populace.cli.sources import KINDS, QUERY, TABLE

EXAMPLE = (
    "Example:  populace poll collect people.parquet --schema people.toml --epsilon 4 --out monday.parquet && "
    "populace poll fit monday.parquet --schema people.toml --out run"
)
COLLECT_EXAMPLE = (
    "Two sites of one poll:  populace poll collect north.csv --schema s.toml --epsilon 4 --clients 90000 --out n.parquet  and  "
    "populace poll collect south.csv --schema s.toml --epsilon 4 --clients 90000 --first-client 50000 --out s.parquet"
)
FIT_EXAMPLE = "Example:  populace poll fit n.parquet s.parquet --schema s.toml --rows 30000 --out run"

app = typer.Typer(
    help="Answers of many people, to and from files: `collect` where the records are, `fit` where they are not.",
    no_args_is_help=True,
)


@app.command(epilog=COLLECT_EXAMPLE)
def collect(
    data: str = typer.Argument(help=f"Records of the clients to act for, read a piece at a time: {KINDS}."),
    schema: str = typer.Option(..., "--schema", help="The declared schema (TOML) all clients agreed to."),
    epsilon: float = typer.Option(..., "--epsilon", help="Privacy budget of one client, for all it holds."),
    out: Path = typer.Option(..., "--out", help="File of answers to write, .parquet."),
    target: str | None = typer.Option(None, "--target", help="The column that matters most."),
    records_per_client: int = typer.Option(1, "--records-per-client", help="Rows of each client, in their order."),
    client_column: str | None = typer.Option(
        None,
        "--client-column",
        help="One client per value of this column; a client's rows must stand together. Of a database it is needed: rows have "
        "no order there that stays.",
    ),
    table: str | None = TABLE,
    query: str | None = QUERY,
    pairs: list[str] = typer.Option([], "--set", help="A parameter of poll, name=value.", metavar="NAME=VALUE"),
    clients: int | None = typer.Option(
        None, "--clients", help="Clients of the whole poll, over all files; default those up to this file's last."
    ),
    first_client: int = typer.Option(
        0, "--first-client", help="Number of the first client here; files of one poll have numbers of their own."
    ),
    coin: str | None = typer.Option(
        None, "--coin", help="The public seed that assigns the questions: any text, the same for all files of one poll."
    ),
    ledger: str | None = typer.Option(
        None, "--ledger", help="File of the clients' ledgers; default DATA.ledger. Keep it with the records."
    ),
    seed: int | None = typer.Option(
        None, "--seed", help="Answers of the simulation with this seed: reproducible, and therefore not private."
    ),
) -> None:
    """Answer for the clients that hold the rows of DATA: each answers one question once, and its ledger records it.

    Answers are drawn exactly, from the operating system's generator, and stand in the clients' ledgers before they are written.
    Given again, the command writes the same answers again and spends nothing.
    """
    from populace.border.databases.address import locate
    from populace.cli import show
    from populace.errors import InputError
    from populace.runs.poll import collect as work

    files = locate([data], table=table, query=query)
    if len(files) > 1:
        raise InputError(f"expected one file of records, and {len(files)} match {data!r}; collect from each by itself")
    wanted = work.Collection(
        data=files[0], schema_file=schema, epsilon=epsilon, target=target, settings=show.settings(pairs),
        records_per_client=records_per_client, client_column=client_column, clients=clients, first_client=first_client,
        coin=coin, ledger=ledger, seed=seed,
    )  # fmt: skip
    with show.progress("poll collect", each="client") as report:
        report.doing("answering")
        found = work.collect(wanted, out, progress=report, say=show.say)
    show.say("")
    show.say_lines(found.guarantee.lines)
    show.say("")
    show.say(f"{out}  {found.answers:,} answers, of clients {found.first:,} to {found.last:,}")
    if seed is None:
        show.say(f"{wanted.ledger_file}  the clients' ledgers; keep them with the records")
    show.say(f"next: populace poll fit {out} --schema {schema} --out RUN")


@app.command(epilog=FIT_EXAMPLE)
def fit(
    answers: list[str] = typer.Argument(help="Files that `populace poll collect` wrote, of one poll."),
    schema: str = typer.Option(..., "--schema", help="The schema (TOML) they were collected under."),
    out: Path = typer.Option(
        ..., "--out", help="Folder of the run; an unfinished one with the same options is resumed."
    ),
    rows: int = typer.Option(10_000, "--rows", help="How many synthetic rows to write."),
    pairs: list[str] = typer.Option([], "--set", help="A setting of the fit, name=value.", metavar="NAME=VALUE"),
    seed: int | None = typer.Option(
        None, "--seed", help="The same model and rows every time; costs no privacy, the noise is in the answers."
    ),
) -> None:
    """Count the answers, fit the model and write a run folder; needs no record, and no more memory for more answers."""
    from populace.cli import show
    from populace.report.statement import write_statement
    from populace.runs.poll import fit as work

    wanted = work.Fit(answers=tuple(answers), schema_file=schema, rows=rows, settings=show.settings(pairs), seed=seed)
    with show.progress("poll fit", each="answer") as report:
        run = work.fit_answers(wanted, out, progress=report, say=show.say, doing=report.doing)
        write_statement(out)
    show.say("")
    show.say_lines(run.guarantee.lines)
    show.say("")
    show.say(f"{out / 'synthetic.parquet'}  {rows:,} synthetic rows from {run.details['clients']:,} answers")
    show.say(f"{out / 'privacy.html'}  the privacy statement, to read or publish; `populace verify {out}` checks it")
    show.say(f"next: populace evaluate {out} --real FILE")
