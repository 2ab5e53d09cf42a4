"""Charts of one run: columns, lines over the number of columns, dots with intervals, scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import markupsafe
import numpy as np

from populace.report.svg import LETTER, WIDTH, chart, percent, polyline, short, tag, text, ticks, title
from populace.tables.schema import Column
from populace.types import JsonObject, NumpyArray

COLOURS = 6  # series-1 to series-6 in the style sheet
Values = Mapping[str, JsonObject]  # name -> {"value", "low", "high"} or {"left_out"}

MOST_BARS = 16
ROW = 30.0


def category_chart(
    column: Column, real: NumpyArray, synthetic: NumpyArray, errors: NumpyArray | None = None
) -> markupsafe.Markup:
    """Shares of each value, real against synthetic; of a long domain the most frequent, the rest added up in one line.

    `errors` are the method's own standard errors of the synthetic shares.
    """
    labels = list(column.labels())
    shown = np.arange(len(labels))
    rest: tuple[float, float] | None = None
    if len(labels) > MOST_BARS:
        shown = np.sort(np.argsort(-(real + synthetic), kind="stable")[: MOST_BARS - 1])
        rest = float(1 - real[shown].sum()), float(1 - synthetic[shown].sum())
    left, right = 122.0, WIDTH - 42.0
    reach = synthetic if errors is None else synthetic + 1.96 * errors
    most = max(float(real.max()), float(reach.max()), *(rest or ()), 1e-9)
    scale = (right - left) / most
    parts = []
    for place, index in enumerate(shown):
        wide = None if errors is None else float(errors[index])
        parts.append(bar(labels[index], float(real[index]), float(synthetic[index]), wide, place * ROW, left, scale))
    if rest is not None:
        name = f"{len(labels) - len(shown)} other values"
        parts.append(bar(name, max(rest[0], 0.0), max(rest[1], 0.0), None, len(shown) * ROW, left, scale))
    height = (len(shown) + (rest is not None)) * ROW + 2
    return chart(height, parts, label=f"{column.name}: share of rows by value, real and synthetic")


def bar(label: str, real: float, synthetic: float, error: float | None, y: float, left: float, scale: float) -> str:
    """One line of a bar chart: a value, its real share above its synthetic one."""
    said = f"{label}: real {percent(real)}, synthetic {percent(synthetic)}"
    if error is not None:
        said += f", the method's standard error {percent(error)}"
    end = left + max(real, synthetic + 1.96 * (error or 0.0)) * scale + 5
    parts = [
        title(said),
        tag("rect", x=0, y=y, width=WIDTH, height=ROW, class_="hit"),
        text(left - 6, y + 18, short(label, 17), anchor="end"),
        tag("rect", x=left, y=y + 4, width=max(real * scale, 0.5), height=10, class_="real"),
        tag("rect", x=left, y=y + 15, width=max(synthetic * scale, 0.5), height=10, class_="synthetic"),
        text(end, y + 13, percent(real), class_="small"),
        text(end, y + 24, percent(synthetic), class_="small"),
    ]
    if error is not None:
        low, high = (left + max(synthetic + sign * 1.96 * error, 0) * scale for sign in (-1, 1))
        parts.append(tag("line", x1=low, x2=high, y1=y + 20, y2=y + 20, class_="whisker"))
    return tag("g", *parts)


def line_chart(lines: Mapping[str, Values], classes: Mapping[str, str], *, across: str) -> markupsafe.Markup:
    """Lines with whiskers over whole numbers; a point that was left out is simply not there (the table says why)."""
    points = {
        name: [(int(x), v) for x, v in values.items() if "value" in v] for name, values in lines.items() if values
    }
    every = [v for found in points.values() for _, v in found]
    places = sorted({x for found in points.values() for x, _ in found}) or [1]
    grid = ticks(max((float(v["high"] if "high" in v else v["value"]) for v in every), default=1.0))
    left, right, top, bottom = 38.0, WIDTH - 12.0, 10.0, 190.0
    scale = (bottom - top) / grid[-1]
    step = (right - left - 16) / max(1, places[-1] - places[0])
    parts = []
    for tick in grid:
        y = bottom - tick * scale
        parts.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(text(left - 5, y + 4, f"{tick:g}", anchor="end", class_="small"))
    for place in places:
        x = left + 8 + (place - places[0]) * step
        parts.append(text(x, bottom + 15, str(place), anchor="middle", class_="small"))
    parts.append(text((left + right) / 2, bottom + 31, across, anchor="middle", class_="small"))
    for name, found in points.items():
        if not found:
            continue
        line = [(left + 8 + (x - places[0]) * step, bottom - v["value"] * scale) for x, v in found]
        drawn = [polyline(line, f"line {classes[name]}-line")]
        for (x, y), (at, v) in zip(line, found, strict=True):
            if "low" in v:
                ends = {"y1": bottom - v["low"] * scale, "y2": bottom - v["high"] * scale}
                drawn.append(tag("line", x1=x, x2=x, class_=f"{classes[name]}-line thin", **ends))
            said = title(f"{name}, {across} {at}: {interval_text(v)}")
            drawn.append(tag("circle", said, cx=x, cy=y, r=3.2, class_=classes[name]))
        parts.append(tag("g", *drawn))
    return chart(bottom + 38, parts, label=f"{', '.join(points)} by {across}")


def dot_chart(rows: Sequence[tuple[str, Values]], classes: Mapping[str, str], low: float) -> markupsafe.Markup:
    """One line per row; dots with intervals on a common scale from `low` to 1."""
    left, right = 12.0, WIDTH - 12.0
    scale = (right - left) / (1 - low)
    parts = []
    height = 22.0
    for label, values in rows:
        parts.append(text(left, height, label, class_="strong"))
        y = height + 14
        parts.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        for name, v in reversed(list(values.items())):
            if "value" not in v:
                continue
            x = left + (max(low, v["value"]) - low) * scale
            drawn = [title(f"{label}, {name}: {interval_text(v)}")]
            if "low" in v:
                ends = [left + (min(1, max(low, v[key])) - low) * scale for key in ("low", "high")]
                drawn.append(tag("line", x1=ends[0], x2=ends[1], y1=y, y2=y, class_=f"{classes[name]}-line thick"))
            drawn.append(tag("circle", cx=x, cy=y, r=5, class_=classes[name]))
            parts.append(tag("g", *drawn))
        height += 42
    for tick in (low, (1 + low) / 2, 1.0):
        parts.append(text(left + (tick - low) * scale, height, f"{tick:g}", anchor="middle", class_="small"))
    return chart(height + 8, parts, label="scores by model, with intervals")


def rows_of_dots(
    values: Values, beside: Mapping[str, tuple[str, JsonObject]], *, from_zero: bool, label: str
) -> markupsafe.Markup:
    """One line with a dot and its interval for each figure; `beside`, by their class, are upright lines across all."""
    known = {kind: (name, v) for kind, (name, v) in beside.items() if "value" in v}
    every = [
        v[k]
        for v in (*values.values(), *(v for _, v in known.values()))
        if "value" in v
        for k in ("value", "low", "high")
        if k in v
    ]
    low, high = (0.0 if from_zero else min(every)), max(every)
    left, right = 120.0, WIDTH - 14.0
    scale = (right - left) / ((high - low) or 1.0)
    bottom = 20.0 * len(values) + 6
    parts = []
    for kind, (name, v) in known.items():
        x = left + (v["value"] - low) * scale
        said = title(f"{name}: {interval_text(v)}")
        parts.append(tag("line", said, x1=x, x2=x, y1=2, y2=bottom, class_=f"{kind}-line thick"))
    for number, (name, v) in enumerate(values.items()):
        y = 20.0 * number + 14
        parts.append(text(left - 8, y + 4, short(name, 18), anchor="end", class_="small"))
        if "value" not in v:
            parts.append(text(left, y + 4, short(v["left_out"], 36), class_="small"))
            continue
        series = f"series-{number % COLOURS + 1}"
        x = left + (v["value"] - low) * scale
        ends = [left + (max(low, v[k] if k in v else v["value"]) - low) * scale for k in ("low", "high")]
        parts.append(tag("line", x1=ends[0], x2=ends[1], y1=y, y2=y, class_=f"{series}-line thick"))
        parts.append(tag("circle", title(f"{name}: {interval_text(v)}"), cx=x, cy=y, r=5, class_=series))
    for value in (low, high):
        x = left + (value - low) * scale
        anchor = "start" if value == low else "end"
        parts.append(text(x, bottom + 14, f"{value:.3g}", anchor=anchor, class_="small"))
    return chart(bottom + 20, parts, label=label)


def scale_chart(values: Values, classes: Mapping[str, str], *, label: str) -> markupsafe.Markup:
    """Where a figure lies between its baselines: one line, a dot for it, ticks for them, named below."""
    known = {name: v for name, v in values.items() if "value" in v}
    numbers = [v["value"] for v in known.values()]
    low, high = min(numbers), max(numbers)
    wide = (high - low) or 1.0
    left, right = 14.0, 246.0

    def place(value: float) -> float:
        return float(left + (value - low) / wide * (right - left))

    parts = [tag("line", x1=left - 8, x2=right + 8, y1=14, y2=14, class_="axis")]
    for name, v in reversed(list(known.items())):
        x = place(v["value"])
        if classes[name] == "synthetic":
            drawn = tag("circle", cx=x, cy=14, r=7, class_="synthetic")
        else:
            drawn = tag("line", x1=x, x2=x, y1=5, y2=23, class_=f"{classes[name]}-line thick")
        parts.append(tag("g", title(f"{name}: {interval_text(v)}"), drawn))
    return chart(28, parts, label=label, width=260)


def interval_text(v: JsonObject, digits: int = 3) -> str:
    if "value" not in v:
        return f"left out: {v.get('left_out', 'not computed')}"
    if "low" not in v:
        return f"{v['value']:.{digits}f}"
    return f"{v['value']:.{digits}f} ({v['low']:.{digits}f} to {v['high']:.{digits}f})"


def label_room(labels: Sequence[str], most: int) -> tuple[list[str], float]:
    """Labels cut to `most` letters, and the room the longest takes."""
    cut = [short(label, most) for label in labels]
    return cut, max(map(len, cut), default=0) * LETTER + 8
