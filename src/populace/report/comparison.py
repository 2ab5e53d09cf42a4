"""Several runs on one page. Guarantees of different unit, neighbours or trust never share a table."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from populace.evaluation.baselines import PRODUCT, REAL, SYNTHETIC
from populace.evaluation.estimate import over_seeds
from populace.evaluation.marginals import association
from populace.report import figures, maps
from populace.tables.schema import Schema
from populace.types import JsonObject

Run = JsonObject

COLUMNS = (
    ("ks_worst", "worst KS"), ("one_way", "one-way distance"), ("two_way", "two-way distance"),
    ("avd_4", "4-way AVD"), ("correlation_distance", "CMD"),
    ("auc: gradient boosting", "AUC, boosting"), ("auc: logistic regression", "AUC, logistic"),
    ("auc: random forest", "AUC, forest"), ("auc: MLP", "AUC, MLP"),
)  # fmt: skip
#: Where the target is a number.
OF_A_NUMBER = (
    ("r2: gradient boosting", "R², boosting"), ("r2: ridge regression", "R², ridge"), ("r2: random forest", "R², forest"),
    ("r2: MLP", "R², MLP"),
)  # fmt: skip


def shown_columns(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The figures that the runs have: AUC, or R^2 where the target is a number."""
    return [(key, name) for key, name in (*COLUMNS, *OF_A_NUMBER) if key in runs[0]["metrics"]["metrics"]]


def groups(runs: Sequence[Run]) -> list[JsonObject]:
    """Runs by what is protected, against what and who is trusted; within a group the best figure of a column is marked."""
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        kind = tuple(str(run["privacy"][f"{part}_in_words"]) for part in ("unit", "neighbours", "trust"))
        found.setdefault(kind, []).append(run)
    return [
        {
            "unit": unit, "neighbours": neighbours, "trust": trust, "header": [name for _, name in shown_columns(runs)],
            "rows": _rows(members),
        }
        for (unit, neighbours, trust), members in found.items()
    ]  # fmt: skip


def _rows(runs: Sequence[Run]) -> list[JsonObject]:
    best = {key: _best(runs, key) for key, _ in shown_columns(runs)}
    rows = []
    for run in runs:
        cells = []
        for key, _ in shown_columns(runs):
            value = run["metrics"]["metrics"][key]["values"][SYNTHETIC]
            cells.append(
                {
                    "value": f"{value['value']:.3f}" if "value" in value else "–",
                    "interval": f"{value['low']:.3f} to {value['high']:.3f}" if "low" in value else value.get("left_out", ""),
                    "best": len(runs) > 1 and "value" in value and value["value"] == best[key],
                }
            )  # fmt: skip
        rows.append({"run": run, "cells": cells})
    return rows


def _best(runs: Sequence[Run], key: str) -> float | None:
    values = [run["metrics"]["metrics"][key]["values"][SYNTHETIC].get("value") for run in runs]
    known = [value for value in values if value is not None]
    if not known:
        return None
    return float(max(known) if runs[0]["metrics"]["metrics"][key]["better"] == "higher" else min(known))


def charts(runs: Sequence[Run]) -> JsonObject:
    """AVD by number of columns for all runs, and dots with intervals for single figures."""
    first = runs[0]["metrics"]["metrics"]
    classes = {run["name"]: f"series-{i % figures.COLOURS + 1}" for i, run in enumerate(runs)}
    classes |= {REAL: "real", PRODUCT: "product"}
    lines = {run["name"]: _widths(run["metrics"]["metrics"], SYNTHETIC) for run in runs}
    lines |= {name: _widths(first, name) for name in (REAL, PRODUCT)}
    dots = [
        (metric["title"], _dots(runs, key, metric), metric["better"])
        for key, metric in first.items()
        if key in dict(shown_columns(runs))
        and any("value" in run["metrics"]["metrics"][key]["values"][SYNTHETIC] for run in runs)
    ]
    return {"lines": figures.line_chart(lines, classes, across="columns at a time"), "classes": classes, "dots": dots}


