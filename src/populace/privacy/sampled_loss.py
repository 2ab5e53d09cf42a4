"""The privacy loss distribution of a Poisson-sampled Gaussian: dp-accounting's, up to float rounding, computed by arrays.

dp-accounting inverts the privacy loss for one point of its grid after another, which takes most of the time of a calibration.
Here all points are inverted at once; the bounds of the grid remain its own, and `loss_masses` has the rest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from populace.errors import SpecError
from populace.types import Array

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    from populace.privacy.loss_masses import Masses

LARGE = 50.0  # e to it has no use for a 1 beside it
MOST_POINTS = 10**8  # of a grid; what has more loses thousands of epsilons


def sampled_gaussian_loss(noise_multiplier: float, probability: float, interval: float) -> PrivacyLossDistribution:
    """dp-accounting's `from_gaussian_mechanism(noise_multiplier, sampling_prob=probability)`, add-or-remove one unit.

    Tested against it in `tests/unit/privacy/test_sampled_loss.py`.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    from populace.privacy.loss_masses import Masses

    def masses(removed: bool) -> Masses:
        kind = AdjacencyType.REMOVE if removed else AdjacencyType.ADD
        loss = GaussianPrivacyLoss(noise_multiplier, sampling_prob=probability, adjacency_type=kind)
        bounds = loss.connect_dots_bounds()
        if not bounds.epsilon_upper - bounds.epsilon_lower < MOST_POINTS * interval:
            raise SpecError(f"a noise multiplier of {noise_multiplier:g} protects nobody; choose more noise")
        low, high = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
        epsilons = np.arange(low, high + 1) * interval
        upto = _where_lost(epsilons, noise_multiplier, probability, removed)
        beyond = np.asarray(loss.mu_upper_cdf(upto)) - np.exp(epsilons + loss.mu_lower_log_cdf(upto))
        return Masses.connecting_the_dots(interval, low, np.clip(beyond, 0, 1))

    if probability == 1:
        return pld.PrivacyLossDistribution(masses(True))
    return pld.PrivacyLossDistribution(masses(True), masses(False))


def _where_lost(epsilons: Array, noise_multiplier: float, probability: float, removed: bool) -> Array:
    """Up to which outcome the privacy loss is at least so much; the loss falls as outcomes grow.

    Where sampling alone keeps the loss above (removed) or below (added) an epsilon, every or no outcome has it.
    """
    losses = epsilons
    if probability < 1:
        sign = 1 if removed else -1
        signed = sign * epsilons
        small = np.minimum(signed, LARGE)
        with np.errstate(divide="ignore", invalid="ignore"):
            whole = np.log1p(np.maximum(np.expm1(small) / probability, -1.0))  # log of 0: no outcome, or every one
        whole = np.where(signed <= LARGE, whole, signed - math.log(probability))
        losses = sign * whole
    return (0.0 if removed else 1.0) - 0.5 - losses * noise_multiplier**2
