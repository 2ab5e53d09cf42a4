"""Train on synthetic, test on real, for a target that is a number: R^2, the share of its variance that is predicted.

ridge regression     on one-hot columns
random forest        100 trees on the codes, three rows at least in a leaf
MLP                  one hidden layer of 64 on one-hot columns
gradient boosting    on the values (`boosting.py`)

R^2 = 1 - sum of squared errors / sum of squared distances from the mean of the test rows: 1 perfect, 0 no better than the
mean, below 0 worse than it. Rows without a value of the target are left out.
"""

from __future__ import annotations

import concurrent.futures
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPRegressor
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from populace.evaluation import boosting, prediction
from populace.evaluation.boosting import BOOSTING
from populace.evaluation.estimate import Estimate, from_draws, left_out
from populace.evaluation.prediction import features_and_target, resamples, training_rows
from populace.evaluation.targets import Target
from populace.tables.table import Table
from populace.types import NumpyArray

MODELS = ("ridge regression", "random forest", "MLP", BOOSTING)
LEAST_ROWS = 5
CONSTANT_TARGET = "the target has one value only in the test rows"
TOO_FEW = f"fewer than {LEAST_ROWS} rows have a value of the target"
MEAN_GUESS = "a constant guess predicts nothing: 0 by definition"


def r_squared(
    sources: Mapping[str, Table], test: Table, target: Target, *, seed: int = 0, draws: int = prediction.DRAWS,
    models: Sequence[str] = MODELS,
) -> dict[str, dict[str, Estimate]]:  # fmt: skip
    """R^2 of each model (inner) trained on each table (outer) and tested on `test`."""
    test = target.known(test)
    known = {name: training_rows(target.known(table), seed) for name, table in sources.items()}
    if len(test) < LEAST_ROWS:
        return {name: dict.fromkeys(models, left_out(TOO_FEW)) for name in sources}
    counts = resamples(len(test), seed, draws)

    def one(job: tuple[str, str]) -> Estimate:
        source, model = job
        return _trained(known[source], test, target, model, counts, seed)

    together = [(source, model) for model in models if model != BOOSTING for source in sources]
    with threadpool_limits(1), concurrent.futures.ThreadPoolExecutor(prediction.cores()) as pool:
        found = dict(zip(together, pool.map(one, together), strict=True))
        found |= {(source, BOOSTING): one((source, BOOSTING)) for source in sources if BOOSTING in models}
    return {source: {model: found[source, model] for model in models} for source in sources}


def _trained(train: Table, test: Table, target: Target, model: str, counts: NumpyArray, seed: int) -> Estimate:
    if len(train) < LEAST_ROWS:
        return left_out(TOO_FEW)
    y, y_test = target.numbers(train), target.numbers(test)
    middle, scale = float(y.mean()), float(y.std()) or 1.0
    if model == BOOSTING:
        features = boosting.features_of(train, test, target.column)
        learner, x, x_test = boosting.boosting_regressor(features.categorical, seed), features.train, features.test
    else:
        codes = model == "random forest"
        x, x_test = (features_and_target(table, target.column, codes=codes)[0] for table in (train, test))
        learner = _learner(model, x.shape[0], seed)
    learner.fit(x, (y - middle) / scale)
    return r2(y_test, learner.predict(x_test) * scale + middle, counts)


def _learner(model: str, rows: int, seed: int) -> Any:
    if model == "ridge regression":
        return Ridge(alpha=1.0)
    if model == "random forest":
        return RandomForestRegressor(prediction.TREES, min_samples_leaf=3, n_jobs=1, random_state=seed)
    batch = int(np.clip(rows // 40, min(32, rows), prediction.BATCH))
    mlp = MLPRegressor(
        hidden_layer_sizes=(64,), batch_size=batch, alpha=1e-3, learning_rate_init=3e-3, random_state=seed
    )
    return _Passes(mlp, int(np.clip(prediction.STEPS * batch / rows, 5, 20)))


class _Passes:
    """A regression trained for so many passes over the rows, and no check whether it has converged."""

    def __init__(self, model: Any, epochs: int) -> None:
        self.model = model
        self.epochs = epochs

    def fit(self, x: NumpyArray, y: NumpyArray) -> None:
        for _ in range(self.epochs):
            self.model.partial_fit(x, y)

    def predict(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(self.model.predict(x))


def r2(y: NumpyArray, predicted: NumpyArray, counts: NumpyArray) -> Estimate:
    """R^2 with its interval over the draws of the test rows."""
    middle = y.mean()
    squares, centred = (y - predicted) ** 2, y - middle
    if not centred.any():
        return left_out(CONSTANT_TARGET)
    draws = counts.astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a draw may have one value of the target only
        total = draws @ centred**2 - (draws @ centred) ** 2 / len(y)
        found = 1 - draws @ squares / np.where(total <= 0, np.nan, total)
    return from_draws(float(1 - squares.sum() / (centred**2).sum()), found)


def mean_score(train: Table, test: Table, target: Target, *, seed: int = 0) -> Estimate:
    """Always the mean of the training rows: 0, but for the difference of the two means."""
    test, train = target.known(test), target.known(train)
    if len(test) < LEAST_ROWS or not len(train):
        return left_out(TOO_FEW)
    y = target.numbers(test)
    return r2(y, np.full(len(y), target.numbers(train).mean()), resamples(len(y), seed))
