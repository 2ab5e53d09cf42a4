"""From events to epsilon, through dp-accounting: privacy loss distributions by default, Renyi divergences beside.

Pure events compose by addition at delta 0. At a delta above 0 a pure event stands for binary randomised response with the same
epsilon, which dominates every epsilon-DP mechanism (Kairouz, Oh, Viswanath 2015, theorem 3.3), so the answer is an upper bound
whatever the mechanism was.

Lists that may show a value nobody else has (`events.NoisyLists`) are accounted as the Gaussian releases they are otherwise:
what they may show is taken off delta first, and adds as little to epsilon (`privacy.partition`).
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Literal

from populace.errors import SpecError, out_of_range
from populace.privacy import events
from populace.privacy.bisection import bisect, largest_that_fits
from populace.privacy.events import Event
from populace.privacy.sampled_loss import sampled_gaussian_loss

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Accountant = Literal["pld", "rdp"]
RELATIVE_TOLERANCE = 1e-3
INTERVAL = 1e-4
COARSE = 1e-2
#: Beyond this epsilon what samplers add to delta, (1 + e^epsilon) times their distance from their law, is not negligible.
SAMPLERS_COUNT = 30.0
#: The part of delta that calibration leaves to it then.
LEFT_TO_SAMPLERS = 0.1


@functools.lru_cache(maxsize=4096)
def epsilon_of(event: Event, *, delta: float, accountant: Accountant = "pld", interval: float = INTERVAL) -> float:
    """The least epsilon the accountant can prove for `event` at `delta`, add-or-remove one unit.

    `interval` is the discretisation of the privacy loss: a coarser one is faster and never optimistic.

    Guarantee: an upper bound (dp-accounting rounds pessimistically).
    Edge cases: inf for a non-private event, at delta 0 for an event that is not pure, and where lists alone use up delta.
    """
    if not 0 <= delta < 1:
        raise out_of_range("delta", "in [0, 1)", delta)
    if events.is_pure(event) and (delta == 0 or accountant == "rdp"):
        return events.pure_epsilon(event)
    if contains_non_private(event) or delta == 0:
        return math.inf
    lost, added = events.failures(event)
    if lost:
        left = delta - lost
        rest = events.without_failures(event)
        return added + epsilon_of(rest, delta=left, accountant=accountant, interval=interval) if left > 0 else math.inf
    if accountant == "pld":
        epsilon = float(_loss_distribution(event, interval).get_epsilon_for_delta(delta))
        return min(epsilon, events.pure_epsilon(event)) if events.is_pure(event) else epsilon
    import dp_accounting

    try:
        return float(dp_accounting.rdp.RdpAccountant().compose(_renyi_event(event)).get_epsilon(delta))
    except dp_accounting.UnsupportedEventError as error:
        raise SpecError(f"the Renyi accountant does not know the event {event}; use the default accountant") from error


def contains_non_private(event: Event) -> bool:
    if isinstance(event, events.NonPrivate):
        return True
    if isinstance(event, events.Composed):
        return any(contains_non_private(item) for item in event.events)
    return isinstance(event, events.Repeated | events.PoissonSampled) and contains_non_private(event.event)


def _loss_distribution(event: Event, interval: float) -> PrivacyLossDistribution:
    """The privacy loss distribution of an event, add-or-remove; what is unknown is refused."""
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    from populace.privacy.loss_masses import composed

    grid: dict[str, float | bool] = {"value_discretization_interval": interval}
    if isinstance(event, events.Pure):
        return pld.from_privacy_parameters(common.DifferentialPrivacyParameters(event.epsilon, 0.0), **grid)
    if isinstance(event, events.Gaussian):
        return sampled_gaussian_loss(event.noise_multiplier, 1.0, interval)
    if isinstance(event, events.PoissonSampled):
        inner = event.event
        if isinstance(inner, events.Gaussian):
            return sampled_gaussian_loss(inner.noise_multiplier, event.probability, interval)
        if isinstance(inner, events.Pure):  # amplification by sampling of a pure mechanism, exact for the worst case
            amplified = math.log1p(event.probability * math.expm1(inner.epsilon))
            return pld.from_privacy_parameters(common.DifferentialPrivacyParameters(amplified, 0.0), **grid)
    if isinstance(event, events.Repeated):
        return _loss_distribution(event.event, interval).self_compose(event.count)
    if isinstance(event, events.Composed) and event.events:
        return functools.reduce(composed, [_loss_distribution(item, interval) for item in event.events])
    raise SpecError(f"the accountant does not know the event {event}")


def _renyi_event(event: Event) -> DpEvent:
    """The event in the vocabulary of dp-accounting's Renyi accountant; what is unknown is refused."""
    import dp_accounting

    if isinstance(event, events.Pure):  # epsilon-DP is epsilon^2/2-zCDP (Bun and Steinke 2016, proposition 1.4)
        return dp_accounting.ZCDpEvent(event.epsilon**2 / 2)
    if isinstance(event, events.Gaussian):
        return dp_accounting.GaussianDpEvent(event.noise_multiplier)
    if isinstance(event, events.PoissonSampled):
        return dp_accounting.PoissonSampledDpEvent(event.probability, _renyi_event(event.event))
    if isinstance(event, events.Repeated):
        return dp_accounting.SelfComposedDpEvent(_renyi_event(event.event), event.count)
    if isinstance(event, events.Composed):
        return dp_accounting.ComposedDpEvent([_renyi_event(item) for item in event.events])
    raise SpecError(f"the accountant does not know the event {event}")


