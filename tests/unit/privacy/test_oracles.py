"""The guarantee of every oracle by enumeration, what travels and what is refused, and sums that merge."""

import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard

from populace.errors import DataError, SpecError
from populace.privacy import secure_random
from populace.privacy.randomizers import base, draws
from populace.privacy.randomizers.aggregate import Tally, empty_tally, tally, tally_batches
from populace.privacy.randomizers.base import count_rows, exp_share_below, rounded_up, simulate_many
from populace.privacy.randomizers.grr import Grr
from populace.privacy.randomizers.hadamard import Hadamard, transform
from populace.privacy.randomizers.hashing import Olh, hash_values
from populace.privacy.randomizers.rappor import Rappor
from populace.privacy.randomizers.subset import SubsetPanel, SubsetSelection
from populace.privacy.randomizers.unary import Oue, Sue
from populace.privacy.source import Keyed, System

PURE = [Grr, SubsetSelection, Oue, Sue, Olh, Hadamard]
KINDS = [*PURE, Rappor]
EPSILONS = [0.01, 0.5, 1.0, 3.0, 8.0, 20.0]


def check_guarantee(table, epsilon):
    """`table[value][report]`: probabilities add up to 1, and no ratio passes e^epsilon. All in exact fractions."""
    for row in table:
        assert sum(row) == 1
    worst = max(max(column) / min(column) for column in zip(*table, strict=True))
    assert worst <= secure_random.exp_below(epsilon)
    return worst


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_worst_ratio_never_exceeds_e_to_epsilon(kind, size, epsilon):
    oracle = kind(size=size, epsilon=epsilon)
    ratio = oracle.worst_ratio()
    assert 1 <= ratio <= math.exp(epsilon) * (1 + 1e-15)
    if size > 1 and epsilon < 15 and kind is not Rappor:  # and wastes nothing
        assert ratio >= math.exp(epsilon) * (1 - 1e-9)


@pytest.mark.parametrize("epsilon", [0.3, 1.3, 5.0])
@pytest.mark.parametrize("kind", [Oue, Sue])
def test_unary_encoding_by_enumeration(kind, epsilon):
    oracle = kind(size=4, epsilon=epsilon)
    reports = list(itertools.product([False, True], repeat=4))

    def probability(report, value):
        ones = [oracle.exact_p if place == value else oracle.exact_q for place in range(4)]
        return math.prod(one if bit else 1 - one for bit, one in zip(report, ones, strict=True))

    table = [[probability(report, value) for report in reports] for value in range(4)]
    assert float(check_guarantee(table, epsilon)) == pytest.approx(oracle.worst_ratio())
    assert float(sum(p for p, r in zip(table[0], reports, strict=True) if r[0])) == pytest.approx(oracle.p)
    assert float(sum(p for p, r in zip(table[0], reports, strict=True) if r[1])) == pytest.approx(oracle.q)


@pytest.mark.parametrize("epsilon", [0.3, 1.3, 5.0])
@pytest.mark.parametrize("seed", [0, 77, 2**32 - 1])
def test_local_hashing_by_enumeration_for_one_seed(seed, epsilon):
    oracle = Olh(size=9, epsilon=epsilon)
    true = hash_values(np.full(9, seed, np.uint32), np.arange(9, dtype=np.uint32), oracle.buckets)
    other = (1 - oracle.exact_p) / (oracle.buckets - 1)
    table = [[oracle.exact_p if told == own else other for told in range(oracle.buckets)] for own in true]
    assert float(check_guarantee(table, epsilon)) == pytest.approx(oracle.worst_ratio())
    for told in range(oracle.buckets):
        report = np.array([seed, told], np.uint32)
        assert (np.asarray(oracle.support(report)) == (true == told)).all()


