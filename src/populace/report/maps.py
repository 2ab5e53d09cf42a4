"""Heat maps: of all pairs of columns, and of one pair's joint table."""

from __future__ import annotations

from collections.abc import Sequence

import markupsafe
import numpy as np

from populace.report.figures import label_room
from populace.report.png import data_address
from populace.report.svg import WIDTH, chart, percent, tag, text, title
from populace.tables.schema import Column
from populace.types import NumpyArray

MOST_DRAWN = 40  # columns up to which every cell is an element of its own that says its value
MOST_LEVELS = 10
#: How the two hues of the style sheet look as pixels, for maps too large to draw cell by cell: readable on light and dark.
HUES = {"map": (47, 129, 190), "over": (224, 122, 26), "under": (47, 129, 190)}


def column_map(matrix: NumpyArray, names: Sequence[str], *, most: float, signed: bool, what: str) -> markupsafe.Markup:
    """One cell per pair of columns; a darker cell is a larger number, and with `signed` the hue says which way."""
    if len(names) > MOST_DRAWN:
        return _as_picture(matrix, most=most, signed=signed, what=what)
    labels, room = label_room(names, 14)
    return _cells(matrix, labels, labels, names, names, room=room, most=most, signed=signed, what=what)


def _as_picture(matrix: NumpyArray, *, most: float, signed: bool, what: str) -> markupsafe.Markup:
    opacity = np.clip(np.abs(matrix) / max(most, 1e-12), 0, 1) * 255
    pixels = np.zeros((*matrix.shape, 4), np.uint8)
    pixels[..., :3] = np.where(matrix[..., None] >= 0, HUES["over" if signed else "map"], HUES["under"])
    pixels[..., 3] = opacity
    address = data_address(pixels)
    return markupsafe.Markup('<img class="chart picture" alt="{}" src="{}">').format(what, address)


def pair_map(
    table: NumpyArray, rows: Sequence[str], columns: Sequence[str], *, most: float, signed: bool, what: str,
    marked: NumpyArray | None = None, errors: NumpyArray | None = None,
) -> markupsafe.Markup:  # fmt: skip
    """A joint table; `marked` cells get a frame, `errors` are said with the value."""
    labels, room = label_room(rows, 14)
    below, _ = label_room(columns, 14)
    return _cells(
        table, labels, below, rows, columns, room=room, most=most, signed=signed, what=what, marked=marked,
        errors=errors, as_percent=True,
    )  # fmt: skip


def _cells(
    matrix: NumpyArray, labels: Sequence[str], below: Sequence[str], rows: Sequence[str], columns: Sequence[str], *,
    room: float, most: float, signed: bool, what: str, marked: NumpyArray | None = None, errors: NumpyArray | None = None,
    as_percent: bool = False,
) -> markupsafe.Markup:  # fmt: skip
    height, width = matrix.shape
    step = (WIDTH - room - 2) / width
    tall = min(step, 26.0) if height <= MOST_LEVELS else step
    tall = max(tall, 11.0)
    _, drop = label_room(below, 14)
    slanted = drop > step
    parts = []
    small = "tiny" if min(step, tall) < 14 else "small"
    for i in range(height):
        parts.append(text(room - 4, i * tall + tall / 2 + 4, labels[i], anchor="end", class_=small))
        for j in range(width):
            value = float(matrix[i, j])
            shown = percent(value) if as_percent else f"{value:.3f}"
            said = f"{rows[i]} and {columns[j]}: {shown}"
            said += "" if errors is None else f", standard error {percent(float(errors[i, j]))}"
            kind = ("over" if value > 0 else "under") if signed else "map"
            parts.append(
                tag(
                    "rect", title(said), x=room + j * step, y=i * tall, width=step - 0.6, height=tall - 0.6,
                    class_=kind + (" marked" if marked is not None and marked[i, j] else ""),
                    fill_opacity=float(min(1.0, abs(value) / most)) if most else 0.0,
                )
            )  # fmt: skip
            if as_percent and step >= 40 and tall >= 16:
                middle = (room + (j + 0.5) * step, i * tall + tall / 2 + 4)
                strong = " strongly" if most and abs(value) > 0.45 * most else ""
                parts.append(text(*middle, shown.replace(" %", ""), anchor="middle", class_=f"small in{strong}"))
    base = height * tall
    for j, label in enumerate(below):
        x = room + (j + 0.5) * step
        if slanted:
            turn = f"rotate(-55 {x + 3:.1f} {base + 11:.1f})"
            parts.append(text(x + 3, base + 11, label, anchor="end", transform=turn, class_=small))
        else:
            parts.append(text(x, base + 14, label, anchor="middle", class_=small))
    return chart(base + (drop * 0.85 + 14 if slanted else 20), parts, label=what)


def most_frequent(column: Column, share: NumpyArray) -> tuple[NumpyArray, list[str]]:
    """Which codes of a column a joint table shows: all of a short domain, else the most frequent."""
    shown = np.arange(column.size)
    if column.size > MOST_LEVELS:
        shown = np.sort(np.argsort(-share, kind="stable")[:MOST_LEVELS])
    labels = column.labels()
    return shown, [labels[i] for i in shown]
