"""Dates and times as numbers: days since 1970, seconds since 1970, seconds since midnight; and their text."""

from __future__ import annotations

import datetime

from populace.tables.cells import EXACT

DAY = 86_400
EPOCH = datetime.datetime(1970, 1, 1)


def number_text(number: float, kind: str) -> str:
    """A number of a scale column as people read it. Exact, because labels name cells and no two may share one."""
    if kind in ("date", "datetime", "time"):
        return moment(number, kind).isoformat()
    if abs(number) <= EXACT and number == int(number):
        return str(int(number))
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def moment(number: float, kind: str) -> datetime.date | datetime.datetime | datetime.time:
    """The date, datetime or time that a number stands for."""
    if kind == "date":
        return EPOCH.date() + datetime.timedelta(days=round(number))
    whole = EPOCH + datetime.timedelta(milliseconds=round(number * 1000))
    return whole if kind == "datetime" else whole.time()


def moment_number(value: object, kind: str) -> float:
    """The number of a date, datetime or time, or of its ISO text; raises ValueError for anything else."""
    if isinstance(value, str):
        value = datetime.time.fromisoformat(value) if kind == "time" else datetime.datetime.fromisoformat(value)
    if kind == "time" and isinstance(value, datetime.time):
        return _milli(datetime.timedelta(
            hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond
        ))  # fmt: skip
    if kind == "time" or not isinstance(value, datetime.date):
        raise ValueError(f"{value!r} is no {kind}")
    if not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return float((value - EPOCH).days) if kind == "date" else _milli(value - EPOCH)


def _milli(span: datetime.timedelta) -> float:
    """Seconds, to the millisecond."""
    return round(span / datetime.timedelta(milliseconds=1)) / 1000
