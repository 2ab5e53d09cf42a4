"""Charts as inline SVG: no script, no font from elsewhere, colours that read on light and dark."""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from populace.tables.table import Table

Array = np.ndarray[Any, Any]

REAL, SYNTHETIC = "#4c78a8", "#f58518"
MOST_BARS = 24
mpl.rcParams["svg.fonttype"] = "none"
mpl.rcParams["svg.hashsalt"] = "populace"


def to_svg(figure: Figure) -> str:
    """The figure as an SVG element that scales with the page and takes its text colour from it."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return text.replace("#000000", "currentColor")


def column_chart(real: Table, synthetic: Table, name: str) -> str:
    """Shares of each value, real beside synthetic; of a long domain, the most frequent values."""
    column = real.schema.column(name)
    index = real.schema.index(name)
    shares = [np.bincount(table.codes[:, index], minlength=column.size) / len(table) for table in (real, synthetic)]
    shown = np.arange(column.size)
    if column.size > MOST_BARS:
        shown = np.sort(np.argsort(-(shares[0] + shares[1]))[:MOST_BARS])
    labels = [_short(column.labels()[i]) for i in shown]
    figure = Figure(figsize=(6.4, 0.9 + 0.24 * len(shown)), layout="constrained")
    axes = figure.subplots()
    place = np.arange(len(shown))
    axes.barh(place - 0.2, shares[0][shown], 0.38, color=REAL, label="real")
    axes.barh(place + 0.2, shares[1][shown], 0.38, color=SYNTHETIC, label="synthetic")
    axes.set_yticks(place, labels, fontsize=8)
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("share of rows", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    return to_svg(figure)


def pair_heat_map(matrix: Array, names: list[str]) -> str:
    """Distance of every pair of columns: dark is far."""
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    axes = figure.subplots()
    shown = axes.imshow(matrix, cmap="viridis_r", vmin=0, vmax=max(0.05, float(matrix.max())))
    if len(names) <= 30:
        axes.set_xticks(range(len(names)), [_short(n, 14) for n in names], rotation=60, ha="right", fontsize=7)
        axes.set_yticks(range(len(names)), [_short(n, 14) for n in names], fontsize=7)
    figure.colorbar(shown, ax=axes, shrink=0.8, label="total variation distance")
    return to_svg(figure)


def _short(text: str, most: int = 22) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
