"""Train on synthetic, test on real: how well a model trained on synthetic rows predicts real rows it never saw.

logistic regression    on one-hot columns
random forest          100 trees on the codes, three rows at least in a leaf
MLP                    one hidden layer of 64 on one-hot columns

These see the schema's cells; `boosting.py` has a model on the values, `regression.py` those of a target that is a number.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from populace.evaluation.estimate import Estimate, from_draws, left_out
from populace.evaluation.marginals import check_comparable
from populace.tables.codec import one_hot
from populace.tables.table import Table
from populace.types import NumpyArray

MOST_TRAINING_ROWS = 50_000
MOST_CLASSES = 50
MOST_DENSE = 500  # one-hot columns up to which they are written out
DRAWS = 200
DRAWS_AT_ONCE = 25
TREES = 100  # of the forest
BATCH, STEPS = 256, 1_200  # of the MLP, at most
ONE_CLASS = "the training rows have one class of the target only"
SAME_CLASS = "the test rows have one class of the target only"
CONSTANT = "a constant guess ranks nothing: 0.5 by definition"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """How well a target is predicted; where the area under the curve is not defined it says why.

    `by_class` has the area of each class against the rest, of a target with three or more.
    """

    accuracy: Estimate
    auc: Estimate
    by_class: Mapping[int, float] = dataclasses.field(default_factory=dict)


def logistic_regression(rows: int, seed: int) -> Any:
    return LogisticRegression(max_iter=300, C=1.0)


def random_forest(rows: int, seed: int) -> Any:
    return RandomForestClassifier(TREES, min_samples_leaf=3, n_jobs=1, random_state=seed)


def mlp(rows: int, seed: int) -> Any:
    batch = int(np.clip(rows // 40, min(32, rows), BATCH))
    model = MLPClassifier((64,), batch_size=batch, alpha=1e-3, learning_rate_init=3e-3, random_state=seed)
    return Epochs(model, int(np.clip(STEPS * batch / rows, 5, 20)))


class Epochs:
    """A classifier trained for so many passes over the rows, and no check whether it has converged."""

    def __init__(self, model: Any, epochs: int) -> None:
        self.model = model
        self.epochs = epochs

    def fit(self, x: NumpyArray, y: NumpyArray) -> None:
        self.classes_ = np.unique(y)
        for _ in range(self.epochs):
            self.model.partial_fit(x, y, classes=self.classes_)

    def predict_proba(self, x: NumpyArray) -> NumpyArray:
        return np.asarray(self.model.predict_proba(x))


Learner = Callable[[int, int], Any]
Labels = Callable[[Table], NumpyArray]
LEARNERS: dict[str, Learner] = {
    "logistic regression": logistic_regression,
    "random forest": random_forest,
    "MLP": mlp,
}
ON_CODES = ("random forest",)
MAY_WARN = ("logistic regression",)  # what to do with warnings is a matter of the whole process, so not for threads


def features_and_target(table: Table, target: str, *, codes: bool = False) -> tuple[Any, NumpyArray]:
    """Every other column, one-hot (sparse where they are wide) or as its codes; and the target's codes."""
    index = table.schema.index(target)
    others = [i for i in range(len(table.schema.columns)) if i != index]
    if codes:
        return table.codes[:, others].astype(np.float32), table.codes[:, index]
    sizes = tuple(table.schema.sizes[i] for i in others)
    if sum(sizes) > MOST_DENSE:
        return _sparse_one_hot(table.codes[:, others], sizes), table.codes[:, index]
    return one_hot(table.codes[:, others], sizes), table.codes[:, index]


def _sparse_one_hot(codes: NumpyArray, sizes: tuple[int, ...]) -> Any:
    """One-hot columns of a wide table as a sparse matrix: as many entries as there are codes."""
    places = codes + np.cumsum([0, *sizes[:-1]])
    ends = np.arange(0, codes.size + 1, len(sizes))
    return csr_array((np.ones(codes.size, np.float32), places.ravel(), ends), shape=(len(codes), sum(sizes)))


def resamples(rows: int, seed: int = 0, draws: int = DRAWS) -> NumpyArray:
    """How often each test row comes up in each bootstrap draw; shared by all models, so that they meet the same draws."""
    rng = np.random.default_rng(seed)
    return np.stack([np.bincount(rng.integers(0, rows, rows), minlength=rows) for _ in range(draws)]).astype(np.int16)


def scores(
    sources: Mapping[str, Table],
    test: Table,
    target: str,
    *,
    learners: Mapping[str, Learner] | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    labels: Labels | None = None,
) -> dict[str, dict[str, Score]]:
    """The score of each learner (inner) trained on each table (outer) and tested on `test`; two fits at a time.

    The classes are the target's codes, or what `labels` makes of a table.
    """
    learners = LEARNERS if learners is None else learners
    counts = resamples(len(test), seed, draws)

    def one(job: tuple[str, str]) -> Score:
        source, name = job
        return _trained(sources[source], test, target, name, learners[name], counts, seed, labels)

    jobs = [(source, name) for name in learners for source in sources]
    alone = [job for job in jobs if job[1] in MAY_WARN]
    together = [job for job in jobs if job[1] not in MAY_WARN]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = {job: one(job) for job in alone}
    with threadpool_limits(1), concurrent.futures.ThreadPoolExecutor(cores()) as pool:
        found |= dict(zip(together, pool.map(one, together), strict=True))
    return {source: {name: found[source, name] for name in learners} for source in sources}


