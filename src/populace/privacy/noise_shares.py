"""Gaussian noise in shares: each site draws a part of it, and the parts of those who are honest and there carry the claim.

A share is a Gaussian rounded to the grid. The sum of shares is not a rounded Gaussian, and yet its release is, to a computed
distance, post-processing of the Gaussian mechanism. Let g be the density of N(0, s^2) + U, U even on [-1/2, 1/2]: a share has
P(Y = j) = g(j). Write h_m for g convolved m times with itself, the density of N(0, m s^2) + U_1 + .. + U_m.

*What h_m is.* Sampled at whole numbers it is a law: h_m(j) = P(round(N(0, m s^2) + U_1 + .. + U_{m-1}) = j), since
convolving with the last U is rounding. For whole x, x + round(N + U_1 + ..) = round((x + N) + U_1 + ..): the Gaussian
mechanism x + N with variance m s^2, even numbers added, and rounded. It costs `events.Gaussian`, nothing more.

*How far the sum of m shares is from it.* For whole j, sum_i h_k(j - i) g(i) is a sum over a lattice of products of two
densities, mixtures over the U of N(0, k s^2) at j - i - u and N(0, s^2) at i - v. Such a product is N(0, (k + 1) s^2) at
j - u - v times a normal density in i of variance s^2 k / (k + 1). By Poisson summation the sum over i is within a factor of
1 +- ripple_k of the integral, ripple_k = 2 sum_{l > 0} exp(-2 pi^2 l^2 s^2 k / (k + 1)), whatever j, u and v; and the integral
over i, averaged over u and v, is h_{k+1}(j). So, share by share, P(Y_1 + .. + Y_m = j) is within prod_k (1 +- ripple_k) of
h_m(j), k = 1 .. m - 1, and the two laws are within half of prod_k (1 + ripple_k) - 1 in total variation. (Kairouz, Liu and
Steinke 2021 have the same sum of exponentials for discrete Gaussians, theorem 1; the convolution theorems are those of
Peikert 2010 and Micciancio and Walter 2017.)

Coordinates are independent: distances add up over them, and enter delta with a factor 1 + e^epsilon.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Literal

from populace.errors import out_of_range
from populace.privacy.accounting import epsilon_of
from populace.privacy.events import Event, Gaussian
from populace.privacy.gaussian import NOISE_DISTANCE, GaussianSum
from populace.privacy.guarantee import upwards
from populace.privacy.secure_random import REACH
from populace.privacy.source import Source
from populace.types import Array

LEAST_DEVIATION = 3.0  # of a share, in units of the grid: its ripples are below 2^-126
ABOVE = 1 + 2.0**-40  # so that rounded square roots never leave less noise than was asked for
TERMS = 8  # of the sum of exponentials; the rest is bounded


@dataclasses.dataclass(frozen=True, kw_only=True)
class SumSites:
    """The sites of a secure sum: how many there are, may collude with the coordinator, and may be missing from a sum."""

    clients: int
    colluders: int = 0
    dropouts: int = 0

    def __post_init__(self) -> None:
        check_sites(clients=self.clients, colluders=self.colluders, dropouts=self.dropouts)

    def shares(self, mechanism: GaussianSum, *, most: float = math.inf) -> NoiseShares:
        """The noise of one sum over these sites, whose total without noise is at most `most` grid units in any coordinate."""
        return NoiseShares(mechanism=mechanism, most=most, **dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseShares:
    """The noise of one Gaussian sum over `clients` sites, of whom `colluders` may work together with the coordinator and
    `dropouts` may be missing from the sum.

    Guarantee: the opened sum of at least `clients` - `dropouts` sites costs at most `event` to whoever knows the numbers and
    shares of up to `colluders` of them: the shares of the others alone have the deviation of `mechanism`, and are within
    `distance` a coordinate of a law whose release is post-processing of the Gaussian mechanism. To whoever knows no share it
    costs at most `world_event`.
    Edge cases: no share is smaller than `LEAST_DEVIATION` grid units; where less would do, there is more noise than asked for.
    Without colluders the bound holds against the coordinator and the world, and not against a site of the sum, which knows its
    own share: `known_event` of one share says what it is to such a site.
    """

    mechanism: GaussianSum
    clients: int
    colluders: int = 0
    dropouts: int = 0
    most: float = math.inf

    def __post_init__(self) -> None:
        check_sites(clients=self.clients, colluders=self.colluders, dropouts=self.dropouts)

    @property
    def bits(self) -> Literal[32, 64]:
        """The width of numbers modulo which the sum is taken: 32 where total and noise fit. Too few cost accuracy, never
        privacy: numbers modulo 2^32 are post-processing of the numbers."""
        return 32 if self.most + REACH * self.summed(self.clients).deviation < 2**31 else 64

    @property
    def least_survivors(self) -> int:
        """The fewest sites that a sum is opened for."""
        return self.clients - self.dropouts

    @property
    def least_honest(self) -> int:
        """The fewest of them that do not collude: what the noise is calibrated for."""
        return self.least_survivors - self.colluders

    @functools.cached_property
    def share(self) -> GaussianSum:
        """The noise of one site: its variance is the whole's, divided by `least_honest`."""
        deviation = max(LEAST_DEVIATION, self.mechanism.deviation / math.sqrt(self.least_honest) * ABOVE)
        return self._scaled(deviation)

    def summed(self, count: int) -> GaussianSum:
        """The noise of so many shares together, rounded once: what a simulation adds."""
        return self._scaled(self.share.deviation * math.sqrt(count) * ABOVE)

    def _scaled(self, deviation: float) -> GaussianSum:
        """The same sum with noise of this deviation, in units of the grid."""
        multiplier = deviation * self.mechanism.grid / self.mechanism.sensitivity
        return dataclasses.replace(self.mechanism, noise_multiplier=multiplier)

    def draw(self, source: Source) -> Array:
        """The share of one site, in units of the grid, int32."""
        return self.share.noise(source)

    @property
    def event(self) -> Event:
        """What one opened sum costs, to the coordinator with as many sites as may collude."""
        return self.mechanism.event

    @property
    def world_event(self) -> Gaussian:
        """What it costs to whoever knows nobody's share."""
        return self.known_event(0)

    def known_event(self, known: int) -> Gaussian:
        """What it costs to whoever knows so many sites' shares, of the fewest survivors."""
        others = self.least_survivors - known
        if others < 1:
            raise out_of_range("known shares", f"fewer than {self.least_survivors}", known)
        return Gaussian(self.share.noise_multiplier * math.sqrt(others))

    @property
    def draws(self) -> int:
        """Numbers drawn for the noise of one sum."""
        return self.clients * self.mechanism.size

    @property
    def distance(self) -> float:
        """Total variation distance of one coordinate's noise from the law it is accounted as, samplers apart, at most."""
        return convolution_distance(self.share.deviation, self.clients)

    @property
    def whole_distance(self) -> float:
        """The same of all coordinates, with the samplers' own distance."""
        return self.mechanism.size * self.distance + self.draws * NOISE_DISTANCE


