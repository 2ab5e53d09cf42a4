"""`populace advise`: which method, whom to trust, and what to expect, from public facts alone."""

from __future__ import annotations

import typer

from populace.cli import completion
from populace.cli.sources import QUERY, TABLE

EXAMPLE = "Example:  populace advise --data north.csv --data south.csv --epsilon 1"


def command(
    data: list[str] = typer.Option(
        [],
        "--data",
        help="A data file, pattern or database, as for `synthesize`; again for each further silo. Rows are counted, not read.",
    ),
    table: str | None = TABLE,
    query: str | None = QUERY,
    clients: int | None = typer.Option(None, "--clients", help="Without files: how many silos, or people."),
    records: int | None = typer.Option(None, "--records", help="How many records each of them holds; 1 by default."),
    columns: str | None = typer.Option(None, "--columns", help="How many columns, or their names with commas between."),
    schema: str | None = typer.Option(None, "--schema", help="A declared schema (TOML)."),
    epsilon: float = typer.Option(1.0, "--epsilon", help="Privacy budget of one client (or record)."),
    trust: str | None = typer.Option(
        None,
        "--trust",
        help="local, silo, secure-sum or central. Default: silo for files and silos, local for people.",
        autocompletion=completion.trust,
    ),
    images: bool = typer.Option(False, "--images", help="The records are images; with --clients."),
    person: bool = typer.Option(False, "--person", help="Protect a person with all their rows at a silo."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Recommend a method and who adds the noise, with the reason, what to expect, and what would do better.

    Uses public facts alone: the number of files, names of columns, the number of rows (which counts as public, as in
    `synthesize`), and the declared schema; never a value. What to expect comes from stored benchmarks, with their spread.
    `populace synthesize` chooses its method by the same rule.
    """
    from populace.border.databases.address import locate
    from populace.cli import show
    from populace.runs.advise.advice import read_advice

    advice = read_advice(
        data=locate(data, table=table, query=query), clients=clients, records=records, columns=_columns(columns),
        schema=schema, epsilon=epsilon, trust=trust, images=images, person=person,
    )  # fmt: skip
    if as_json:
        show.say_json(advice.to_json())
    else:
        show.say(str(advice))


def _columns(text: str | None) -> int | tuple[str, ...] | None:
    """A number, or names."""
    from populace.errors import InputError

    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names) or text.lstrip("-+").replace(".", "").isdigit():
        raise InputError(
            f"expected --columns as a number of columns, or as different names with commas between, got {text!r}"
        )
    return names
