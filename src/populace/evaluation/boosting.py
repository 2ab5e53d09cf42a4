"""Gradient boosting on the values of the rows: numbers and dates as numbers, categories as categories, gaps as gaps.

The other models see the schema's cells; this one sees what a user of the synthetic rows would feed a model with, so that a
column whose values are wrong inside its cells costs here what it costs the user.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from populace.evaluation.prediction import Score, resamples, score_arrays, training_rows
from populace.evaluation.targets import Target
from populace.evaluation.values import CategoryColumn, ValueTable, value_tables
from populace.tables.table import Table
from populace.types import NumpyArray

BOOSTING = "gradient boosting"
ROUNDS = 100
PENALTY = 1.0  # L2, on leaves: without one a single row among many that are predicted surely can outweigh all others
MOST_CATEGORIES = (
    30  # of one column, those most frequent in the training rows; the rest are one, or boosting overfits them
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """What a model is trained on and tested on; `categorical` marks columns whose numbers are names."""

    train: NumpyArray
    test: NumpyArray
    categorical: NumpyArray


def boosting_classifier(categorical: NumpyArray, seed: int) -> Any:
    return HistGradientBoostingClassifier(
        max_iter=ROUNDS, early_stopping=False, l2_regularization=PENALTY, categorical_features=categorical,
        random_state=seed,
    )  # fmt: skip


def boosting_regressor(categorical: NumpyArray, seed: int) -> Any:
    return HistGradientBoostingRegressor(
        max_iter=ROUNDS, early_stopping=False, l2_regularization=PENALTY, categorical_features=categorical,
        random_state=seed,
    )  # fmt: skip


def value_features(train: ValueTable, test: ValueTable, without: str) -> Features:
    """Every column but one; ordinal categories as their rank."""
    columns: list[tuple[NumpyArray, NumpyArray]] = []
    categorical = []
    for number, other in zip(train.numbers, test.numbers, strict=True):
        if number.name != without:
            columns.append((number.values, other.values))
            categorical.append(False)
    for group, other_group in zip(train.categories, test.categories, strict=True):
        if group.name != without:
            columns.append(_category_numbers(group, other_group))
            categorical.append(group.kind != "ordinal")
    return Features(
        train=np.stack([a for a, _ in columns], axis=1), test=np.stack([b for _, b in columns], axis=1),
        categorical=np.array(categorical, bool),
    )  # fmt: skip


def _category_numbers(train: CategoryColumn, test: CategoryColumn) -> tuple[NumpyArray, NumpyArray]:
    if train.kind == "ordinal":
        into = np.arange(len(train.labels), dtype=np.float64)
    else:
        counts = np.bincount(train.codes[train.codes >= 0], minlength=len(train.labels))
        into = np.empty(len(train.labels))
        into[np.argsort(-counts, kind="stable")] = np.arange(len(train.labels))
        into = np.minimum(into, MOST_CATEGORIES)
    numbers = np.append(into, np.nan)  # -1, no value, is the last
    return numbers[train.codes], numbers[test.codes]


def boosting_scores(
    sources: Mapping[str, Table], test: Table, target: Target, *, seed: int = 0, draws: int | None = None
) -> dict[str, Score]:
    """The score of gradient boosting trained on each table and tested on `test`."""
    counts = resamples(len(test), seed) if draws is None else resamples(len(test), seed, draws)
    found = {}
    for name, table in sources.items():
        train = training_rows(table, seed)
        features = features_of(train, test, target.column)
        model = boosting_classifier(features.categorical, seed)
        labels = target.labels(train), target.labels(test)
        with threadpool_limits(1):  # one thread is faster than several that wait for each other on a busy machine
            found[name] = score_arrays(model, (features.train, labels[0]), (features.test, labels[1]), counts)
    return found


def features_of(train: Table, test: Table, target: str) -> Features:
    own, other = value_tables([train, test])
    return value_features(own, other, without=target)
