"""Every metric of synthetic tables against a real one, beside its baselines, as one document per table."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

import numpy as np

from populace.errors import DataError
from populace.evaluation import baselines, value_figures
from populace.evaluation.baselines import MAJORITY, PRODUCT, REAL, SHUFFLED, SYNTHETIC
from populace.evaluation.correlation import constant_columns, correlation_distance, distance_to_uncorrelated
from populace.evaluation.estimate import FROM_ROWS, FROM_TESTS, Estimate, left_out
from populace.evaluation.flags import Flag, flag_lines, ordered, prediction_flag, red_flags
from populace.evaluation.marginals import Pairs, check_comparable, co_occurrence, compare_pairs, compare_product
from populace.evaluation.prediction_figures import best_model, guess_of, predict, prediction_titles
from populace.evaluation.sets import average_distances
from populace.evaluation.value_figures import ValueComparison, compare_values
from populace.tables.table import Table
from populace.types import Doing, JsonObject, NumpyArray

Figures = dict[str, dict[str, Estimate]]  # metric -> table -> figure

WARNING = (
    "computed on the real rows without noise: not covered by the guarantee; keep it with the data, do not publish it"
)
WIDEST = 6
ONE_COLUMN = "the table has one column; expected two or more"
#: key -> (title, which way is better)
TITLES: dict[str, tuple[str, str]] = {
    **value_figures.TITLES,
    "one_way": ("one-way distance, mean over columns", "lower"),
    "two_way": ("two-way distance, mean over all pairs of columns", "lower"),
    **{f"avd_{m}": (f"{m}-way AVD, mean over 100 fixed sets of {m} columns", "lower") for m in range(1, WIDEST + 1)},
    "relative_error": ("relative error, mean over non-empty cells of two-way tables", "lower"),
    "correlation_distance": ("correlation matrix distance (CMD)", "lower"),
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Evaluated:
    """A document of figures, and the pair tables and values behind it, for charts."""

    document: JsonObject
    pairs: Pairs
    values: ValueComparison


def evaluate_table(synthetic: Table, real: Table, *, target: str | None = None, seed: int = 0) -> JsonObject:
    """The document of one synthetic table."""
    return evaluate_tables({SYNTHETIC: synthetic}, real, target=target, seed=seed)[SYNTHETIC].document


def evaluate_tables(
    synthetic: Mapping[str, Table],
    real: Table,
    *,
    target: str | None = None,
    seed: int = 0,
    doing: Doing = lambda _: None,
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
    first = baselines.first_half(len(real), rng)
    mixed = baselines.shuffled(real, rng)
    doing("comparing values")
    values, value_means = compare_values(synthetic, real, first, mixed)
    compared = time.monotonic()
    doing("comparing marginals")
    pairs, figures = _distances(synthetic, real, first, mixed)
    measured = time.monotonic()
    doing("predicting the target")
    predicted, facts = predict(synthetic, real, target, rng, seed)
    seconds = {
        "values": compared - began, "distances": measured - compared, "prediction": time.monotonic() - measured,
    }  # fmt: skip
    for found in value_means.values():
        found[MAJORITY] = left_out(baselines.NO_ROWS)
    figures |= value_means | predicted
    return {
        name: Evaluated(
            document=_document(name, table, real, pairs[name], values, figures, facts) | {"seconds": _rounded(seconds)},
            pairs=pairs[name],
            values=values[name],
        )
        for name, table in synthetic.items()
    }


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {key: round(value, 3) for key, value in seconds.items()}


def _distances(
    synthetic: Mapping[str, Table], real: Table, first_half: NumpyArray, shuffled: Table
) -> tuple[dict[str, Pairs], Figures]:
    first, second = real.take(first_half), real.take(~first_half)
    candidates = {**synthetic, SHUFFLED: shuffled}
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


def _document(
    name: str,
    table: Table,
    real: Table,
    pairs: Pairs,
    values: Mapping[str, ValueComparison],
    figures: Figures,
    facts: JsonObject,
) -> JsonObject:
    """What metrics.json holds about one table."""
    metrics: JsonObject = {}
    missing: dict[str, str] = {}
    for key, (title, better) in (TITLES | prediction_titles(facts)).items():
        own = {SYNTHETIC: figures[key][name], **{other: figures[key][other] for other in baselines.ABOUT}}
        metrics[key] = {
            "title": title,
            "better": better,
            "interval": FROM_TESTS if ":" in key else FROM_ROWS,
            "values": {other: found.to_json() for other, found in own.items()},
        }
        missing |= {f"{title}; {other}": found.why for other, found in own.items() if not found.known}
    constant = {who: constant_columns(of) for who, of in (("real", real), ("synthetic", table)) if constant_columns(of)}
    flags = ordered([*red_flags(values[name]), *_prediction_flags(metrics, facts)])
    return {
        "format": 3,
        "kind": "table",
        "warning": WARNING,
        "red_flags": [flag.to_json() for flag in flags],
        "red_flags_in_words": flag_lines([flag.to_json() for flag in flags]),
        "rows": {"synthetic": len(table), "real": len(real)},
        "columns": len(real.schema.columns),
        "baselines": baselines.ABOUT,
        "metrics": metrics,
        "values": values[name].to_json() | {"halves": _halves(values[REAL])},
        "one_way": _one_way(real, pairs),
        "two_way": _two_way(real, pairs, figures["two_way"][name]),
        "constant_columns": constant,
        "prediction": facts,
        "left_out": missing,
    }


def _prediction_flags(metrics: JsonObject, facts: JsonObject) -> list[Flag]:
    model, values = best_model(metrics, facts)
    if not model:
        return []
    what, guess = guess_of(facts)
    return prediction_flag(facts["target"], model, what, values[SYNTHETIC], values[REAL], guess)


def _halves(halves: ValueComparison) -> JsonObject:
    """The same figures of each column for one half of the real rows (as if real) against the other (as if synthetic)."""
    return {column.name: {"kind": column.kind, **column.to_json()} for column in halves.columns}


def _one_way(real: Table, pairs: Pairs) -> JsonObject:
    found = dict(zip(real.schema.names, pairs.one_way(), strict=True))
    return {
        "mean_tvd": float(np.mean([one.value for one in found.values()])),
        "tvd": {name: one.value for name, one in found.items()},
        "interval": {name: [one.low, one.high] for name, one in found.items()},
    }


def _two_way(real: Table, pairs: Pairs, mean: Estimate) -> JsonObject:
    if not mean.known:
        return {"left_out": mean.why}
    columns = list(real.schema.names)
    return {"mean_tvd": mean.value, "columns": columns, "tvd": np.round(pairs.distances(), 6).tolist()}
