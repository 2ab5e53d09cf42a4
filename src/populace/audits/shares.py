"""Noise in shares, as an audit sees it: what is left of it to the world and to a coalition, and whether it is what was booked.

A secure sum is opened with a share of noise from each site. Two claims are made of it (`NoiseShares`). To whoever knows
nobody's share, the shares of the fewest survivors count; to the coordinator with the sites that may collude, those of the
others among them. What is booked is the second. A *view* is one of the two: the number of sites whose shares are known.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from populace.methods.base import Ask, Population, Protocol
from populace.privacy.events import Composed, Event, Gaussian, PoissonSampled, Repeated
from populace.privacy.gaussian import GaussianSum
from populace.privacy.noise_shares import NoiseShares
from populace.types import NumpyArray

if TYPE_CHECKING:
    from populace.audits.recorder import Call

FALSE_ALARM = 1e-6
CLOSE = 1e-9  # relative: multipliers that should be the same


def views_of(protocol: Protocol, population: Population) -> tuple[int, ...]:
    """The claims of a method whose sums are opened, as numbers of known shares; none where it opens none.

    Without colluders the second claim of the statement is that to a single site of the sum, which knows its own share.
    """
    ask = Ask(round=0, cohort=np.arange(population.clients, dtype=np.int32), common=(), own=())
    shares = protocol.sum_shares(ask, population)
    if shares is None:
        return ()
    second = shares.colluders or 1
    return (0, second) if second < shares.least_survivors else (0,)


def view_in_words(known: int, colluders: int) -> str:
    if not known:
        return "to the world"
    return f"to {known} colluding site(s)" if colluders else "to one site of the sum"


def claimed_law(shares: NoiseShares, known: int) -> GaussianSum:
    """The noise that is claimed to be left where so many shares are known: of the colluders', what was booked."""
    if known == shares.colluders:
        return shares.mechanism
    left = shares.known_event(known)
    return dataclasses.replace(shares.mechanism, noise_multiplier=_multiplier(left))


def left_over(shares: NoiseShares, parts: NumpyArray, known: int) -> NumpyArray:
    """The noise in a sum of the fewest survivors, less that of those whose shares are known: one row."""
    total: NumpyArray = parts[: shares.least_survivors - known].sum(axis=0, dtype=np.int64)
    return total


def claimed_event(booked: Event, shares: Sequence[NoiseShares], known: int) -> Event:
    """What a run costs to whoever knows so many shares, where the colluders' cost is what was booked."""
    for each in shares:
        if known != each.colluders:
            booked = _replaced(booked, each.mechanism.noise_multiplier, _multiplier(each.known_event(known)))
    return booked


def check_opened(calls: Sequence[Call]) -> list[str]:
    """Problems of the noise in opened sums: each share's own scale, that of all together, and what the honest are left with."""
    opened = [(call.shares, call.parts) for call in calls if call.shares is not None and call.parts is not None]
    if not opened:
        return []
    found = []
    for shares, _ in opened:
        left, booked = (_multiplier(event) for event in (shares.known_event(shares.colluders), shares.event))
        if left < booked * (1 - CLOSE):
            found.append(
                f"the shares of {shares.least_honest} honest sites have a noise multiplier of {left:.6g} together, and "
                f"{booked:.6g} was booked"
            )
    together = [
        parts.sum(axis=0) / (_spread(each.share.deviation, 1) * math.sqrt(len(parts))) for each, parts in opened
    ]
    found += _off(np.concatenate(together), "the noise of all shares together")
    honest = [
        left_over(each, parts, each.colluders) / _spread(each.mechanism.deviation, each.least_honest)
        for each, parts in opened
    ]
    return [*found, *_off(np.concatenate(honest), "the noise of the honest survivors", lower=True)]


def standard_parts(call: Call) -> NumpyArray:
    """Every share that was drawn for a sum, in units of its own deviation."""
    if call.shares is None or call.parts is None:
        return np.zeros(0)
    numbers: NumpyArray = call.parts / _spread(call.shares.share.deviation, 1)
    return numbers


def _off(numbers: NumpyArray, what: str, *, lower: bool = False) -> list[str]:
    """A complaint where numbers that should be standard normal are too small, or too large unless only `lower` counts."""
    tail, square = stats.chi2(numbers.size), float((numbers**2).sum())
    p = tail.cdf(square) if lower else 2 * min(tail.cdf(square), tail.sf(square))
    if p >= FALSE_ALARM:
        return []
    return [f"{what} is {math.sqrt(square / numbers.size):.4g} times as large as was claimed"]


def _spread(deviation: float, terms: int) -> float:
    """The deviation of a sum of so many rounded normals whose deviations make this one together."""
    return math.hypot(deviation, math.sqrt(terms / 12))


def _multiplier(event: Event) -> float:
    if not isinstance(event, Gaussian):
        raise TypeError(f"expected a Gaussian event, got {type(event).__name__}")
    return event.noise_multiplier


def _replaced(event: Event, old: float, new: float) -> Event:
    """The same event with noise of one multiplier replaced by another's."""
    if isinstance(event, Gaussian):
        return Gaussian(new) if math.isclose(event.noise_multiplier, old, rel_tol=CLOSE) else event
    if isinstance(event, PoissonSampled):
        return PoissonSampled(event.probability, _replaced(event.event, old, new))
    if isinstance(event, Repeated):
        return Repeated(_replaced(event.event, old, new), event.count)
    if isinstance(event, Composed):
        return Composed(tuple(_replaced(item, old, new) for item in event.events))
    return event
