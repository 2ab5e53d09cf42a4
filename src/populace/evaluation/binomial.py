"""Bounds on a probability from counts: Clopper-Pearson, and its form for counts that come in clusters."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv, betaincinv, stdtrit

from populace.errors import out_of_range
from populace.types import NumpyArray


def lower_bound(hits: ArrayLike, trials: ArrayLike, alpha: float) -> NumpyArray:
    """Below the true probability except with probability `alpha` (Clopper and Pearson 1934, one side); arrays welcome."""
    count, total = np.asarray(hits, np.float64), np.asarray(trials, np.float64)
    some = np.maximum(count, 1)
    return np.where(count > 0, betaincinv(some, total - some + 1, alpha), 0.0)


def upper_bound(hits: ArrayLike, trials: ArrayLike, alpha: float) -> NumpyArray:
    """Above the true probability except with probability `alpha`."""
    count, total = np.asarray(hits, np.float64), np.asarray(trials, np.float64)
    some = np.minimum(count, total - 1)
    return np.where(count < total, betainccinv(some + 1, total - some, alpha), 1.0)


def interval(hits: float, trials: float, confidence: float) -> tuple[float, float]:
    """Two-sided, `(1 - confidence)/2` on each side; the counts need not be whole."""
    alpha = (1 - confidence) / 2
    low = 0.0 if hits <= 0 else float(betaincinv(hits, trials - hits + 1, alpha))
    high = 1.0 if hits >= trials else float(betainccinv(hits + 1, trials - hits, alpha))
    return low, high


def clustered_interval(right: NumpyArray, confidence: float) -> tuple[float, float, float]:
    """Mean and interval of 0/1 outcomes [clusters, members] whose clusters are independent and whose members may not be.

    Korn and Graubard 1998: Clopper-Pearson at the number of independent trials that would have the variance seen between
    clusters, never more than there are outcomes, lowered for the few clusters that variance is known from. Where clusters do
    not differ at all (every outcome right, say), nothing is known of how their members hang together, and clusters count.
    """
    right = np.asarray(right, np.float64)
    clusters, members = right.shape
    if clusters < 2:
        raise out_of_range("clusters", "at least 2", clusters)
    mean, outcomes = float(right.mean()), clusters * members
    variance = float(right.mean(axis=1).var(ddof=1)) / clusters
    trials = float(clusters)
    if variance > 0:
        few = stdtrit(outcomes - 1, 0.5 - confidence / 2) / stdtrit(clusters - 1, 0.5 - confidence / 2)
        trials = float(min(outcomes, few**2 * mean * (1 - mean) / variance))
    low, high = interval(mean * trials, trials, confidence)
    return mean, low, high


def check_confidence(confidence: float) -> None:
    if not 0.5 <= confidence < 1:
        raise out_of_range("confidence", "in [0.5, 1)", confidence)
