"""What each part of a run's page shows, from its documents and tables."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from populace.evaluation.baselines import ABOUT, MAJORITY, PRODUCT, REAL, SHUFFLED, SYNTHETIC
from populace.evaluation.histograms import histogram
from populace.evaluation.marginals import Pairs, association
from populace.evaluation.prediction_figures import CLASS_SCORES, NUMBER, NUMBER_SCORES
from populace.evaluation.value_text import value_text
from populace.methods.registry import METHODS, protocol_class
from populace.report import figures, maps, value_sections
from populace.report.svg import percent
from populace.report.tiles import CLASSES
from populace.report.value_charts import STEPS, value_chart
from populace.runs.named import files_of, kind_of
from populace.runs.spec import FORMER_DEFAULTS
from populace.tables.columns import Column
from populace.tables.schema import Schema
from populace.tables.universal import is_open
from populace.types import JsonObject, NumpyArray

FIRST_COLUMNS = 30
PAIRS_OF_EACH_SORT = 3
DOMAINS = {
    "declared": "declared", "public-data": "from public data", "read-from-data": "read from the data",
    "released": "found in lists with noise",
}  # fmt: skip
SCORES_IN_WORDS = {
    "auc": "how well the model ranks; 0.5 a coin, 1 perfect",
    "accuracy": "share of rows predicted right",
    "r2": "share of the variance that is predicted; 0 no better than the mean, 1 perfect",
}
FLAGS = (
    ("method", "--method"), ("epsilon", "--epsilon"), ("delta", "--delta"), ("schema_file", "--schema"),
    ("target", "--target"), ("trust", "--trust"), ("client_column", "--client-column"),
    ("most_records", "--most-records"), ("person", "--person"), ("rows", "--rows"), ("seed", "--seed"),
)  # fmt: skip
MEMORY = "memory:"  # rows that stand in no file


def command_of(spec: JsonObject) -> str:
    """The command that makes this run again; of rows that were given in Python the call."""
    files, method = files_of(spec["data"]), spec.get("method") or FORMER_DEFAULTS[kind_of(spec["data"])]
    spec = {**spec, "method": method}
    if files[0].startswith(MEMORY):
        named = [f"{name}={spec[name]!r}" for name, _ in FLAGS if spec.get(name) is not None]
        return f"populace.synthesize(data, {', '.join(named)}, settings={spec.get('settings') or {}})"
    words = ["populace", "synthesize", *files]
    for field, flag in FLAGS:
        if spec.get(field) is not None:
            words += [flag, str(spec[field])]
    if spec.get("silos") is None and spec.get("client_column") is None and not _is_usual(spec, method):
        words += ["--records-per-client", str(spec["records_per_client"])]
    for name, value in spec.get("settings", {}).items():
        words += ["--set", f"{name}={value}"]
    return shlex.join([*words, "--out", "RUN"])


def _is_usual(spec: JsonObject, method: str) -> bool:
    """Whether rows are dealt out as without an option: one to each client, under a method that protects clients."""
    protects_clients = method not in METHODS or protocol_class(method).facts.unit == "client"
    return int(spec.get("records_per_client", 1)) == 1 and protects_clients


def metric_table(document: JsonObject) -> JsonObject:
    """Every metric beside every baseline; a figure that is missing has its number in the list of reasons below the table."""
    reasons: list[str] = []
    rows = []
    for metric in document["metrics"].values():
        cells = []
        for name in (SYNTHETIC, *ABOUT):
            value = metric["values"][name]
            if "value" in value:
                cells.append({"value": f"{value['value']:.3f}", "interval": _interval(value), "note": ""})
                continue
            if value["left_out"] not in reasons:
                reasons.append(value["left_out"])
            cells.append({"value": "–", "interval": "", "note": str(reasons.index(value["left_out"]) + 1)})
        rows.append({"title": metric["title"], "better": metric["better"], "cells": cells})
    return {"header": ["synthetic", *ABOUT], "rows": rows, "reasons": reasons}


def _interval(value: JsonObject) -> str:
    if "low" not in value:
        why = str(value.get("why", ""))
        return "by definition" if "by definition" in why or "by construction" in why else why or "no interval"
    return f"{value['low']:.3f} to {value['high']:.3f}"


def width_chart(document: JsonObject) -> Markup:
    """AVD against the number of columns, with baselines."""
    lines: dict[str, JsonObject] = {}
    for name in (SYNTHETIC, REAL, PRODUCT, SHUFFLED):
        found = {key.removeprefix("avd_"): m["values"][name] for key, m in document["metrics"].items() if "avd_" in key}
        lines[name] = found
    return figures.line_chart(lines, CLASSES, across="columns at a time")


def shares(pairs: Pairs) -> list[tuple[NumpyArray, NumpyArray]]:
    """The one-way marginal of each column, real and synthetic."""
    return [(np.diag(pairs.real)[part], np.diag(pairs.synthetic)[part]) for part in pairs.parts]


def deviations(generator: object, columns: Sequence[int], sizes: Sequence[int]) -> NumpyArray | None:
    """The method's own standard errors of a table of these columns, where it has them."""
    stated = getattr(generator, "deviations", None)
    found = stated(tuple(columns)) if stated is not None else None
    if found is None:
        return None
    table = np.asarray(found, np.float64)
    return table if table.shape == tuple(sizes[c] for c in columns) and np.isfinite(table).all() else None


