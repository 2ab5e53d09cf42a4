"""A rehearsal in words for a terminal, and as one self-contained page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from populace.papers.rehearsal import METRICS, PAGE, REAL, SHUFFLED
from populace.privacy.guarantee import TRUSTS
from populace.report.figures import interval_text, rows_of_dots
from populace.report.templating import environment
from populace.tables.files import write_text
from populace.types import JsonObject
from populace.version import __version__

DIGITS = 3


def groups(document: JsonObject) -> list[JsonObject]:
    """Candidates by guarantee (trust and unit), the baselines above each; guarantees never share a table."""
    rows: list[JsonObject] = document["candidates"]
    beside = [row for row in rows if row["candidate"] in (REAL, SHUFFLED)]
    found: dict[tuple[str, str], list[JsonObject]] = {}
    for row in rows:
        if row not in beside and "trust" in row:
            found.setdefault((row["trust"], row["unit"]), []).append(row)
    shown = _metrics(rows)
    header = ["candidate", "guarantee", *(METRICS[key][0] for key in shown), "seconds"]
    return [
        {
            "trust": trust, "unit": unit, "said": TRUSTS[trust], "header": header,
            "rows": [_row(row, shown) for row in (*beside, *members)], "charts": charts(beside, members),
            "short_header": [header[0], *header[2:-1], "time"],
            "short_rows": [_short_row(row, shown) for row in (*beside, *members)],
            "guarantees": _guarantees(members), "differences": _differences(members, shown),
        }
        for (trust, unit), members in found.items()
    ]  # fmt: skip


def refused(document: JsonObject) -> list[str]:
    """Candidates that could not be run, or not in every draw, each with its reason."""
    return [f"{row['candidate']}: {row['refused']}" for row in document["candidates"] if "refused" in row]


def _metrics(rows: Sequence[JsonObject]) -> list[str]:
    return [key for key in METRICS if any(key in row["metrics"] for row in rows)]


def _row(row: JsonObject, shown: Sequence[str]) -> list[str]:
    seconds = f"{row['seconds']:.1f}" if "seconds" in row else "-"
    figures = [interval_text(row["metrics"][key], DIGITS) if key in row["metrics"] else "-" for key in shown]
    return [row["candidate"], row.get("guarantee", "-"), *figures, seconds]


def _short_row(row: JsonObject, shown: Sequence[str]) -> list[str]:
    """A row for a terminal of 80 columns: intervals in brackets, no zero before a point, no guarantee."""
    figures = [_short_interval(row["metrics"][key]) if key in row["metrics"] else "-" for key in shown]
    seconds = row.get("seconds")
    return [row["candidate"], *figures, "-" if seconds is None else f"{seconds:.{0 if seconds >= 99.95 else 1}f} s"]


def _short_interval(figure: JsonObject) -> str:
    if "value" not in figure:
        return "-"
    said = [
        re.sub(r"^(-?)0\.", r"\1.", f"{figure[key]:.{DIGITS}f}") for key in ("value", "low", "high") if key in figure
    ]
    return said[0] if len(said) < 3 else f"{said[0]} ({said[1]}, {said[2]})"


def _differences(members: Sequence[JsonObject], shown: Sequence[str]) -> JsonObject | None:
    """Candidates less the first one, draw by draw; None where there is nothing to compare."""
    compared = [row for row in members if row.get("differences")]
    if not compared:
        return None
    keys = [key for key in shown if any(key in row["differences"] for row in compared)]
    return {
        "first": compared[0]["compared_to"], "header": ["candidate", *(METRICS[key][0] for key in keys)],
        "rows": [
            [row["candidate"], *(_signed(row["differences"].get(key, {})) for key in keys)] for row in compared
        ],
        "better": "; ".join(f"a {METRICS[key][1]} {METRICS[key][0]}" for key in keys),
    }  # fmt: skip


def _signed(figure: JsonObject) -> str:
    """A difference with its sign, and its interval in brackets where there is one."""
    said = [
        re.sub(r"^([-+])0\.", r"\1.", f"{figure[key]:+.{DIGITS}f}") for key in ("value", "low", "high") if key in figure
    ]
    return "-" if not said else said[0] if len(said) < 3 else f"{said[0]} ({said[1]}, {said[2]})"


def intervals_in_words(document: JsonObject) -> str:
    """Over what the figures are means, and what the brackets hold."""
    if document["draws"] == 1:
        return "one draw: no interval, and chance may have made the order; --draws 5 tells"
    return f"mean over {document['draws']} draws (95 % interval of Student's t over draws)"


def _guarantees(members: Sequence[JsonObject]) -> str:
    """The guarantee of all candidates, or each one's where they differ."""
    if len({row["guarantee"] for row in members}) == 1:
        return str(members[0]["guarantee"])
    return ", ".join(f"{row['candidate']} {row['guarantee']}" for row in members)


def charts(beside: Sequence[JsonObject], members: Sequence[JsonObject]) -> list[JsonObject]:
    """One picture for each metric: a dot with its interval for every candidate, and the baselines across."""
    kinds = {REAL: "real", SHUFFLED: "product"}
    found = []
    for key in _metrics(members):
        name, better = METRICS[key]
        values = {row["candidate"]: row["metrics"][key] for row in members if key in row["metrics"]}
        lines = {
            kinds[row["candidate"]]: (row["candidate"], row["metrics"][key]) for row in beside if key in row["metrics"]
        }
        chart = rows_of_dots(values, lines, from_zero=better == "lower", label=name)
        found.append({"name": name, "better": better, "chart": chart})
    return found


def title_of(document: JsonObject) -> str:
    clients, records = document["clients"], document["records_per_client"]
    return (
        f"Rehearsal on {document['on']} rows: {clients:,} clients with {records:,} record{'s' * (records != 1)} each, "
        f"{document['columns']} columns, epsilon {document['epsilon']:g}"
    )


def write_page(document: JsonObject, folder: Path) -> Path:
    """The page of a rehearsal, beside its document."""
    page = environment().get_template("rehearsal.html").render(
        title=title_of(document), document=document, groups=groups(document),
        refused=refused(document), intervals=intervals_in_words(document), version=__version__,
    )  # fmt: skip
    path = folder / PAGE
    write_text(path, page)
    return path
