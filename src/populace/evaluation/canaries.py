"""A lower bound on epsilon from ONE training run, by canaries.

Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run", arXiv 2305.08846.

Each of m canary records is put into the training data or left out by a fair coin of its own. After training, an auditor
guesses for some of them whether they were in, abstaining on the rest. Under (epsilon, delta)-DP (one record added or removed)
the number of right guesses is stochastically below a binomial of probability e^eps/(1 + e^eps), up to delta (their main
theorem).
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtrc, expit

from populace.errors import DataError, out_of_range
from populace.evaluation.binomial import check_confidence
from populace.types import NumpyArray

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # of the canaries, guessed in, or out, or as many of both
STEPS = 60  # of bisection


def p_value(*, canaries: int, guesses: int, correct: int, epsilon: float, delta: float = 0.0) -> float:
    """The most likely an (epsilon, delta)-DP training makes so many right guesses, or more (their main theorem)."""
    _check(canaries, guesses, correct, delta)
    right = float(expit(epsilon))  # of one guess, at best
    beta = _at_least(correct, guesses, right)
    if delta == 0 or correct == 0:
        return float(beta)
    below = np.arange(1, correct + 1)
    mass = _at_least(correct - below, guesses, right) - beta  # correct > binomial >= correct - i
    return min(1.0, float(beta + np.max(mass / below, initial=0.0) * 2 * canaries * delta))


def epsilon_from_guesses(
    *, canaries: int, guesses: int, correct: int, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """The largest epsilon that so many right guesses rule out at this confidence; 0 where they rule out none."""
    check_confidence(confidence)

    def ruled_out(epsilon: float) -> bool:
        found = p_value(canaries=canaries, guesses=guesses, correct=correct, epsilon=epsilon, delta=delta)
        return found < 1 - confidence

    if not ruled_out(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while ruled_out(high):
        low, high = high, 2 * high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if ruled_out(middle) else (low, middle)
    return low


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryBound:
    """What one run shows: epsilon is at least this, at this confidence and delta."""

    epsilon: float
    delta: float
    confidence: float
    canaries: int
    guesses: int
    correct: int


def audit_scores(
    scores: NumpyArray,
    included: NumpyArray,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    guesses: int | None = None,
) -> CanaryBound:
    """A bound from one score per canary, high meaning "looks trained on", and whether it was in.

    The highest scores are guessed in, as many of the lowest guessed out. Unless `guesses` was fixed beforehand, the best of
    several numbers is taken, also of guesses to one side (a canary that sampling passed over looks left out), and the
    confidence of each raised for the choice (Bonferroni).
    """
    scores, included = np.asarray(scores, np.float64), np.asarray(included, bool)
    if scores.ndim != 1 or scores.shape != included.shape or len(scores) < 2:
        raise DataError(f"expected one score and one coin per canary, got {scores.shape} and {included.shape}")
    if np.isnan(scores).any():
        raise DataError("a canary's score is not a number; score every canary, or leave it out of the audit")
    order = np.argsort(-scores, kind="stable")
    if guesses is None:
        shares = sorted({max(1, int(share * len(scores))) for share in SHARES})
        tried = [pair for side in shares for pair in ((side, side), (side, 0), (0, side))]
    else:
        tried = [(guesses // 2, guesses // 2)]
    best: CanaryBound | None = None
    for high, low in tried:
        if not 1 <= max(high, low) <= len(scores) // 2:
            raise out_of_range("guesses", f"in [2, {len(scores)}]", guesses)
        correct = int(included[order[:high]].sum() + (~included[order[len(order) - low :]]).sum())
        each = 1 - (1 - confidence) / len(tried)
        found = epsilon_from_guesses(
            canaries=len(scores), guesses=high + low, correct=correct, delta=delta, confidence=each
        )
        if best is None or found > best.epsilon:
            best = CanaryBound(
                epsilon=found, delta=delta, confidence=confidence, canaries=len(scores), guesses=high + low,
                correct=correct,
            )  # fmt: skip
    if best is None:
        raise out_of_range("guesses", f"in [2, {len(scores)}]", guesses)
    return best


def _at_least(count: ArrayLike, trials: int, probability: float) -> NumpyArray:
    """P[Binomial(trials, probability) >= count]."""
    counts = np.asarray(count, np.float64)
    return np.where(counts <= 0, 1.0, bdtrc(np.maximum(counts - 1, 0), trials, probability))


def _check(canaries: int, guesses: int, correct: int, delta: float) -> None:
    if not 0 <= correct <= guesses <= canaries or canaries < 1:
        raise out_of_range(
            "0 <= correct <= guesses <= canaries", "with at least one canary", (correct, guesses, canaries)
        )
    if not 0 <= delta < 1:
        raise out_of_range("delta", "in [0, 1)", delta)
