"""One self-contained HTML page per evaluation."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import jinja2
import markupsafe
import numpy as np

from populace.errors import DataError
from populace.evaluation.evaluate import evaluate_table
from populace.experiments.folder import RunFolder
from populace.experiments.sources import read_rows
from populace.report import figures
from populace.tables.files import read_json, write_json, write_text
from populace.tables.schema import Schema, schema_from_dict
from populace.tables.table import Table, read_table

FLAGS = (
    ("method", "--method"), ("epsilon", "--epsilon"), ("delta", "--delta"), ("schema_file", "--schema"),
    ("target", "--target"), ("trust", "--trust"), ("client_column", "--client-column"), ("rows", "--rows"), ("seed", "--seed"),
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Metrics of a synthetic table against a real one."""

    metrics: dict[str, Any]
    real: Table
    synthetic: Table

    def save(self, path: str | Path) -> None:
        """A page without the sections that need a run: figures and distances only."""
        run = {"name": "synthetic", "metrics": self.metrics, "synthetic": self.synthetic}
        write_text(Path(path), render("What the synthetic rows are worth", [run], self.real))


def evaluate(synthetic: Table, *, real: Table, target: str | None = None, seed: int = 0) -> Evaluation:
    """Compare synthetic rows with real ones."""
    metrics = evaluate_table(synthetic, real, target=target, seed=seed)
    return Evaluation(metrics=metrics, real=real, synthetic=synthetic)


def evaluate_runs(folders: list[Path], real_file: str, *, target: str | None = None) -> list[dict[str, Any]]:
    """metrics.json and report.html into the first run's folder; returns one document per run."""
    runs = []
    for path in folders:
        folder = RunFolder(path)
        details = folder.document()
        schema = read_table_schema(folder)
        synthetic = read_table(folder / "synthetic.parquet", schema)
        real = read_rows(real_file, schema)[1]
        metrics = evaluate_table(synthetic, real, target=target)
        runs.append(
            {
                "name": folder.path.name,
                "details": details,
                "privacy": read_json(folder / "privacy.json"),
                "metrics": metrics,
                "synthetic": synthetic,
                "real": real,
                "command": command_of(details["spec"]),
            }
        )
    if any(run["real"].schema.names != runs[0]["real"].schema.names for run in runs):
        raise DataError("the runs have different columns, so they do not compare; evaluate them one by one")
    documents = [{"run": run["name"], "privacy": run["privacy"]["headline"], **run["metrics"]} for run in runs]
    first = RunFolder(folders[0])
    title = f"{runs[0]['name']}: synthetic data by {runs[0]['details']['method']}"
    page = render(title, runs, runs[0]["real"])
    write_json(first / "metrics.json", documents[0] if len(documents) == 1 else {"runs": documents})
    write_text(first / "report.html", page)
    return documents


def read_table_schema(folder: RunFolder) -> Schema:
    return schema_from_dict(read_json(folder / "generator.json")["schema"])


def command_of(spec: dict[str, Any]) -> str:
    """The command that makes this run again."""
    words = ["populace", "synthesize", str(spec["data"])]
    for field, flag in FLAGS:
        if spec.get(field) is not None:
            words += [flag, str(spec[field])]
    if spec.get("records_per_client", 1) != 1:
        words += ["--records-per-client", str(spec["records_per_client"])]
    for name, value in spec.get("settings", {}).items():
        words += ["--set", f"{name}={value}"]
    return shlex.join([*words, "--out", "RUN"])


def render(title: str, runs: list[dict[str, Any]], real: Table) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("populace.report", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    first = runs[0]["metrics"]
    charts = [
        (name, markupsafe.Markup(figures.column_chart(real, runs[0]["synthetic"], name)))  # noqa: S704 - our own SVG
        for name in real.schema.names[:40]
    ]
    heat_map = ""
    if "tvd" in first["two_way"]:
        matrix = np.array(first["two_way"]["tvd"])
        heat_map = markupsafe.Markup(figures.pair_heat_map(matrix, first["two_way"]["columns"]))  # noqa: S704
    page = environment.get_template("page.html")
    return page.render(
        title=title, runs=[run for run in runs if "details" in run] or runs, rows=_rows(runs), charts=charts,
        heat_map=heat_map, prediction=first["prediction"],
    )  # fmt: skip


def _rows(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for run in runs:
        metrics = run["metrics"]
        rows.append(
            _row(run["name"], metrics["one_way"]["mean_tvd"], metrics["two_way"].get("mean_tvd"), metrics, "synthetic")
        )
    first = runs[0]["metrics"]
    for name, distances in first["baselines"].items():
        rows.append(_row(name, distances["one_way_mean_tvd"], distances["two_way_mean_tvd"], first, name))
    rows.append(_row("trained on real rows", None, None, first, "real"))
    rows.append(_row("majority class", None, None, first, "majority class"))
    return rows


def _row(
    name: str, one_way: float | None, two_way: float | None, metrics: dict[str, Any], score: str
) -> dict[str, Any]:
    found = metrics["prediction"].get("scores", {}).get(score, {})
    values = (one_way, two_way, found.get("auc"), found.get("accuracy"))
    return {"name": name, "values": ["–" if value is None else f"{value:.3f}" for value in values]}
