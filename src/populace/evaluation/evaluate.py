"""Every metric of synthetic tables against a real one, beside its baselines, as one document per table."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from populace.errors import DataError
from populace.evaluation import baselines, dependence, value_figures
from populace.evaluation.baselines import MAJORITY, PRODUCT, REAL, SHUFFLED, SYNTHETIC
from populace.evaluation.correlation import constant_columns, correlation_distance, distance_to_uncorrelated, moments_of
from populace.evaluation.estimate import FROM_ROWS, FROM_TESTS, Estimate, left_out
from populace.evaluation.flags import Flag, flag_lines, ordered, prediction_flag, red_flags
from populace.evaluation.marginals import Pairs, check_comparable, co_occurrence, compare_pairs, compare_product
from populace.evaluation.prediction_figures import (
    best_model,
    draw_rows,
    guess_of,
    own_facts,
    predict,
    prediction_titles,
)
from populace.evaluation.remarks import remarks
from populace.evaluation.sets import Columns, distances_of
from populace.evaluation.value_figures import ValueComparison, compare_values
from populace.evaluation.values import sample_rows
from populace.tables.schema import Schema
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
    """A document of figures, and the pair tables and values behind it, for charts; `schema` is that of the tables."""

    document: JsonObject
    schema: Schema
    pairs: Pairs
    values: ValueComparison


def evaluate_table(synthetic: Table, real: Table, *, target: str | None = None, seed: int = 0) -> JsonObject:
    """The document of one synthetic table."""
    return evaluate_tables({SYNTHETIC: synthetic}, real, target=target, seed=seed)[SYNTHETIC].document


def evaluate_tables(
    synthetic: Mapping[str, Table], real: Table, *, target: str | None = None, seed: int = 0
) -> dict[str, Evaluated]:
    """All figures of several synthetic tables under one schema; what does not depend on them is computed once.

    No figure is dropped: one that cannot be computed has its reason in the same place, and again under "left_out".
    """
    return evaluate_read(lambda: (synthetic, real), target=target, seed=seed)


def evaluate_read(
    read: Callable[[], tuple[Mapping[str, Table], Table]],
    *,
    target: str | None = None,
    seed: int = 0,
    doing: Doing = lambda _: None,
) -> dict[str, Evaluated]:
    """The same of tables that are read here, synthetic ones and the real one, so that values can be let go midway."""
    synthetic, real = read()
    target = _check(synthetic, real, target)
    doing("comparing values")
    rng = np.random.default_rng(seed)
    began = time.monotonic()
    first = baselines.first_half(len(real), rng)
    mixed = baselines.shuffled(real, rng, shown=sample_rows(len(real), dependence.ROWS))
    drawn = draw_rows(synthetic, real, target, rng, seed)
    values, halves, figures = compare_values(synthetic, real, first, mixed)
    compared = time.monotonic()
    synthetic, real, mixed = (
        {name: _without_values(table) for name, table in synthetic.items()},
        _without_values(real),
        _without_values(mixed),
    )
    pa.default_memory_pool().release_unused()
    doing("comparing marginals")
    pairs, distances, hiding = _distances(synthetic, real, first, mixed)
    del mixed, first
    measured = time.monotonic()
    doing("predicting the target")
    predicted, facts = predict(drawn, synthetic, seed)
    seconds = {
        "values": compared - began, "distances": measured - compared, "prediction": time.monotonic() - measured,
    }  # fmt: skip
    figures |= distances
    for found in figures.values():
        found[MAJORITY] = left_out(baselines.NO_ROWS)
    figures |= predicted
    return {
        name: Evaluated(
            document=_document(name, table, real, pairs[name], values[name], halves, figures, facts)
            | {"hides_dependence": hiding, "seconds": _rounded(seconds)},
            schema=real.schema,
            pairs=pairs[name],
            values=values[name],
        )
        for name, table in synthetic.items()
    }


def _check(synthetic: Mapping[str, Table], real: Table, target: str | None) -> str | None:
    """The target, of tables that compare."""
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
    return target


def _without_values(table: Table) -> Table:
    return dataclasses.replace(table, frame=pa.table({}))


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {key: round(value, 3) for key, value in seconds.items()}


def _distances(
    synthetic: Mapping[str, Table], real: Table, first_half: NumpyArray, shuffled: Table
) -> tuple[dict[str, Pairs], Figures, str]:
    first, second = (_coded_rows(real, rows) for rows in (first_half, ~first_half))
    candidates = {**synthetic, SHUFFLED: shuffled}
    columns = len(real.schema.columns)
    pairs, figures, hiding = _pair_figures(synthetic, real, first, second, shuffled)
    figures["correlation_distance"] = dict.fromkeys(figures["one_way"], left_out(ONE_COLUMN))
    if columns > 1:
        moments = moments_of(real.codes)
        cmd = {name: correlation_distance(real, table, of_real=moments) for name, table in candidates.items()}
        figures["correlation_distance"] = cmd | {
            REAL: correlation_distance(first, second), PRODUCT: distance_to_uncorrelated(real, of_real=moments),
        }  # fmt: skip
    return pairs, figures | _set_distances(real, candidates, first, second), hiding


def _pair_figures(
    synthetic: Mapping[str, Table], real: Table, first: Table, second: Table, shuffled: Table
) -> tuple[dict[str, Pairs], Figures, str]:
    """Figures of one- and two-way tables; of the baselines' tables, which are large, one is in memory at a time.

    Beside them the column that hides dependence, or nothing: its table of pairs has more cells than the real rows can fill.
    """
    of_real = co_occurrence(real)
    kept: dict[str, Pairs] = {}
    figures: Figures = {"one_way": {}, "two_way": {}, "relative_error": {}}

    def add(name: str, pairs: Pairs) -> None:
        figures["one_way"][name] = pairs.mean_distance(ways=1)
        two = len(pairs.sizes) > 1
        figures["two_way"][name] = pairs.mean_distance(ways=2) if two else left_out(ONE_COLUMN)
        figures["relative_error"][name] = pairs.relative_error()

    for name, table in synthetic.items():
        kept[name] = compare_pairs(real, table, of_real=of_real)
        add(name, kept[name])
    add(SHUFFLED, compare_pairs(real, shuffled, of_real=of_real))
    halves = compare_pairs(first, second)
    add(REAL, halves)
    between = halves.distances()
    del halves
    product = compare_product(real, of_real=of_real)
    add(PRODUCT, product)
    return kept, figures, hiding_column(between, product.distances(), real.schema.names)


def hiding_column(halves: NumpyArray, product: NumpyArray, names: Sequence[str]) -> str:
    """The column without which two halves of the real rows are nearer to each other than independent columns are.

    The name is empty where they are in any case, or where no single column makes the difference.
    """
    gap = product - halves

    def without(column: int | None) -> float:
        kept = [i for i in range(len(gap)) if i != column]
        return float(gap[np.ix_(kept, kept)][np.triu_indices(len(kept), 1)].mean())

    if len(names) < 3 or without(None) > 0:
        return ""
    margins = [without(column) for column in range(len(names))]
    return names[int(np.argmax(margins))] if max(margins) > 0 else ""


def _coded_rows(table: Table, rows: NumpyArray) -> Table:
    """Some rows by their codes alone."""
    codes = np.empty((table.codes.shape[1], int(rows.sum())), table.codes.dtype).T
    for index in range(codes.shape[1]):
        codes[:, index] = table.codes[rows, index]
    return dataclasses.replace(table, codes=codes, frame=pa.table({}), clipped={})


def _set_distances(real: Table, candidates: Mapping[str, Table], first: Table, second: Table) -> Figures:
    """m-way AVD for every m that the table has columns for."""
    sizes = real.schema.sizes
    own, others = Columns(real), {name: Columns(table) for name, table in candidates.items()}
    halves = Columns(first), {REAL: Columns(second)}
    figures: Figures = {}
    for width in range(1, WIDEST + 1):
        if width > len(sizes):
            everyone = [*candidates, REAL, PRODUCT]
            figures[f"avd_{width}"] = dict.fromkeys(everyone, left_out(f"the table has {len(sizes)} columns only"))
            continue
        halved = distances_of(*halves, sizes, width)
        figures[f"avd_{width}"] = distances_of(own, others, sizes, width, product=PRODUCT) | halved
    return figures


def _document(
    name: str,
    table: Table,
    real: Table,
    pairs: Pairs,
    values: ValueComparison,
    halves: JsonObject,
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
    flags = ordered([*red_flags(values), *_prediction_flags(metrics, facts)])
    return {
        "format": 3,
        "kind": "table",
        "warning": WARNING,
        "red_flags": [flag.to_json() for flag in flags],
        "red_flags_in_words": flag_lines([flag.to_json() for flag in flags]),
        "remarks": remarks(values, flags),
        "rows": {"synthetic": len(table), "real": len(real)},
        "columns": len(real.schema.columns),
        "baselines": baselines.ABOUT,
        "metrics": metrics,
        "values": values.to_json() | {"halves": halves},
        "one_way": _one_way(real, pairs),
        "two_way": _two_way(real, pairs, figures["two_way"][name]),
        "constant_columns": constant,
        "prediction": own_facts(facts, name),
        "left_out": missing,
    }


def _prediction_flags(metrics: JsonObject, facts: JsonObject) -> list[Flag]:
    model, values = best_model(metrics, facts)
    if not model:
        return []
    what, guess = guess_of(facts)
    return prediction_flag(facts["target"], model, what, values[SYNTHETIC], values[REAL], guess)


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
