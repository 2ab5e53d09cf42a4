"""SignDS: the guarantee by enumeration, ties and odd numbers included, and the arithmetic around it."""

import itertools
import math
from fractions import Fraction

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from populace.errors import DataError, SpecError
from populace.privacy import secure_random
from populace.privacy.events import Pure
from populace.privacy.randomizers import signds
from populace.privacy.randomizers.signds import SignDS, mark_top
from populace.privacy.source import Keyed, System

ODD = [0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e-42]


@given(arrays.arrays(np.float32, 8, elements=st.sampled_from(ODD)), st.data())
@settings(max_examples=40, deadline=None)
def test_exactly_k_are_marked_and_they_are_the_largest(vector, data):
    count = data.draw(st.integers(1, len(vector)))
    start = data.draw(st.integers(0, len(vector) - 1))
    top = np.asarray(mark_top(vector, count, start))
    assert top.sum() == count
    plain = np.where(np.isnan(vector), 0, vector)
    if count < len(vector):
        assert plain[top].min() >= plain[~top].max() or abs(plain[top].min() - plain[~top].max()) < 1e-30
    np.testing.assert_array_equal(top, np.asarray(mark_top(plain + 0.0, count, start)))


def test_marking_agrees_with_a_sort():
    vector = np.random.default_rng(0).normal(size=500).astype(np.float32)
    top = np.asarray(mark_top(vector, 37))
    assert set(np.flatnonzero(top)) == set(np.argsort(-vector)[:37])


@given(mask=arrays.arrays(bool, st.integers(1, 400)), data=st.data())
@settings(deadline=None, max_examples=60)
def test_the_nth_true_entry_is_the_one_that_a_list_has_there(mask, data):
    places = np.flatnonzero(mask)
    rank = data.draw(st.integers(0, len(mask)))
    assert int(signds.nth_true(mask, rank)) == (places[rank] if rank < len(places) else 0)


def test_ties_follow_the_public_start():
    vector = np.zeros(6, np.float32)
    assert np.flatnonzero(mark_top(vector, 2, 0)).tolist() == [0, 1]
    assert np.flatnonzero(mark_top(vector, 2, 5)).tolist() == [0, 5]


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 8.0])
@pytest.mark.parametrize(("size", "chosen"), [(2, 1), (5, 2), (6, 5), (40, 3)])
def test_worst_ratio_is_e_to_epsilon_and_never_above(size, chosen, epsilon):
    mechanism = SignDS(size=size, epsilon=epsilon, chosen=chosen)
    assert mechanism.worst_ratio() <= math.exp(epsilon) * (1 + 1e-15)
    assert mechanism.worst_ratio() >= math.exp(epsilon) * (1 - 1e-9)
    assert mechanism.event == Pure(epsilon)


def test_guarantee_by_enumeration_over_all_orders_and_ties():
    """All reports' exact probabilities under all vectors of three levels in five coordinates."""
    mechanism = SignDS(size=5, epsilon=1.3, chosen=2)
    laws = []
    for levels in itertools.product((-1.0, 0.0, 1.0), repeat=5):
        vector = np.array(levels, np.float32)
        law = []
        for sign in (1, -1):
            law += [p / 2 for p in mechanism.probabilities(np.asarray(mark_top(sign * vector, 2, 3)))]
        assert sum(law) == 1
        laws.append(law)
    for report in zip(*laws, strict=True):
        assert Fraction(max(report), min(report)) <= secure_random.exp_below(1.3)


def test_one_index_too_many_would_break_the_guarantee():
    """What the fixed number protects from: a top set that grows with ties has another normaliser."""
    mechanism = SignDS(size=5, epsilon=0.8, chosen=2)
    honest = mechanism.probabilities([True, True, False, False, False])
    grown = [mechanism.exact_p / 4] * 4 + [1 - mechanism.exact_p]
    assert max(a / b for a, b in zip(honest, grown, strict=True)) <= secure_random.exp_below(0.8)
    assert max(b / a for a, b in zip(honest, grown, strict=True)) > secure_random.exp_below(0.8)


