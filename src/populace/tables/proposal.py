"""Proposing a schema by looking at rows: convenient, covered by no guarantee, and so marked on every column.

What cannot be modelled stops nothing: identifiers are made afresh, free text and empty columns are left out, and all of it
is said in the notes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from populace.errors import SchemaError
from populace.tables.binning import LEAST_CELLS, choose_cells
from populace.tables.columns import KINDS, LISTED, OTHER_KINDS, Column, Kind, Other, category_text
from populace.tables.conversion import TRUTH_WORDS, is_text, plain
from populace.tables.dates import number_text
from populace.tables.reading import delimiter_of
from populace.tables.recognition import (
    Recognised,
    are_codes,
    decimal_step,
    looks_like_id,
    recognise,
    time_step,
)  # fmt: skip
from populace.tables.schema import Schema
from populace.types import JsonObject

FEW_NUMBERS = 12  # a column of whole numbers with at most so many is ordinal, rather than in cells
MOST_CATEGORIES = 1_000
ROWS_PER_CATEGORY = 5
NEARLY_ALL = 0.9
FEW_TEXTS = 50  # below so many distinct texts a column holds categories, however few its rows
LARGEST = 2.0**53
OTHER_NAME = "(other)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proposal:
    """A schema read from rows, what was noticed on the way, a sentence each, and how many values each column lacks."""

    schema: Schema
    notes: tuple[str, ...] = ()
    missing: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Entry:
    """One column of the proposal; None where it is left out altogether."""

    column: Column | Other | None
    notes: tuple[str, ...] = ()
    missing: int = 0


def propose(
    *frames: pa.Table,
    drop: Sequence[str] = (),
    ids: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    clip: bool = False,
    target: str | None = None,
    public: str = "",
) -> Proposal:
    """A schema whose domains are read from the rows of all frames; every column is marked so.

    `drop` leaves columns out, `ids` makes them afresh, `kinds` overrules what was recognised, `clip` lets later rows lie
    outside the domains. `public` names the public table that the rows are; then the domains are marked as public.
    """
    if not frames or any(frame.num_rows == 0 for frame in frames):
        raise SchemaError("cannot propose a schema for a table without rows")
    wanted = {**(kinds or {}), **dict.fromkeys(ids, "id")}
    _check_names(frames, (*drop, *wanted, *(() if target is None else (target,))), wanted)
    names = [name for name in frames[0].column_names if name not in drop]
    if not names:
        raise SchemaError("every column is dropped; keep at least one")
    entries, problems = [], []
    for name in names:
        try:
            entries.append((name, propose_column(_joined(frames, name), name, kind=wanted.get(name, ""),
                                                 delimiter=delimiter_of(frames[0]))))  # fmt: skip
        except SchemaError as error:
            problems.append(str(error))
    if problems:
        raise SchemaError(problems[0] if len(problems) == 1 else f"{len(problems)} problems: " + "; ".join(problems))
    kept = [(name, entry.column) for name, entry in entries if entry.column is not None]
    columns = [one for _, one in kept if isinstance(one, Column)]
    if not columns:
        raise SchemaError(
            "no column of the table can be modelled: "
            + "; ".join(f"{name}: {note}" for name, e in entries for note in e.notes)
        )
    others = [dataclasses.replace(one, position=i) for i, (_, one) in enumerate(kept) if isinstance(one, Other)]
    marked = [_marked(column, clip=clip and column.name != target, public=public) for column in columns]
    return Proposal(
        schema=Schema(columns=tuple(marked), others=tuple(others), target=target),
        notes=tuple(f"{name}: {note}" for name, entry in entries for note in entry.notes),
        missing={name: entry.missing for name, entry in entries if entry.missing},
    )


def _check_names(frames: Sequence[pa.Table], named: Sequence[str], kinds: Mapping[str, str]) -> None:
    first = frames[0].column_names
    unknown = [name for name in named if name not in first]
    if unknown:
        raise SchemaError(f"no column {', '.join(map(repr, unknown))} in the table; columns are {', '.join(first)}")
    wrong = [f"{name}={kind}" for name, kind in kinds.items() if kind not in (*KINDS, *OTHER_KINDS)]
    if wrong:
        raise SchemaError(f"expected a kind in {', '.join((*KINDS, *OTHER_KINDS))}, got {', '.join(wrong)}")
    for number, frame in enumerate(frames[1:], start=2):
        missing = set(first) ^ set(frame.column_names)
        if missing:
            raise SchemaError(
                f"table {number} and the first do not have the same columns: {', '.join(sorted(missing))} in one only; "
                "drop them, or give tables of one form"
            )


def _joined(frames: Sequence[pa.Table], name: str) -> pa.Array:
    parts = [plain(frame.column(name)) for frame in frames]
    if len({str(part.type) for part in parts}) > 1:
        numbers = all(
            pa.types.is_integer(p.type) or pa.types.is_floating(p.type) or not p.is_valid().sum().as_py() for p in parts
        )
        parts = [part.cast(pa.float64() if numbers else pa.string()) for part in parts]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _marked(column: Column, *, clip: bool, public: str) -> Column:
    changes: JsonObject = {"domain": "public-data", "source": public} if public else {}
    if clip and column.is_scale:
        changes["clip"] = True
    elif (
        clip and column.kind == "ordinal" and column.dtype == "integer"
    ):  # a scale can be clipped, a list of ranks cannot
        spikes = tuple(float(category) for category in column.categories)
        changes |= {"kind": "integer", "categories": (), "spikes": spikes, "clip": True, "step": -1.0}
    elif clip and column.kind == "categorical":
        other = OTHER_NAME if column.dtype == "string" else _free_number(column)
        changes |= {"other": other, "categories": (*column.categories, other)}
    return dataclasses.replace(column, **changes) if changes else column


def _free_number(column: Column) -> str:
    """A number that is no category, for those that are not listed: -1 where it is free."""
    least = min(0.0, *(float(category) for category in column.categories)) - 1
    return category_text(int(least) if column.dtype == "integer" else least)


def propose_column(values: pa.ChunkedArray | pa.Array, name: str, *, kind: str = "", delimiter: str = ",") -> _Entry:
    """One column: modelled, made afresh, or left out, with what there is to say about it."""
    seen = recognise(values, delimiter=delimiter)
    notes = list(seen.notes)
    if seen.markers:
        written = [(text, count) for text, count in seen.markers if text]
        if len(written) == 1 and written[0][1] == seen.gaps:
            notes.append(f"{seen.gaps:,} missing, written {written[0][0]!r}")
        elif written:
            notes.append(f"{seen.gaps:,} missing, of which " + " and ".join(f"{n:,} written {t!r}" for t, n in written))
    if kind in OTHER_KINDS:
        return _Entry(column=_other(name, kind, seen), notes=tuple(notes))
    if seen.what == "nothing":
        return _Entry(column=None, notes=("no value in any row; left out",))
    if seen.what == "nested":
        return _Entry(column=Other(name=name, kind="text"), notes=(f"holds {values.type} values; left out",))
    if seen.numbers is not None and not np.isfinite(seen.numbers).all():
        raise SchemaError(f"column {name!r} holds an infinite value; clean it, drop the column, or declare edges")
    made, said = _by_kind(seen, name, kind) if kind else _by_look(seen, name)
    return _Entry(column=made, notes=(*notes, *said), missing=seen.gaps)


def _other(name: str, kind: str, seen: Recognised) -> Other:
    return Other(name=name, kind=cast(Any, kind), dtype="integer" if seen.what == "number" and seen.whole else "string")


def _by_look(seen: Recognised, name: str) -> tuple[Column | Other, tuple[str, ...]]:
    if seen.what == "boolean":
        return _boolean(seen, name), ()
    if seen.what == "category":
        return _text_column(seen, name)
    if seen.what != "number":
        return _scale(seen, name, cast(Kind, seen.what))
    distinct, counts = np.unique(np.asarray(seen.numbers), return_counts=True)
    if len(distinct) == 2 and set(distinct.tolist()) == {0.0, 1.0}:
        return _boolean(seen, name), ()
    if not seen.whole and (bool((distinct != np.floor(distinct)).any()) or len(distinct) > FEW_NUMBERS):
        return _scale(seen, name, "decimal")  # few whole numbers are few, whether written 3 or 3.0
    if seen.whole and float(np.abs(distinct).max()) > LARGEST:
        return _other(name, "id", seen), ("whole numbers beyond 2^53, taken for an id and made afresh",)
    share = len(distinct) / len(np.asarray(seen.numbers))
    if looks_like_id(name) and len(distinct) > MOST_CATEGORIES / 10 and share >= 0.5:
        return _other(name, "id", seen), (f"{len(distinct):,} distinct numbers, taken for an id and made afresh",)
    if len(distinct) <= 2:
        return _listed(seen, name, "categorical"), ()
    if are_codes(name, distinct, counts):
        return _listed(seen, name, "categorical"), (
            "whole numbers that look like codes, taken for categories; say kind = 'integer' if they are a scale",
        )
    if len(distinct) <= FEW_NUMBERS:
        return _listed(seen, name, "ordinal"), ()
    return _scale(seen, name, "integer")


def _by_kind(seen: Recognised, name: str, kind: str) -> tuple[Column | Other, tuple[str, ...]]:
    """The kind that was asked for; refuses what the values are not."""
    numbers = seen.what == "number" or (seen.what == "boolean" and seen.numbers is not None)
    if kind == "boolean":
        return _boolean(seen, name), ()
    if kind in LISTED:
        return _listed(seen, name, cast(Kind, kind)), ()
    if kind in ("integer", "decimal"):
        if not numbers and not (seen.what == "boolean" and seen.values is not None and _zero_one(seen)):
            raise SchemaError(f"column {name!r} is to be {kind}, but holds values that are no numbers")
        seen = seen if numbers else recognise(pc.cast(cast(pa.Array, seen.values), pa.int64()))
        if kind == "integer" and not (np.asarray(seen.numbers) == np.floor(np.asarray(seen.numbers))).all():
            raise SchemaError(f"column {name!r} is to be integer, but holds fractions; say decimal")
        return _scale(seen, name, cast(Kind, kind))
    if seen.what != kind and {seen.what, kind} != {"date", "datetime"}:
        raise SchemaError(f"column {name!r} is to be a {kind}, but holds values that are none")
    if seen.what != kind:
        raw = np.asarray(seen.numbers)
        seen = dataclasses.replace(seen, numbers=np.floor(raw / 86_400) if kind == "date" else raw * 86_400)
    return _scale(seen, name, cast(Kind, kind))


def _zero_one(seen: Recognised) -> bool:
    return set(cast(pa.Array, seen.values).unique().to_pylist()) <= {"0", "1", 0, 1}


def _missing(seen: Recognised) -> tuple[str, ...]:
    return tuple(text for text, _ in sorted(seen.markers, key=lambda one: -one[1]) if text)


def _made(seen: Recognised, name: str, kind: Kind, **fields: Any) -> Column:
    return Column(
        name=name, kind=kind, nullable=seen.gaps > 0, missing=_missing(seen), domain="read-from-data", **fields
    )


def _dtype(kind: Any) -> str:
    if is_text(kind):
        return "string"
    if pa.types.is_boolean(kind):
        return "boolean"
    return "integer" if pa.types.is_integer(kind) else "float"


def _boolean(seen: Recognised, name: str) -> Column:
    """Two values, the one that denies first; stored as they are written."""
    values = cast(pa.Array, seen.values)
    dtype = _dtype(values.type)
    found = [category_text(value) for value in values.unique().to_pylist()]
    if dtype == "string" and set(found) <= {"0", "1"}:
        dtype = "integer"
    elif dtype == "string" and set(found) <= {"false", "true"}:
        dtype = "boolean"
    denying = [words[0] for words in TRUTH_WORDS] + ["0.0"]
    found.sort(key=lambda text: (text.lower() not in denying, text))
    if len(found) > 2:
        raise SchemaError(f"column {name!r} is to be boolean, but holds {len(found)} distinct values")
    return _made(seen, name, "boolean", categories=tuple(found), dtype=dtype)


def _listed(seen: Recognised, name: str, kind: Kind) -> Column:
    values = cast(pa.Array, seen.values)
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.string())
    dtype = _dtype(values.type)
    listed = sorted(set(values.unique().to_pylist()))
    if pa.types.is_decimal(values.type):
        listed = sorted({float(value) for value in listed})
    return _made(seen, name, kind, categories=tuple(dict.fromkeys(map(category_text, listed))), dtype=dtype)


def _text_column(seen: Recognised, name: str) -> tuple[Column | Other, tuple[str, ...]]:
    values = cast(pa.Array, seen.values)
    distinct, rows = len(values.unique()), len(values)
    nearly_all = distinct > NEARLY_ALL * rows and distinct > FEW_TEXTS
    crowded = distinct > MOST_CATEGORIES and rows < ROWS_PER_CATEGORY * distinct
    if not (nearly_all or crowded):
        return _listed(seen, name, "categorical"), ()
    spaced = pc.sum(pc.match_substring_regex(values, "[ ;,|]")).as_py() > rows / 2  # words, or a list of codes
    if spaced and not (looks_like_id(name) and nearly_all):
        return Other(name=name, kind="text"), (f"{distinct:,} distinct texts in {rows:,} rows, free text; left out",)
    repeats = f"; values repeat: --client-column {name} protects all rows of one" if distinct < rows else ""
    return Other(name=name, kind="id"), (
        f"{distinct:,} distinct texts in {rows:,} rows, taken for an id and made afresh; say kind = 'categorical' to keep "
        f"its values{repeats}",
    )


def _scale(seen: Recognised, name: str, kind: Kind) -> tuple[Column, tuple[str, ...]]:
    numbers = np.asarray(seen.numbers)
    step = {"integer": 1.0, "date": 1.0}.get(kind) or (
        decimal_step(numbers) if kind == "decimal" else time_step(numbers)
    )
    if kind == "time":
        step = min(step, 3_600.0)
    numbers = np.round(numbers, 3) if kind in ("datetime", "time") else numbers
    parts = choose_cells(numbers, step, kind)
    column = _made(
        seen, name, kind, edges=parts.edges, spikes=parts.spikes, laws=parts.laws, step=step, format=seen.format,
        clip=parts.moved > 0,
    )  # fmt: skip
    said = []
    if parts.moved:
        numbered = (*parts.edges, *parts.spikes)
        ends = " to ".join(number_text(end, kind) for end in (min(numbered), max(numbered)))
        said.append(f"{parts.moved} outlying value(s) outside {ends} are moved to the nearest cell (clip = true)")
    distinct, counts = np.unique(numbers, return_counts=True)
    if column.levels < LEAST_CELLS < len(distinct):
        most = counts.max() / len(numbers)
        said.append(
            f"only {column.levels} cells from {len(distinct)} distinct values: one value holds {most:.1%} of the rows"
        )
    return column, tuple(said)
