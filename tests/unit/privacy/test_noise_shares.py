"""Noise in shares: what survivors' shares add up to, how far that is from the law it is accounted as, and what is refused."""

import math

import jax
import numpy as np
import pytest
from scipy.special import ndtr

from populace.errors import SpecError
from populace.privacy.accounting import epsilon_of
from populace.privacy.events import Gaussian
from populace.privacy.gaussian import GaussianSum
from populace.privacy.noise_shares import LEAST_DEVIATION, NoiseShares, check_sites, convolution_distance, ripple
from populace.privacy.source import Keyed

MECHANISM = GaussianSum(bound=10.0, noise_multiplier=4.0, size=7, whole=True)


@pytest.mark.parametrize(
    ("clients", "colluders", "dropouts"), [(3, 0, 0), (3, 1, 0), (3, 0, 1), (10, 4, 2), (50, 0, 0)]
)
def test_the_least_honest_survivors_carry_the_whole_deviation(clients, colluders, dropouts):
    shares = NoiseShares(mechanism=MECHANISM, clients=clients, colluders=colluders, dropouts=dropouts)
    assert shares.least_honest == clients - colluders - dropouts
    total = shares.share.deviation * math.sqrt(shares.least_honest)
    assert MECHANISM.deviation <= total <= MECHANISM.deviation * (1 + 1e-9)
    assert shares.event == MECHANISM.event
    assert shares.summed(clients).deviation == pytest.approx(
        MECHANISM.deviation * math.sqrt(clients / shares.least_honest)
    )
    world = shares.world_event.noise_multiplier
    assert world == pytest.approx(4 * math.sqrt((clients - dropouts) / shares.least_honest))
    assert epsilon_of(Gaussian(world), delta=1e-5) <= epsilon_of(shares.event, delta=1e-5) + 1e-9
    assert shares.known_event(colluders).noise_multiplier >= MECHANISM.noise_multiplier


def test_a_site_of_a_sum_without_colluders_knows_its_own_share():
    """With c = 0 the claim is none against another site: what it sees costs more."""
    shares = NoiseShares(mechanism=MECHANISM, clients=3)
    assert shares.known_event(1).noise_multiplier == pytest.approx(4 * math.sqrt(2 / 3))
    with pytest.raises(SpecError, match="known shares"):
        shares.known_event(3)


def rounded(deviation, reach):
    edges = np.arange(-reach - 0.5, reach + 1)
    return np.diff(ndtr(edges / deviation))


def accounted(deviation, count, reach, fine=240):
    """round(N(0, count deviation^2) + U_1 + .. + U_{count-1}), by sums over a fine grid of the even numbers."""
    law = np.ones(1)
    for _ in range(count - 1):
        law = np.convolve(law, np.full(fine, 1 / fine))
    places = (np.arange(len(law)) - (len(law) - 1) / 2) / fine
    whole = np.arange(-reach, reach + 1)
    scale = deviation * math.sqrt(count)
    upper = ndtr((whole[:, None] + 0.5 - places) / scale) - ndtr((whole[:, None] - 0.5 - places) / scale)
    return upper @ law


@pytest.mark.parametrize(("deviation", "count"), [(0.35, 2), (0.45, 2), (0.45, 4), (0.6, 3), (0.6, 6)])
def test_the_distance_of_a_sum_of_shares_is_at_most_the_bound_and_not_far_below(deviation, count):
    """Small shares, whose distance is large enough to see: convolved exactly, against the law they are accounted as."""
    reach = 40
    one = total = rounded(deviation, reach)
    for _ in range(count - 1):
        total = np.convolve(total, one)
    middle = len(total) // 2
    total = total[middle - reach : middle + reach + 1]
    distance = np.abs(total - accounted(deviation, count, reach)).sum() / 2
    bound = convolution_distance(deviation, count)
    assert distance <= bound * (1 + 1e-3) + 1e-6
    assert distance > bound / 50


def test_the_distance_is_negligible_where_shares_are_used_and_grows_with_their_number():
    assert ripple(LEAST_DEVIATION, 1) < 2.0**-126
    assert convolution_distance(LEAST_DEVIATION, 1) == 0
    assert 0 < convolution_distance(LEAST_DEVIATION, 3) <= convolution_distance(LEAST_DEVIATION, 1_000) < 2.0**-120
    assert convolution_distance(0.5, 3) < convolution_distance(0.5, 4) < convolution_distance(0.4, 4)
    assert convolution_distance(0.2, 1_000) == 1.0
    shares = NoiseShares(mechanism=MECHANISM, clients=5)
    assert shares.whole_distance < 2.0**-95


def test_shares_below_the_grid_are_larger_than_asked_for():
    fine = GaussianSum(bound=1.0, noise_multiplier=0.5, size=2, whole=True)
    shares = NoiseShares(mechanism=fine, clients=50)
    assert shares.share.deviation == LEAST_DEVIATION
    assert shares.known_event(0).noise_multiplier > fine.noise_multiplier


@pytest.mark.parametrize(("clients", "colluders", "dropouts"), [(3, 3, 0), (3, 1, 1), (4, 0, 2)])
def test_too_many_colluders_or_dropouts_are_refused(clients, colluders, dropouts):
    with pytest.raises(SpecError, match="two sets of sites"):
        check_sites(clients=clients, colluders=colluders, dropouts=dropouts)
    with pytest.raises(SpecError):
        NoiseShares(mechanism=MECHANISM, clients=clients, colluders=colluders, dropouts=dropouts)


def test_one_site_alone_is_refused():
    with pytest.raises(SpecError, match="use trust silo"):
        check_sites(clients=1, colluders=0, dropouts=0)


def test_negative_numbers_of_sites_are_refused():
    with pytest.raises(SpecError, match="at least 0"):
        check_sites(clients=3, colluders=-1, dropouts=0)


def test_a_share_is_a_vector_of_whole_numbers():
    drawn = NoiseShares(mechanism=MECHANISM, clients=3).draw(Keyed(jax.random.key(0)))
    assert drawn.shape == (7,)
    assert drawn.dtype == np.int32
