"""What a release was, as plain data; `accounting` interprets it.

The events mirror dp-accounting's, which they are translated into, with two additions (`Pure`: all that is known is epsilon;
`NoisyLists`: a list that shows what it must not with a small probability) and two properties it lacks: they are JSON, and need
nothing but the standard library, so training code can carry them on a machine without the accountant.
"""

from __future__ import annotations

import dataclasses
import math

from populace.errors import SpecError
from populace.types import JsonObject


@dataclasses.dataclass(frozen=True)
class Event:
    """Base of all events. Final subclasses only; an accountant refuses what it does not know."""


@dataclasses.dataclass(frozen=True)
class Pure(Event):
    """A mechanism of which only pure epsilon-DP is known (for local mechanisms: epsilon-LDP)."""

    epsilon: float

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise SpecError(f"expected epsilon above 0 and finite, got {self.epsilon!r}")


@dataclasses.dataclass(frozen=True)
class Gaussian(Event):
    """Gaussian noise of `noise_multiplier` times the L2 sensitivity (add or remove one unit)."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise SpecError(f"expected noise_multiplier above 0 and finite, got {self.noise_multiplier!r}")


@dataclasses.dataclass(frozen=True)
class NoisyLists(Event):
    """The values of `columns` columns whose counts, with Gaussian noise rounded to whole numbers, are above `threshold`.

    A record has one value in each column, so that counts change by the root of `columns` in L2, and the noise's standard
    deviation is `noise_multiplier` times that. The list is a Gaussian release, except that a value which nobody else has may
    be shown (`failure`); `privacy.partition` has the proof.
    """

    noise_multiplier: float
    columns: int
    threshold: int

    def __post_init__(self) -> None:
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise SpecError(f"expected noise_multiplier above 0 and finite, got {self.noise_multiplier!r}")
        for name in ("columns", "threshold"):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise SpecError(f"expected {name} as a whole number of at least 1, got {number!r}")

    @property
    def deviation(self) -> float:
        """The standard deviation of a count's noise."""
        return self.noise_multiplier * math.sqrt(self.columns)

    def failure(self, group: int = 1) -> float:
        """The probability, at most, that a value is shown which only the records of a group hold, in any column.

        A count of k is above the threshold where the noise, before rounding, is at least threshold + 1/2 - k. However a group
        splits over the values of a column, it shows one with at most as many times the largest probability per record.
        """
        shares = (normal_tail((self.threshold + 0.5 - held) / self.deviation) / held for held in range(1, group + 1))
        one = group * max(shares)
        return -math.expm1(self.columns * math.log1p(-one)) if one < 1 else 1.0


def normal_tail(deviations: float) -> float:
    """The probability that a normal number is so many standard deviations, or more, above its mean."""
    return math.erfc(deviations / math.sqrt(2)) / 2


@dataclasses.dataclass(frozen=True)
class PoissonSampled(Event):
    """Each unit enters independently with this probability, then `event` takes place."""

    probability: float
    event: Event

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise SpecError(f"expected a sampling probability in (0, 1], got {self.probability!r}")


@dataclasses.dataclass(frozen=True)
class Repeated(Event):
    """`event`, `count` times, adaptively."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise SpecError(f"expected a count of at least 1, got {self.count!r}")


@dataclasses.dataclass(frozen=True)
class Composed(Event):
    """Several events about the same unit, adaptively."""

    events: tuple[Event, ...]


@dataclasses.dataclass(frozen=True)
class NonPrivate(Event):
    """Something left without protection, or with a proof that fails; `reason` says which. Epsilon is infinite."""

    reason: str


KNOWN: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (Pure, Gaussian, NoisyLists, PoissonSampled, Repeated, Composed, NonPrivate)
}


def to_json(event: Event) -> JsonObject:
    document: JsonObject = {"kind": type(event).__name__}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if isinstance(value, Event):
            value = to_json(value)
        elif isinstance(value, tuple):
            value = [to_json(item) for item in value]
        document[field.name] = value
    return document


def from_json(document: JsonObject) -> Event:
    name = document.get("kind", "") if isinstance(document, dict) else document
    kind = KNOWN.get(name) if isinstance(name, str) and isinstance(document, dict) else None
    if kind is None:
        raise SpecError(f"expected an event in {', '.join(KNOWN)}, got {name!r}")
    values: JsonObject = {}
    for field in dataclasses.fields(kind):
        value = document[field.name]
        if isinstance(value, dict):
            value = from_json(value)
        elif isinstance(value, list):
            value = tuple(from_json(item) for item in value)
        values[field.name] = value
    return kind(**values)


def without_failures(event: Event) -> Event:
    """The event with its lists as the Gaussian releases that they are but for `failures`."""
    if isinstance(event, NoisyLists):
        return Gaussian(event.noise_multiplier)
    if isinstance(event, Composed):
        return Composed(tuple(without_failures(item) for item in event.events))
    if isinstance(event, PoissonSampled | Repeated):
        return dataclasses.replace(event, event=without_failures(event.event))
    return event


def failures(event: Event, group: int = 1) -> tuple[float, float]:
    """What lists that may fail add to delta and to epsilon, if so many records are zeroed out: the sum of their probabilities
    f of failing, and of -log(1 - f). Sampled lists are refused."""
    if isinstance(event, NoisyLists):
        one = event.failure(group)
        return one, -math.log1p(-one) if one < 1 else math.inf
    if isinstance(event, Repeated):
        delta, epsilon = failures(event.event, group)
        return event.count * delta, event.count * epsilon
    if isinstance(event, Composed):
        parts = [failures(item, group) for item in event.events]
        return math.fsum(delta for delta, _ in parts), math.fsum(epsilon for _, epsilon in parts)
    if isinstance(event, PoissonSampled) and failures(event.event, group)[0]:
        raise SpecError(
            "lists of values from a sample of the records have no accountant; release them from all records"
        )
    return 0.0, 0.0


def is_pure(event: Event) -> bool:
    """Whether the event has a finite epsilon at delta 0 by plain addition."""
    if isinstance(event, Pure):
        return True
    if isinstance(event, Repeated):
        return is_pure(event.event)
    return isinstance(event, Composed) and all(is_pure(item) for item in event.events)


def pure_epsilon(event: Event) -> float:
    """The sum of the epsilons of a pure event."""
    if isinstance(event, Pure):
        return event.epsilon
    if isinstance(event, Repeated):
        return event.count * pure_epsilon(event.event)
    if isinstance(event, Composed):
        return math.fsum(pure_epsilon(item) for item in event.events)
    raise SpecError(f"{type(event).__name__} has no pure epsilon; ask for a delta above 0")
