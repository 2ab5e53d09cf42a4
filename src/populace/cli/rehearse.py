"""`populace rehearse`: candidates compared before a private row is touched."""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from populace.cli import completion

if TYPE_CHECKING:
    from populace.types import JsonObject

WIDTH = 80
EXAMPLE = "Example:  populace rehearse --schema ward.toml --clients 3 --records-per-client 800 --epsilon 1"


def command(
    schema: Path = typer.Option(..., "--schema", help="A declared schema (TOML)."),
    clients: int = typer.Option(..., "--clients", help="How many silos, or people, will take part."),
    epsilon: float = typer.Option(..., "--epsilon", help="Privacy budget of one client (or record)."),
    records: int = typer.Option(1, "--records-per-client", help="How many records each of them holds."),
    methods: str | None = typer.Option(
        None,
        "--methods",
        help="Candidates, with commas between. Default: what `populace advise` recommends, and the next two, without those "
        "that take minutes.",
    ),
    trust: str | None = typer.Option(
        None,
        "--trust",
        help="local, silo, secure-sum or central. Default: as `advise`.",
        autocompletion=completion.trust,
    ),
    public: str | None = typer.Option(
        None,
        "--public",
        help="Public rows under the schema: a file, a pattern or a database, as for `synthesize`; without, rows are invented.",
    ),
    rows: int = typer.Option(10_000, "--rows", help="How many synthetic rows each candidate makes."),
    draws: int = typer.Option(5, "--draws", help="How many draws of rows each candidate is tried on."),
    seed: int = typer.Option(0, "--seed", help="Of the draws and of the noise; nothing private is protected by it."),
    out: Path = typer.Option(Path("rehearsal"), "--out", help="Folder; an unfinished rehearsal in it goes on."),
    as_json: bool = typer.Option(False, "--json", help="Print the document as JSON."),
) -> None:
    """Try candidates on public rows, or on invented rows of the schema's shape, and show what quality to expect.

    No private row is read. Invented rows are not your data: compare the candidates by them, and do not read the figures as what
    your data will give. An interrupted rehearsal goes on when the same command is given again.
    """
    from populace.cli import show
    from populace.papers.rehearsal import make_rehearsal, rehearse
    from populace.report.rehearsal import write_page
    from populace.tables.schema import load_schema

    rehearsal = make_rehearsal(
        load_schema(schema), clients=clients, epsilon=epsilon, records=records, trust=trust, public=public, rows=rows,
        draws=draws, seed=seed, methods=() if methods is None else tuple(name.strip() for name in methods.split(",")),
    )  # fmt: skip
    if not as_json:
        chosen = ", ".join(f"{name} (trust {trust})" for name, trust in rehearsal.candidates)
        show.say(textwrap.fill(f"candidates: {chosen}", WIDTH))
        for note in rehearsal.notes:
            show.say(textwrap.fill(note, WIDTH))
    given = {
        "--schema": schema, "--clients": clients, "--records-per-client": records, "--epsilon": f"{epsilon:g}",
        "--methods": methods, "--trust": trust, "--public": public, "--rows": rows, "--draws": draws, "--seed": seed,
        "--out": out,
    }  # fmt: skip
    words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    with show.steps("rehearse") as report:
        document = rehearse(rehearsal, out, command=shlex.join(["populace", "rehearse", *words]), progress=report)
        page = write_page(document, out)
    if as_json:
        show.say_json(document)
        return
    _show(document, [out / "rehearsal.json", page])


def _show(document: JsonObject, files: list[Path]) -> None:
    from populace.cli import show
    from populace.report.rehearsal import groups, intervals_in_words, refused, title_of

    show.say("\n" + textwrap.fill(title_of(document), WIDTH))
    for group in groups(document):
        show.say("\n" + textwrap.fill(f"protects one {group['unit']}; trust {group['said']}", WIDTH))
        show.say(textwrap.fill(f"guarantee: {group['guarantees']}", WIDTH) + "\n")
        show.table(group["short_header"], group["short_rows"], width=WIDTH)
        if (paired := group["differences"]) is not None:
            said = f"difference to {paired['first']} on the same draw; better is {paired['better']}"
            show.say("\n" + textwrap.fill(said, WIDTH) + "\n")
            show.table(paired["header"], paired["rows"], width=WIDTH)
    for line in refused(document):
        show.say(textwrap.fill(f"not measured: {line}", WIDTH))
    said = f"{intervals_in_words(document)}; {document['synthetic_rows']:,} synthetic rows"
    show.say("\n" + textwrap.fill(said, WIDTH))
    for note in document["notes"]:
        show.say(textwrap.fill(f"note: {note}", WIDTH))
    show.say("\n" + "\n".join(map(str, files)))
