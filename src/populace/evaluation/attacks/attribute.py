"""Attribute inference: can the synthetic rows be used to guess one value of somebody all of whose other values are known?

What a generator of the population teaches about everybody is no leak about anybody. So guesses about members, whose rows were
used, are compared with guesses about others of the same population: the difference is what membership gave away.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri
from sklearn.ensemble import RandomForestClassifier

from populace.errors import DataError
from populace.evaluation.attacks.distances import MOST_ROWS, MOST_SYNTHETIC, draw_some, nearest
from populace.evaluation.marginals import check_comparable
from populace.tables.codec import one_hot
from populace.tables.table import Table
from populace.types import JsonObject, NumpyArray


def infer_attribute(
    synthetic: Table, members: Table, others: Table, column: str, *, confidence: float = 0.95, seed: int = 0
) -> JsonObject:
    """Share of right guesses about members and about others, by two attackers, and their differences.

    The intervals hold for both attackers at once.
    """
    check_comparable(members, synthetic)
    check_comparable(members, others)
    place = members.schema.index(column)
    if len(members.schema.columns) < 2:
        raise DataError("expected another column besides the one to be inferred")
    rng = np.random.default_rng(seed)
    synthetic = draw_some(synthetic, MOST_SYNTHETIC, rng)
    members, others = draw_some(members, MOST_ROWS, rng), draw_some(others, MOST_ROWS, rng)
    common = np.bincount(synthetic.codes[:, place], minlength=members.schema.sizes[place]).argmax()
    attackers = {"nearest synthetic row": _by_nearest, "random forest on the synthetic rows": _by_forest}
    rows: list[JsonObject] = []
    for name, guess in attackers.items():
        inside, outside = (guess(synthetic, people, place) == people.codes[:, place] for people in (members, others))
        difference, low, high = _difference(inside, outside, 1 - (1 - confidence) / len(attackers))
        rows.append({
            "attacker": name, "members": float(inside.mean()), "others": float(outside.mean()), "difference": difference,
            "low": low, "high": high,
        })  # fmt: skip
    best = max(rows, key=lambda row: row["low"])
    return {
        "column": column,
        "difference": best["difference"],
        "low": best["low"],
        "high": best["high"],
        "confidence": confidence,
        "attacker": best["attacker"],
        "most_common_value": float((others.codes[:, place] == common).mean()),
        "members": len(members),
        "others": len(others),
        "rows": rows,
        "note": "accuracy about others is what the population teaches about everybody; only the difference is due to "
        "membership, and a difference of 0 proves nothing against other attacks",
    }


def _by_nearest(synthetic: Table, people: Table, place: int) -> NumpyArray:
    return np.asarray(synthetic.codes[nearest(people, synthetic, without=place)[1], place])


def _by_forest(synthetic: Table, people: Table, place: int) -> NumpyArray:
    model = RandomForestClassifier(50, random_state=0, n_jobs=1)
    model.fit(_known(synthetic, place), synthetic.codes[:, place])
    return np.asarray(model.predict(_known(people, place)))


def _known(table: Table, place: int) -> NumpyArray:
    """All other columns, one-hot."""
    kept = [column for column in range(len(table.schema.columns)) if column != place]
    return one_hot(table.codes[:, kept], tuple(table.schema.sizes[column] for column in kept))


def _difference(inside: NumpyArray, outside: NumpyArray, confidence: float) -> tuple[float, float, float]:
    """The difference of two independent shares and its interval, by the method of Agresti and Caffo (2000)."""
    shares = [(side.sum() + 1) / (len(side) + 2) for side in (inside, outside)]
    variance = sum(p * (1 - p) / (len(side) + 2) for p, side in zip(shares, (inside, outside), strict=True))
    width = float(ndtri(0.5 + confidence / 2) * np.sqrt(variance))
    middle = float(shares[0] - shares[1])
    return float(inside.mean() - outside.mean()), middle - width, middle + width