@pytest.mark.parametrize("size", [2, 5, 8])
def test_hadamard_by_enumeration_for_every_row(size):
    oracle = Hadamard(size=size, epsilon=0.7)
    signs = hadamard(oracle.rows)[:, :size] > 0
    for row in range(oracle.rows):
        table = [
            [oracle.exact_p if told == positive else 1 - oracle.exact_p for told in (False, True)]
            for positive in signs[row]
        ]
        check_guarantee(table, 0.7)
        assert (np.asarray(oracle.support(np.array([row, 1]))) == signs[row]).all()
    agree = (signs[:, :, None] == signs[:, None, :]).mean(axis=0)
    assert (agree[~np.eye(size, dtype=bool)] == oracle.q).all()
    weight = math.exp(0.7)
    assert float(oracle.variance(0.0, 1)) == pytest.approx(((weight + 1) / (weight - 1)) ** 2)


@pytest.mark.parametrize("hashes", [1, 2, 3])
def test_rappor_by_enumeration(hashes):
    oracle = Rappor(size=5, epsilon=1.3, bits=6, hashes=hashes)
    assert oracle.candidates.sum(axis=1).max() <= hashes
    reports = np.array(list(itertools.product([False, True], repeat=6)))
    table = []
    for row in oracle.candidates:
        flips = (reports != row).sum(axis=1)
        table.append([oracle.exact_flip ** int(f) * (1 - oracle.exact_flip) ** (6 - int(f)) for f in flips])
    assert float(check_guarantee(table, 1.3)) == pytest.approx(oracle.worst_ratio())
    likelihoods = np.array([[float(p) for p in row] for row in table]).T
    likelihoods /= likelihoods.max(axis=1, keepdims=True)
    np.testing.assert_allclose(oracle.likelihoods(reports), likelihoods, rtol=1e-9)


def test_rappor_spends_its_epsilon_where_filters_do_not_overlap():
    oracle = Rappor(size=3, epsilon=2.0, bits=4096, hashes=4)
    assert oracle.worst_ratio() == pytest.approx(math.exp(2.0), rel=1e-12)
    assert oracle.flip == pytest.approx(1 / (math.exp(2.0 / 8) + 1))


@given(st.floats(0.001, 30.0), st.integers(1, 16))
def test_shares_of_epsilon_multiply_to_no_more_than_e_to_epsilon(epsilon, parts):
    share = exp_share_below(epsilon, parts)
    assert share**parts <= secure_random.exp_below(epsilon) * (1 + Fraction(1, 10**57))
    assert float(share) == pytest.approx(math.exp(epsilon / parts), rel=1e-12)
    third = Fraction(1, 3)
    assert third <= rounded_up(third) <= third + Fraction(1, secure_random.RESOLUTION)


@settings(deadline=None)  # machines are shared
@given(st.sampled_from(KINDS), st.integers(1, 70), st.floats(0.1, 6.0))
def test_reports_survive_the_wire(kind, size, epsilon):
    oracle = kind(size=size, epsilon=epsilon)
    for report in oracle.release(np.arange(min(size, 4))):
        message = oracle.encode(report)
        assert len(message) == oracle.wire_bytes
        assert (oracle.decode(message) == report).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_of_another_length_is_refused(kind):
    oracle = kind(size=20, epsilon=1.0)
    for length in (0, oracle.wire_bytes - 1, oracle.wire_bytes + 1):
        with pytest.raises(DataError, match="bytes"):
            oracle.decode(b"\0" * length)


def test_forged_reports_are_refused():
    for oracle in (Grr(size=20, epsilon=1.0), Olh(size=20, epsilon=1.0), Hadamard(size=20, epsilon=1.0)):
        with pytest.raises(DataError, match="outside the domain"):
            oracle.decode(b"\xff" * oracle.wire_bytes)
    for oracle in (Oue(size=20, epsilon=1.0), Rappor(size=20, epsilon=1.0, bits=20)):
        assert oracle.decode(b"\xff\xff\xf0").all()
        with pytest.raises(DataError, match="padding"):
            oracle.decode(b"\xff\xff\xff")
    subset = SubsetSelection(size=200, epsilon=4.0, chosen=2)
    message = subset.encode(np.isin(np.arange(200), [3, 5]))
    assert subset.decode(message).sum() == 2
    with pytest.raises(DataError, match="order"):
        subset.decode(message[::-1])


