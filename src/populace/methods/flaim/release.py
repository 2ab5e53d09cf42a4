"""What FLAIM lets out: first noisy counts of all columns, then in every round a choice and noisy counts of what was chosen."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from populace.methods.blocks.composed import Release
from populace.privacy.accounting import epsilon_of, noise_multiplier_for
from populace.privacy.events import Composed, Event, Gaussian, Pure, Repeated
from populace.privacy.exponential import ExponentialMechanism
from populace.privacy.gaussian import GaussianSum
from populace.privacy.source import Source
from populace.types import Array, NumpyArray

MARGIN = 1.0005  # of noise, where rounding in the composition would take it past the budget


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundsRelease(Release):
    """One noisy sum at the start; then, `rounds` times, each client's choice and one noisy sum of what was chosen.

    The choice is made at the client, by the exponential mechanism, so that what is measured is chosen before anybody sees it;
    noise on sums is the server's to add.
    """

    first: GaussianSum
    later: GaussianSum
    choice: ExponentialMechanism
    rounds: int

    @property
    def whole(self) -> Event:
        return Composed((self.first.event, Repeated(self.event(1), self.rounds)))

    def event(self, number: int) -> Event:
        return self.first.event if number == 0 else Composed((self.choice.event, self.later.event))

    @property
    def draws(self) -> int:
        return self.first.size + self.rounds * self.later.size

    @property
    def replies(self) -> int:
        return 1 + self.rounds

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on a count, the same in all sums."""
        return self.later.scale

    def at_server(self, number: int, units: Array, source: Source) -> NumpyArray:
        """The sum of an exchange with its noise."""
        mechanism = self.first if number == 0 else self.later
        return np.asarray(mechanism.apply(np.asarray(units, np.int32), source), np.float64)


@dataclasses.dataclass(frozen=True)
class Noise:
    """The standard deviation of the noise on every count, and the epsilon of one choice."""

    deviation: float
    choice_epsilon: float


@functools.lru_cache(maxsize=64)
def calibrated_noise(
    *, epsilon: float, delta: float, rounds: int, first: int, later: int, selection_share: float
) -> Noise:
    """The least noise with which a whole run stays within (epsilon, delta).

    A record is in `first` tables at the start and in `later` tables in every round, one cell of each, and all counts have the
    same noise. With rho = 1 / (2 z^2) for the noise multiplier z of one Gaussian release that costs as much as all, choices get
    `selection_share` of rho: an epsilon of sqrt(2 share rho / rounds) each, because epsilon-DP is epsilon^2 / 2-zCDP.
    """
    rho = noise_multiplier_for(epsilon=epsilon, delta=delta) ** -2 / 2
    choice = math.sqrt(2 * selection_share * rho / rounds)
    multiplier = noise_multiplier_for(epsilon=epsilon, delta=delta, beside=(Repeated(Pure(choice), rounds),))
    deviation = multiplier * math.sqrt(first + rounds * later)
    while True:
        each = Composed((Pure(choice), Gaussian(deviation / math.sqrt(later))))
        if (
            epsilon_of(Composed((Gaussian(deviation / math.sqrt(first)), Repeated(each, rounds))), delta=delta)
            <= epsilon
        ):
            return Noise(deviation, choice)
        deviation *= MARGIN