def test_corollaries_invert_each_other():
    for epsilon, share in itertools.product((0.5, 2.0, 8.0), (0.01, 0.1, 0.4)):
        p = signds.top_probability(epsilon, share)
        assert signds.least_share(epsilon, p) == pytest.approx(share)
        assert signds.least_epsilon(share, p) == pytest.approx(epsilon)
        mechanism = SignDS(size=1000, epsilon=epsilon, chosen=round(1000 * share))
        assert mechanism.p == pytest.approx(p, rel=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "share", "value"),
    [(0.5, 0.44, 0.199), (1, 0.35, 0.397), (2, 0.22, 0.786), (4, 0.066, 1.515), (6, 0.015, 2.165), (8, 0.0033, 2.741)],
)
def test_matched_share_and_its_gain(epsilon, share, value):
    """Of PrivUnitG, the optimum for unit vectors, the gains are .199 .397 .786 1.516 2.166 2.743."""
    assert signds.matched_share(epsilon) == pytest.approx(share, rel=0.15)
    assert signds.gain(epsilon, signds.matched_share(epsilon)) == pytest.approx(value, rel=2e-3)


@pytest.mark.parametrize("turns", [1, 2])
def test_rotation_keeps_lengths_and_is_undone(turns):
    rng = np.random.default_rng(1)
    signs = np.where(rng.random((turns, 8192)) < 0.5, 1, -1).astype(np.float32)
    vector = rng.normal(size=(3, 5000)).astype(np.float32)
    turned = signds.rotate(vector, signs)
    np.testing.assert_allclose(np.linalg.norm(turned, axis=1), np.linalg.norm(vector, axis=1), rtol=1e-5)
    np.testing.assert_allclose(signds.rotate_back(turned, signs, 5000), vector, atol=1e-5)
    spike = signds.rotate(np.eye(1, 5000, dtype=np.float32)[0], signs[:1])
    np.testing.assert_allclose(np.abs(spike), 8192**-0.5, rtol=1e-5)
    with pytest.raises(SpecError, match="power of two"):
        signds.hadamard_transform(np.zeros(6, np.float32))


def test_settled_vectors_do_not_hang_on_the_last_bit():
    rng = np.random.default_rng(2)
    vector = np.repeat(rng.normal(size=50), 20).astype(np.float32)  # many ties
    shaken = vector * (1 + 1e-7 * rng.normal(size=1000)).astype(np.float32)
    assert (mark_top(vector, 30, 7) != mark_top(shaken, 30, 7)).any()
    settled = [np.asarray(signds.settle(one)) for one in (vector, shaken)]
    np.testing.assert_array_equal(*settled)
    np.testing.assert_allclose(settled[0] / settled[0].std() * vector.std(), vector, atol=2e-3)
    assert not np.asarray(signds.settle(np.zeros(8, np.float32))).any()


@pytest.mark.parametrize(("size", "width"), [(1, 1), (2, 1), (128, 1), (129, 2), (18_188, 2), (40_000, 3)])
def test_wire_format(size, width):
    mechanism = SignDS(size=size, epsilon=1.0, chosen=1)
    assert mechanism.wire_bytes == width
    for report in (0, 1, 2 * size - 1):
        assert mechanism.decode(mechanism.encode(report)) == report
    with pytest.raises(DataError, match="bytes"):
        mechanism.decode(b"\0" * (width + 1))
    if 256**width > 2 * size:
        with pytest.raises(DataError, match="outside"):
            mechanism.decode((2 * size).to_bytes(width, "little"))


def test_sum_of_reports_leaves_absent_ones_out():
    mechanism = SignDS(size=4, epsilon=1.0, chosen=1)
    total = mechanism.add_up(np.array([7, 0, 3]), np.array([True, True, False]))
    assert np.asarray(total).tolist() == [-1, 0, 0, 1]


def test_bad_input_is_refused():
    for wrong in ({"epsilon": 0.0}, {"epsilon": math.inf}, {"size": 0}, {"chosen": 0}, {"chosen": 9}):
        with pytest.raises(SpecError):
            SignDS(**{"size": 8, "epsilon": 1.0, "chosen": 2, **wrong})
    with pytest.raises(DataError, match="coordinates"):
        SignDS(size=8, epsilon=1.0, chosen=2).release(np.zeros(7))


def test_all_coordinates_top_says_nothing_and_both_sources_work():
    mechanism = SignDS(size=3, epsilon=1.0, chosen=3)
    assert mechanism.worst_ratio() == 1
    for source in (Keyed(jax.random.key(0)), System()):
        assert 0 <= int(mechanism.apply(np.ones(3, np.float32), source)) < 6
