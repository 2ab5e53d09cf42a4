"""One self-contained HTML page per run, and one for several runs together."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from populace.border.models import interpreting
from populace.errors import DataError, InputError, PopulaceError
from populace.evaluation.baselines import SYNTHETIC
from populace.evaluation.evaluate import evaluate_read, evaluate_tables
from populace.evaluation.traffic import cost
from populace.methods.registry import load_generator
from populace.report import attack_results, comparison, figure_data, pictures, sections, tiles, value_sections
from populace.report.attack_results import real_options
from populace.report.plain_language import in_plain_language
from populace.report.statement import PAGE, todays_words, write_statement
from populace.report.summary import figures_of_table, statement_beside, summary_of
from populace.report.templating import environment
from populace.runs.folder import RunFolder
from populace.runs.given import open_data, read_frames, read_given
from populace.runs.named import Files, files_of
from populace.runs.run import Run
from populace.tables.coded import compact
from populace.tables.files import read_json, write_json, write_text
from populace.tables.images import Images
from populace.tables.schema import Schema, schema_from_dict
from populace.tables.table import Table, make_table, read_frame, resolve_schema
from populace.tables.widening import widened
from populace.types import Doing, JsonObject

TITLE = "Quality of the synthetic rows"
COMPARISON = "comparison.html"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Metrics of synthetic rows, or images, against real ones, and the page that shows them."""

    metrics: JsonObject
    render: Callable[[Path | None], str] = dataclasses.field(repr=False)  # for the place where the page will lie

    def save(self, path: str | Path) -> None:
        """Write the page, one self-contained HTML file. Computed on real rows without noise: keep it with the data."""
        if not isinstance(path, str | Path):
            raise InputError(f"expected the path of an HTML file, got {path!r}")
        write_text(Path(path), self.render(Path(path)))


def evaluate(what: object, *, real: object, target: str | None = None, seed: int = 0) -> Evaluation:
    """Compare a run, or synthetic rows, with real ones: tables of any kind, files, a Table or Images.

    A run is judged by the rows in its folder, and its page has the privacy statement; one that was simulated in memory by as
    many rows as there are real ones. Under different schemas rows compare by the columns that the synthetic ones have.

    Args:
        what: a run, or synthetic rows.
        real: real rows; a list of tables is taken as one.
        target: the column to predict.
        seed: for rows drawn from a run in memory.
    """
    opened = open_data(real) if not isinstance(real, list | tuple) else read_given(real).data
    if isinstance(what, Run) and what.folder is not None:
        return _evaluated_run(what.folder, opened, target, name="run" if what.temporary else what.folder.name)
    synthetic = read_given(what.sample(len(opened), seed=seed) if isinstance(what, Run) else what).data
    if isinstance(synthetic, Images) or isinstance(opened, Images):
        raise InputError("images are evaluated as a run with a folder: give one that was synthesized, saved or loaded")
    table = opened if isinstance(opened, Table) else make_table(opened, resolve_schema(opened, None))
    return _evaluated_tables(synthetic, table, target=target, seed=seed)


def _evaluated_tables(synthetic: Table, real: Table, *, target: str | None, seed: int) -> Evaluation:
    """Two tables alone: a page without the sections that need a run."""
    if real.schema != synthetic.schema:
        schema = widened(synthetic.schema, synthetic.frame, real.frame)
        synthetic, real = make_table(synthetic.frame, schema), make_table(real.frame, schema)
    found = evaluate_tables({SYNTHETIC: synthetic}, real, target=target, seed=seed)[SYNTHETIC]
    run = {"name": SYNTHETIC, "metrics": found.document, "pairs": found.pairs, "values": found.values}
    return Evaluation(metrics=found.document, render=lambda page: render_run(TITLE, run, real.schema, page=page))


