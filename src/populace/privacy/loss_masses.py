"""A privacy loss distribution's probability masses on a grid, as dp-accounting's `DensePLDPmf` has them, computed by arrays.

dp-accounting goes through its masses one by one: into a dictionary and out of it, up to the epsilon of a delta, and through
forty general log-sum-exps for the bounds of a convolution. Here the same sums are taken by NumPy, in the same order where order
rounds, so that answers are those of dp-accounting up to the last digits of a float.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf, PLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import fft, signal

from populace.types import Array

SMALL = 1000  # up to here dp-accounting keeps dictionaries, and composing once changes nothing
ORDERS = 20  # of the moment generating function on each side, over the length of the grid
AT_ONCE = 4096
ROUNDING = 1e-12  # by which dp-accounting lets a delta grow


class Masses(DensePLDPmf):  # type: ignore[misc]  # dp-accounting has no types
    """Rounded up: the sum of the masses and of the infinite loss is 1, and every delta is an upper bound."""

    @classmethod
    def connecting_the_dots(cls, interval: float, low: int, deltas: Array) -> Self:
        """The tightest upper bound on a grid, from the deltas at its points (Doroshenko et al. 2022, algorithm 1).

        As dp-accounting's `create_pmf_pessimistic_connect_dots_fixed_gap`. `deltas` are those of `low`, `low` + 1, ... times
        `interval`, none above the one before but for rounding.
        """
        if np.any(np.diff(deltas) > ROUNDING):
            raise ValueError("expected deltas that do not grow with epsilon")
        deltas = np.minimum.accumulate(deltas)
        if len(deltas) == 1:
            return cls(interval, low, 1 - deltas, deltas[0], True)
        falls = np.diff(deltas)
        masses = np.empty_like(deltas)
        masses[0] = 1 - deltas[0] + falls[0] / math.expm1(interval)
        masses[1:-1] = (falls[1:] - falls[:-1] * math.exp(interval)) / math.expm1(interval)
        masses[-1] = falls[-1] / math.expm1(-interval)
        return cls(interval, low, np.maximum(0.0, masses), deltas[-1], True)

    def compose(self, other: DensePLDPmf, tail_mass_truncation: float = 0) -> Masses:
        """The distribution of the sum of two losses."""
        self.validate_composable(other)
        masses = signal.fftconvolve(self._probs, other._probs)
        infinite = self._infinity_mass + other._infinity_mass - self._infinity_mass * other._infinity_mass
        first = _prefix_within(masses, tail_mass_truncation / 2) if tail_mass_truncation else 0
        last = len(masses) - (_prefix_within(masses[::-1], tail_mass_truncation / 2) if tail_mass_truncation else 0)
        last = max(last, first + 1)
        kept = masses[first:last].copy()
        kept[0] += masses[:first].sum()
        beyond = masses[last:].sum()
        return Masses(self._discretization, self._lower_loss + other._lower_loss + first, kept, infinite + beyond, True)

    def self_compose(self, num_times: int, tail_mass_truncation: float = 1e-15) -> Masses:
        """The distribution of the sum of `num_times` such losses, by the Fourier transform."""
        if num_times == 1 and self.size <= SMALL:
            return self
        first, last = _convolution_bounds(self._probs, num_times, tail_mass_truncation)
        length = last - first + 1
        fast = fft.next_fast_len(max(length, self.size))
        wrapped = np.real(fft.ifft(fft.fft(self._probs, fast) ** num_times))
        masses = np.roll(wrapped, -first)[:length]
        infinite = tail_mass_truncation - math.expm1(num_times * math.log1p(-self._infinity_mass))
        return Masses(self._discretization, self._lower_loss * num_times + first, masses, infinite, True)

    def get_epsilon_for_delta(self, delta: float) -> float:
        """The least epsilon at which the hockey-stick divergence is at most `delta`.

        From the largest loss downwards: above are the mass that loses more than epsilon (`upper`), and e^-loss of it (`lower`).
        """
        if self._infinity_mass > delta:
            return math.inf
        upper, lower = float(self._infinity_mass), 0.0
        loss = (self._lower_loss + self.size - 1) * self._discretization
        downwards = self._probs[::-1]
        for start in range(0, self.size, AT_ONCE):
            masses = downwards[start : start + AT_ONCE]
            losses = _running(loss, np.full(len(masses), -self._discretization))
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                uppers, lowers = _running(upper, masses), _running(lower, np.exp(-losses[:-1]) * masses)
                reached = (uppers > delta) & (lowers > 0) & (np.log((uppers - delta) / lowers) >= losses)
            vanished = (uppers[1:] >= delta) & (lowers[1:] == 0)
            end = np.flatnonzero(reached[:-1] | vanished)
            if len(end):
                at = end[0]
                if not reached[at]:  # so large a loss that e^-loss is 0
                    return max(0.0, float(losses[at]))
                upper, lower = float(uppers[at]), float(lowers[at])
                break
            upper, lower, loss = float(uppers[-1]), float(lowers[-1]), losses[-1]
        return 0.0 if upper <= lower + delta else math.log((upper - delta) / lower)

    def to_dense_pmf(self) -> Masses:
        return self


def composed(first: PrivacyLossDistribution, second: PrivacyLossDistribution) -> PrivacyLossDistribution:
    """The losses of two releases together. dp-accounting composes masses of one class alone, and keeps few in dictionaries."""
    if any(isinstance(each._pmf_remove, DensePLDPmf) for each in (first, second)):
        first, second = _by_arrays(first), _by_arrays(second)
    return first.compose(second)


def _by_arrays(loss: PrivacyLossDistribution) -> PrivacyLossDistribution:
    added = None if loss._symmetric else _masses_of(loss._pmf_add)
    return PrivacyLossDistribution(_masses_of(loss._pmf_remove), added)


def _masses_of(pmf: PLDPmf) -> Masses:
    dense = pmf.to_dense_pmf()
    parts = (dense._discretization, dense._lower_loss, dense._probs, dense._infinity_mass, True)
    return dense if isinstance(dense, Masses) else Masses(*parts)


def _running(first: float, others: Array) -> Array:
    """The sums of `first` and so many of the others, each from the one before, as a loop takes them."""
    return np.add.accumulate(np.concatenate([[first], others]))


def _prefix_within(masses: Array, threshold: float) -> int:
    """How many masses from the start stay within the threshold together."""
    above = np.add.accumulate(masses) > threshold
    return int(above.argmax()) if above.any() else len(masses)


def _convolution_bounds(masses: Array, times: int, tail: float) -> tuple[int, int]:
    """Between which points all but `tail` of the mass of a convolution lies, by Chernoff bounds of forty orders.

    dp-accounting's `compute_self_convolve_bounds`; no order times a point exceeds 20, so exponentials need no care.
    """
    size = len(masses)
    low, high = 0, (size - 1) * times
    if tail == 0:
        return low, high
    points = np.arange(size) / size
    for sign in (-1, 1):
        base = np.exp(sign * points)
        weighted = np.array(masses)
        for order in range(1, ORDERS + 1):
            weighted *= base
            moment = float(weighted.sum())
            if not moment > 0:
                continue
            bound = (times * math.log(moment) + math.log(2 / tail)) * size / (sign * order)
            if sign > 0:
                high = min(high, math.ceil(bound))
            else:
                low = max(low, math.floor(bound))
    return low, high
