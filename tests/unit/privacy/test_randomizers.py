"""The guarantee of each randomiser, by enumeration, and the arithmetic around it."""

import itertools
import math
from fractions import Fraction

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from populace.errors import DataError, SpecError
from populace.privacy import secure_random
from populace.privacy.events import Pure
from populace.privacy.randomizers.grr import Grr
from populace.privacy.randomizers.subset import SubsetPanel, SubsetSelection, best_subset_size
from populace.privacy.source import Keyed, System

EPSILONS = [0.01, 0.5, 1.0, 3.0, 8.0, 20.0]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_worst_ratio_never_exceeds_e_to_epsilon(size, epsilon):
    for oracle in (Grr(size=size, epsilon=epsilon), SubsetSelection(size=size, epsilon=epsilon)):
        ratio = oracle.worst_ratio()
        assert ratio <= math.exp(epsilon) * (1 + 1e-15)
        if size > 1 and epsilon < 15:  # and wastes nothing
            assert ratio >= math.exp(epsilon) * (1 - 1e-9)
        assert oracle.event == Pure(epsilon)


@pytest.mark.parametrize(("size", "chosen"), [(4, 1), (5, 2), (6, 3)])
def test_subset_selection_by_enumeration(size, chosen):
    """All reports' probabilities under all values: they sum to 1, and their ratios stay within e^epsilon."""
    oracle = SubsetSelection(size=size, epsilon=1.3, chosen=chosen)
    table = {}
    for value in range(size):
        for report in itertools.combinations(range(size), chosen):
            inside = value in report
            ways = math.comb(size - 1, chosen - 1) if inside else math.comb(size - 1, chosen)
            table[value, report] = (oracle.exact_p if inside else 1 - oracle.exact_p) / ways
    for value in range(size):
        assert sum(p for (v, _), p in table.items() if v == value) == 1
    for report in itertools.combinations(range(size), chosen):
        odds = [table[value, report] for value in range(size)]
        assert Fraction(max(odds), min(odds)) <= secure_random.exp_below(1.3)
    assert float(sum(p for (v, r), p in table.items() if v == 0 and 1 in r)) == pytest.approx(oracle.q)


def test_best_subset_size_beats_every_other():
    for size, epsilon in itertools.product([2, 3, 10, 64, 200], EPSILONS):
        best = SubsetSelection(size=size, epsilon=epsilon)
        others = [SubsetSelection(size=size, epsilon=epsilon, chosen=w).total_variance() for w in range(1, size)]
        assert best.total_variance() == pytest.approx(min(others), rel=1e-12)
    assert best_subset_size(64, 8.0) == 1


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf])
def test_bad_epsilon_is_refused(epsilon):
    for make in (Grr, SubsetSelection):
        with pytest.raises(SpecError, match="epsilon"):
            make(size=4, epsilon=epsilon)


def test_bad_sizes_are_refused():
    with pytest.raises(SpecError, match="size"):
        Grr(size=0, epsilon=1.0)
    with pytest.raises(SpecError, match="chosen"):
        SubsetSelection(size=4, epsilon=1.0, chosen=4)


def test_size_one_says_nothing():
    assert SubsetSelection(size=1, epsilon=1.0).release(np.array([0])).tolist() == [[True]]
    assert bool(SubsetSelection(size=1, epsilon=1.0).simulate(0, jax.random.key(0))[0])
    assert SubsetSelection(size=1, epsilon=1.0).estimate(np.array([9]), 10).tolist() == [1.0]
    assert Grr(size=1, epsilon=1.0).release(np.array([0])).tolist() == [0]


@given(st.integers(2, 40), st.floats(0.1, 6.0), st.data())
def test_reports_have_exactly_the_chosen_number_and_survive_the_wire(size, epsilon, data):
    oracle = SubsetSelection(size=size, epsilon=epsilon, chosen=data.draw(st.integers(1, size - 1)))
    values = np.arange(size)
    reports = oracle.release(values)
    assert (reports.sum(axis=1) == oracle.chosen).all()
    for report in reports[:3]:
        message = oracle.encode(report)
        assert len(message) == oracle.wire_bytes
        assert (oracle.decode(message) == report).all()


def test_a_forged_report_is_refused():
    oracle = SubsetSelection(size=20, epsilon=1.0)
    with pytest.raises(DataError, match="distinct values"):
        oracle.decode(b"\xff" * oracle.wire_bytes)
    with pytest.raises(DataError, match="bytes"):
        oracle.decode(b"")
    index = SubsetSelection(size=200, epsilon=8.0)
    assert index.wire_bytes == 1
    with pytest.raises(DataError, match="outside the domain"):
        index.decode(b"\xff")


def test_panel_draws_within_each_domain():
    panel = SubsetPanel(sizes=(2, 9, 5), epsilon=1.0)
    draw = jax.jit(jax.vmap(lambda v, q, k: panel.apply(v, q, Keyed(k))))
    questions = np.arange(300) % 3
    reports = np.asarray(draw(np.zeros(300, np.int32), questions, jax.random.split(jax.random.key(0), 300)))
    for question, member in enumerate(panel.members):
        mine = reports[questions == question]
        assert (mine.sum(axis=1) == member.chosen).all()
        assert not mine[:, member.size :].any()
    exact = panel.apply(1, 0, System())
    assert exact.shape == (9,)
    assert exact.sum() == 1


def test_secure_integers_are_in_range_and_even():
    drawn = secure_random.integers_below(5, 50_000)
    counts = np.bincount(drawn, minlength=5)
    assert len(counts) == 5
    assert np.abs(counts - 10_000).max() < 6 * math.sqrt(8_000)
    assert secure_random.integers_below(1, 3).tolist() == [0, 0, 0]
    with pytest.raises(SpecError):
        secure_random.integers_below(0)


def test_exp_below_is_below_and_close():
    for epsilon in EPSILONS:
        value = secure_random.exp_below(epsilon)
        assert float(value) == pytest.approx(math.exp(epsilon), rel=1e-15)
    assert secure_random.exp_below(1.0) < Fraction("2.7182818284590452353602874713526624977572470936999595749669676277")


def test_one_of_picks_true_entries_only():
    mask = np.array([False, True, False, True])
    assert {int(System().one_of(mask)) for _ in range(60)} == {1, 3}
    keyed = {int(Keyed(jax.random.key(i)).one_of(mask)) for i in range(30)}
    assert keyed == {1, 3}
    assert int(Keyed(jax.random.key(0)).one_of(np.zeros(3, bool))) == 0
    assert int(System().one_of(np.zeros(3, bool))) == 0
