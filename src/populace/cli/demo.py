"""`populace demo`: everything once, on the table that ships with the package."""

from __future__ import annotations

from pathlib import Path

import typer

EXAMPLE = "Example:  populace demo --out demo-run"


def command(
    out: Path = typer.Option(Path("demo-run"), "--out", help="Folder of the run."),
    epsilon: float = typer.Option(4.0, "--epsilon", help="Privacy budget of one person."),
    seed: int = typer.Option(1, "--seed", help="Makes the demo reproducible."),
) -> None:
    """Synthesize the embedded table of invented people, one simulated client each, and write a report."""
    from populace.cli import evaluate, show, synthesize
    from populace.runs.folder import RunFolder

    free = out
    number = 2
    while (free / "run.json").is_file() and RunFolder(free).finished:
        free = out.with_name(f"{out.name}-{number}")
        number += 1
    synthesize.command(
        data=["embedded:harbour"], epsilon=epsilon, out=free, method="poll", delta=None, schema=None, target="owns_home",
        trust=None, records_per_client=1, client_column=None, most_records=None, pairs=[], rows=4_000, seed=seed,
        ledger=None, no_ledger=False, limit=None, other_people=None,
    )  # fmt: skip
    show.say("")
    evaluate.command(runs=[free], real=["embedded:harbour"], target=None, as_json=False)
    show.say(
        f"\nOpen {free / 'report.html'} in a browser; `populace sample {free} --rows 5 -o five.csv` draws more rows."
    )
