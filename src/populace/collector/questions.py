"""What one device needs to randomise its record, as plain data: nothing but whole numbers, text and lists of them.

A record is a code per column. A question names columns, the group each code of a column falls into, and a stride each; the
sum of group times stride is the record's cell. The report is a random set of values, the cell among them with a probability
that stands here as a whole number over 2^63. `docs/collector-api.md` has the steps, `tests/collector_twin.py` does them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from populace.methods.blocks.one_report import Survey, groups_of
from populace.privacy.randomizers.subset import SubsetSelection
from populace.privacy.secure_random import RESOLUTION
from populace.tables.schema import Column, Schema
from populace.types import JsonObject

UNITS = {
    "date": "days since 1970-01-01",
    "datetime": "seconds since 1970-01-01 00:00:00",
    "time": "seconds since midnight",
}
NAMED = 4  # categories that the label of a group names


def question_document(survey: Survey, question: int) -> JsonObject:
    """A question with everything that its report is made from."""
    member, group = survey.panel.members[question], survey.groups[question]
    columns = [_asked(survey, question, column, place) for place, column in enumerate(group)]
    folded = survey.is_folded[question]
    return {
        "question": question,
        "columns": columns,
        "cells": math.prod(survey.shapes[question]),
        "values": survey.buckets(question).tolist() if folded else None,
        "report": report_document(member),
    }


def _asked(survey: Survey, question: int, column: int, place: int) -> JsonObject:
    declared, view = survey.schema.columns[column], survey.all_views[question][place]
    groups = groups_of(declared, view)
    return {
        "column": column,
        "name": declared.name,
        "groups": list(groups),
        "labels": group_labels(declared, groups),
        "stride": int(survey.strides[question, column]),
    }


def group_labels(column: Column, groups: Sequence[int]) -> list[str]:
    """A readable label for every group of a column's codes."""
    labels = column.labels()
    members: list[list[str]] = [[] for _ in range(max(groups) + 1)]
    for code, group in enumerate(groups):
        members[group].append(labels[code])
    return [_group_label(column, each) for each in members]


def _group_label(column: Column, labels: list[str]) -> str:
    if len(labels) == 1:
        return labels[0]
    if column.is_ordered:
        return f"{labels[0]} to {labels[-1]}"
    more = len(labels) - NAMED
    return ", ".join(labels[:NAMED]) + (f" and {more} more" if more > 0 else "")


def report_document(member: SubsetSelection) -> JsonObject:
    """The law of a report and how it is written: a set of `chosen` of `size` values.

    The own value is in it where a whole number drawn evenly below 2^63 is less than `numerator`; `high` and `low` are its upper
    31 and lower 32 bits, for arithmetic in words.
    """
    heads = member.exact_p * RESOLUTION
    numerator = int(heads)
    bits = max(1, (member.size - 1).bit_length())
    return {
        "size": member.size,
        "chosen": member.chosen,
        "numerator": str(numerator),
        "denominator": str(RESOLUTION),
        "high": numerator >> 32,
        "low": numerator & 0xFFFFFFFF,
        "probability": member.p,
        "probability_of_another": member.q,
        "encoding": "bits" if member.size <= member.chosen * bits else "indices",
        "index_bits": bits,
        "bytes": member.wire_bytes,
    }


def schema_document(schema: Schema) -> list[JsonObject]:
    """The columns as a form shows them, and how what is typed becomes a code."""
    return [_column_document(column, schema.target) for column in schema.columns]


def _column_document(column: Column, target: str | None) -> JsonObject:
    document: JsonObject = {
        "name": column.name,
        "kind": column.kind,
        "size": column.size,
        "labels": list(column.labels()),
        "nullable": column.nullable,
        "null_code": column.levels if column.nullable else None,
        "target": column.name == target,
    }
    if column.is_scale:
        return {**document, "number": _number_document(column)}
    other = column.categories.index(column.other) if column.other else None
    return {**document, "categories": list(column.categories), "other_code": other}


def _number_document(column: Column) -> JsonObject:
    """How a number becomes a code: its tick, and the run of ticks it lies in."""
    cells = column.scale
    times, over = cells.grid.ratio
    kind = int if column.step else float
    inner = None if cells.inner is None else [kind(end) for end in cells.inner]
    return {
        "unit": UNITS.get(column.kind, "the number itself"),
        "step": column.step,
        "ticks": {"times": times, "over": over, "round": "down" if cells.grid.down else "nearest"}
        if column.step
        else None,
        "edges": [column.edges[0], column.edges[-1]] if inner is not None else None,
        "inner": inner,
        "pieces": [[kind(low), kind(high), code] for low, high, code in cells.pieces],
        "clip": column.clip,
    }


def code_of(document: JsonObject, number: float) -> int | None:
    """The code of a number by a column's document alone, as a page finds it; None where it lies outside.

    Edge cases: of two ticks as near, the even one; a number between the outermost edges is not rounded over them.
    """
    scale = document["number"]
    if not math.isfinite(number):
        return None
    try:
        tick = _tick(scale, number)
    except OverflowError:  # far outside of every scale
        return None
    edges, inner = scale["edges"], scale["inner"]
    if edges is not None and edges[0] <= number <= edges[1]:
        tick = min(max(tick, inner[0]), inner[1])
    for low, high, code in scale["pieces"]:
        if low <= tick <= high:
            return int(code)
    if not scale["clip"]:
        return None
    nearest = min((max(low - tick, tick - high), code) for low, high, code in scale["pieces"])
    return int(nearest[1])


def _tick(scale: JsonObject, number: float) -> float:
    if scale["ticks"] is None:
        return number
    times, over = scale["ticks"]["times"], scale["ticks"]["over"]
    near: int = round(number * times / over)
    return near - 1 if scale["ticks"]["round"] == "down" and near * over / times > number else near