def _widths(metrics: JsonObject, name: str) -> JsonObject:
    return {key.removeprefix("avd_"): m["values"][name] for key, m in metrics.items() if key.startswith("avd_")}


def _dots(runs: Sequence[Run], key: str, metric: JsonObject) -> Markup:
    """One line per run, with real data and independent columns as upright lines."""
    values = {run["name"]: run["metrics"]["metrics"][key]["values"][SYNTHETIC] for run in runs}
    beside = {kind: (name, metric["values"][name]) for kind, name in (("real", REAL), ("product", PRODUCT))}
    return figures.rows_of_dots(values, beside, from_zero=metric["better"] == "lower", label=str(metric["title"]))


def repeated_seeds(runs: Sequence[Run]) -> list[JsonObject]:
    """Runs that differ in their seed alone, as one line each: mean and Student's interval over the seeds.

    A run that is there twice, with the same seed, counts once: it would say that there is no noise.
    """
    found: dict[str, list[Run]] = {}
    for run in runs:
        spec = {key: value for key, value in run["details"]["spec"].items() if key != "seed"}
        members = found.setdefault(json.dumps(spec, sort_keys=True), [])
        seed = run["details"]["spec"].get("seed")
        if seed is None or seed not in [member["details"]["spec"].get("seed") for member in members]:
            members.append(run)
    lines = []
    for members in found.values():
        if len(members) < 2:
            continue
        cells = []
        for key, _ in shown_columns(runs):
            values = [run["metrics"]["metrics"][key]["values"][SYNTHETIC].get("value", math.nan) for run in members]
            mean = over_seeds(values)
            interval = f"{mean.low:.3f} to {mean.high:.3f}" if math.isfinite(mean.low) else ""
            said = "; ".join(part for part in (interval, mean.why) if part)
            cells.append({"value": f"{mean.value:.3f}" if mean.known else "–", "interval": said, "note": ""})
        name = f"{members[0]['details']['method']}, {len(members)} seeds"
        lines.append({"name": name, "runs": [run["name"] for run in members], "cells": cells})
    return lines


def value_table(runs: Sequence[Run]) -> JsonObject:
    """KS distance of the values of each column of numbers in each run, shaded by size."""
    columns = [run["metrics"]["values"]["columns"] for run in runs]
    most = max((found["ks"] for figures in columns for found in figures.values()), default=1.0) or 1.0
    rows = [
        {
            "name": name,
            "cells": [{"value": f"{v[name]['ks']:.3f}", "shade": round(100 * v[name]["ks"] / most)} for v in columns],
        }
        for name in columns[0]
    ]
    return {"header": [run["name"] for run in runs], "rows": rows}


def column_table(runs: Sequence[Run], schema: Schema) -> JsonObject:
    """One-way distance of each column in each run, shaded by size."""
    rows = []
    most = max(max(run["metrics"]["one_way"]["tvd"].values()) for run in runs) or 1.0
    for name in schema.names:
        values = [run["metrics"]["one_way"]["tvd"][name] for run in runs]
        rows.append({"name": name, "cells": [{"value": f"{v:.3f}", "shade": round(100 * v / most)} for v in values]})
    return {"header": [run["name"] for run in runs], "rows": rows}


def gap_maps(runs: Sequence[Run], schema: Schema) -> list[JsonObject]:
    """How dependence between columns differs from the real rows, one map per run, on one scale."""
    if len(schema.columns) < 2:
        return []
    gaps = {}
    for run in runs:
        pairs = run["pairs"]
        gaps[run["name"]] = association(pairs.synthetic, pairs.sizes) - association(pairs.real, pairs.sizes)
    most = max(float(np.abs(gap).max()) for gap in gaps.values()) or 1.0
    return [
        {
            "name": name,
            "most": f"{most:.2g}",
            "chart": maps.column_map(gap, schema.names, most=most, signed=True, what=f"{name}: dependence less real"),
        }
        for name, gap in gaps.items()
    ]