def column_cards(run: JsonObject, schema: Schema) -> JsonObject:
    """A chart per column: all of them; of very many, those with the largest distance first and the rest folded."""
    one_way = run["metrics"]["one_way"]
    numbers = {column.name: column for column in run["values"].columns}
    cards = []
    for index, (column, (real, synthetic)) in enumerate(zip(schema.columns, shares(run["pairs"]), strict=True)):
        low, high = one_way["interval"][column.name]
        errors = deviations(run.get("generator"), (index,), schema.sizes)
        own = numbers.get(column.name)
        binned = histogram(own) if own is not None and column.is_scale else None
        off = one_way["tvd"][column.name]
        words = f"{percent(off)} of rows off ({percent(low)} to {percent(high)})"
        drawn = figures.category_chart(column, real, synthetic, errors) if binned is None else value_chart(binned)
        cards.append(
            {
                "name": column.name,
                "kind": column.kind + (", domain read from the data" if column.domain == "read-from-data" else ""),
                "off": off if own is None else max(off, own.ks),
                "words": value_sections.card_words(run["metrics"], column.name, words),
                "chart": drawn,
                "steps": "" if binned is None else STEPS[binned.steps],
            }
        )
    if len(cards) > FIRST_COLUMNS:
        cards.sort(key=lambda card: -card["off"])
    whiskers = run.get("generator") is not None and deviations(run["generator"], (0,), schema.sizes) is not None
    return {"first": cards[:FIRST_COLUMNS], "rest": cards[FIRST_COLUMNS:], "whiskers": whiskers}


def pair_overview(run: JsonObject, schema: Schema) -> list[JsonObject]:
    """Strength of dependence of all pairs: real, synthetic, difference; and the distance of their tables."""
    pairs = run["pairs"]
    if len(schema.columns) < 2:
        return []
    real, synthetic = association(pairs.real, pairs.sizes), association(pairs.synthetic, pairs.sizes)
    off = pairs.distances()
    gap = float(np.abs(synthetic - real).max()) or 1.0
    names = schema.names
    return [
        _overview("real", "Dependence in the real rows", real, names, 1.0),
        _overview("synthetic", "Dependence in the synthetic rows", synthetic, names, 1.0),
        _overview("difference", "Synthetic minus real", synthetic - real, names, gap, signed=True),
        _overview("distance", "Distance of the pairwise marginals", off, names, float(off.max()) or 1.0),
    ]