def _evaluated_run(path: Path, real: pa.Table | Table | Images, target: str | None, *, name: str) -> Evaluation:
    """A run by the rows, or images, in its folder."""
    run = _open(RunFolder(path), name)
    if (run["kind"] == "images") != isinstance(real, Images):
        made, other = ("images", "a table") if run["kind"] == "images" else ("a table", "images")
        raise InputError(f"the run made {made}, and the real data are {other}")
    if isinstance(real, Images):
        document, render = pictures.evaluate_run(run, real, environment())
        return Evaluation(metrics=document, render=render)
    frame = real.frame if isinstance(real, Table) else real
    _measure([run], lambda: frame, target)
    return Evaluation(metrics=run["metrics"], render=lambda page: render_run(_title(run), run, run["wide"], page=page))


def evaluate_runs(
    folders: Sequence[Path], real: Files, *, target: str | None = None, doing: Doing = lambda _: None
) -> list[JsonObject]:
    """metrics.json and report.html of one run; of several comparison.json and comparison.html, which compare them.

    They go into the first run's folder, whose own report stays as it is. `real` is a file of real rows, or several. Runs under
    the same schema share the baselines. Returns one document per run.
    """
    doing("reading rows")
    files = files_of(real)
    runs = [_open(RunFolder(path), name) for path, name in zip(folders, _names(folders), strict=True)]
    if not (RunFolder(folders[0]) / PAGE).is_file():
        write_statement(folders[0])
    if any(run["kind"] == "images" for run in runs):
        if len(files) > 1:
            raise InputError("images are evaluated against one file of real ones; give --real once")
        return pictures.evaluate_runs(runs, files[0], environment(), doing)
    _measure(runs, lambda: read_frames(files), target, doing)
    again = ["populace", "evaluate", *(str(path) for path in folders), *real_options(files)]
    again += ["--target", target] if target else []
    doing("writing the report")
    documents = [run["metrics"] for run in runs]
    first = RunFolder(folders[0])
    if len(runs) == 1:
        place = first / pictures.REPORT
        page = render_run(
            _title(runs[0]), runs[0], runs[0]["wide"], evaluated_by=shlex.join(again), real=files, page=place
        )
        write_json(first / "metrics.json", documents[0])
    else:
        place = first / COMPARISON
        page = render_comparison(runs, runs[0]["wide"], evaluated_by=shlex.join(again), page=place)
        write_json(place.with_suffix(".json"), {"format": 3, "runs": documents})
    write_text(place, page)
    return documents


def _measure(
    runs: Sequence[JsonObject], read: Callable[[], pa.Table], target: str | None, doing: Doing = lambda _: None
) -> None:
    """Metrics, figures and the schema they were computed under, into each run of tables; `read` gives the real rows."""
    schemas = {run["schema"].digest: run["schema"] for run in runs}
    if len({schema.names for schema in schemas.values()}) > 1:
        raise DataError("the runs have different columns, so they do not compare; evaluate them one by one")
    for digest, schema in schemas.items():
        own = [run for run in runs if run["schema"].digest == digest]
        found = evaluate_read(functools.partial(_encoded, own, read, schema), target=target, doing=doing)
        for run in own:
            evaluated = found[run["name"]]
            said = {"run": run["name"], "method": run["details"]["method"], "privacy": run["privacy"]["headline"]}
            run["metrics"] = said | evaluated.document | {"cost": cost(run["details"], schema.sizes)}
            run["pairs"], run["values"], run["wide"] = evaluated.pairs, evaluated.values, evaluated.schema


def _encoded(
    runs: Sequence[JsonObject], read: Callable[[], pa.Table], schema: Schema
) -> tuple[dict[str, Table], Table]:
    """The synthetic rows by run, and the real ones, under a schema widened so that none is refused for what it lacks.

    What stood in the files is let go as soon as it is encoded: of large tables two copies are one too many.
    """
    frame = read()
    wide = widened(schema, frame, *(run["frame"] for run in runs))
    synthetic = {run["name"]: compact(make_table(run.pop("frame"), wide)) for run in runs}
    real = compact(make_table(frame, wide))
    del frame
    pa.default_memory_pool().release_unused()
    return synthetic, real


def _title(run: JsonObject) -> str:
    return f"{run['name']}: synthetic data by {run['details']['method']}"


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' names, or their whole paths where two have the same."""
    names = [RunFolder(path).path.resolve().name for path in folders]
    chosen = names if len(set(names)) == len(names) else [str(path) for path in folders]
    if len(set(chosen)) != len(chosen):
        raise DataError(f"the run {next(n for n in chosen if chosen.count(n) > 1)} is named twice; name each once")
    return chosen