def sampled_gaussian(
    *, noise_multiplier: float, probability: float = 1.0, steps: int = 1, beside: tuple[Event, ...] = ()
) -> Event:
    """`steps` Poisson-sampled Gaussian releases: DP-SGD, or one plain Gaussian with the defaults; and what goes beside."""
    event: Event = events.Gaussian(noise_multiplier)
    if probability < 1:
        event = events.PoissonSampled(probability, event)
    event = events.Repeated(event, steps) if steps > 1 else event
    return events.Composed((event, *beside)) if beside else event


@functools.lru_cache(maxsize=256)
def noise_multiplier_for(
    *, epsilon: float, delta: float, probability: float = 1.0, steps: int = 1, beside: tuple[Event, ...] = ()
) -> float:
    """The least noise multiplier (to 0.1 %) whose steps, with what goes beside, stay within (epsilon, delta) by PLD.

    Beyond `SAMPLERS_COUNT` less of delta is used: the rest is left to what samplers add.
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise out_of_range("epsilon", "above 0 and finite", epsilon)
    if not 0 < delta < 1:
        raise out_of_range("delta", "in (0, 1)", delta, advice="Gaussian noise has no guarantee at delta 0")
    delta = _without_samplers(delta, epsilon)

    def spent(noise_multiplier: float, interval: float) -> float:
        event = sampled_gaussian(noise_multiplier=noise_multiplier, probability=probability, steps=steps, beside=beside)
        return epsilon_of(event, delta=delta, interval=interval)

    if beside and epsilon_of(events.Composed(beside), delta=delta) > epsilon:
        raise SpecError(
            f"what is released beside the steps alone costs more than epsilon {epsilon:g}; choose more noise for it"
        )
    high = 1.0
    while spent(high, COARSE) > epsilon:
        high *= 2
        if high > 1e7:
            raise SpecError(f"no noise multiplier below 1e7 gives epsilon {epsilon} at delta {delta} for {steps} steps")
    _, coarse = bisect(lambda noise: spent(noise, COARSE) <= epsilon, 1e-3, high, tolerance=RELATIVE_TOLERANCE)
    # The coarse answer is an upper bound and nearly right; the fine one is looked for just below it, in steps that double.
    step = 2 * RELATIVE_TOLERANCE
    low, best = coarse * (1 - step), coarse
    while low > 0 and spent(low, INTERVAL) <= epsilon:
        step *= 2
        low, best = coarse * (1 - step), low
    return bisect(lambda noise: spent(noise, INTERVAL) <= epsilon, max(low, 0.0), best, tolerance=RELATIVE_TOLERANCE)[1]


def steps_for(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    probability: float,
    wanted: int | None = None,
    beside: tuple[Event, ...] = (),
) -> int:
    """How many sampled Gaussian steps fit into (epsilon, delta) with what goes beside, at most `wanted`; 0 if not one does.

    Beyond `SAMPLERS_COUNT` less of delta is used: the rest is left to what samplers add.
    """
    delta = _without_samplers(delta, epsilon)

    def fits(steps: int) -> bool:
        event = sampled_gaussian(noise_multiplier=noise_multiplier, probability=probability, steps=steps, beside=beside)
        return epsilon_of(event, delta=delta) <= epsilon

    if wanted is not None and fits(wanted):
        return wanted
    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
        if high > 2**24:
            raise SpecError(f"more than {high} steps fit into epsilon {epsilon}; choose less noise")
    return largest_that_fits(fits, low, high)


def _without_samplers(delta: float, epsilon: float) -> float:
    """The delta that noise is calibrated to."""
    return delta if epsilon <= SAMPLERS_COUNT else (1 - LEFT_TO_SAMPLERS) * delta


def default_delta(units: int) -> float:
    """min(1e-5, n^-1.1) for a public number n of protected units."""
    return float(min(1e-5, float(units) ** -1.1))


def resolved_delta(delta: float, units: int) -> tuple[float, tuple[str, ...]]:
    """The delta that holds and what must be said about it: the house rule's, or an explicit one below 1/n."""
    usual = default_delta(units)
    if delta == 0:
        return usual, ()
    if not 0 < delta < 1 / units:
        raise out_of_range(
            "delta",
            f"above 0 and below 1/n for n = {units:,} protected units",
            delta,
            advice="leave it out for the house rule",
        )
    if delta > usual:
        return delta, (f"delta {delta:g} was asked for; the house rule for {units:,} protected units is {usual:.2g}",)
    return delta, ()
