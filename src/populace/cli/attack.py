"""`populace attack`: membership inference by shadow runs, attribute inference, nearest records."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from populace.cli import completion
from populace.cli.sources import KINDS, QUERY, TABLE
from populace.types import JsonObject

if TYPE_CHECKING:  # nothing of it is imported to show the help
    from populace.attacks.shadows import Report, Step

EXAMPLE = "Example:  populace attack run --real adult.parquet --targets 20 --shadows 60"
SECONDS_BETWEEN_LINES = 5.0


def command(
    what: str = typer.Argument(
        metavar="RUN|METHOD",
        help="The folder of a run, a method, or `memorise` (repeats its rows: calibration).",
        autocompletion=completion.runs_and_methods,
    ),
    data: list[str] = typer.Argument(
        None, metavar="[DATA]...", help=f"Real rows, a silo each ({KINDS}); the same as --real."
    ),
    real: list[str] = typer.Option(
        [], "--real", help="Real rows; for a run those it was made from. Again for each further file."
    ),
    holdout: str | None = typer.Option(
        None,
        "--holdout",
        help="For a run: rows of the same population not used in it; its own synthetic rows are then attacked.",
    ),
    epsilon: float | None = typer.Option(None, "--epsilon", help="For a method: its budget; default 4."),
    schema: str | None = typer.Option(None, "--schema", help="For a method: a schema (TOML)."),
    pairs: list[str] = typer.Option([], "--set", help="A parameter of the method, name=value.", metavar="NAME=VALUE"),
    targets: int = typer.Option(
        20, "--targets", help="Number of records whose membership is inferred; half are rare rows."
    ),
    shadows: int = typer.Option(
        60, "--shadows", help="Shadow runs the attacker trains on, with and without the targets."
    ),
    attacked: int = typer.Option(40, "--attacked", help="Runs the attack is evaluated on."),
    rows: int = typer.Option(0, "--rows", help="Rows of each run; default 1,000, or a quarter of the data."),
    drawn: int = typer.Option(0, "--drawn", help="Synthetic rows of each run; default as many as rows."),
    records: int | None = typer.Option(
        None,
        "--records-per-client",
        help="For a method: rows of one client; default: a file is a client where it protects records, else a row.",
    ),
    sensitive: str | None = typer.Option(
        None, "--sensitive", help="The column to infer; default the schema's target, or the last."
    ),
    table: str | None = TABLE,
    query: str | None = QUERY,
    jobs: int = typer.Option(0, "--jobs", help="Processes; default one per core."),
    seed: int = typer.Option(0, "--seed", help="Seed of the targets and of all randomness of the attack."),
    out: Path | None = typer.Option(None, "--out", help="Folder; default the run's own, or attack-METHOD."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Attack synthetic rows: membership inference, attribute inference, nearest records. Give the command again to resume."""
    from populace.attacks.request import AttackRequest, perform
    from populace.border.databases.address import locate
    from populace.cli import show
    from populace.errors import SpecError
    from populace.runs.given import read_frames

    files = locate([*(data or ()), *real], table=table, query=query)
    if not files or (data and real):
        raise SpecError("give the real rows once: `populace attack METHOD DATA`, or `populace attack RUN --real FILE`")
    if jobs < 0:
        raise SpecError(f"expected jobs of at least 1, got {jobs}")
    request = AttackRequest(
        what=what, data=read_frames(files) if len(files) > 1 else files[0], holdout=holdout, epsilon=epsilon,
        schema=schema, settings=show.settings(pairs), targets=targets, shadows=shadows, attacked=attacked, rows=rows,
        drawn=drawn, records_per_client=records, silos=len(files), sensitive=sensitive, seed=seed, jobs=jobs,
    )  # fmt: skip
    with show.steps("attack") as report:
        document, written = perform(
            request, out=out, command=shlex.join(["populace", *sys.argv[1:]]), progress=_now_and_then(report),
            say=lambda line: typer.echo(line, err=True), doing=report.doing,
        )  # fmt: skip
    if as_json:
        show.say_json(document)
        return
    _show(document)
    show.say(f"\n{written}")


def _now_and_then(report: Report) -> Report:
    """A line every few seconds instead of one per run; a bar is kept up to date all the same."""
    last = time.monotonic()

    def each(at: Step) -> None:
        nonlocal last
        due = at.done == at.total or time.monotonic() - last >= SECONDS_BETWEEN_LINES
        last = time.monotonic() if due else last
        report(dataclasses.replace(at, skipped=at.skipped or not due))

    return each


def _show(document: JsonObject) -> None:
    from populace.cli import show

    membership, attribute, distances = document["membership"], document["attribute"], document["distances"]
    show.table(
        ["attack", "measured", "low", "high", "without a leak", "how"],
        [
            ["membership, accuracy", *_figures(membership, "accuracy"), "0.5", membership["attacker"]],
            [
                f"attribute {attribute['column']}, members minus others", *_figures(attribute, "difference"), "0",
                attribute["attacker"],
            ],
            [
                "distance, share of members nearer", *_figures(distances, "share_of_members_nearer"), "0.5",
                f"{distances['members']['share_with_a_copy']:.1%} of members and "
                f"{distances['others']['share_with_a_copy']:.1%} of others have a copy",
            ],
        ],
    )  # fmt: skip
    show.say("")
    for note in document["notes"]:
        show.say(f"note: {note}")


def _figures(part: JsonObject, name: str) -> list[str]:
    return [f"{part[key]:.3f}" for key in (name, "low", "high")]
