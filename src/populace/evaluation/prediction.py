"""Train on synthetic, test on real: what a model learned from the synthetic rows is worth on rows it never saw."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from populace.evaluation.marginals import check_comparable
from populace.tables.codec import one_hot
from populace.tables.table import Table

Array = np.ndarray[Any, Any]

MOST_TRAINING_ROWS = 50_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """How well a target is predicted; `auc` is NaN where it is not defined, and `why` says so."""

    accuracy: float
    auc: float
    why: str = ""


def features_and_target(table: Table, target: str) -> tuple[Array, Array]:
    index = table.schema.index(target)
    others = [i for i in range(len(table.schema.columns)) if i != index]
    sizes = tuple(table.schema.sizes[i] for i in others)
    return one_hot(table.codes[:, others], sizes), table.codes[:, index]


def logistic_score(train: Table, test: Table, target: str) -> Score:
    """Logistic regression on one-hot columns, trained on `train`, scored on `test`."""
    check_comparable(train, test)
    if len(train) > MOST_TRAINING_ROWS:
        train = train.take(np.arange(MOST_TRAINING_ROWS))
    x, y = features_and_target(train, target)
    x_test, y_test = features_and_target(test, target)
    if len(np.unique(y)) < 2:
        accuracy = float((y_test == y[0]).mean())
        return Score(accuracy=accuracy, auc=float("nan"), why="the training rows have one class of the target only")
    model = LogisticRegression(max_iter=300, C=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y)
    accuracy = float((model.predict(x_test) == y_test).mean())
    auc, why = _auc(y_test, model.predict_proba(x_test), model.classes_)
    return Score(accuracy=accuracy, auc=auc, why=why)


def _auc(y: Array, probabilities: Array, classes: Array) -> tuple[float, str]:
    present = np.unique(y)
    if len(present) < 2:
        return float("nan"), "the real rows have one class of the target only"
    areas = []
    for label in present if len(present) > 2 else present[1:]:
        score = probabilities[:, list(classes).index(label)] if label in classes else np.zeros(len(y))
        areas.append(roc_auc_score(y == label, score))
    return float(np.mean(areas)), ""


def majority_score(train: Table, test: Table, target: str) -> Score:
    """Always the most frequent class of the training rows."""
    index = train.schema.index(target)
    guess = np.bincount(train.codes[:, index], minlength=train.schema.sizes[index]).argmax()
    return Score(accuracy=float((test.codes[:, index] == guess).mean()), auc=0.5, why="a constant guess")