def cores() -> int:
    return max(1, min(8, os.cpu_count() or 1))


def _trained(
    train: Table,
    test: Table,
    target: str,
    name: str,
    learner: Learner,
    counts: NumpyArray,
    seed: int,
    labels: Labels | None,
) -> Score:
    check_comparable(train, test)
    train = training_rows(train, seed)
    x, y = features_and_target(train, target, codes=name in ON_CODES)
    x_test, y_test = features_and_target(test, target, codes=name in ON_CODES)
    if labels is not None:
        y, y_test = labels(train), labels(test)
    return score_arrays(learner(x.shape[0], seed), (x, y), (x_test, y_test), counts)


def training_rows(table: Table, seed: int) -> Table:
    """At most 50,000 rows, drawn at random."""
    return table if len(table) <= MOST_TRAINING_ROWS else table.take(training_numbers(len(table), seed))


def training_numbers(rows: int, seed: int) -> NumpyArray:
    """Which of so many rows these are."""
    if rows <= MOST_TRAINING_ROWS:
        return np.arange(rows)
    return np.sort(np.random.default_rng(seed).permutation(rows)[:MOST_TRAINING_ROWS])


def score_arrays(
    model: Any, train: tuple[NumpyArray, NumpyArray], test: tuple[NumpyArray, NumpyArray], counts: NumpyArray
) -> Score:
    """Fit a scikit-learn classifier and score it; labels are whole numbers from 0."""
    (x, y), (x_test, y_test) = train, test
    if len(np.unique(y)) < 2:
        return Score(accuracy=accuracy(y_test == np.bincount(y).argmax(), counts), auc=left_out(ONE_CLASS))
    model.fit(x, y)
    probabilities = np.zeros((len(y_test), int(max(y.max(), y_test.max())) + 1))
    probabilities[:, model.classes_] = model.predict_proba(x_test)
    right = probabilities.argmax(axis=1) == y_test
    return Score(
        accuracy=accuracy(right, counts), auc=area(y_test, probabilities, counts), by_class=areas(y_test, probabilities)
    )


def accuracy(right: NumpyArray, counts: NumpyArray) -> Estimate:
    return from_draws(right.mean(), counts @ right.astype(np.float32) / len(right))


def area(y: NumpyArray, probabilities: NumpyArray, counts: NumpyArray) -> Estimate:
    """Area under the ROC curve; with several classes the mean over those that occur, each against the rest."""
    present = np.unique(y)
    if len(present) < 2:
        return left_out(SAME_CLASS)
    chosen = present if len(present) > 2 else present[1:]
    counts = counts[: max(40, DRAWS // len(chosen))]
    plain = np.ones((1, len(y)), counts.dtype)
    areas = [_areas(y == label, probabilities[:, label], np.concatenate([plain, counts])) for label in chosen]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a draw may miss a rare class: left out of that draw's mean
        means = np.nanmean(areas, axis=0)
    return from_draws(means[0], means[1:])


def areas(y: NumpyArray, probabilities: NumpyArray) -> dict[int, float]:
    """The area of each class that occurs against the rest, of three classes or more."""
    present, once = np.unique(y), np.ones((1, len(y)), np.int16)
    if len(present) < 3:
        return {}
    return {int(label): float(_areas(y == label, probabilities[:, label], once)[0]) for label in present}


def _areas(positive: NumpyArray, score: NumpyArray, counts: NumpyArray) -> NumpyArray:
    """The area for each row of counts: the share of pairs in which the positive scores higher, ties counting half."""
    order = np.argsort(score, kind="stable")
    ordered, positive = score[order], positive[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    found = np.empty(len(counts))
    for at in range(0, len(counts), DRAWS_AT_ONCE):
        weights = counts[at : at + DRAWS_AT_ONCE, order].astype(np.float64)
        ups = np.add.reduceat(weights * positive, starts, axis=1)
        downs = np.add.reduceat(weights * ~positive, starts, axis=1)
        below = np.cumsum(downs, axis=1) - downs / 2
        pairs = ups.sum(axis=1) * downs.sum(axis=1)
        found[at : at + DRAWS_AT_ONCE] = (ups * below).sum(axis=1) / np.where(pairs == 0, np.nan, pairs)
    return found


def logistic_score(train: Table, test: Table, target: str) -> Score:
    """Logistic regression on one-hot columns, trained on `train`, scored on `test`."""
    only = {"logistic regression": logistic_regression}
    return scores({"": train}, test, target, learners=only)[""]["logistic regression"]


def majority_score(train: Table, test: Table, target: str, *, labels: Labels | None = None) -> Score:
    """Always the most frequent class of the training rows."""
    index = train.schema.index(target)
    y, y_test = (table.codes[:, index] if labels is None else labels(table) for table in (train, test))
    right = y_test == np.bincount(y).argmax()
    return Score(accuracy=accuracy(right, resamples(len(test))), auc=Estimate(value=0.5, why=CONSTANT))
