"""Membership inference from what a released model says about single records: scores, posteriors, losses.

The attacker trains a shadow model like the target on records of its own, learns from it to tell members from non-members, and
guesses about the target's (Shokri et al. 2017; a fully connected network of five hidden layers: Xin et al. 2021). Which
attacker counts is decided by validation among the shadow model's records, before any guess is scored.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from populace.errors import DataError, out_of_range
from populace.evaluation.attacks.membership import CONFIDENCE, FOLDS, PROVES_NOTHING
from populace.evaluation.binomial import check_confidence, interval
from populace.types import Array, JsonObject, NumpyArray

LEAST_RECORDS = 2 * FOLDS  # of each kind
HIDDEN = (32,) * 5
NOTE = (
    "The trials are records of one target model, half of them members: the intervals say nothing about other models trained "
    "the same way."
)


def _attackers() -> dict[str, tuple[int | None, Any]]:
    """The attackers: how many of the first features each uses (all if None), and its model."""
    return {
        "threshold": (1, DecisionTreeClassifier(max_depth=1, random_state=0)),
        "logistic regression": (None, LogisticRegression(max_iter=200)),
        "neural network": (None, MLPClassifier(HIDDEN, early_stopping=True, max_iter=60, random_state=0)),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scored:
    """What a model says about records, features [n, k], and which of them it was trained on, bool [n].

    Edge cases: as many members as non-members are used; of the more frequent kind the first.
    """

    features: Array
    members: NumpyArray

    def __post_init__(self) -> None:
        features, members = np.asarray(self.features, np.float64), np.asarray(self.members, bool)
        if features.ndim != 2 or members.shape != features.shape[:1] or not features.shape[1]:
            raise DataError(
                f"expected features [n, k] with one mark for each of n records, got {features.shape} and {members.shape}"
            )
        if not np.isfinite(features).all():
            raise DataError("expected finite features; the model that gave them did not train")
        least = int(min(members.sum(), (~members).sum()))
        if least < LEAST_RECORDS:
            raise out_of_range("members and non-members", f"at least {LEAST_RECORDS} of each", least)
        rows = np.sort(np.concatenate([np.flatnonzero(members == kind)[:least] for kind in (True, False)]))
        object.__setattr__(self, "features", features[rows])
        object.__setattr__(self, "members", members[rows])


def attack_scores(shadow: Scored, target: Scored, *, confidence: float = CONFIDENCE) -> JsonObject:
    """Precision and accuracy of the chosen attacker on the target's records, with their intervals.

    Edge cases: where it calls nobody a member, precision is None and its interval everything.
    """
    check_confidence(confidence)
    if shadow.features.shape[1] != target.features.shape[1]:
        raise DataError(
            f"expected as many features of the target as of the shadow model, {shadow.features.shape[1]}, "
            f"got {target.features.shape[1]}"
        )
    rows: list[JsonObject] = []
    for name in _attackers():
        validation, guesses = _guessed(name, shadow, target)
        accuracy = float((guesses == target.members).mean())
        rows.append({"attacker": name, "validation_accuracy": validation, "accuracy": accuracy, "guesses": guesses})
    chosen = max(rows, key=lambda row: row["validation_accuracy"])
    guesses = chosen["guesses"]
    right, called = int((guesses == target.members).sum()), int(guesses.sum())
    caught = int((guesses & target.members).sum())
    bounds = {
        "accuracy": interval(right, len(guesses), confidence),
        "precision": interval(caught, called, confidence) if called else (0.0, 1.0),
    }
    return {
        "precision": caught / called if called else None,
        "accuracy": chosen["accuracy"],
        **{
            f"{name}_{end}": value
            for name, both in bounds.items()
            for end, value in zip(("low", "high"), both, strict=True)
        },
        "confidence": confidence,
        "attacker": chosen["attacker"],
        "chosen_by": "cross-validation among the shadow model's records, before any guess was scored",
        "n": len(guesses),
        "called_members": called,
        "attackers": [{key: value for key, value in row.items() if key != "guesses"} for row in rows],
        "note": NOTE,
        "caveat": PROVES_NOTHING,
    }


def _guessed(name: str, shadow: Scored, target: Scored) -> tuple[float, NumpyArray]:
    """Share of right guesses about shadow records left out of the training, and guesses about the target's."""
    first, model = _attackers()[name]
    known, unknown = shadow.features[:, :first], target.features[:, :first]
    pipeline = make_pipeline(StandardScaler(), model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
        validation = cross_val_score(pipeline, known, shadow.members, cv=folds)
        guesses = pipeline.fit(known, shadow.members).predict(unknown)
    return float(validation.mean()), np.asarray(guesses, bool)
