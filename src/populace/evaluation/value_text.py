"""Numbers, dates and shares as a reader writes them."""

from __future__ import annotations

import datetime
import math

DAY = 86_400


def value_text(kind: str, value: float) -> str:
    """A value of a column of this kind: 1,082; 0.25; 2024-03-01; 2024-03-01 14:30; 07:45."""
    if not math.isfinite(value):
        return "none"
    try:
        if kind == "date":
            return (datetime.date(1970, 1, 1) + datetime.timedelta(days=round(value))).isoformat()
        if kind == "datetime":
            moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=round(value))
            return moment.strftime("%Y-%m-%d") if value % DAY == 0 else moment.strftime("%Y-%m-%d %H:%M")
    except OverflowError:
        return f"{value:.3g}"
    if kind == "time":
        minutes, seconds = divmod(round(value) % DAY, 60)
        clock = f"{minutes // 60:02d}:{minutes % 60:02d}"
        return clock if seconds == 0 else f"{clock}:{seconds:02d}"
    return number_text(value)


def spread_text(kind: str, value: float) -> str:
    """A difference or an SD of a column of this kind, with its unit."""
    if not math.isfinite(value):
        return "none"
    if kind == "date":
        return f"{number_text(value)} days"
    if kind == "datetime" and value >= DAY:
        return f"{number_text(value / DAY)} days"
    if kind in ("datetime", "time"):
        return f"{number_text(value / 3600)} h" if value >= 3600 else f"{number_text(value / 60)} min"
    return number_text(value)


def number_text(value: float) -> str:
    """Three digits that count, whole from 100 on, with commas and without trailing zeros."""
    if value == round(value) and abs(value) < 1e12:
        return f"{round(value):,}"
    size = abs(value)
    if size >= 1e12 or size < 1e-4:
        return f"{value:.3g}"
    text = f"{value:,.{max(0, 2 - math.floor(math.log10(size)))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def share_text(share: float) -> str:
    """A share of rows: 92 %, 3.4 %, 0 %."""
    value = 100 * share
    if value == 0 or value >= 9.95:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if value >= 0.05 else "below 0.1 %"


def figure_text(value: float) -> str:
    """A distance or correlation: .38, 1.00, −.05."""
    text = f"{abs(value):.2f}"
    text = text.removeprefix("0") if text != "0.00" else "0"
    return f"−{text}" if value <= -0.005 else text
