"""Sums with Gaussian noise in stages: each stage has noise of its own, and a client pays for every stage it takes part in."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from populace.errors import SpecError
from populace.methods.blocks.composed import Release
from populace.privacy.events import Composed, Event, Gaussian, NoisyLists
from populace.privacy.gaussian import GaussianSum
from populace.privacy.partition import ValueLists
from populace.privacy.source import Source
from populace.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedRelease(Release):
    """One sum of whole numbers in each stage, with noise at each client (`silo`) or once on the sum of all (`central`)."""

    mechanisms: tuple[GaussianSum, ...]
    blocks: int = 1  # exchanges of a stage
    lists: ValueLists | None = None  # what each silo released before the first stage, to find categories
    spare: tuple[Gaussian, ...] = ()  # what was paid for before it was known that it would not be released

    def __post_init__(self) -> None:
        if self.trust not in ("silo", "central"):
            raise SpecError(f"expected the trust of sums in stages in silo, central, got {self.trust!r}")

    @property
    def _before(self) -> tuple[NoisyLists | Gaussian, ...]:
        """What a client pays beside its first stage."""
        return (*(() if self.lists is None else (self.lists.event,)), *self.spare)

    @property
    def whole(self) -> Event:
        events = (*self._before, *(mechanism.event for mechanism in self.mechanisms))
        return events[0] if len(events) == 1 else Composed(events)

    def event(self, number: int) -> Event:
        stage = number // self.blocks
        own = self.mechanisms[stage].event
        return Composed((*self._before, own)) if stage == 0 and self._before else own

    @property
    def draws(self) -> int:
        lists = 0 if self.lists is None else self.lists.columns
        return lists + sum(mechanism.size for mechanism in self.mechanisms)

    @property
    def noise_multiplier(self) -> float:
        """That of one release which costs as much as all stages together."""
        return 1 / math.sqrt(sum(one.noise_multiplier**-2 for one in (*self._before, *self.mechanisms)))

    @property
    def replies(self) -> int:
        return len(self.mechanisms)

    def at_client(self, stage: int, units: Array, source: Source) -> Array:
        """What a client sends of its whole numbers."""
        return units + self._noise(stage, units, source) if self.trust == "silo" else units

    def at_server(self, stage: int, units: Array, source: Source) -> Array:
        """The server's sum of a stage, with the noise that is its to add."""
        if self.trust == "central":
            return units + np.asarray(self._noise(stage, units, source), np.int64)
        return units

    def _noise(self, stage: int, units: Array, source: Source) -> Array:
        return self.mechanisms[stage].noise(source).reshape(units.shape)

    def deviation(self, stage: int, messages: int) -> float:
        """The standard deviation of noise in the sum of so many messages."""
        draws = max(messages, 1) if self.trust == "silo" else 1
        return self.mechanisms[stage].scale * math.sqrt(draws)
