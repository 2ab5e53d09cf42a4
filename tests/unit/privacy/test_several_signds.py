"""SignDS with several coordinates: the guarantee by enumeration, ties included, and the arithmetic around it."""

import itertools
import math
from fractions import Fraction

import jax
import numpy as np
import pytest

from populace.errors import DataError, SpecError
from populace.privacy import secure_random
from populace.privacy.events import Pure
from populace.privacy.randomizers.several_signds import SeveralSignDS
from populace.privacy.randomizers.signds import SignDS, mark_top, matched_share
from populace.privacy.source import Keyed, System


@pytest.mark.parametrize(("reported", "least"), [(2, 0), (2, 1), (2, 2), (3, 0), (3, 2), (1, 0)])
def test_guarantee_by_enumeration_over_all_orders_and_ties(reported, least):
    """Every set and sign under all vectors of three levels in five coordinates: within e^eps, and that is reached."""
    mechanism = SeveralSignDS(size=5, epsilon=1.3, chosen=2, reported=reported, least=least)
    laws = {}
    for levels in itertools.product((-1.0, 0.0, 1.0), repeat=5):
        vector = np.array(levels, np.float32)
        tops = [tuple(np.asarray(mark_top(sign * vector, 2, 3)).tolist()) for sign in (1, -1)]
        for top in tops:
            if top not in laws:
                laws[top] = mechanism.law(top)
                assert sum(laws[top].values()) == 1
    assert len(laws) > 5
    worst = max(max(report) / min(report) for report in zip(*(law.values() for law in laws.values()), strict=True))
    assert worst <= secure_random.exp_below(1.3)
    reached = mechanism.worst_ratio()
    assert float(worst) == pytest.approx(reached)
    if reported <= 2:
        assert reached == pytest.approx(math.exp(1.3))
    assert mechanism.event == Pure(1.3)


def test_weights_by_the_overlap_itself_would_break_the_guarantee():
    mechanism = SeveralSignDS(size=5, epsilon=1.3, chosen=2, reported=2)
    wrong = {n: Fraction(math.exp(1.3 * n)) for n in range(3)}
    assert wrong[2] / wrong[0] > secure_random.exp_below(1.3)
    assert mechanism._set_weight(2) <= secure_random.exp_below(1.3) * mechanism._set_weight(0)


def test_one_coordinate_is_signds():
    one, several = SignDS(size=9, epsilon=2.0, chosen=3), SeveralSignDS(size=9, epsilon=2.0, chosen=3, reported=1)
    top = [True, True, True] + [False] * 6
    for exact, plain in zip(several.law(top).values(), one.probabilities(top), strict=True):
        assert float(exact) == pytest.approx(float(plain), rel=1e-12)
    assert several.gain == pytest.approx(one.gain, rel=1e-9)


def test_gain_of_two_at_the_papers_share_and_none_at_the_matched_one():
    """Signal to noise goes with the square: 1.6 times the clients at alpha .05 and epsilon 8."""
    size = 20_000
    one = SignDS(size=size, epsilon=8.0, chosen=1_000)
    two = SeveralSignDS(size=size, epsilon=8.0, chosen=1_000, reported=2, least=2)
    assert (two.gain / one.gain) ** 2 == pytest.approx(1.6, abs=0.1)
    best = SignDS(size=size, epsilon=8.0, chosen=round(matched_share(8.0) * size))
    for chosen, least in itertools.product((20, 66, 200, 600, 2_000), (0, 1, 2)):
        several = SeveralSignDS(size=size, epsilon=8.0, chosen=chosen, reported=2, least=least)
        assert several.gain < 1.001 * best.gain


@pytest.mark.parametrize(("size", "chosen", "reported"), [(5, 4, 3), (5, 1, 3), (4, 4, 2), (3, 2, 3)])
def test_narrow_shapes_tell_different_coordinates_in_order(size, chosen, reported):
    mechanism = SeveralSignDS(size=size, epsilon=1.0, chosen=chosen, reported=reported)
    vector = np.arange(size, dtype=np.float32)
    for source in (Keyed(jax.random.key(0)), System()):
        report = np.asarray(mechanism.apply(vector, source))
        places = report // 2
        assert len(report) == reported
        assert (np.diff(places) > 0).all()
        assert places.max() < size
        assert len(set((report % 2).tolist())) == 1


def test_wire_format_refuses_what_no_client_sends():
    mechanism = SeveralSignDS(size=300, epsilon=1.0, chosen=3, reported=3)
    assert mechanism.wire_bytes == 4  # 2 * 300^3 is below 2^26
    for report in ([0, 2, 4], [1, 299, 599], [595, 597, 599]):
        np.testing.assert_array_equal(mechanism.decode(mechanism.encode(np.array(report))), report)
    with pytest.raises(DataError, match="rising"):
        mechanism.decode(mechanism.encode(np.array([4, 4, 6])))
    with pytest.raises(DataError, match="bytes"):
        mechanism.decode(b"\0")


def test_sum_of_reports_leaves_absent_ones_out():
    mechanism = SeveralSignDS(size=4, epsilon=1.0, chosen=1, reported=2)
    total = mechanism.add_up(np.array([[1, 7], [0, 2], [3, 5]]), np.array([True, True, False]))
    assert np.asarray(total).tolist() == [0, -1, 0, 1]


def test_bad_input_is_refused():
    for wrong in ({"reported": 0}, {"reported": 9}, {"least": 3}, {"chosen": 0}, {"epsilon": 0.0}):
        with pytest.raises(SpecError):
            SeveralSignDS(**{"size": 8, "epsilon": 1.0, "chosen": 2, "reported": 2, **wrong})
    with pytest.raises(DataError, match="coordinates"):
        SeveralSignDS(size=8, epsilon=1.0, chosen=2, reported=2).release(np.zeros(7))