def claims_of(sites: SumSites, known: Callable[[int], Event], *, delta: float) -> tuple[str, ...]:
    """What is claimed of opened sums to the world and to a coalition, a sentence each.

    `known` gives what a whole run costs to whoever knows so many sites' shares of the noise.
    """

    def at(shares: int) -> str:
        return f"epsilon {upwards(epsilon_of(known(shares), delta=delta))}"

    count, colluders = sites.clients, sites.colluders
    least = count - sites.dropouts
    world = (
        "to the world (whoever sees the opened sums and knows nobody's share of the noise, the coordinator by itself "
        f"included): {at(0)}"
    )
    if colluders:
        other = (
            f"to the coordinator together with up to {colluders} of the {count} sites, whose shares it then knows: "
            f"{at(colluders)}; the shares of {least - colluders} honest sites carry it"
        )
    else:
        other = (
            f"to a coalition: nothing (colluders 0). A site of the sum knows its own share, and to it what is opened costs "
            f"{at(1)}; colluders 1 would bring every single site under the bound"
        )
    return world, other


def convolution_distance(deviation: float, count: int) -> float:
    """Total variation distance between a sum of `count` rounded Gaussians and the rounded law of this module, at most."""
    grown = math.fsum(math.log1p(ripple(deviation, terms)) for terms in range(1, count))
    return min(1.0, math.expm1(grown) / 2)


def ripple(deviation: float, terms: int) -> float:
    """How far a sum over the lattice is from its integral, relatively, where one share is added to `terms` others."""
    rate = 2 * (math.pi * deviation) ** 2 * terms / (terms + 1)
    found = [math.exp(-rate * number**2) for number in range(1, TERMS + 1)]
    return 2 * (math.fsum(found) + found[-1] / (2 * rate * TERMS))  # the rest is below an integral


def check_sites(*, clients: int, colluders: int, dropouts: int) -> None:
    """Refuse numbers of sites that no list of survivors could be agreed on with."""
    if colluders < 0 or dropouts < 0:
        raise out_of_range("colluders and dropouts", "at least 0", (colluders, dropouts))
    if clients < 2:
        raise out_of_range(
            "the number of sites of a secure sum",
            "at least 2",
            clients,
            advice="one site's sum is its own: use trust silo",
        )
    if clients <= colluders + 2 * dropouts:
        raise out_of_range(
            "colluders + 2 dropouts",
            f"below the number of sites, {clients}",
            colluders + 2 * dropouts,
            advice="with more, a coordinator could open the same messages for two sets of sites",
        )
