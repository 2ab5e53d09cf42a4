"""`populace demo`: everything once, on three invented hospitals: silos first, then the same people polled one by one."""

from __future__ import annotations

from pathlib import Path

import typer

EXAMPLE = "Example:  populace demo --out demo-run"
TARGET = "readmitted"
ROWS = 10_000
QUICK = {"chains": 1, "langevin_steps": 100}  # of poll: seconds instead of a minute, and about as good here


def command(
    out: Path = typer.Option(Path("demo-run"), "--out", help="A new folder for the hospitals' files and the runs."),
    epsilon: float = typer.Option(1.0, "--epsilon", help="Privacy budget of one stay, then of one person."),
    seed: int | None = typer.Option(None, "--seed", help="Makes the demo reproducible, and its runs not private."),
) -> None:
    """Synthesize the stays of three invented hospitals, each a silo, and write a report; then poll the same people one by
    one, which shows the price of trusting nobody."""
    from populace.cli import evaluate, show, synthesize
    from populace.tables.hospitals.records import write_files

    folder = _free(out)
    files, schema = write_files(folder / "hospitals")
    show.say(f"{folder / 'hospitals'}  three invented hospitals: a CSV each, and the data dictionary they agreed on\n")
    census = folder / "census"
    synthesize.command(
        data=[str(file) for file in files], epsilon=epsilon, out=census, method=None, delta=None, schema=str(schema),
        target=TARGET, trust=None, records_per_client=None, client_column=None, most_records=None, person=None, pairs=[],
        rows=ROWS, seed=seed, ledger=None, no_ledger=False, limit=None, other_people=None, table=None, query=None,
    )  # fmt: skip
    show.say("")
    evaluate.command(
        runs=[census], real=[str(file) for file in files], target=TARGET, table=None, query=None, as_json=False
    )
    show.say(
        "\nThe same people, polled one by one: each answers one question, at random, and no hospital is trusted.\n"
    )
    _poll(files, schema, folder / "poll", epsilon=epsilon, seed=seed)
    _compare([census, folder / "poll"], files, schema)
    show.say(
        f"\nOpen {census / 'report.html'} in a browser; `populace sample {census} --rows 5 -o five.csv` draws more rows."
    )


def _free(out: Path) -> Path:
    """A folder that no demo was run in."""
    free, number = out, 2
    while free.exists():
        free = out.with_name(f"{out.name}-{number}")
        number += 1
    return free


def _poll(files: list[Path], schema: Path, out: Path, *, epsilon: float, seed: int | None) -> None:
    """Every row as a person who answers one randomised question."""
    from populace.cli import show
    from populace.report.statement import write_statement
    from populace.runs.run import synthesize
    from populace.runs.spec import make_spec

    spec = make_spec(
        data=tuple(str(file) for file in files), epsilon=epsilon, method="poll", schema_file=str(schema), target=TARGET,
        settings=dict(QUICK), rows=ROWS, seed=seed,
    )  # fmt: skip
    with show.progress("poll") as report:
        synthesize(spec, out, progress=report, say=show.say, doing=report.doing)
    write_statement(out)


def _compare(runs: list[Path], files: list[Path], schema: Path) -> None:
    """Two figures of each run, side by side."""
    from populace.cli import show
    from populace.evaluation.marginals import mean_over_pairs, two_way_distances
    from populace.evaluation.prediction import logistic_score
    from populace.runs.given import read_frames
    from populace.runs.run import load_run
    from populace.tables.schema import load_schema
    from populace.tables.table import make_table, read_table

    public = load_schema(schema)
    real = make_table(read_frames([str(file) for file in files]), public)
    lines = []
    for path in runs:
        run, synthetic = load_run(path), read_table(path / "synthetic.parquet", public)
        distance = mean_over_pairs(two_way_distances(real, synthetic))
        auc = logistic_score(synthetic, real, TARGET).auc.value
        lines.append([run.method, run.guarantee.bound, f"{distance:.3f}", f"{auc:.3f}"])
    show.say("")
    show.table(["method", "guarantee", "two-way distance to the real rows", f"AUC of {TARGET}"], lines)