@pytest.mark.parametrize("kind", KINDS)
def test_values_outside_the_domain_are_refused(kind):
    for value in (-1, 5):
        with pytest.raises(DataError, match="outside"):
            kind(size=5, epsilon=1.0).release(np.array([0, value]))


@pytest.mark.parametrize("kind", KINDS)
def test_bad_parameters_are_refused(kind):
    with pytest.raises(SpecError, match="epsilon"):
        kind(size=4, epsilon=0.0)
    with pytest.raises(SpecError, match="size"):
        kind(size=0, epsilon=1.0)


def test_bad_options_are_refused():
    with pytest.raises(SpecError, match="buckets"):
        Olh(size=4, epsilon=1.0, buckets=1)
    for wrong in ({"bits": 1}, {"hashes": 0}, {"hashes": 65}, {"salt": -1}):
        with pytest.raises(SpecError, match=next(iter(wrong))):
            Rappor(size=4, epsilon=1.0, **wrong)


@pytest.mark.parametrize("kind", PURE)
def test_size_one_says_nothing_and_both_sources_apply(kind):
    single = kind(size=1, epsilon=1.0)
    assert single.worst_ratio() == 1
    assert single.estimate(np.array([3]), 10).tolist() == [1.0]
    oracle = kind(size=6, epsilon=2.0)
    exact, keyed = oracle.apply(2, System()), oracle.apply(2, Keyed(jax.random.key(1)))
    assert np.shape(exact) == np.shape(keyed)
    assert np.asarray(oracle.support(exact)).shape == (6,)
    assert oracle.estimate(np.zeros(6), 0).tolist() == [1 / 6] * 6


def test_range_of_local_hashing_follows_epsilon_and_stays_bounded():
    assert Olh(size=9, epsilon=0.1).buckets == 2
    assert Olh(size=9, epsilon=1.0).buckets == 4
    assert Olh(size=9, epsilon=50.0).buckets == 2**16


@settings(deadline=None)  # the first example compiles
@given(st.lists(st.integers(0, 2**32 - 1), min_size=8, max_size=8), st.integers(0, 2**31), st.integers(2, 2**16))
def test_hash_is_the_same_in_numpy_and_jax(seeds, value, buckets):
    seeds = np.array(seeds, np.uint32)
    values = np.full(len(seeds), value, np.uint32)
    first = hash_values(seeds, values, buckets)
    assert first.dtype == np.uint32
    assert (first < buckets).all()
    assert (first == np.asarray(hash_values(jnp.asarray(seeds), jnp.asarray(values), buckets))).all()


def test_below_is_the_high_product():
    words = np.array([0, 1, 2**16, 2**31, 2**32 - 1], np.uint32)
    for bound in (1, 3, 63, 1000, 2**16):
        expected = [int(word) * bound >> 32 for word in words]
        assert draws.below(words, np.uint32(bound)).tolist() == expected


@pytest.mark.parametrize("probability", [1e-9, 0.018, 0.2689414, 0.5, 0.97])
def test_pattern_table_holds_the_probability(probability):
    table = draws.pattern_table(probability).astype(np.int64)
    mass = np.zeros(256, np.int64)
    for entry in range(256):
        mass[entry] += table[entry] >> 8
        mass[table[entry] & 255] += 2**24 - (table[entry] >> 8)
    assert mass.sum() == 2**32
    bits = (np.arange(256)[:, None] >> np.arange(8)) & 1
    assert np.abs(mass @ bits / 2**32 - probability).max() <= 2**-24
    ideal = probability ** bits.sum(axis=1) * (1 - probability) ** (8 - bits.sum(axis=1))
    assert np.abs(mass / 2**32 - ideal).max() <= 2**-31


def test_transform_is_the_hadamard_product():
    values = np.random.default_rng(0).integers(-9, 9, 32)
    assert (transform(values) == hadamard(32) @ values).all()


