"""What the page shows of the values: the box of red flags, a table of every column of numbers, correlations, group means."""

from __future__ import annotations

import numpy as np

from populace.evaluation.flags import RULES
from populace.evaluation.value_figures import ValueComparison
from populace.evaluation.value_text import figure_text, share_text, spread_text, value_text
from populace.evaluation.values import QUANTILES
from populace.report import maps
from populace.types import JsonObject

MOST_GROUPS = 10


def flag_box(document: JsonObject) -> JsonObject:
    """Red flags, one line per column, the rules they follow, and smaller findings."""
    return {"lines": document["red_flags_in_words"], "rules": RULES, "remarks": document.get("smaller_findings", [])}


def value_table(document: JsonObject) -> JsonObject:
    """Every column of numbers: distances beside those of the real halves, and real and synthetic figures side by side."""
    rows = []
    for name, figures in document["values"]["columns"].items():
        half = document["values"]["halves"][name]
        rows.append(
            {
                "name": name,
                "kind": figures["kind"],
                "ks": _distance(figures["ks"]),
                "ks_halves": _distance(half["ks"]),
                "wasserstein": _distance(figures["wasserstein_over_sd"]),
                "wasserstein_halves": _distance(half["wasserstein_over_sd"]),
                "units": _spread(figures["kind"], figures["wasserstein"]),
                "sides": [_side(figures, who) for who in ("real", "synthetic")],
                "halves": [_side(half, who) for who in ("real", "synthetic")],
                "spikes": _spikes(figures, half),
            }
        )
    return {"rows": rows, "quantiles": [f"{100 * q:g} %" for q in QUANTILES]}


def _distance(value: float | None) -> str:
    return "–" if value is None else figure_text(value)


def _spread(kind: str, value: float | None) -> str:
    return "–" if value is None else spread_text(kind, value)


def _side(figures: JsonObject, who: str) -> JsonObject:
    side, kind = figures[who], figures["kind"]
    return {
        "who": who,
        "mean": "–" if side["mean"] is None else value_text(kind, side["mean"]),
        "sd": _spread(kind, side["sd"]),
        "missing": share_text(side["missing"]),
        "quantiles": ["–" if value is None else value_text(kind, value) for value in side["quantiles"].values()],
    }


def _spikes(figures: JsonObject, half: JsonObject) -> list[dict[str, str]]:
    found = []
    sides = (figures["real"], figures["synthetic"], half["real"], half["synthetic"])
    for real, own, first, second in zip(*(side["spikes"] for side in sides), strict=True):
        found.append(
            {
                "value": value_text(figures["kind"], real["value"]),
                "real": share_text(real["share"]),
                "synthetic": share_text(own["share"]),
                "halves": f"{share_text(first['share'])} and {share_text(second['share'])}",
            }
        )
    return found


def correlation_maps(values: ValueComparison) -> list[JsonObject]:
    """Pearson correlations of the real rows, and what the synthetic rows have more or less of them; Spearman's likewise."""
    real, own = values.real_dependence, values.dependence
    if len(own.numbers) < 2:
        return []
    found = []
    for name, matrix in (
        ("Pearson correlation, real", real.pearson),
        ("Pearson correlation, synthetic minus real", own.pearson - real.pearson),
        ("Spearman correlation, synthetic minus real", own.spearman - real.spearman),
    ):
        shown = np.nan_to_num(matrix)
        most = 1.0 if name.endswith(", real") else max(0.1, float(np.abs(shown).max()))
        drawn = maps.column_map(shown, own.numbers, most=most, signed=True, what=f"{name}, all pairs of columns")
        found.append({"name": name, "chart": drawn, "most": f"{most:.2g}"})
    return found


def group_table(document: JsonObject) -> list[dict[str, str]]:
    """The means by category with the largest errors."""
    kinds = {name: figures["kind"] for name, figures in document["values"]["columns"].items()}
    return [
        {
            "name": f"{group['number']} by {group['category']}",
            "gap": figure_text(group["gap"]),
            "worst": group["worst"],
            "real": value_text(kinds[group["number"]], group["real"]),
            "synthetic": value_text(kinds[group["number"]], group["synthetic"]),
            "left_out": f"{group['left_out']} with too few rows" if group["left_out"] else "",
        }
        for group in document["values"]["group_means"][:MOST_GROUPS]
    ]


def card_words(document: JsonObject, name: str, cells: str) -> str:
    """The line below a column's name: KS beside that of the real halves, then the share off on the schema's cells."""
    figures = document["values"]["columns"].get(name)
    if figures is None:
        return cells
    halves = document["values"]["halves"][name]["ks"]
    return f"KS {_distance(figures['ks'])} (real halves {_distance(halves)}); on the schema’s bins {cells}"
