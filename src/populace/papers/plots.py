"""Line charts of the papers' tables, as SVG and PNG files. They need matplotlib, which the extra `papers` installs."""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from populace.errors import MissingExtra
from populace.papers.grid import Chart
from populace.tables.files import replacing, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = (
    "#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#eeca3b", "#ff9da6", "#79706e",
)  # fmt: skip
MARKS = "os^vDPX*<>"


def require() -> None:
    """Raise MissingExtra where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("the papers' charts need matplotlib; install it with: pip install 'populace[papers]'")


def to_svg(figure: Figure) -> str:
    """The figure as an SVG element that scales with the page and takes its text colour from it."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "populace"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return text.replace("#000000", "currentColor")


def draw_lines(chart: Chart) -> Figure:
    """The lines and levels of a chart."""
    require()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, (name, points) in enumerate(chart.lines.items()):
        x, y = zip(*sorted(points), strict=True)
        axes.plot(
            x, y, color=COLOURS[number % len(COLOURS)], marker=MARKS[number % len(MARKS)], ms=4, lw=1.3, label=name
        )
    for name, value in chart.level.items():
        axes.axhline(value, color="#888888", lw=1, ls="--", label=name)
    if chart.logarithmic:
        axes.set_yscale("log")
    if max(x for points in chart.lines.values() for x, _ in points) > 100:
        axes.set_xscale("log")
    axes.set(xlabel=chart.across, ylabel=chart.up, title=chart.title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def write_charts(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """`<name>.svg` and `<name>.png` for each chart; returns the SVG files."""
    written = []
    for chart in charts:
        figure = draw_lines(chart)
        path = folder / f"{chart.name}.svg"
        write_text(path, '<?xml version="1.0" encoding="utf-8"?>\n' + to_svg(figure))
        with replacing(path.with_suffix(".png")) as temporary:
            figure.savefig(temporary, format="png", dpi=130)
        written.append(path)
    return written