@pytest.mark.parametrize("kind", KINDS)
def test_tallies_count_supports_and_merge(kind):
    oracle = kind(size=11, epsilon=1.5)
    values = np.arange(500) % 11
    reports = np.asarray(simulate_many(oracle.simulate, values, jax.random.key(0)))
    whole = tally(oracle, reports)
    assert whole.counts.dtype == np.int64
    assert (whole.counts == np.asarray(oracle.support(reports)).sum(axis=0)).all()
    assert whole.reports == 500
    parts = tally_batches(oracle, (reports[start : start + 130] for start in range(0, 500, 130)))
    assert (parts.counts == whole.counts).all()
    assert parts.reports == 500
    assert tally(oracle, reports[:0]).counts.tolist() == empty_tally(oracle).counts.tolist()
    doubled = jax.tree.map(lambda leaf: 2 * leaf, whole)
    assert (doubled.counts == (whole + whole).counts).all()


@pytest.mark.parametrize("kind", KINDS)
def test_batch_is_reproducible_and_shaped_as_reports_are(kind, monkeypatch):
    monkeypatch.setattr(base, "BATCH_BYTES", 4096)  # several batches, the last one not full
    oracle = kind(size=11, epsilon=1.5)
    values = np.arange(1000) % 11
    reports = oracle.simulate_batch(values, seed=5)
    keyed = np.asarray(simulate_many(oracle.simulate, values, jax.random.key(0)))
    assert (reports.shape, reports.dtype) == (keyed.shape, keyed.dtype)
    assert (reports == oracle.simulate_batch(values, seed=5)).all()
    assert (reports[:777] == oracle.simulate_batch(values[:777], seed=5)).all()
    assert (reports != oracle.simulate_batch(values, seed=6)).any()
    assert oracle.simulate_batch(values[:0], seed=5).shape == (0, *reports.shape[1:])
    same = oracle.simulate_batch(np.zeros(1000, np.int32), seed=5)
    assert all((same[shift:] != same[:-shift]).any() for shift in range(1, 500))  # no batch repeats another
    with pytest.raises(DataError, match="outside"):
        oracle.simulate_batch([0, 11], seed=5)


def test_randomised_response_over_more_values_than_a_word_tells_apart():
    oracle = Grr(size=10**6, epsilon=12.0)
    reports = oracle.simulate_batch(np.full(20_000, 7), seed=0)
    assert abs((reports == 7).mean() - oracle.p) < 6 * math.sqrt(oracle.p * (1 - oracle.p) / 20_000)
    others = reports[reports != 7]
    assert others.min() >= 0
    assert others.max() < 10**6
    assert abs(others.mean() / 10**6 - 0.5) < 6 / math.sqrt(12 * len(others))


@pytest.mark.parametrize("rows", [0, 1, 254, 255, 256, 1000])
def test_rows_are_counted_beyond_what_a_byte_holds(rows):
    assert count_rows(np.ones((rows, 3), bool)).tolist() == [rows] * 3


def test_tallies_of_different_width_do_not_add():
    with pytest.raises(DataError, match="tallies"):
        Tally(counts=np.zeros(3, np.int64), reports=0) + Tally(counts=np.zeros(4, np.int64), reports=0)


def test_panel_with_wide_and_narrow_domains_keeps_its_promises():
    """A wide domain beside narrow ones: both ways of drawing a subset are used, and both stay within the domain."""
    for sizes, epsilon in (((3, 40), 1.0), ((2, 700), 0.1)):
        panel = SubsetPanel(sizes=sizes, epsilon=epsilon)
        questions = np.arange(200) % 2
        keys = jax.random.split(jax.random.key(0), 200)
        draw = jax.jit(jax.vmap(lambda v, q, k, panel=panel: panel.apply(v, q, Keyed(k))))
        reports = np.asarray(draw(np.ones(200, np.int32), questions, keys))
        for question, member in enumerate(panel.members):
            mine = reports[questions == question]
            assert (mine.sum(axis=1) == member.chosen).all()
            assert not mine[:, member.size :].any()
