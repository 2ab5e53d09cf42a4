"""`populace evaluate`: the quality of synthetic rows, measured against real ones."""

from __future__ import annotations

from pathlib import Path

import typer

from populace.cli import completion
from populace.cli.sources import KINDS, QUERY, TABLE
from populace.types import JsonObject

EXAMPLE = "Example:  populace evaluate run --real adult_test.parquet --target income"


def command(
    runs: list[Path] = typer.Argument(
        help="Folders of finished runs; what is written goes into the first.", autocompletion=completion.runs
    ),
    real: list[str] = typer.Option(
        ..., "--real", help=f"Real rows: {KINDS}; again for each further one. For images .npz."
    ),
    target: str | None = typer.Option(None, "--target", help="The column to predict."),
    table: str | None = TABLE,
    query: str | None = QUERY,
    as_json: bool = typer.Option(False, "--json", help="Print the metrics as JSON."),
) -> None:
    """Write metrics.json and report.html. Computed on real rows without noise: keep them with the data.

    Several runs make one page that compares them, comparison.html (and comparison.json); their own reports stay as they are.
    """
    from populace.border.databases.address import locate
    from populace.cli import show
    from populace.report.page import evaluate_runs

    against = locate(real, table=table, query=query)
    with show.progress("evaluate") as report:
        documents = evaluate_runs(list(runs), against, target=target, doing=report.doing)
    if as_json:
        show.say_json(documents[0] if len(documents) == 1 else documents)
        return
    for document in documents:
        for line in _flags(document):
            show.say(line)
    first = documents[0]
    for number, document in enumerate(documents):
        header, rows, reasons = _table(document, first if number else None)
        show.table(header, rows, title=f"{document['run']}: {document['privacy']}")
        for mark, reason in enumerate(reasons, 1):
            show.say(f"{_mark(mark)} left out: {reason}")
        show.say("")
    show.say("95 % intervals and everything else:")
    written = ("metrics.json", "report.html") if len(runs) == 1 else ("comparison.json", "comparison.html")
    show.say("\n".join(str(runs[0] / name) for name in written))


def _flags(document: JsonObject) -> list[str]:
    """Red flags of a run of tables, one line per column, worst first; or that there are none."""
    lines = document.get("red_flags_in_words")
    if lines is None:
        return []
    smaller = len(document.get("smaller_findings", ()))
    more = [f"  {smaller} smaller finding{'s' if smaller > 1 else ''} in the report"] if smaller else []
    if not lines:
        return [f"{document['run']}: no red flags", *more, ""]
    return [
        f"{document['run']}: {len(lines)} RED FLAG{'S' if len(lines) > 1 else ''}",
        *(f"  ! {line}" for line in lines),
        *more,
        "",
    ]


def _table(document: JsonObject, shown: JsonObject | None) -> tuple[list[str], list[list[str]], list[str]]:
    """Every metric beside its baselines; of a further run its own figures only, the baselines being the same.

    What is left out is a dash with the number of its reason.
    """
    names = ["synthetic", *document["baselines"]] if shown is None else ["synthetic"]
    reasons: list[str] = []
    rows = []
    for metric in document["metrics"].values():
        cells = []
        for name in names:
            value = metric["values"][name]
            if "value" in value:
                cells.append(f"{value['value']:.4f}")
                continue
            if value["left_out"] not in reasons:
                reasons.append(value["left_out"])
            cells.append(f"–{_mark(reasons.index(value['left_out']) + 1)}")
        rows.append([metric["title"].split(", mean")[0], *cells])
    return ["metric", *(_short(name) for name in names)], rows, reasons


def _mark(number: int) -> str:
    return "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(number))


def _short(name: str) -> str:
    return {"product of the true one-way tables": "product of 1-way", "real table, columns shuffled": "shuffled"}.get(
        name, name
    )
