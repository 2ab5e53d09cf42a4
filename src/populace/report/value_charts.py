"""Charts of a column's values: spikes and gaps as bars, everything else as a histogram with the synthetic rows as a line."""

from __future__ import annotations

from collections.abc import Sequence

import markupsafe
import numpy as np

from populace.evaluation.histograms import Histogram
from populace.evaluation.value_text import value_text
from populace.report.figures import ROW, bar
from populace.report.svg import LETTER, WIDTH, chart, percent, polyline, tag, text, ticks, title

LEFT, TALL = 42.0, 150.0
STEPS = {"even": "", "logarithmic": "; logarithmic steps", "bent": "; steps grow with the distance from zero"}
LEAST_SHOWN = 0.003  # a share outside the grid that is worth a word


def value_chart(histogram: Histogram) -> markupsafe.Markup:
    bars = [(value_text(histogram.kind, value), real, own) for value, real, own in histogram.spikes]
    if max(histogram.missing) > 0:
        bars.append(("no value", *histogram.missing))
    outside = []
    if len(histogram.edges) > 1:
        low, high = (value_text(histogram.kind, float(histogram.edges[i])) for i in (0, -1))
        outside = [(f"below {low}", *histogram.below), (f"above {high}", *histogram.above)]
    else:
        outside = [("other values", *histogram.above)]
    bars += [entry for entry in outside if max(entry[1:]) > LEAST_SHOWN]
    parts, height = [], 0.0
    if bars:
        left, right = 122.0, WIDTH - 42.0
        scale = (right - left) / max(max(real, own) for _, real, own in bars)
        parts = [bar(name, real, own, None, i * ROW, left, scale) for i, (name, real, own) in enumerate(bars)]
        height = len(bars) * ROW + 10
    if len(histogram.edges) > 1:
        drawn, height = _steps(histogram, height)
        parts += drawn
    return chart(height, parts, label=f"{histogram.name}: share of rows by value, real and synthetic")


def _steps(histogram: Histogram, top: float) -> tuple[list[str], float]:
    real, synthetic = histogram.shares
    bottom = top + TALL
    step = (WIDTH - LEFT - 6) / len(real)
    grid = ticks(float(max(real.max(), synthetic.max())), 3)
    scale = (TALL - 8) / grid[-1]
    parts = []
    for tick in grid:
        y = bottom - tick * scale
        parts.append(tag("line", x1=LEFT, x2=WIDTH - 6, y1=y, y2=y, class_="grid"))
        parts.append(text(LEFT - 5, y + 4, percent(tick), anchor="end", class_="small"))
    outline = []
    for i in range(len(real)):
        x = LEFT + i * step
        name = _bin_name(histogram, i)
        said = f"{name}: real {percent(float(real[i]))}, synthetic {percent(float(synthetic[i]))}"
        high = max(float(real[i]) * scale, 0.5)
        drawn = tag("rect", x=x + 0.5, y=bottom - high, width=max(step - 1, 0.5), height=high, class_="real soft")
        hit = tag("rect", x=x, y=bottom - TALL, width=step, height=TALL, class_="hit")
        parts.append(tag("g", title(said), hit, drawn))
        y = bottom - float(synthetic[i]) * scale
        outline += [(x, y), (x + step, y)]
    parts.append(polyline(outline, "steps synthetic-line"))
    parts += _labels(histogram, step, bottom + 14)
    return parts, bottom + 20


def _bin_name(histogram: Histogram, i: int) -> str:
    low, high = float(histogram.edges[i]), float(histogram.edges[i + 1])
    if histogram.kind in ("integer", "date"):
        first, last = np.ceil(low), np.ceil(high) - 1
        names = [value_text(histogram.kind, float(value)) for value in (first, last)]
        return names[0] if first == last else f"{names[0]} to {names[1]}"
    return f"{value_text(histogram.kind, low)} to {value_text(histogram.kind, high)}"


def _labels(histogram: Histogram, step: float, y: float) -> list[str]:
    """Names of edges along the axis, as many as there is room for."""
    names = [_edge_name(histogram, float(edge)) for edge in histogram.edges]
    room = max(len(name) for name in names) * LETTER + 14
    every = max(1, int(np.ceil(room / step)))
    shown: Sequence[int] = range(0, len(names) - 1, every)
    parts = []
    for i in shown:
        x = LEFT + i * step
        inside = x + len(names[i]) * LETTER < WIDTH
        if inside:
            parts.append(text(x, y, names[i], class_="small"))
    return parts


def _edge_name(histogram: Histogram, edge: float) -> str:
    whole = histogram.kind in ("integer", "date")
    return value_text(histogram.kind, float(np.ceil(edge)) if whole else edge)
