"""Membership inference by shadow runs: is a target's record among those a generator was made from?

The attacker makes generators of its own, from data like the victim's, with and without the target, and learns to tell their
synthetic tables apart; then it guesses about generators it did not make (Stadler, Oprisanu and Troncoso 2022). Every attacker
sees one summary of a table. Which attacker counts is decided by validation among the shadow runs, before any guess is scored.

Guesses about several targets in one run share that run's noise, so runs, not guesses, are the trials of the intervals.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn import config_context
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from populace.errors import out_of_range
from populace.evaluation.attacks.summaries import SUMMARIES
from populace.evaluation.binomial import clustered_interval
from populace.types import JsonObject, NumpyArray

CONFIDENCE = 0.95
FOLDS = 3
TREES = 20
LEAST_RUNS = 6
POOLED = "agreement with the target, all targets together"
PROVES_NOTHING = (
    "An attack accuracy of 50 % proves nothing: it says that these attackers, with these summaries and this many shadow runs, "
    "failed on these targets. Only the guarantee bounds all attackers. An accuracy above 50 % is a finding."
)


def _classifiers() -> JsonObject:
    return {
        "logistic regression": LogisticRegression(max_iter=200, C=0.1),
        "support vector machine": SVC(C=1.0),
        "nearest neighbours": KNeighborsClassifier(5),
        "random forest": RandomForestClassifier(TREES, oob_score=True, random_state=0),
        "neural network": MLPClassifier((8,), solver="lbfgs", alpha=0.1, max_iter=40, random_state=0),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Games:
    """Runs, which targets were in each ([runs, targets]), and the summaries of their tables.

    Summaries are [runs, features], or [runs, targets, features] where they are about one target.
    """

    included: NumpyArray
    summaries: Mapping[str, NumpyArray]

    def __post_init__(self) -> None:
        if len(self.included) < LEAST_RUNS:
            raise out_of_range("runs", f"at least {LEAST_RUNS} of each kind", len(self.included))

    def about(self, summary: str, target: int) -> NumpyArray:
        values = self.summaries[summary]
        return values[:, target] if SUMMARIES[summary] else values


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attacker:
    """One classifier on one summary: how well it did among the shadow runs, and its guesses [runs, targets] on the others."""

    name: str
    summary: str
    validation: float
    guesses: NumpyArray


def attack(
    shadows: Games,
    victims: Games,
    *,
    confidence: float = CONFIDENCE,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> JsonObject:
    """The chosen attacker's accuracy with its interval, and all attackers' beside it."""
    steps = shadows.included.shape[1] + 1
    per_target = []
    for target in range(steps - 1):
        per_target.append(_attackers_of_one(shadows, victims, target))
        progress(target + 1, steps)
    attackers = [*_joined(per_target), *_pooled(shadows, victims)]
    progress(steps, steps)
    right = {id(a): a.guesses == victims.included for a in attackers}
    chosen = max(attackers, key=lambda a: a.validation)
    accuracy, low, high = clustered_interval(right[id(chosen)], confidence)
    each = 1 - (1 - confidence) / len(attackers)
    rows: list[JsonObject] = []
    for attacker in sorted(attackers, key=lambda a: -a.validation):
        mean, least, most = clustered_interval(right[id(attacker)], each)
        rows.append({
            "attacker": attacker.name, "summary": attacker.summary, "validation_accuracy": attacker.validation,
            "accuracy": mean, "low": least, "high": most,
        })  # fmt: skip
    best = max(rows, key=lambda row: row["accuracy"])
    return {
        "accuracy": accuracy,
        "low": low,
        "high": high,
        "confidence": confidence,
        "attacker": f"{chosen.name} on {chosen.summary}",
        "chosen_by": "cross-validation among the shadow runs, before any guess was scored: no correction is needed",
        "targets": int(shadows.included.shape[1]),
        "models": int(len(shadows.included) + len(victims.included)),
        "shadow_models": len(shadows.included),
        "attacked_models": len(victims.included),
        "by_target": right[id(chosen)].mean(axis=0).tolist(),
        "best_afterwards": {
            **best,
            "note": f"the best of {len(rows)} on the scored guesses themselves, as papers report it; too good by the choice, "
            "so its interval is widened for all of them at once (Bonferroni), and so are those of `rows`",
        },
        "rows": rows,
    }  # fmt: skip


def _attackers_of_one(shadows: Games, victims: Games, target: int) -> list[Attacker]:
    labels = shadows.included[:, target]
    order = np.empty(len(labels), np.int64)
    for label in (True, False):
        order[labels == label] = np.arange((labels == label).sum())  # both labels in every fold
    found = []
    for summary in SUMMARIES:
        known, unknown = shadows.about(summary, target), victims.about(summary, target)
        for name in _classifiers():
            validation, guesses = _validated(name, known, labels, unknown, order % FOLDS)
            found.append(Attacker(name=name, summary=summary, validation=validation, guesses=guesses))
    return found


def _joined(per_target: list[list[Attacker]]) -> list[Attacker]:
    """The same classifier on the same summary, for all targets."""
    return [
        Attacker(
            name=same[0].name, summary=same[0].summary, validation=float(np.mean([a.validation for a in same])),
            guesses=np.stack([a.guesses for a in same], axis=1),
        )
        for same in zip(*per_target, strict=True)
    ]  # fmt: skip


def _pooled(shadows: Games, victims: Games) -> list[Attacker]:
    """One classifier for all targets, on agreement relative to what is usual for the target: more examples to learn from."""
    known, unknown = (games.summaries["agreement with the target"] for games in (shadows, victims))
    middle, spread = known.mean(axis=0), np.maximum(known.std(axis=0), 1e-9)
    known, unknown = (known - middle) / spread, (unknown - middle) / spread
    width, runs = known.shape[2], len(known)
    folds = np.repeat(np.arange(runs) % FOLDS, shadows.included.shape[1])  # all guesses about a run in one fold
    found = []
    for name in _classifiers():
        validation, guesses = _validated(
            name, known.reshape(-1, width), shadows.included.reshape(-1), unknown.reshape(-1, width), folds
        )
        found.append(Attacker(
            name=name, summary=POOLED, validation=validation, guesses=guesses.reshape(victims.included.shape)
        ))  # fmt: skip
    return found


def _validated(
    name: str, known: NumpyArray, labels: NumpyArray, unknown: NumpyArray, folds: NumpyArray
) -> tuple[float, NumpyArray]:
    """Share of right guesses about examples left out of the training, and guesses about the unknown.

    A forest leaves examples out of each of its trees anyway, and is not trained again for it.
    """
    guesses, model = _fitted(name, known, labels, unknown)
    if model is not None and name == "random forest":
        return float(model[-1].oob_score_), guesses
    right = [
        _fitted(name, known[folds != fold], labels[folds != fold], known[folds == fold])[0] == labels[folds == fold]
        for fold in range(FOLDS)
    ]
    return float(np.concatenate(right).mean()), guesses


def _fitted(name: str, known: NumpyArray, labels: NumpyArray, unknown: NumpyArray) -> tuple[NumpyArray, Any]:
    """Guesses about the unknown, and the model; with examples of one label only, that label and none."""
    if labels.all() or not labels.any():
        return np.full(len(unknown), bool(labels[0])), None
    model = _classifiers()[name]
    if isinstance(model, KNeighborsClassifier):
        model.set_params(n_neighbors=min(5, len(labels)))
    with warnings.catch_warnings(), config_context(assume_finite=True, skip_parameter_validation=True):
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "Some inputs do not have OOB scores", UserWarning)
        pipeline = make_pipeline(StandardScaler(), model).fit(known, labels)
        return np.asarray(pipeline.predict(unknown), bool), pipeline