def _overview(
    key: str, name: str, matrix: NumpyArray, names: Sequence[str], most: float, *, signed: bool = False
) -> JsonObject:
    drawn = maps.column_map(matrix, names, most=most, signed=signed, what=f"{name}, all pairs of columns")
    order = "columns in the order of the schema, the first at the top left" if len(names) > maps.MOST_DRAWN else ""
    return {"key": key, "name": name, "chart": drawn, "most": f"{most:.2g}", "signed": signed, "order": order}


def pair_cards(run: JsonObject, schema: Schema, target: str | None) -> list[JsonObject]:
    """Joint tables of the pairs with the strongest dependence, with the largest distance, and with the target."""
    pairs = run["pairs"]
    strength, off = association(pairs.real, pairs.sizes), pairs.distances()
    everyone = list(itertools.combinations(range(len(schema.columns)), 2))
    sorts = [
        ("strongest dependence in the real rows", sorted(everyone, key=lambda p: -strength[p])),
        ("largest distance", sorted(everyone, key=lambda p: -off[p])),
    ]
    if target is not None:
        at = schema.index(target)
        with_target = [pair for pair in everyone if at in pair]
        sorts.insert(0, (f"with {target}", sorted(with_target, key=lambda p: -strength[p])))
    chosen: dict[tuple[int, int], str] = {}
    for why, ordered in sorts:
        fresh = [pair for pair in ordered if pair not in chosen][:PAIRS_OF_EACH_SORT]
        chosen |= dict.fromkeys(fresh, why)
    return [_pair_card(run, schema, pair, why, float(off[pair])) for pair, why in chosen.items()]


def _pair_card(run: JsonObject, schema: Schema, pair: tuple[int, int], why: str, distance: float) -> JsonObject:
    pairs = run["pairs"]
    i, j = pair if schema.sizes[pair[0]] >= schema.sizes[pair[1]] else pair[::-1]  # the longer domain downwards
    parts = pairs.parts
    real, synthetic = pairs.real[parts[i], parts[j]], pairs.synthetic[parts[i], parts[j]]
    down, rows = maps.most_frequent(schema.columns[i], real.sum(axis=1))
    across, columns = maps.most_frequent(schema.columns[j], real.sum(axis=0))
    inside = np.ix_(down, across)
    errors = deviations(run.get("generator"), (i, j), schema.sizes)
    most = max(float(real[inside].max()), float(synthetic[inside].max())) or 1.0
    gap = (synthetic - real)[inside]
    widest = float(np.abs(gap).max()) or 1.0
    shown_errors = None if errors is None else errors[inside]
    marked = None if shown_errors is None else np.abs(gap) > 2 * shown_errors
    first, second = schema.names[i], schema.names[j]
    charts = [
        ("real", maps.pair_map(real[inside], rows, columns, most=most, signed=False, what=f"{first} and {second}, real")),
        (
            "synthetic",
            maps.pair_map(
                synthetic[inside], rows, columns, most=most, signed=False, what=f"{first} and {second}, synthetic",
                errors=shown_errors,
            ),
        ),
        (
            "difference",
            maps.pair_map(
                gap, rows, columns, most=widest, signed=True, what=f"{first} and {second}, synthetic minus real",
                marked=marked, errors=shown_errors,
            ),
        ),
    ]  # fmt: skip
    note = ""
    if shown_errors is not None and marked is not None:
        charts.append(
            (
                "standard error",
                maps.pair_map(
                    shown_errors, rows, columns, most=max(widest, float(shown_errors.max())), signed=False,
                    what=f"{first} and {second}, standard error",
                ),
            )
        )  # fmt: skip
        note = (
            f"The method states a standard error for each cell (at most {percent(float(shown_errors.max()))}); framed: the "
            f"{int(marked.sum())} of {marked.size} cells that differ by more than two of them."
        )
    hidden = schema.sizes[i] * schema.sizes[j] - gap.size
    return {
        "name": f"{first} and {second}",
        "why": why,
        "words": f"{percent(distance)} of rows off",
        "charts": charts,
        "note": note,
        "hidden": f"{hidden} cells of rarer values are not shown" if hidden else "",
        "gap": percent(widest),
    }


