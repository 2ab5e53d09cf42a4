"""What a release was, as plain data; `accounting` interprets it.

The events mirror dp-accounting's, which they are translated into, with one addition (`Pure`: all that is known is epsilon)
and two properties it lacks: they are JSON, and need nothing but the standard library, so training code can carry them on a
machine without the accountant.
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
    kind.__name__: kind for kind in (Pure, Gaussian, PoissonSampled, Repeated, Composed, NonPrivate)
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
    name = document.get("kind", "")
    kind = KNOWN.get(name)
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
