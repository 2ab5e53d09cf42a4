"""Many noised sums about the same units: what makes their noise also says what they cost.

DP-SGD at a client and DP-FedAvg at a server are the same mechanism: units sampled independently, their vectors clipped and
added up, Gaussian noise, again and again; with an adaptive bound a noisy count goes along.
"""

from __future__ import annotations

import dataclasses
import math

from populace.errors import SpecError
from populace.privacy.accounting import LEFT_TO_SAMPLERS, epsilon_of, noise_multiplier_for, sampled_gaussian, steps_for
from populace.privacy.events import Event
from populace.privacy.gaussian import NOISE_DISTANCE, GaussianSum, count_sum, split_noise
from populace.privacy.noise_shares import SumSites

#: Of the delta asked for, what samplers' distance from their law may add to it; stated with the claim.
SAMPLERS_SHARE = 1e-6
STEPS_TO_ACCOUNTED = 6
#: What DP-SGD assumes of compiled arithmetic; stated with every guarantee that rests on it.
BATCHES = (
    "a record's clipped gradient is the same number wherever it stands in a batch, up to what rounding to the grid leaves room "
    "for: so seen on processors, not proved, not examined on accelerators"
)
AT_A_SILO = (
    "one record is one person's; a person with several is not covered by this bound as a whole",
    "nobody outside a silo learns which records were in a batch",
    BATCHES,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisedSteps:
    """`steps` sums of vectors clipped to length 1, each unit in one with `probability`; `count` of those that were short;
    and `beside`, sums over all units, once each. Where `count_weight` is above 0, the count is the vector's last coordinate
    instead, times this weight.

    Guarantee: the event is that of the very objects that make the noise.
    """

    mechanism: GaussianSum
    count: GaussianSum | None
    probability: float
    steps: int
    beside: tuple[GaussianSum, ...] = ()
    count_weight: float = 0.0

    def in_one_vector(self) -> NoisedSteps:
        """The same steps where one noise serves vector and count: the count is a coordinate, weighted to have as much noise.

        A unit adds a vector of length 1 and, beside it, weight times the count's bound: together they are the bound of one
        sum. Its noise multiplier is that of vector and count before, and each has the noise that it had.
        """
        if self.count is None:
            return self
        weight = (
            self.mechanism.noise_multiplier * self.mechanism.bound / (self.count.noise_multiplier * self.count.bound)
        )
        mechanism = GaussianSum(
            bound=math.hypot(self.mechanism.bound, weight * self.count.bound), noise_multiplier=self.noise_multiplier,
            size=self.mechanism.size + 1,
        )  # fmt: skip
        return dataclasses.replace(self, mechanism=mechanism, count=None, count_weight=weight)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of vector and count together: squared sensitivities, each in units of its own noise, add up."""
        if self.count is None:
            return self.mechanism.noise_multiplier
        return float((self.mechanism.noise_multiplier**-2 + self.count.noise_multiplier**-2) ** -0.5)

    def event(self, steps: int) -> Event:
        """What so many of the steps cost."""
        return sampled_gaussian(noise_multiplier=self.noise_multiplier, probability=self.probability, steps=steps)

    @property
    def whole(self) -> Event:
        """What all steps and what goes beside them cost."""
        return sampled_gaussian(
            noise_multiplier=self.noise_multiplier, probability=self.probability, steps=self.steps,
            beside=tuple(sums.event for sums in self.beside),
        )  # fmt: skip

    def known_to(self, sites: SumSites, shares: int) -> Event:
        """What all steps cost to whoever knows so many of the sites' shares of the noise: each unit's coin stays its own."""
        noise = sites.shares(self.mechanism).known_event(shares).noise_multiplier
        return sampled_gaussian(noise_multiplier=noise, probability=self.probability, steps=self.steps)

    def distance_in(self, sites: SumSites) -> float:
        """Total variation distance of all steps' noise in shares from the law it is accounted as, samplers apart."""
        return self.steps * self.mechanism.size * sites.shares(self.mechanism).distance

    @property
    def draws(self) -> int:
        """Numbers drawn for the noise of all steps."""
        return self.steps * (self.mechanism.size + (0 if self.count is None else 1)) + sum(
            sums.size for sums in self.beside
        )


def noised_steps(
    *,
    epsilon: float,
    delta: float,
    probability: float,
    wanted: int,
    size: int,
    noise: float,
    each: int,
    counting: float = 0.0,
    beside: tuple[GaussianSum, ...] = (),
    before: Event | None = None,
) -> NoisedSteps:
    """Noise for `wanted` steps, or, with a noise multiplier given, as many of them as fit, in whole lots of `each`.

    `counting` is the least deviation of the noise of a count that goes along, 0 for none. `before` is what the same units paid
    before: it is within epsilon too.
    """
    steps, also = wanted, (*(sums.event for sums in beside), *(() if before is None else (before,)))
    if noise:
        fit = steps_for(
            epsilon=epsilon, delta=delta, noise_multiplier=noise, probability=probability, wanted=wanted, beside=also
        )
        steps = min(wanted, fit) // each * each
        if not steps:
            raise SpecError(
                f"noise {noise:g} allows {fit} steps within epsilon {epsilon:g}, and {each} are taken at a time; "
                "choose more noise or fewer steps"
            )
    else:
        noise = noise_multiplier_for(epsilon=epsilon, delta=delta, probability=probability, steps=wanted, beside=also)
    count, vector = None, noise
    if counting:
        deviation = max(noise, counting)
        count, vector = count_sum(deviation), split_noise(noise, deviation)
    mechanism = GaussianSum(bound=1.0, noise_multiplier=vector, size=size)
    return NoisedSteps(mechanism=mechanism, count=count, probability=probability, steps=steps, beside=beside)


def sampled_delta(delta: float, epsilon: float, draws: int, distance: float = 0.0) -> float:
    """delta with what sampling adds to it: each number drawn is only within `NOISE_DISTANCE` of its law, and what is made of
    them all within `distance` of the law that was accounted.

    If two laws are within t in total variation, (epsilon, delta) for one is (epsilon, delta + (1 + e^epsilon) t) for the other.
    Edge cases: what is added may be less than the last digit of delta (a relative 2^-53), and is then not shown.
    """
    return delta + (1 + math.exp(epsilon)) * (draws * NOISE_DISTANCE + distance)


def accounted_delta(delta: float, event: Event, draws: int, distance: float = 0.0) -> float:
    """The part of an allowed delta at which epsilon is computed, so that it does not pass delta with what sampling adds.

    All of it where sampling adds less than `SAMPLERS_SHARE` of it, which a budget allows beside it. Otherwise what sampling
    adds is taken off first; a smaller delta has a larger epsilon, at which sampling adds more, hence the steps.
    Edge cases: all of it too where sampling adds more than calibration leaves to it: the claim then passes what was allowed.
    """
    left = delta
    for _ in range(STEPS_TO_ACCOUNTED):
        added = sampled_delta(0.0, min(epsilon_of(event, delta=left), 700.0), draws, distance)
        if added <= SAMPLERS_SHARE * delta or added > LEFT_TO_SAMPLERS * delta:
            return delta
        left = delta - added
    return left
