"""`populace evaluate`: what synthetic rows are worth, against real ones."""

from __future__ import annotations

from pathlib import Path

import typer

EXAMPLE = "Example:  populace evaluate run --real adult_test.parquet --target income"


def command(
    runs: list[Path] = typer.Argument(help="Folders of finished runs; the report goes into the first."),
    real: str = typer.Option(..., "--real", help="Real rows: CSV, Parquet or Arrow."),
    target: str | None = typer.Option(None, "--target", help="The column to predict."),
    as_json: bool = typer.Option(False, "--json", help="Print the metrics as JSON."),
) -> None:
    """Write metrics.json and report.html. Computed on real rows without noise: keep them with the data."""
    from populace.cli import show
    from populace.report.page import evaluate_runs

    documents = evaluate_runs(list(runs), real, target=target)
    if as_json:
        show.say_json(documents[0] if len(documents) == 1 else documents)
        return
    rows = []
    for document in documents:
        scores = document["prediction"].get("scores", {})
        rows.append(
            _row(
                document["run"],
                document["one_way"]["mean_tvd"],
                document["two_way"].get("mean_tvd"),
                scores.get("synthetic"),
            )
        )
    for name, distances in documents[0]["baselines"].items():
        scores = documents[0]["prediction"].get("scores", {})
        rows.append(_row(name, distances["one_way_mean_tvd"], distances["two_way_mean_tvd"], scores.get(name)))
    for name in ("real", "majority class"):
        if name in documents[0]["prediction"].get("scores", {}):
            rows.append(
                _row(
                    f"trained on {name}" if name == "real" else name,
                    None,
                    None,
                    documents[0]["prediction"]["scores"][name],
                )
            )
    show.table(["data", "1-way TVD", "2-way TVD", "AUC", "accuracy"], rows)
    if "left_out" in documents[0]["prediction"]:
        show.say(f"no prediction: {documents[0]['prediction']['left_out']}")
    show.say(f"\n{runs[0] / 'metrics.json'}\n{runs[0] / 'report.html'}")


def _row(name: str, one_way: float | None, two_way: float | None, score: dict[str, float] | None) -> list[str]:
    found = score or {}
    values = (one_way, two_way, found.get("auc"), found.get("accuracy"))
    return [name, *("-" if value is None else f"{value:.4f}" for value in values)]
