"""Scores of a message, fitted to messages about two inputs: high where the first input looks likelier than the second.

They need not be right, only fitted on other samples than those counted; the better they order messages by the ratio of their
likelihoods, the closer an audit comes to epsilon.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.tree import DecisionTreeClassifier

from populace.types import NumpyArray

Score = Callable[[NumpyArray], NumpyArray]

MOST_LEVELS = 1_024  # of a whole number that is counted value by value
CHUNK = 2**24  # numbers looked at together
SIGNIFICANT = 3.0
MOST_TREE_COLUMNS = 32


def fit_whole(first: NumpyArray, second: NumpyArray) -> Score | None:
    """Log-ratio of the counts of the whole message; only where messages repeat enough to be counted."""
    if first.dtype.kind == "f":
        return None
    names = _whole(np.concatenate([first, second]))
    seen, place = np.unique(names, return_inverse=True)
    if len(seen) > len(names) / 20:
        return None
    counts = [np.bincount(part, minlength=len(seen)) for part in np.split(place, [len(first)])]
    ratio = _log_ratio(counts[0], counts[1], len(first), len(second))

    def score(messages: NumpyArray) -> NumpyArray:
        wanted = _whole(messages)
        at = np.minimum(np.searchsorted(seen, wanted), len(seen) - 1)
        return np.where(seen[at] == wanted, ratio[at], 0.0)

    return score


def fit_parts(first: NumpyArray, second: NumpyArray, *, least: float = 0.0) -> Score | None:
    """Sum over the parts of a message of their log-ratios: exact where parts are randomised independently.

    Parts whose counts differ by fewer than `least` standard deviations are left out: they would add only noise.
    """
    if _is_bits(first) and _is_bits(second):
        return _fit_bits(first, second, least)
    tables: list[tuple[int, int, NumpyArray]] = []
    weights: list[tuple[int, float]] = []
    for column in range(first.shape[1]):
        a, b = first[:, column], second[:, column]
        if first.dtype.kind != "f" or _is_whole(a, b):
            low, high = int(min(a.min(), b.min())), int(max(a.max(), b.max()))
            if high - low < MOST_LEVELS:
                counts = [np.bincount(side.astype(np.int64) - low, minlength=high - low + 1) for side in (a, b)]
                if _deviation(counts[0] / len(a), counts[1] / len(b), len(a), len(b)).max() >= least:
                    tables.append((column, low, _log_ratio(counts[0], counts[1], len(a), len(b))))
                continue
        spread = (a.var() + b.var()) / 2
        gap = float(a.mean() - b.mean())
        if spread > 0 and abs(gap) >= least * np.sqrt(spread * (1 / len(a) + 1 / len(b))):
            weights.append((column, float(gap / spread)))
    if not tables and not weights:
        return None

    def score(messages: NumpyArray) -> NumpyArray:
        total = np.zeros(len(messages))
        for column, low, ratio in tables:
            total += ratio[np.clip(messages[:, column].astype(np.int64) - low, 0, len(ratio) - 1)]
        for column, weight in weights:
            total += weight * messages[:, column]
        return total

    return score


def _fit_bits(first: NumpyArray, second: NumpyArray, least: float) -> Score | None:
    counts = [side.sum(axis=0, dtype=np.int64) for side in (first, second)]
    sizes = len(first), len(second)
    deviation = _deviation(counts[0] / sizes[0], counts[1] / sizes[1], *sizes)
    kept = np.flatnonzero(deviation >= max(least, 1.0))
    if not len(kept):
        return None
    # A bit whose counts differ by z deviations is believed to the share 1 - 1/z^2: what it says beyond chance.
    weight = 1 - 1 / deviation[kept] ** 2
    set_, unset = (
        weight * _log_ratio(ones[0][kept], ones[1][kept], *sizes)
        for ones in (counts, [size - count for size, count in zip(sizes, counts, strict=True)])
    )

    def score(messages: NumpyArray) -> NumpyArray:
        step = max(1, CHUNK // len(kept))
        blocks = [messages[start : start + step, kept] for start in range(0, len(messages), step)]
        return np.asarray(unset.sum() + np.concatenate([block.astype(np.float32) @ (set_ - unset) for block in blocks]))

    return score


def fit_significant_parts(first: NumpyArray, second: NumpyArray) -> Score | None:
    return fit_parts(first, second, least=SIGNIFICANT)


def fit_tree(first: NumpyArray, second: NumpyArray) -> Score | None:
    """A small decision tree on the parts that differ most: sees what parts say together."""
    gaps = _deviation(first.mean(axis=0), second.mean(axis=0), len(first), len(second), first, second)
    kept = np.argsort(-gaps)[:MOST_TREE_COLUMNS]
    rows = np.concatenate([first[:, kept], second[:, kept]])
    labels = np.repeat([1, 0], [len(first), len(second)])
    tree = DecisionTreeClassifier(max_depth=8, min_samples_leaf=max(20, len(rows) // 200), random_state=0)
    tree.fit(rows, labels)
    if tree.tree_.node_count == 1:
        return None
    return lambda messages: tree.predict_proba(messages[:, kept])[:, 1]


#: Every way to score, by the name an event is described with.
SCORES: dict[str, Callable[[NumpyArray, NumpyArray], Score | None]] = {
    "whole message": fit_whole,
    "sum over parts": fit_parts,
    "sum over telling parts": fit_significant_parts,
    "decision tree": fit_tree,
}


def _log_ratio(first: NumpyArray, second: NumpyArray, rows: int, others: int) -> NumpyArray:
    """The log ratio of two relative frequencies, with half a count added so that it stays finite."""
    return np.log((first + 0.5) / (rows + 1)) - np.log((second + 0.5) / (others + 1))


def _deviation(
    a: NumpyArray,
    b: NumpyArray,
    rows: int,
    others: int,
    first: NumpyArray | None = None,
    second: NumpyArray | None = None,
) -> NumpyArray:
    """Distance of two means in standard deviations; of shares unless the samples are given."""
    middle = (a + b) / 2
    spread = middle * (1 - middle) if first is None or second is None else (first.var(axis=0) + second.var(axis=0)) / 2
    return np.asarray(np.abs(a - b) / np.sqrt(np.maximum(spread, 1e-12) * (1 / rows + 1 / others)))


def _is_bits(rows: NumpyArray) -> bool:
    return bool(rows.dtype == bool)


def _is_whole(a: NumpyArray, b: NumpyArray) -> bool:
    return bool((a == np.round(a)).all() and (b == np.round(b)).all())


def _whole(rows: NumpyArray) -> NumpyArray:
    """Each row as one thing that can be sorted and compared."""
    rows = np.packbits(rows, axis=1) if rows.dtype == bool else np.ascontiguousarray(rows)
    return np.ascontiguousarray(rows).view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).reshape(-1)
