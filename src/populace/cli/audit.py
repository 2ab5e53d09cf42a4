"""`populace audit`: a lower bound on epsilon, measured, beside the claim."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import typer

from populace.cli import completion
from populace.types import JsonObject

EXAMPLE = "Example:  populace audit fl-gan --epsilon 2 --images"
FLAGGED = 1


def command(
    what: str = typer.Argument(
        metavar="METHOD",
        help="A method, a mechanism (grr, subset, oue, sue, olh, hadamard, rappor, gaussian), `all`, the folder of a run, or "
        "`canaries`.",
        autocompletion=completion.runs_and_methods,
    ),
    epsilon: float | None = typer.Option(None, "--epsilon", help="The claim; default 2, or the run's."),
    schema: str | None = typer.Option(
        None, "--schema", help="For methods: a schema (TOML), or a table; default the embedded one, or a small one."
    ),
    images: bool = typer.Option(False, "--images", help="For methods: tiny invented images instead of a table."),
    pairs: list[str] = typer.Option([], "--set", help="A parameter of the method, name=value.", metavar="NAME=VALUE"),
    clients: int | None = typer.Option(
        None, "--clients", help="For methods: how many clients the run would have; default 10,000, or 2 silos."
    ),
    records: int | None = typer.Option(
        None, "--records-per-client", help="For methods: the most records one client holds; default 1, or 4 of a silo."
    ),
    size: int = typer.Option(16, "--size", help="For mechanisms: how many values the domain has."),
    samples: int | None = typer.Option(
        None, "--samples", help="Messages about each of two inputs; default 100,000, fewer of methods that train."
    ),
    confidence: float = typer.Option(0.95, "--confidence", help="Of the bound shown; claims are refuted at 1 - 1e-6."),
    exact: bool = typer.Option(
        False, "--exact", help="For local methods: the noise deployed clients use, one client at a time (slow)."
    ),
    seed: int | None = typer.Option(None, "--seed", help="Makes the audit reproducible."),
    canaries: int = typer.Option(
        0, "--canaries", help="With `canaries`: number of canaries, each included by a fair coin."
    ),
    guesses: int = typer.Option(0, "--guesses", help="With `canaries`: number of membership guesses."),
    correct: int = typer.Option(0, "--correct", help="With `canaries`: number of correct guesses."),
    delta: float = typer.Option(0.0, "--delta", help="With `canaries`: the delta of the claim."),
    jobs: int = typer.Option(0, "--jobs", help="With `all`: processes; default one per core."),
    out: Path | None = typer.Option(None, "--out", help="Also write the JSON here; for a run it goes into its folder."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure a lower bound on epsilon from what is released, over worst-case inputs, and compare it with the claim.

    Reads no records. Methods that train are run with few steps on small invented data: bounds from messages, from canaries in
    one run, and a recorder that checks sensitivity, noise, sampling and booking of every release.

    Exit code 1 if a claim is refuted: at confidence 1 - 1e-6, or at --confidence with `canaries`.
    """
    from populace.audits.request import AuditRequest, perform, write
    from populace.cli import show

    request = AuditRequest(
        what=what, epsilon=epsilon, schema=schema, images=images, settings=show.settings(pairs), clients=clients,
        records=records, size=size, samples=samples, confidence=confidence, exact=exact, seed=seed, canaries=canaries,
        guesses=guesses, correct=correct, delta=delta, jobs=jobs,
    )  # fmt: skip
    with show.progress(f"audit {what}") as report:
        report.doing("measuring what is released")
        document = perform(
            request, command=shlex.join(["populace", *sys.argv[1:]]), say=lambda line: typer.echo(line, err=True)
        )
    written = write(document, request, out)
    if as_json:
        show.say_json(document)
    else:
        _show(document, written)
    if document["flagged"]:
        raise typer.Exit(FLAGGED)


def _show(document: JsonObject, written: Path | None) -> None:
    from populace.cli import show

    show.table(
        ["audited", "claimed", "delta", "measured at least", "confidence", "at 1 - 1e-6", "samples", "verdict"],
        [
            [
                row["what"],
                _number(row["claimed_epsilon"], ".4g"),
                f"{row['delta']:.2g}",
                f"{row['measured_epsilon']:.3f}", f"{row['confidence']:g}", _number(row["certain_epsilon"], ".3f"),
                f"{row['samples']:,}", "CLAIM REFUTED" if row["flagged"] else "not refuted",
            ]
            for row in document["rows"]
        ],
    )  # fmt: skip
    recorded = document.get("recorded", [])
    if recorded:
        show.say("")
        show.table(
            ["recorded", "unit", "releases", "reports", "largest difference / bound", "noise", "verdict"],
            [
                [
                    row["what"],
                    row.get("unit", "-"),
                    f"{row.get('gaussian_releases', 1):,}", f"{row.get('reports', 0):,}",
                    _number(row.get("largest_difference_over_bound"), ".4f"), f"{row['noise_numbers']:,}",
                    "REFUTED" if row["flagged"] else "nothing found",
                ]
                for row in recorded
            ],
        )  # fmt: skip
        for row in recorded:
            for problem in row["problems"]:
                show.say(f"{row['what']}: {problem}")
    show.say("")
    for note in document["notes"]:
        show.say(f"note: {note}")
    if written is not None:
        show.say(f"\n{written}")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
