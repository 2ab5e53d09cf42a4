"""The numbers behind a page's figures as CSV, inside the page: a link that saves them, without a server or a script."""

from __future__ import annotations

import base64
import csv
import dataclasses
import io
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from populace.evaluation.baselines import ABOUT, SYNTHETIC
from populace.evaluation.histograms import histogram
from populace.evaluation.marginals import association
from populace.evaluation.value_text import value_text
from populace.report.sections import shares
from populace.tables.schema import Schema
from populace.types import JsonObject

MOST_ROWS = 5_000  # of one file: browsers save addresses of up to two million characters


@dataclasses.dataclass(frozen=True, kw_only=True)
class Download:
    """A file inside the page: its name, its address (data:), and what was left out of it."""

    name: str
    address: str
    rows: int
    left_out: int


def downloads(run: JsonObject, schema: Schema) -> dict[str, Download]:
    """The data of every figure of a run's page, by section."""
    found = {
        "values": _download("values.csv", _value_rows(run["metrics"])),
        "metrics": metric_download([run]),
        "columns": _download("columns.csv", _column_rows(run, schema)),
    }
    if len(schema.columns) > 1:
        found["pairs"] = _download("pairs.csv", _pair_rows(run, schema))
    return found


def metric_download(runs: Sequence[JsonObject]) -> Download:
    """Every metric of one run or several, beside its baselines, with intervals."""
    return _download("metrics.csv", _metric_rows(runs))


def _download(name: str, rows: Iterable[Sequence[object]]) -> Download:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    header, *lines = rows
    writer.writerow(header)
    writer.writerows([[_cell(value) for value in line] for line in lines[:MOST_ROWS]])
    encoded = base64.b64encode(text.getvalue().encode()).decode()
    return Download(
        name=name, address=f"data:text/csv;charset=utf-8;base64,{encoded}", rows=min(len(lines), MOST_ROWS),
        left_out=max(0, len(lines) - MOST_ROWS),
    )  # fmt: skip


def _cell(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else value


def _metric_rows(runs: Sequence[JsonObject]) -> Iterable[Sequence[object]]:
    yield "run", "metric", "better", "of", "value", "low", "high", "left_out"
    for run in runs:
        for metric in run["metrics"]["metrics"].values():
            for name in (SYNTHETIC, *ABOUT):
                v = metric["values"][name]
                numbers = (v.get("value"), v.get("low"), v.get("high"), v.get("left_out"))
                yield run["name"], metric["title"], metric["better"], name, *numbers


def _value_rows(document: JsonObject) -> Iterable[Sequence[object]]:
    """Each column of numbers, real, synthetic and of two halves of the real rows; dates are days since 1970."""
    columns, halves = document["values"]["columns"], document["values"]["halves"]
    quantiles = next((list(c["real"]["quantiles"]) for c in columns.values()), [])
    yield "column", "kind", "rows", "ks", "wasserstein", "mean", "sd", "missing", *(f"quantile {q}" for q in quantiles)
    for name, figures in columns.items():
        for who, side, distance in (
            ("real", figures["real"], None),
            ("synthetic", figures["synthetic"], figures),
            ("half of the real rows", halves[name]["real"], None),
            ("other half of the real rows", halves[name]["synthetic"], halves[name]),
        ):
            apart = (None, None) if distance is None else (distance["ks"], distance["wasserstein"])
            spread = (side["mean"], side["sd"], side["missing"], *side["quantiles"].values())
            yield name, figures["kind"], who, *apart, *spread


def _column_rows(run: JsonObject, schema: Schema) -> Iterable[Sequence[object]]:
    """The share of rows by value, or by bin from one value to another, of every column."""
    yield "column", "value", "from", "to", "real", "synthetic"
    numbers = {column.name: column for column in run["values"].columns}
    for column, (real, synthetic) in zip(schema.columns, shares(run["pairs"]), strict=True):
        own = numbers.get(column.name)
        if own is None or not column.is_scale:
            for label, *both in zip(column.labels(), real, synthetic, strict=True):
                yield column.name, label, "", "", *(float(share) for share in both)
            continue
        drawn = histogram(own)
        for value, *both in drawn.spikes:
            yield column.name, value_text(drawn.kind, value), "", "", *both
        yield column.name, "no value", "", "", *drawn.missing
        edges = [value_text(drawn.kind, float(edge)) for edge in drawn.edges]
        if edges:
            yield column.name, "below", "", edges[0], *drawn.below
        for (low, high), *both in zip(itertools.pairwise(edges), *drawn.shares, strict=True):
            yield column.name, "", low, high, *(float(share) for share in both)
        yield column.name, "above", edges[-1] if edges else "", "", *drawn.above


def _pair_rows(run: JsonObject, schema: Schema) -> Iterable[Sequence[object]]:
    """Dependence of each pair, real and synthetic, and the distance of its tables; those that differ most first."""
    yield "first", "second", "dependence, real", "dependence, synthetic", "distance"
    pairs = run["pairs"]
    real, own = association(pairs.real, pairs.sizes), association(pairs.synthetic, pairs.sizes)
    off = pairs.distances()
    first, second = np.triu_indices(len(schema.columns), 1)
    for i, j in sorted(zip(first, second, strict=True), key=lambda pair: -off[pair]):
        yield schema.names[i], schema.names[j], float(real[i, j]), float(own[i, j]), float(off[i, j])
