"""Every metric of synthetic tables against a real one, beside its baselines, as one document per table."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from populace.errors import DataError
from populace.evaluation import baselines, prediction
from populace.evaluation.baselines import MAJORITY, PRODUCT, REAL, SHUFFLED, SYNTHETIC
from populace.evaluation.correlation import constant_columns, correlation_distance, distance_to_uncorrelated
from populace.evaluation.estimate import FROM_ROWS, FROM_SEEDS, FROM_TESTS, Estimate, left_out, over_seeds
from populace.evaluation.marginals import Pairs, check_comparable, co_occurrence, compare_pairs, compare_product
from populace.evaluation.prediction import LEARNERS, MOST_CLASSES, Score
from populace.evaluation.sets import average_distances
from populace.tables.table import Table

Array = np.ndarray[Any, Any]
Figures = dict[str, dict[str, Estimate]]  # metric -> table -> figure

WARNING = (
    "computed on the real rows without noise: not covered by the guarantee; keep it with the data, do not publish it"
)
WIDEST = 6
SHUFFLES, SHUFFLED_ROWS = 5, 500
ONE_COLUMN = "the table has one column; expected two or more"
NO_TARGET = "no target was named; give --target COLUMN"
#: key -> (title, which way is better)
TITLES: dict[str, tuple[str, str]] = {
    "one_way": ("one-way distance, mean over columns", "lower"),
    "two_way": ("two-way distance, mean over all pairs of columns", "lower"),
    **{f"avd_{m}": (f"{m}-way AVD, mean over 100 fixed sets of {m} columns", "lower") for m in range(1, WIDEST + 1)},
    "relative_error": ("relative error, mean over non-empty cells of two-way tables", "lower"),
    "correlation_distance": ("correlation matrix distance (CMD)", "lower"),
    **{f"auc: {name}": (f"AUC, {name}", "higher") for name in LEARNERS},
    **{f"accuracy: {name}": (f"accuracy, {name}", "higher") for name in LEARNERS},
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Evaluated:
    """A document of figures, and the pair tables behind it, for charts."""

    document: dict[str, Any]
    pairs: Pairs


def evaluate_table(synthetic: Table, real: Table, *, target: str | None = None, seed: int = 0) -> dict[str, Any]:
    """The document of one synthetic table."""
    return evaluate_tables({SYNTHETIC: synthetic}, real, target=target, seed=seed)[SYNTHETIC].document


def evaluate_tables(
    synthetic: Mapping[str, Table], real: Table, *, target: str | None = None, seed: int = 0
) -> dict[str, Evaluated]:
    """All figures of several synthetic tables under one schema; what does not depend on them is computed once.

    No figure is dropped: one that cannot be computed has its reason in the same place, and again under "left_out".
    """
    if len(real) < 10:
        raise DataError(f"expected at least 10 real rows to evaluate against, got {len(real)}")
    for table in synthetic.values():
        check_comparable(real, table)
    target = target or real.schema.target
    if target is not None:
        real.schema.index(target)
    taken = set(synthetic) & set(baselines.ABOUT)
    if taken:
        raise DataError(f"expected names of tables other than the baselines', got {taken.pop()!r}; rename the run")
    rng = np.random.default_rng(seed)
    began = time.monotonic()
    pairs, figures = _distances(synthetic, real, rng)
    measured = time.monotonic()
    predicted, facts = _prediction(synthetic, real, target, rng, seed)
    seconds = {"distances": measured - began, "prediction": time.monotonic() - measured}
    return {
        name: Evaluated(
            document=_document(name, table, real, pairs[name], figures | predicted, facts, seconds), pairs=pairs[name]
        )
        for name, table in synthetic.items()
    }


def _distances(
    synthetic: Mapping[str, Table], real: Table, rng: np.random.Generator
) -> tuple[dict[str, Pairs], Figures]:
    first, second = baselines.halves(real, rng)
    candidates = {**synthetic, SHUFFLED: baselines.shuffled(real, rng)}
    of_real = co_occurrence(real)
    pairs = {name: compare_pairs(real, table, of_real=of_real) for name, table in candidates.items()}
    pairs[REAL] = compare_pairs(first, second)
    pairs[PRODUCT] = compare_product(real, of_real=of_real)
    columns = len(real.schema.columns)
    figures: Figures = {
        "one_way": {name: found.mean_distance(ways=1) for name, found in pairs.items()},
        "two_way": {
            name: found.mean_distance(ways=2) if columns > 1 else left_out(ONE_COLUMN) for name, found in pairs.items()
        },
        "relative_error": {name: found.relative_error() for name, found in pairs.items()},
        "correlation_distance": dict.fromkeys(pairs, left_out(ONE_COLUMN)),
    }
    if columns > 1:
        cmd = {name: correlation_distance(real, table) for name, table in candidates.items()}
        figures["correlation_distance"] = cmd | {
            REAL: correlation_distance(first, second), PRODUCT: distance_to_uncorrelated(real),
        }  # fmt: skip
    for width in range(1, WIDEST + 1):
        if width > columns:
            figures[f"avd_{width}"] = dict.fromkeys(pairs, left_out(f"the table has {columns} columns only"))
            continue
        halved = average_distances(first, {REAL: second}, width)
        figures[f"avd_{width}"] = average_distances(real, candidates, width, product=PRODUCT) | halved
    for found in figures.values():
        found[MAJORITY] = left_out(baselines.NO_ROWS)
    return {name: pairs[name] for name in synthetic}, figures


def _prediction(
    synthetic: Mapping[str, Table], real: Table, target: str | None, rng: np.random.Generator, seed: int
) -> tuple[Figures, dict[str, Any]]:
    """The figures, and what has to be said about them."""
    everyone = [*synthetic, REAL, PRODUCT, SHUFFLED, MAJORITY]
    why = NO_TARGET if target is None else ""
    if target is not None and len(real.schema.columns) < 2:
        why = ONE_COLUMN
    if target is not None and real.schema.column(target).size > MOST_CLASSES:
        why = f"{target} has {real.schema.column(target).size} values; expected at most {MOST_CLASSES}"
    if target is None or why:
        keys = [f"{what}: {name}" for what in ("auc", "accuracy") for name in LEARNERS]
        return {key: dict.fromkeys(everyone, left_out(why)) for key in keys}, {"left_out": why}
    test, rest = baselines.hold_out(real, rng)
    scores = prediction.scores({**synthetic, REAL: rest}, test, target, seed=seed)
    draws = {f"shuffle {i}": baselines.shuffled(rest, rng, SHUFFLED_ROWS) for i in range(SHUFFLES)}
    repeated = prediction.scores(draws, test, target, seed=seed, draws=1)  # the interval comes from the shuffles
    majority = prediction.majority_score(rest, test, target)
    scores[SHUFFLED] = {name: _over_seeds([found[name] for found in repeated.values()]) for name in LEARNERS}
    scores[MAJORITY] = dict.fromkeys(LEARNERS, majority)
    scores[PRODUCT] = dict.fromkeys(LEARNERS, _by_construction(majority))
    figures = {f"auc: {name}": {table: scores[table][name].auc for table in everyone} for name in LEARNERS}
    figures |= {f"accuracy: {name}": {table: scores[table][name].accuracy for table in everyone} for name in LEARNERS}
    facts = {
        "target": target,
        "models": list(LEARNERS),
        "tested_on": f"{len(test):,} real rows held out of the file given (not used to train the real baseline)",
        "trained_on": f"at most {prediction.MOST_TRAINING_ROWS:,} rows",
        "caution": "if the file given is the one the run learned from, the method has seen the test rows too",
        SHUFFLED: f"mean of {SHUFFLES} shuffles of at most {SHUFFLED_ROWS:,} rows; {FROM_SEEDS}",
    }
    return figures, facts


def _over_seeds(found: list[Score]) -> Score:
    auc = over_seeds([score.auc.value for score in found]) if any(score.auc.known for score in found) else found[0].auc
    return Score(accuracy=over_seeds([score.accuracy.value for score in found]), auc=auc)


def _by_construction(majority: Score) -> Score:
    why = baselines.PRODUCT_FOUND
    return Score(
        accuracy=dataclasses.replace(majority.accuracy, why=why), auc=dataclasses.replace(majority.auc, why=why)
    )


def _document(
    name: str,
    table: Table,
    real: Table,
    pairs: Pairs,
    figures: Figures,
    facts: dict[str, Any],
    seconds: dict[str, float],
) -> dict[str, Any]:
    """What metrics.json holds about one table."""
    metrics: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for key, (title, better) in TITLES.items():
        own = {SYNTHETIC: figures[key][name], **{other: figures[key][other] for other in baselines.ABOUT}}
        metrics[key] = {
            "title": title,
            "better": better,
            "interval": FROM_TESTS if ":" in key else FROM_ROWS,
            "values": {other: found.to_json() for other, found in own.items()},
        }
        missing |= {f"{title}; {other}": found.why for other, found in own.items() if not found.known}
    constant = {who: constant_columns(of) for who, of in (("real", real), ("synthetic", table)) if constant_columns(of)}
    return {
        "format": 2,
        "kind": "table",
        "warning": WARNING,
        "rows": {"synthetic": len(table), "real": len(real)},
        "columns": len(real.schema.columns),
        "baselines": baselines.ABOUT,
        "metrics": metrics,
        "one_way": _one_way(real, pairs),
        "two_way": _two_way(real, pairs, figures["two_way"][name]),
        "constant_columns": constant,
        "prediction": facts,
        "left_out": missing,
        "seconds": {key: round(value, 3) for key, value in seconds.items()},
    }


def _one_way(real: Table, pairs: Pairs) -> dict[str, Any]:
    found = dict(zip(real.schema.names, pairs.one_way(), strict=True))
    return {
        "mean_tvd": float(np.mean([one.value for one in found.values()])),
        "tvd": {name: one.value for name, one in found.items()},
        "interval": {name: [one.low, one.high] for name, one in found.items()},
    }


def _two_way(real: Table, pairs: Pairs, mean: Estimate) -> dict[str, Any]:
    if not mean.known:
        return {"left_out": mean.why}
    columns = list(real.schema.names)
    return {"mean_tvd": mean.value, "columns": columns, "tvd": np.round(pairs.distances(), 6).tolist()}
