"""A few lines of SVG: elements as text, escaped, with colours from the page's style sheet, which knows light and dark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import markupsafe

WIDTH = 360  # all charts are drawn for the width of a phone, so that their text is readable there and never grows small
LETTER = 6.4  # width of a letter at font size 11, on the wide side


def tag(name: str, *children: str, **attributes: object) -> str:
    """An element; `_` in a name stands for `-` and is dropped at its end (class_)."""
    parts = [name]
    for key, value in attributes.items():
        if value is None:
            continue
        text = number(value) if isinstance(value, float) else str(value)
        parts.append(f'{key.rstrip("_").replace("_", "-")}="{markupsafe.escape(text)}"')
    inside = "".join(children)
    return f"<{' '.join(parts)}>{inside}</{name}>" if inside else f"<{' '.join(parts)}/>"


def number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"


def text(x: float, y: float, content: str, *, anchor: str = "start", **attributes: object) -> str:
    return tag("text", str(markupsafe.escape(content)), x=x, y=y, text_anchor=anchor, **attributes)


def title(content: str) -> str:
    """What shows when the pointer rests on the element around it, and what a screen reader says."""
    return tag("title", str(markupsafe.escape(content)))


def chart(height: float, parts: Iterable[str], *, label: str, width: float = WIDTH) -> markupsafe.Markup:
    inside = "".join(parts)
    shape = f"0 0 {number(width)} {number(height)}"
    drawn = tag("svg", inside, viewBox=shape, role="img", aria_label=label, class_="chart")
    return markupsafe.Markup(drawn)  # noqa: S704 - every text in it is escaped above


def short(content: str, most: int) -> str:
    return content if len(content) <= most else content[: max(1, most - 1)].rstrip() + "…"


def ticks(most: float, wanted: int = 4) -> list[float]:
    """Round numbers from 0 to at least `most`."""
    if most <= 0:
        return [0.0, 1.0]
    raw = most / wanted
    scale = 10 ** math.floor(math.log10(raw))
    step = next(scale * m for m in (1, 2, 2.5, 5, 10) if scale * m >= raw * 0.999)
    return [round(step * i, 10) for i in range(math.ceil(most / step - 1e-9) + 1)]


def percent(share: float) -> str:
    """A share in words a table has room for: 12 %, 3.4 %, 0.05 %."""
    value = 100 * share
    if value == 0:
        return "0 %"
    digits = 0 if abs(value) >= 10 else 1 if abs(value) >= 1 else 2
    rounded = f"{value:.{digits}f}"
    return f"{rounded} %".replace("-", "−") if float(rounded) else f"{'−' if value < 0 else ''}<0.01 %"


def polyline(points: Sequence[tuple[float, float]], class_: str) -> str:
    return tag("polyline", points=" ".join(f"{number(x)},{number(y)}" for x, y in points), class_=class_)
