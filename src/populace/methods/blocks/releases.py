"""Releases: what leaves a client or a server, with the noise it gets, the event the ledger books, and the guarantee in words.

The object that draws the noise states its cost. A learner calls `at_client` and `at_server` on every sum; the release knows
which of the two adds the noise, so that noise cannot be forgotten and the ledger cannot disagree.
"""

from __future__ import annotations

import abc
import dataclasses

import numpy as np

from populace.methods.base import Population
from populace.privacy.accounting import contains_non_private, epsilon_of
from populace.privacy.events import Event
from populace.privacy.gaussian import GaussianSum
from populace.privacy.guarantee import Guarantee, Trust, Unit
from populace.privacy.noised_steps import NoisedSteps, sampled_delta
from populace.privacy.source import Source
from populace.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wording:
    """The sentences of a guarantee that follow from a method's arithmetic."""

    mechanism: str
    derivation: tuple[str, ...]
    assumptions: tuple[str, ...]
    reason: str = ""  # why nothing is guaranteed, where nothing is


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release(abc.ABC):
    """What one client's participation costs, and what is guaranteed in the end. Neighbours differ in one unit zeroed out."""

    unit: Unit
    trust: Trust
    delta: float
    wording: Wording

    @property
    @abc.abstractmethod
    def whole(self) -> Event:
        """What the client that is asked most often pays over a whole run."""

    @abc.abstractmethod
    def event(self, number: int) -> Event:
        """What one reply in exchange `number` costs."""

    @property
    @abc.abstractmethod
    def draws(self) -> int:
        """Numbers drawn for noise about one unit: what their sampling adds to delta is counted."""

    @property
    @abc.abstractmethod
    def noise_multiplier(self) -> float:
        """The noise multiplier of one release."""

    def guarantee(self, population: Population) -> Guarantee:
        """The statement: epsilon of the whole run at this delta, by privacy loss distributions, and the sentences."""
        epsilon = epsilon_of(self.whole, delta=self.delta)
        private = not contains_non_private(self.whole)
        delta = sampled_delta(self.delta, epsilon, self.draws) if private else 0.0
        return Guarantee(
            epsilon=epsilon,
            delta=delta,
            sampling_delta=delta - self.delta if private else 0.0,
            unit=self.unit,
            units=population.clients * (population.records if self.unit == "record" else 1),
            neighbours="zero-out",
            trust=self.trust,
            mechanism=self.wording.mechanism,
            read_from_data=population.read_from_data,
            domain_sources=population.domain_sources,
            derivation=self.wording.derivation,
            assumptions=self.wording.assumptions,
            reason=self.wording.reason,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianRelease(Release):
    """One sum of whole numbers with Gaussian noise: each client's own sum (`silo`), or the sum of all (`central`)."""

    mechanism: GaussianSum

    @property
    def whole(self) -> Event:
        return self.mechanism.event

    def event(self, number: int) -> Event:
        return self.mechanism.event

    @property
    def draws(self) -> int:
        return self.mechanism.size

    @property
    def noise_multiplier(self) -> float:
        return self.mechanism.noise_multiplier

    def at_client(self, units: Array, source: Source) -> Array:
        """What a client sends of its sum, in units of the grid."""
        return units + self.mechanism.noise(source) if self.trust == "silo" else units

    def at_server(self, units: Array, number: int, source: Source) -> Array:
        """The server's total after an exchange; noise that is the server's to add is in it from the first exchange on."""
        if self.trust == "central" and number == 0:
            return units + np.asarray(self.mechanism.noise(source), np.int64)
        return units


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepsRelease(Release):
    """Many noised steps about the same records, all in one reply: DP-SGD at a silo that is visited once.

    `visit` is what one visit costs: the steps and what goes beside them, or, for a recipe whose proof fails, no guarantee.
    """

    steps: NoisedSteps
    visit: Event

    @property
    def whole(self) -> Event:
        return self.visit

    def event(self, number: int) -> Event:
        return self.visit

    @property
    def draws(self) -> int:
        return self.steps.draws

    @property
    def noise_multiplier(self) -> float:
        return self.steps.noise_multiplier
