"""Do synthetic rows lie nearer to the rows they were made from than to other rows of the same population?

Distance of two rows: mean over columns, of 0 or 1 for categories and of the share of the scale between ordered codes. A
generator that repeats its rows gives its members distance 0; one that learned only the population treats members and
others alike, and a random member is then nearer than a random other row half of the time.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from populace.errors import DataError
from populace.evaluation.marginals import check_comparable
from populace.tables.schema import Schema
from populace.tables.table import Table
from populace.types import JsonObject, NumpyArray

CHUNK = 2**24  # comparisons at a time
MOST_SYNTHETIC = 20_000
MOST_ROWS = 5_000


def nearest_distances(rows: Table, synthetic: Table) -> NumpyArray:
    """The distance of each row to the nearest synthetic one."""
    return nearest(rows, synthetic)[0]


def nearest(rows: Table, synthetic: Table, *, without: int | None = None) -> tuple[NumpyArray, NumpyArray]:
    """Distance to, and number of, the nearest synthetic row; `without` leaves a column out. Ties go to the first."""
    check_comparable(rows, synthetic)
    if not len(rows) or not len(synthetic):
        raise DataError("expected at least one row on both sides")
    columns = [column for column in range(len(rows.schema.columns)) if column != without]
    if not columns:
        raise DataError("expected another column besides the one to be inferred")
    distance, place = np.empty(len(rows)), np.empty(len(rows), np.int64)
    step = max(1, CHUNK // len(synthetic))
    for start in range(0, len(rows), step):
        gaps = np.zeros((len(rows.codes[start : start + step]), len(synthetic)), np.float32)
        for column in columns:
            a, b = rows.codes[start : start + step, column], synthetic.codes[:, column]
            gaps += column_gaps(rows.schema, column)[a][:, b]
        place[start : start + step] = gaps.argmin(axis=1)
        distance[start : start + step] = gaps.min(axis=1) / len(columns)
    return distance, place


def column_gaps(schema: Schema, column: int) -> NumpyArray:
    """Distance of any two codes of a column, [size, size]; a missing value is as far from all others as can be."""
    kind, size = schema.columns[column], schema.sizes[column]
    gaps = (1 - np.eye(size)).astype(np.float32)
    ordered = size - (1 if kind.nullable else 0)
    if kind.is_ordered and ordered > 1:
        codes = np.arange(ordered)
        gaps[:ordered, :ordered] = np.abs(codes[:, None] - codes) / (ordered - 1)
    return gaps


def compare_distances(
    synthetic: Table, members: Table, others: Table, *, confidence: float = 0.95, seed: int = 0
) -> JsonObject:
    """How near members and others are, and how often a random member is the nearer one (half for ties), with its interval."""
    rng = np.random.default_rng(seed)
    synthetic = draw_some(synthetic, MOST_SYNTHETIC, rng)
    near, far = (nearest_distances(draw_some(rows, MOST_ROWS, rng), synthetic) for rows in (members, others))
    share, low, high = share_nearer(near, far, confidence)
    return {
        "share_of_members_nearer": share,
        "low": low,
        "high": high,
        "confidence": confidence,
        "members": _described(near),
        "others": _described(far),
        "synthetic_rows": len(synthetic),
        "note": "0.5 means that members are no nearer to the synthetic rows than other people's rows are; it proves nothing "
        "about single members, and nothing against other attacks",
    }


def share_nearer(near: NumpyArray, far: NumpyArray, confidence: float) -> tuple[float, float, float]:
    """P[near < far] + P[near = far]/2 with its interval, from the spread of each row's own share (DeLong et al. 1988).

    One row that is always and one that is never the nearer are added on each side, so that rows that all say the same do not
    pass for certainty (as Agresti and Caffo 2000 do for shares).
    """
    ordered_far, ordered_near = np.sort(far), np.sort(near)
    of_members = 1 - (_below(ordered_far, near) + _up_to(ordered_far, near)) / 2
    of_others = (_below(ordered_near, far) + _up_to(ordered_near, far)) / 2
    sides = [np.append(side, [0.0, 1.0]) for side in (of_members, of_others)]
    middle = float(np.mean([side.mean() for side in sides]))
    width = float(ndtri(0.5 + confidence / 2)) * float(np.sqrt(sum(side.var(ddof=1) / len(side) for side in sides)))
    return float(of_members.mean()), max(0.0, middle - width), min(1.0, middle + width)


def _below(ordered: NumpyArray, values: NumpyArray) -> NumpyArray:
    return np.searchsorted(ordered, values, side="left") / len(ordered)


def _up_to(ordered: NumpyArray, values: NumpyArray) -> NumpyArray:
    return np.searchsorted(ordered, values, side="right") / len(ordered)


def _described(distances: NumpyArray) -> dict[str, float]:
    return {
        "rows": len(distances),
        "mean": float(distances.mean()),
        "median": float(np.median(distances)),
        "fifth_percentile": float(np.percentile(distances, 5)),
        "share_with_a_copy": float((distances == 0).mean()),
    }


def draw_some(table: Table, most: int, rng: np.random.Generator) -> Table:
    """The table, or so many of its rows, drawn at random."""
    return table if len(table) <= most else table.take(np.sort(rng.choice(len(table), most, replace=False)))
