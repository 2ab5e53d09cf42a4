"""FedSel: the guarantee by enumeration, ties and odd numbers included, and what a report is worth."""

import itertools
import math

import jax
import numpy as np
import pytest

from populace.errors import DataError, SpecError
from populace.privacy import secure_random
from populace.privacy.events import Pure
from populace.privacy.randomizers.fedsel import FedSel
from populace.privacy.source import Keyed, System

LEVELS = (-2.0, -0.5, 0.0, math.nan, 0.5, math.inf)


def test_guarantee_by_enumeration_over_all_vectors_of_six_levels():
    mechanism = FedSel(size=4, epsilon=1.3, chosen=1, bound=1.0, first=0.4)
    laws = [mechanism.probabilities(levels, 2) for levels in itertools.product(LEVELS, repeat=4)]
    assert all(sum(law) == 1 for law in laws)
    worst = max(max(report) / min(report) for report in zip(*laws, strict=True))
    assert worst <= secure_random.exp_below(1.3)
    assert float(worst) == pytest.approx(math.exp(1.3), rel=1e-9)
    assert mechanism.worst_ratio() == pytest.approx(float(worst))
    assert mechanism.event == Pure(1.3)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 7.7])
@pytest.mark.parametrize("first", [0.1, 0.3, 0.5, 0.9])
def test_parts_never_add_up_to_more_than_epsilon(epsilon, first):
    mechanism = FedSel(size=9, epsilon=epsilon, chosen=2, bound=1.0, first=first)
    assert math.fsum(mechanism.parts) <= epsilon
    assert mechanism.parts[0] == pytest.approx(first * epsilon)
    assert mechanism.worst_ratio() <= math.exp(epsilon) * (1 + 1e-12)


def test_a_bit_is_unbiased_within_the_bound_and_clipped_beyond():
    mechanism = FedSel(size=2, epsilon=2.0, chosen=1, bound=0.5)
    for value, expected in ((0.0, 0.0), (0.25, 0.5), (-0.5, -1.0), (3.0, 1.0), (-math.inf, -1.0), (math.nan, 0.0)):
        one = float(mechanism.one_probability(value))
        assert (2 * one - 1) * mechanism.unit == pytest.approx(expected, abs=1e-9)


def test_sum_of_reports_is_in_units_of_the_bound():
    mechanism = FedSel(size=3, epsilon=2.0, chosen=1, bound=0.1)
    total = np.asarray(mechanism.add_up(np.array([5, 0, 3]), np.array([True, True, False])))
    np.testing.assert_allclose(total, mechanism.unit * np.array([-1, 0, 1]), rtol=1e-6)


def test_wire_and_bad_input():
    mechanism = FedSel(size=200, epsilon=2.0, chosen=3, bound=0.1)
    assert mechanism.decode(mechanism.encode(399)) == 399
    with pytest.raises(DataError):
        mechanism.decode(b"\xff\xff")
    with pytest.raises(DataError, match="coordinates"):
        mechanism.release(np.zeros(7))
    for wrong in ({"first": 0.0}, {"first": 1.0}, {"bound": 0.0}, {"chosen": 0}, {"epsilon": 60.0}):
        with pytest.raises(SpecError):
            FedSel(**{"size": 8, "epsilon": 1.0, "chosen": 2, "bound": 1.0, **wrong})
    for source in (Keyed(jax.random.key(0)), System()):
        assert 0 <= int(mechanism.apply(np.ones(200, np.float32), source)) < 400
