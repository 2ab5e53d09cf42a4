"""What a list of events can cost, from below and from above: the numbers a claim is verified against.

Three ways to the same number. A privacy loss distribution rounded down is a lower bound, computed by dp-accounting alone; one
rounded up is what claims are made of; Renyi divergences give an upper bound by other mathematics altogether. A claim between
the first and the last is neither refuted nor idle.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from typing import TYPE_CHECKING

from populace.errors import SpecError
from populace.privacy import events
from populace.privacy.accounting import INTERVAL, epsilon_of
from populace.privacy.events import Event

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

LOST = 0.004  # the share of epsilon that rounding down may hide, where a grid of so many points allows it
MOST_POINTS = 4e5
#: How far a privacy loss distribution may pass the Renyi bound by its own rounding: one step of its grid.
TOLERANCE = INTERVAL


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bracket:
    """Bounds on the least epsilon of an event at a delta: `at_least` <= the truth <= `proved`, and `renyi` where it is known.

    `renyi` is None where the Renyi accountant does not know an event of the list.
    """

    at_least: float
    proved: float
    renyi: float | None


@functools.lru_cache(maxsize=256)
def bracket(event: Event, *, delta: float) -> Bracket:
    """Bounds on what `event` costs at `delta`.

    Guarantee: `at_least` never passes the epsilon of the dominating pair of distributions, `proved` and `renyi` are never
    below it; `proved` passes `renyi` by at most `TOLERANCE`.
    Edge cases: pure events at delta 0 have one number, their sum. What is not private, and what is not pure at delta 0, is inf.
    At a delta above 0 pure events have their sum as the upper bound by other mathematics.
    """
    proved = epsilon_of(event, delta=delta)
    if delta == 0 or math.isinf(proved):
        return Bracket(at_least=proved, proved=proved, renyi=proved)
    renyi = _renyi(event, delta)
    event = events.without_failures(event)  # from below, a list is the Gaussian release that it is at least
    interval = min(INTERVAL, max(_reach(event) / MOST_POINTS, LOST * proved / releases(event)))
    epsilon = float(_rounded_down(event, interval).get_epsilon_for_delta(delta))
    return Bracket(at_least=min(epsilon, proved), proved=proved, renyi=renyi)


def _renyi(event: Event, delta: float) -> float | None:
    """The Renyi bound, or None where it is unknown. dp-accounting warns of every order it leaves out, which costs nothing."""
    log = logging.getLogger("absl")
    quiet, log.disabled = log.disabled, True
    try:
        return epsilon_of(event, delta=delta, accountant="rdp")
    except SpecError:
        return None
    finally:
        log.disabled = quiet


def _reach(event: Event) -> float:
    """About the largest privacy loss of a single release that a grid has to reach."""
    if isinstance(event, events.Composed):
        return max(_reach(item) for item in event.events)
    if isinstance(event, events.Repeated):
        return _reach(event.event)
    if isinstance(event, events.PoissonSampled):
        return math.log1p(event.probability * math.expm1(min(_reach(event.event), 100.0)))
    if isinstance(event, events.Gaussian):
        return 12 / event.noise_multiplier + 0.5 / event.noise_multiplier**2
    return event.epsilon if isinstance(event, events.Pure) else 0.0


def releases(event: Event) -> int:
    """How many single releases an event is made of."""
    if isinstance(event, events.Repeated):
        return event.count * releases(event.event)
    if isinstance(event, events.Composed):
        return sum(releases(item) for item in event.events)
    return 1


def _rounded_down(event: Event, interval: float) -> PrivacyLossDistribution:
    """dp-accounting's privacy loss distribution of an event, rounded down; what is unknown is refused."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid: dict[str, float | bool] = {"value_discretization_interval": interval, "pessimistic_estimate": False}
    if isinstance(event, events.Pure):
        return pld.from_randomized_response(2 / (1 + math.exp(min(event.epsilon, 700.0))), 2, **grid)
    if isinstance(event, events.Gaussian):
        return pld.from_gaussian_mechanism(event.noise_multiplier, use_connect_dots=False, **grid)
    if isinstance(event, events.PoissonSampled):
        inner = event.event
        if isinstance(inner, events.Gaussian):
            sampled = {"sampling_prob": event.probability, "use_connect_dots": False}
            return pld.from_gaussian_mechanism(inner.noise_multiplier, **sampled, **grid)
        if isinstance(inner, events.Pure):
            amplified = math.log1p(event.probability * math.expm1(inner.epsilon))
            return _rounded_down(events.Pure(amplified), interval)
    if isinstance(event, events.Repeated):
        return _rounded_down(event.event, interval).self_compose(event.count)
    if isinstance(event, events.Composed) and event.events:
        parts = [_rounded_down(item, interval) for item in event.events]
        return functools.reduce(lambda first, second: first.compose(second), parts)
    raise SpecError(f"the accountant does not know the event {event}")