def _open(folder: RunFolder, name: str) -> JsonObject:
    """A finished run's documents, its synthetic rows, and its generator where it can be read."""
    details = folder.document()
    with interpreting(str(folder / "run.json")):
        command = details.get("command") or sections.command_of(details["spec"])
    run: JsonObject = {
        "name": name,
        "folder": folder,
        "details": details,
        "privacy": _privacy(folder),
        "command": command,
        "audit": attack_results.read_audit(folder / "audit.json"),
        "attacks": attack_results.read_attacks(folder / "attacks.json"),
        "kind": "images" if (folder / "synthetic.npz").is_file() else "table",
    }
    if run["kind"] == "table":
        run["schema"] = read_table_schema(folder)
        run["frame"] = read_frame(folder / "synthetic.parquet")
        try:
            run["generator"] = load_generator(folder.path)
        except PopulaceError:  # synthetic rows are enough; only the method's own standard errors come from it
            run["generator"] = None
    return run


def read_table_schema(folder: RunFolder) -> Schema:
    document = read_json(folder / "generator.json")
    with interpreting(str(folder / "generator.json")):
        return schema_from_dict(document["schema"])


def _privacy(folder: RunFolder) -> JsonObject:
    document = folder.privacy()
    with interpreting(str(folder / "privacy.json")):
        return todays_words(document)


def render_run(
    title: str,
    run: JsonObject,
    schema: Schema,
    *,
    evaluated_by: str = "",
    real: Files = "FILE",
    page: Path | None = None,
) -> str:
    """The page of one run, or of two tables alone (a run without details).

    `schema` is the one they were compared under, `page` where the page will lie: it leads to the statement from there.
    """
    document = run["metrics"]
    declared = run.get("schema", schema)
    target = document["prediction"].get("target")
    privacy, shown = run.get("privacy"), tiles.make_tiles(run)
    return environment().get_template("run.html").render(
        title=title, run=run, document=document, plain=in_plain_language(privacy) if privacy else None, privacy=privacy,
        page=statement_beside(run, page), data=figure_data.downloads(run, schema),
        summary=summary_of(run, figures_of_table(shown, document["red_flags_in_words"])),
        tiles=shown, flags=value_sections.flag_box(document), values=value_sections.value_table(document),
        correlations=value_sections.correlation_maps(run["values"]), group_means=value_sections.group_table(document),
        table=sections.metric_table(document), width_chart=sections.width_chart(document),
        columns=sections.column_cards(run, schema), overview=sections.pair_overview(run, schema),
        pair_cards=sections.pair_cards(run, schema, target) if len(schema.columns) > 1 else [],
        prediction=sections.prediction_parts(document), domains=sections.domain_table(declared), schema=declared,
        audit=run.get("audit"), attacks=run.get("attacks"), how=attack_results.commands(run, real),
        in_bytes=tiles.in_bytes, evaluated_by=evaluated_by, details=run.get("details"),
    )  # fmt: skip


def render_comparison(
    runs: Sequence[JsonObject], schema: Schema, *, evaluated_by: str, page: Path | None = None
) -> str:
    return environment().get_template("comparison.html").render(
        title=f"{len(runs)} runs compared", runs=runs, groups=comparison.groups(runs), charts=comparison.charts(runs),
        seeds=comparison.repeated_seeds(runs), columns=comparison.column_table(runs, schema),
        flags={run["name"]: value_sections.flag_box(run["metrics"]) for run in runs}, values=comparison.value_table(runs),
        gaps=comparison.gap_maps(runs, schema), plain={run["name"]: in_plain_language(run["privacy"]) for run in runs},
        table={run["name"]: sections.metric_table(run["metrics"]) for run in runs}, evaluated_by=evaluated_by,
        first=runs[0]["metrics"], in_bytes=tiles.in_bytes, data={"metrics": figure_data.metric_download(runs)},
        pages={run["name"]: statement_beside(run, page) for run in runs},
        how={run["name"]: attack_results.commands(run, "FILE") for run in runs},
    )  # fmt: skip
