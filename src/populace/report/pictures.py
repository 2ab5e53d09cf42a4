"""The page of a run that made images: grids of real and synthetic samples by class, and their utility."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import jinja2
import numpy as np

from populace.errors import DataError
from populace.evaluation.images import evaluate_images
from populace.evaluation.traffic import cost
from populace.report import attack_results, sections
from populace.report.figure_data import metric_download
from populace.report.plain_language import in_plain_language
from populace.report.png import data_address, sample_grid
from populace.report.summary import figures_of_images, statement_beside, summary_of
from populace.report.svg import percent
from populace.tables.files import write_json, write_text
from populace.tables.images import Images, read_images
from populace.types import Doing, JsonObject

REPORT = "report.html"
ACROSS, DOWN = 8, 2
MOST_CLASSES = 40
MOST_PIXELS = 600_000  # bytes of pixels of all grids together that keep the page below its size


def evaluate_runs(
    runs: Sequence[JsonObject], real_file: str, environment: jinja2.Environment, doing: Doing = lambda _: None
) -> list[JsonObject]:
    """metrics.json and report.html of one run of images."""
    if len(runs) > 1:
        raise DataError("runs of images are evaluated one at a time; name one run")
    if not real_file.endswith(".npz"):
        raise DataError(f"the run made images, so expected real images in a .npz file, got {Path(real_file).name!r}")
    run, real = runs[0], read_images(real_file)
    doing("comparing images")
    document, render_page = evaluate_run(run, real, environment, real_file)
    doing("writing the report")
    write_json(run["folder"] / "metrics.json", document)
    write_text(run["folder"] / REPORT, render_page(run["folder"] / REPORT))
    return [document]


def evaluate_run(
    run: JsonObject, real: Images, environment: jinja2.Environment, real_file: str = "FILE"
) -> tuple[JsonObject, Callable[[Path | None], str]]:
    """The metrics of a run of images, and what makes its page for the place where it will lie."""
    synthetic = read_images(run["folder"] / "synthetic.npz", max(real.classes, _classes(run)))
    document = {
        "run": run["name"], "method": run["details"]["method"], "privacy": run["privacy"]["headline"],
        **evaluate_images(synthetic, real), "cost": cost(run["details"], ()),
    }  # fmt: skip
    return document, lambda page: render(run, document, real, synthetic, environment, real_file, page)


def _classes(run: JsonObject) -> int:
    return int(run["details"].get("classes", 1))


def render(
    run: JsonObject, document: JsonObject, real: Images, synthetic: Images, environment: jinja2.Environment,
    real_file: str, page: Path | None,
) -> str:  # fmt: skip
    return environment.get_template("images.html").render(
        title=f"{run['name']}: synthetic images by {run['details']['method']}", run=run, document=document,
        plain=in_plain_language(run["privacy"]), privacy=run["privacy"], classes=class_cards(real, synthetic),
        table=sections.metric_table(document), prediction=sections.prediction_parts(document), audit=run["audit"],
        attacks=run["attacks"], how=attack_results.commands(run, real_file), details=run["details"],
        page=statement_beside(run, page), summary=summary_of(run, figures_of_images(document)),
        data={"metrics": metric_download([{"name": run["name"], "metrics": document}])},
        evaluated_by=shlex.join(["populace", "evaluate", str(run["folder"].path), "--real", real_file]),
    )  # fmt: skip


def class_cards(real: Images, synthetic: Images) -> JsonObject:
    """Samples of each class, real beside synthetic, drawn at random and not chosen."""
    classes = max(real.classes, synthetic.classes)
    size = int(np.prod(real.shape))
    shown = min(classes, MOST_CLASSES)
    down = DOWN if 2 * shown * ACROSS * DOWN * size <= MOST_PIXELS else 1
    across = int(np.clip(MOST_PIXELS // max(1, 2 * shown * down * size), 1, ACROSS))
    cards = []
    for label in range(shown):
        grids = []
        for name, images in (("real", real), ("synthetic", synthetic)):
            grid = sample_grid(images, label, across=across, down=down)
            share = percent(float((images.y == label).mean()))
            address = data_address(grid) if grid is not None else ""
            grids.append({"name": name, "share": share, "address": address})
        cards.append({"label": label, "grids": grids})
    return {"cards": cards, "hidden": classes - shown}