def prediction_parts(document: JsonObject) -> JsonObject:
    """The table of models and what they were trained on, and two charts."""
    facts = document["prediction"]
    if "left_out" in facts:
        return {"left_out": facts["left_out"]}
    scores = NUMBER_SCORES if facts.get("task") == NUMBER else CLASS_SCORES
    charts = []
    for what, name in scores.items():
        values = {m: document["metrics"][f"{what}: {m}"]["values"] for m in facts["models"]}
        shown = [(m, {n: found[n] for n in (SYNTHETIC, REAL, MAJORITY)}) for m, found in values.items()]
        known = [v["value"] for _, found in shown for v in found.values() if "value" in v]
        charts.append((name, SCORES_IN_WORDS[what], figures.dot_chart(shown, CLASSES, _least(what, known))))
    rows = []
    for name in (SYNTHETIC, REAL, SHUFFLED, PRODUCT, MAJORITY):
        cells = []
        for what, model in itertools.product(scores, facts["models"]):
            value = document["metrics"][f"{what}: {model}"]["values"][name]
            figure = f"{value['value']:.3f}" if "value" in value else "–"
            cells.append({"value": figure, "interval": value.get("left_out") or _interval(value)})
        rows.append({"name": name, "cells": cells, "class": CLASSES[name]})
    header = [f"{name}, {model}" for name, model in itertools.product(scores.values(), facts["models"])]
    return {
        "facts": facts, "rows": rows, "charts": charts, "header": header, "shuffles": facts.get(SHUFFLED, ""),
        "classes": _class_rows(facts),
    }  # fmt: skip


def _class_rows(facts: JsonObject) -> list[JsonObject]:
    """The AUC of each class against the rest, from synthetic and from real rows, one after the other, by model."""
    own, real = (facts.get("by_class", {}).get(table, {}) for table in (SYNTHETIC, REAL))
    labels = list(dict.fromkeys(label for found in own.values() for label in found))
    return [
        {
            "name": label,
            "cells": [
                [f"{side[model][label]:.3f}" if label in side.get(model, {}) else "–" for side in (own, real)]
                for model in facts["models"]
            ],
        }
        for label in labels
    ]


def _least(what: str, known: Sequence[float]) -> float:
    """Where the axis of a score begins."""
    if what == "auc":
        return 0.5
    least = min(known, default=0.0)
    return float(np.floor(max(0.0, least - 0.02) * 20) / 20) if what == "accuracy" else (0.0 if least > -0.1 else -0.5)


def _known_how(column: Column) -> str:
    """Where a column's domain comes from, and who says so."""
    if is_open(column) and column.domain == "declared":
        return f"found by noisy counts on {column.source}"
    return DOMAINS[column.domain] + (f": {column.source}" if column.source else "")


def domain_table(schema: Schema) -> list[JsonObject]:
    """Each column's public domain, where it comes from and who says so."""
    rows = []
    for column in schema.columns:
        if column.is_scale:
            cells = column.cells
            ends = (value_text(column.kind, end) for end in (cells[0].low, cells[-1].high))
            values = f"{column.levels} cells from {' to '.join(ends)}"
            values += f", {len(column.spikes)} of them single values" if column.spikes else ""
        else:
            values = (
                f"{column.levels} values: " + ", ".join(column.categories[:4]) + (", …" if column.levels > 4 else "")
            )
        rows.append(
            {
                "name": column.name,
                "kind": column.kind,
                "values": values + (", or none" if column.nullable else ""),
                "domain": _known_how(column),
                "covered": column.domain != "read-from-data",
                "found": is_open(column),
            }
        )
    return rows
