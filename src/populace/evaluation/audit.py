"""A lower bound on epsilon from samples: what a randomiser shows about two inputs, against what it claims.

For two inputs and any event E, epsilon-DP says P[E | first] <= e^eps P[E | second] + delta. So counts of E under both inputs
bound epsilon from below (Clopper-Pearson on each side). Which pair of inputs and which event is free to choose, as long as
the choice does not look at the samples that are counted. Four samples that share nothing:

    pilot      which pair of inputs
    fit        several scores of a message, high where the first input looks likelier
    select     which score, which threshold, which direction
    count      the bound

A bound below the claim proves nothing about other events and inputs; one above it refutes the claim.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from scipy.special import ndtri

from populace.errors import DataError, out_of_range
from populace.evaluation.binomial import check_confidence, lower_bound, upper_bound
from populace.evaluation.scores import SCORES, Score
from populace.types import Array, JsonObject, NumpyArray

T = TypeVar("T")
#: Messages about the two inputs of a pair: (number of the pair, messages per input, part) -> two arrays [count, features].
Draw = Callable[[int, int, int], tuple[Array, Array]]
#: Scores known beforehand for a pair, besides those that are fitted.
Known = Callable[[int], Sequence[tuple[str, Score]]]

FLAG_CONFIDENCE = 1 - 1e-6
FIT, SELECT = 0.25, 0.25  # of the samples; the rest is counted
PILOT = 0.1  # more, for each pair
MOST_THRESHOLDS = 512
LEAST_SAMPLES = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """A set of messages: those whose score lies on one side of a threshold."""

    name: str
    score: Score
    threshold: float
    above: bool

    def count(self, messages: NumpyArray) -> int:
        scores = self.score(messages)
        return int((scores >= self.threshold).sum() if self.above else (scores <= self.threshold).sum())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """Epsilon is at least this, at this confidence: an event seen so often under one input, so often under the other."""

    epsilon: float
    confidence: float
    event: str
    hits: tuple[int, int]
    trials: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """The claim of one randomiser beside what was measured.

    `flagged` means that the claim is refuted: the bound at the flag confidence exceeds it.
    """

    what: str
    claimed: float
    delta: float
    measured: Bound
    certain: Bound
    pair: str
    samples: int
    unit: str = ""
    neighbours: str = ""
    trust: str = ""

    @property
    def flagged(self) -> bool:
        return self.certain.epsilon > self.claimed

    def row(self) -> JsonObject:
        """The row of audit.json."""
        return {
            "what": self.what,
            "claimed_epsilon": "inf" if math.isinf(self.claimed) else self.claimed,
            "delta": self.delta,
            "measured_epsilon": self.measured.epsilon,
            "confidence": self.measured.confidence,
            "samples": self.samples,
            "flagged": self.flagged,
            "share_of_claim": 0.0 if math.isinf(self.claimed) else self.measured.epsilon / self.claimed,
            "certain_epsilon": self.certain.epsilon,
            "certain_confidence": self.certain.confidence,
            "pair": self.pair,
            "event": self.measured.event,
            "hits": list(self.measured.hits),
            "counted": self.measured.trials,
            **{name: value for name in ("unit", "neighbours", "trust") if (value := getattr(self, name))},
        }


def audit(
    draw: Draw,
    pairs: Sequence[str],
    *,
    what: str,
    claimed: float,
    delta: float = 0.0,
    samples: int = 100_000,
    confidence: float = 0.95,
    known: Known = lambda _: (),
    bound: Callable[..., NumpyArray] | None = None,
) -> Finding:
    """Bound epsilon from `samples` messages about each of two inputs, which are the most telling of the named pairs.

    `known` are scores of a message that follow from the inputs; `bound` is `epsilon_bound` unless another figure is asked for.
    """
    bound = epsilon_bound if bound is None else bound
    check_confidence(confidence)
    if confidence >= FLAG_CONFIDENCE:
        raise out_of_range("confidence", "below 1 - 1e-6, at which claims are judged anyway", confidence)
    if samples < LEAST_SAMPLES:
        raise out_of_range("samples", f"at least {LEAST_SAMPLES}", samples)
    if not pairs:
        raise DataError(f"{what}: expected at least one pair of inputs; a domain of one value has nothing to tell")
    best = _most_telling(draw, len(pairs), samples, delta, known, bound) if len(pairs) > 1 else 0
    cuts = [int(FIT * samples), int((FIT + SELECT) * samples)]
    parts = [np.split(check_messages(side), cuts) for side in draw(best, samples, 1)]
    (fit, select, count) = zip(*parts, strict=True)
    candidates = [*scored(*fit), *known(best)]
    certain = _bound(candidates, select, count, alpha=1 - FLAG_CONFIDENCE, delta=delta, bound=bound)
    measured = _bound(candidates, select, count, alpha=FLAG_CONFIDENCE - confidence, delta=delta, bound=bound)
    # Both hold at once with probability `confidence`, so the better one may be shown.
    measured = dataclasses.replace(certain if certain.epsilon > measured.epsilon else measured, confidence=confidence)
    return Finding(
        what=what,
        claimed=claimed,
        delta=delta,
        measured=measured,
        certain=certain,
        pair=pairs[best],
        samples=2 * samples,
    )


def _bound(
    candidates: Sequence[tuple[str, Score]],
    select: tuple[NumpyArray, ...],
    count: tuple[NumpyArray, ...],
    *,
    alpha: float,
    delta: float,
    bound: Callable[..., NumpyArray],
) -> Bound:
    """Choose an event on some samples, count it on others."""
    _, event = best_event(candidates, select[0], select[1], alpha=alpha, delta=delta, bound=bound)
    hits = (event.count(count[0]), event.count(count[1]))
    epsilon = float(bound(*_ordered(hits, event.above), len(count[0]), alpha=alpha, delta=delta))
    return Bound(epsilon=epsilon, confidence=1 - alpha, event=event.name, hits=hits, trials=len(count[0]))


def _most_telling(
    draw: Draw, pairs: int, samples: int, delta: float, known: Known, bound: Callable[..., NumpyArray]
) -> int:
    """The pair whose pilot samples promise the largest bound."""
    count = max(LEAST_SAMPLES, int(PILOT * samples))
    promises = []
    for pair in range(pairs):
        first, second = (check_messages(side) for side in draw(pair, count, 0))
        candidates = [*scored(first[: count // 2], second[: count // 2]), *known(pair)]
        rest = first[count // 2 :], second[count // 2 :]
        promises.append(best_event(candidates, *rest, alpha=0.05, delta=delta, bound=bound)[0])
    return int(np.argmax(promises))


def scored(first: NumpyArray, second: NumpyArray) -> list[tuple[str, Score]]:
    """All scores that can be fitted to these messages."""
    fitted = [(name, fit(first, second)) for name, fit in SCORES.items()]
    found = [(name, _rounded(score)) for name, score in fitted if score is not None]
    return found or [("any message", lambda messages: np.zeros(len(messages)))]


def _rounded(score: Score) -> Score:
    """Sums that are equal but for the order of their terms count as equal."""
    return lambda messages: np.round(score(messages), 9)


def best_event(
    candidates: Sequence[tuple[str, Score]],
    first: NumpyArray,
    second: NumpyArray,
    *,
    alpha: float,
    delta: float,
    bound: Callable[..., NumpyArray] | None = None,
) -> tuple[float, Event]:
    """The event with the largest bound on these samples, and that bound, which is too good: the choice looked at it."""
    bound = epsilon_bound if bound is None else bound
    found: list[tuple[float, Event]] = []
    for name, score in candidates:
        high, low = np.sort(score(first)), np.sort(score(second))
        values = np.unique(np.concatenate([high, low]))
        if len(values) > MOST_THRESHOLDS:
            values = values[np.linspace(0, len(values) - 1, MOST_THRESHOLDS).astype(int)]
        for above in (True, False):
            counts = _beyond(high, values, above), _beyond(low, values, above)
            bounds = bound(*_ordered(counts, above), len(high), alpha=alpha, delta=delta)
            best = int(np.argmax(bounds))
            event = Event(name=f"{name}, {'above' if above else 'below'} {values[best]:.4g}", score=score,
                          threshold=float(values[best]), above=above)  # fmt: skip
            found.append((float(bounds[best]), event))
    return max(found, key=lambda pair: pair[0])


def _beyond(ordered: NumpyArray, values: NumpyArray, above: bool) -> NumpyArray:
    if above:
        return len(ordered) - np.searchsorted(ordered, values, side="left")
    return np.searchsorted(ordered, values, side="right")


def _ordered(hits: tuple[T, T], above: bool) -> tuple[T, T]:
    """The likelier side first: high scores speak for the first input, low ones for the second."""
    return hits if above else (hits[1], hits[0])


def epsilon_bound(
    likely: NumpyArray, unlikely: NumpyArray, trials: int, *, alpha: float, delta: float = 0.0
) -> NumpyArray:
    """ln((P - delta) / Q) with P bounded from below and Q from above, each at `alpha`/2; never below 0."""
    low = lower_bound(likely, trials, alpha / 2) - delta
    high = upper_bound(unlikely, trials, alpha / 2)
    return np.asarray(np.maximum(np.log(np.maximum(low, 1e-300)) - np.log(high), 0.0))


def gaussian_bound(
    likely: NumpyArray, unlikely: NumpyArray, trials: int, *, alpha: float, delta: float = 0.0
) -> NumpyArray:
    """The mu of Gaussian DP that such counts need: Phi^-1(P) - Phi^-1(Q), P bounded from below and Q from above.

    A mechanism is mu-GDP if telling two inputs apart is as hard as telling N(0, 1) from N(mu, 1) (Dong, Roth and Su 2022).
    `delta` is part of mu's curve and not looked at.
    """
    del delta
    low, high = lower_bound(likely, trials, alpha / 2), upper_bound(unlikely, trials, alpha / 2)
    return np.asarray(np.maximum(ndtri(np.clip(low, 1e-300, 1.0)) - ndtri(np.minimum(high, 1 - 1e-16)), 0.0))


def check_messages(messages: Array) -> NumpyArray:
    """Messages as rows of numbers."""
    rows = np.asarray(messages)
    if rows.ndim != 2 or rows.dtype.kind not in "biuf":
        raise DataError(f"expected messages as rows of numbers, got {rows.dtype} of shape {rows.shape}")
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        raise DataError("a message holds a number that is not finite; nothing can be counted of it")
    return rows
