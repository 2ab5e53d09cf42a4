"""Every metric of a synthetic table against a real one, as one document."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from populace.errors import DataError
from populace.evaluation.marginals import mean_over_pairs, one_way_distances, two_way_distances
from populace.evaluation.prediction import Score, logistic_score, majority_score
from populace.tables.table import Table, from_codes

Array = np.ndarray[Any, Any]

HOLDOUT = 0.3
WARNING = (
    "computed on the real rows without noise: not covered by the guarantee; keep it with the data, do not publish it"
)


def evaluate_table(synthetic: Table, real: Table, *, target: str | None = None, seed: int = 0) -> dict[str, Any]:
    """Distances of one- and two-way tables, and what a model trained on the synthetic rows is worth on real ones.

    Beside the synthetic table stand the real rows themselves (a half against the other half: what sampling alone costs) and
    the real columns drawn independently of each other.
    """
    if len(real) < 10:
        raise DataError(f"expected at least 10 real rows to evaluate against, got {len(real)}")
    target = target or real.schema.target
    rng = np.random.default_rng(seed)
    shuffled = _independent_columns(real, rng)
    document: dict[str, Any] = {
        "warning": WARNING,
        "rows": {"synthetic": len(synthetic), "real": len(real)},
        "one_way": _one_way(synthetic, real),
        "two_way": _two_way(synthetic, real),
        "baselines": {
            "real, one half against the other": _baseline(*_halves(real, rng)),
            "real columns, shuffled independently": _baseline(shuffled, real),
        },
    }
    if target is None:
        document["prediction"] = {"left_out": "no target was named; give --target COLUMN"}
    else:
        document["prediction"] = _prediction(synthetic, real, shuffled, target, rng)
    return document


def _one_way(synthetic: Table, real: Table) -> dict[str, Any]:
    distances = one_way_distances(real, synthetic)
    return {"mean_tvd": float(np.mean(list(distances.values()))), "tvd": distances}


def _two_way(synthetic: Table, real: Table) -> dict[str, Any]:
    if len(real.schema.columns) < 2:
        return {"left_out": "the table has one column"}
    matrix = two_way_distances(real, synthetic)
    return {
        "mean_tvd": mean_over_pairs(matrix),
        "columns": list(real.schema.names),
        "tvd": np.round(matrix, 6).tolist(),
    }


def _baseline(synthetic: Table, real: Table) -> dict[str, float]:
    matrix = two_way_distances(real, synthetic)
    return {"one_way_mean_tvd": float(np.diag(matrix).mean()), "two_way_mean_tvd": mean_over_pairs(matrix)}


def _halves(real: Table, rng: np.random.Generator) -> tuple[Table, Table]:
    order = rng.permutation(len(real))
    return real.take(order[: len(real) // 2]), real.take(order[len(real) // 2 :])


def _independent_columns(real: Table, rng: np.random.Generator) -> Table:
    codes = np.stack([rng.permutation(column) for column in real.codes.T], axis=1)
    return from_codes(codes, real.schema, rng)


def _prediction(
    synthetic: Table, real: Table, shuffled: Table, target: str, rng: np.random.Generator
) -> dict[str, Any]:
    order = rng.permutation(len(real))
    cut = max(1, int(HOLDOUT * len(real)))
    test, rest = real.take(order[:cut]), real.take(order[cut:])
    scores = {
        "synthetic": logistic_score(synthetic, test, target),
        "real": logistic_score(rest, test, target),
        "real columns, shuffled independently": logistic_score(shuffled, test, target),
        "majority class": majority_score(rest, test, target),
    }
    return {
        "target": target,
        "model": "logistic regression, one-hot",
        "tested_on": f"{len(test)} real rows held out of the file given",
        "scores": {name: _score(score) for name, score in scores.items()},
    }


def _score(score: Score) -> dict[str, Any]:
    document = dataclasses.asdict(score)
    if math.isnan(score.auc):
        document["auc"] = None
    return {key: value for key, value in document.items() if value != ""}
