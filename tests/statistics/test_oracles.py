"""Statistics with power for every oracle: right probabilities accepted, planted wrong ones rejected, all faces agree.

Support frequencies of 200,000 users (of 1,200,000 where p is small) are compared with p and q by z-scores. At 6.5 standard
deviations all checks of this file together raise a false alarm less than once in a million runs; a p that is 3 % off lies
12 or more away.
"""

import dataclasses
import functools
import itertools
import math
from fractions import Fraction

import jax
import numpy as np
import pytest
from scipy.stats import chi2_contingency

from populace.methods.blocks.frequency_estimation import maximise_likelihood, regress, support_likelihoods
from populace.privacy import secure_random
from populace.privacy.randomizers import draws
from populace.privacy.randomizers.aggregate import tally
from populace.privacy.randomizers.base import simulate_many
from populace.privacy.randomizers.grr import Grr
from populace.privacy.randomizers.hadamard import Hadamard
from populace.privacy.randomizers.hashing import Olh, hash_values
from populace.privacy.randomizers.rappor import Rappor
from populace.privacy.randomizers.subset import SubsetSelection
from populace.privacy.randomizers.unary import Oue, Sue

USERS = 200_000
SIZE = 16
OWN = 3
LIMIT = 6.5
KINDS = [Grr, SubsetSelection, Oue, Sue, Olh, Hadamard]
EPSILONS = [1.0, 4.0]
FACES = ["simulate", "batch", "release"]
LEAST_P_VALUE = 1e-8


def users_for(kind):
    return 6 * USERS if kind is Grr else USERS


def draw(oracle, face, users=USERS, seed=7):
    """Reports of users who all hold the same value."""
    values = np.full(users, OWN, np.int32)
    if face == "release":
        return oracle.release(values)
    if face == "batch":
        return oracle.simulate_batch(values, seed)
    return np.asarray(jax.jit(lambda v, k: simulate_many(oracle.simulate, v, k))(values, jax.random.key(seed)))


@functools.cache
def frequencies(kind, epsilon, face):
    oracle = kind(size=SIZE, epsilon=epsilon)
    found = tally(oracle, draw(oracle, face, users_for(kind)))
    return found.counts / found.reports


def z_scores(found, oracle, users):
    expected = np.full(SIZE, oracle.q)
    expected[OWN] = oracle.p
    return (found - expected) / np.sqrt(expected * (1 - expected) / users)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("kind", KINDS)
def test_support_frequencies_are_p_and_q(kind, epsilon, face):
    oracle = kind(size=SIZE, epsilon=epsilon)
    assert np.abs(z_scores(frequencies(kind, epsilon, face), oracle, users_for(kind))).max() < LIMIT


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", KINDS)
def test_planted_p_three_per_cent_off_is_rejected(kind, face):
    """The same code with another p: what it sends is told from what it should send, by the test above."""

    def wrong_p(self):
        return secure_random.rounded_down(kind(size=self.size, epsilon=self.epsilon).exact_p * Fraction(97, 100))

    broken = type("Broken", (kind,), {"exact_p": property(wrong_p)})(size=SIZE, epsilon=1.0)
    honest = kind(size=SIZE, epsilon=1.0)
    users = users_for(kind)
    found = tally(broken, draw(broken, face, users)).counts / users
    assert np.abs(z_scores(found, honest, users)).max() > LIMIT


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("kind", KINDS)
def test_faces_agree(kind, epsilon):
    for one, other in itertools.combinations(FACES, 2):
        first, second = frequencies(kind, epsilon, one), frequencies(kind, epsilon, other)
        pooled = (first + second) / 2
        assert (np.abs(first - second) / np.sqrt(2 * pooled * (1 - pooled) / users_for(kind))).max() < LIMIT


def p_value_of_equal_laws(first, second):
    """Chi-square over whole reports, as the sets of values they support, of users of two oracles or faces."""
    table = np.stack([np.bincount(codes, minlength=32) for codes in (first, second)])
    return chi2_contingency(table[:, table.sum(axis=0) > 0], correction=False).pvalue


def support_codes(oracle, face, seed):
    return np.asarray(oracle.support(draw(oracle, face, 3 * USERS, seed))) @ (1 << np.arange(oracle.size))


@pytest.mark.parametrize("kind", [*KINDS, Rappor])
def test_batch_has_the_joint_law_of_a_key_per_client_and_not_that_of_p_three_per_cent_off(kind):
    oracle = Rappor(size=5, epsilon=1.0, bits=5, hashes=1) if kind is Rappor else kind(size=5, epsilon=1.0)
    name = "exact_flip" if kind is Rappor else "exact_p"
    wrong = secure_random.rounded_down(getattr(oracle, name) * Fraction(97, 100))
    broken = type("Broken", (kind,), {name: property(lambda self: wrong)})(**dataclasses.asdict(oracle))
    keyed = support_codes(oracle, "simulate", 1)
    assert p_value_of_equal_laws(keyed, support_codes(oracle, "batch", 1)) > LEAST_P_VALUE
    assert p_value_of_equal_laws(keyed, support_codes(broken, "batch", 1)) < LEAST_P_VALUE


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("kind", KINDS)
def test_measured_variance_within_five_per_cent_of_closed_form(kind, epsilon):
    """20,000 populations of 10 users each: the spread of their estimates is what the formula says, and not 15 % more."""
    oracle = kind(size=SIZE, epsilon=epsilon)
    supports = np.asarray(oracle.support(draw(oracle, "simulate", seed=3)))
    counts = supports.reshape(USERS // 10, 10, SIZE).sum(axis=1)
    estimates = (counts / 10 - oracle.q) / (oracle.p - oracle.q)
    others, expected = np.delete(estimates, OWN, axis=1).var(axis=0).mean(), float(oracle.variance(0.0, 10))
    assert others == pytest.approx(expected, rel=0.05)
    assert others != pytest.approx(1.15 * expected, rel=0.05)
    assert estimates[:, OWN].var() == pytest.approx(float(oracle.variance(1.0, 10)), rel=0.10)
    truth = np.arange(SIZE) == OWN
    assert (np.abs(estimates.mean(axis=0) - truth) / np.sqrt(oracle.variance(1.0 * truth, USERS))).max() < LIMIT


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_rappor_bits_flip_as_they_should_and_its_variance_is_the_closed_form(epsilon, face):
    oracle = Rappor(size=SIZE, epsilon=epsilon, bits=32)
    reports = draw(oracle, face)
    flipped = reports ^ oracle.candidates[OWN]
    deviation = math.sqrt(oracle.flip * (1 - oracle.flip) / USERS)
    assert np.abs(flipped.mean(axis=0) - oracle.flip).max() < LIMIT * deviation
    assert np.abs(flipped.mean(axis=0) - 1.03 * oracle.flip).min() > LIMIT * deviation
    counts = reports.reshape(USERS // 10, 10, 32).sum(axis=1)
    shares = np.stack([oracle.estimate_bits(row, 10) for row in counts])
    assert shares.var(axis=0).mean() == pytest.approx(oracle.bit_variance(10), rel=0.05)
    bias = shares.mean(axis=0) - oracle.candidates[OWN]
    assert np.abs(bias).max() < LIMIT * math.sqrt(oracle.bit_variance(USERS))


def test_coins_of_one_word_are_independent():
    oracle = Oue(size=SIZE, epsilon=1.0)
    reports = draw(oracle, "simulate").astype(np.float64)
    both = reports.T @ reports / USERS
    rate = np.where(np.arange(SIZE) == OWN, oracle.p, oracle.q)
    expected = np.outer(rate, rate)
    z = (both - expected) / np.sqrt(expected * (1 - expected) / USERS)
    assert np.abs(z[~np.eye(SIZE, dtype=bool)]).max() < LIMIT


@pytest.mark.parametrize(("way", "words"), [(draws.draw_by_floyd, 4), (draws.draw_by_selection, 7)])
def test_both_ways_of_drawing_subsets_are_even(way, words):
    """All subsets of 3 of 6 values, by Floyd's method and by selection sampling."""
    assert np.abs(subset_z_scores(way, words)).max() < LIMIT


def test_planted_uneven_subset_draw_is_rejected(monkeypatch):
    honest = draws.below
    monkeypatch.setattr(draws, "below", lambda word, bound: honest(word & np.uint32(0xEFFFFFFF), bound))
    assert np.abs(subset_z_scores(draws.draw_by_floyd, 4)).max() > LIMIT


def subset_z_scores(way, words):
    oracle = SubsetSelection(size=6, epsilon=1.0, chosen=3)
    size, chosen = np.int32(6), np.int32(3)  # as when traced: not Python ints

    def one(key):
        bits = jax.random.bits(key, (words,))
        return way(bits, OWN, size=size, chosen=chosen, heads=oracle.heads, width=6)

    reports = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(2), USERS)))
    found = np.bincount(reports @ (1 << np.arange(6)), minlength=64) / USERS
    scores = []
    for members in itertools.combinations(range(6), 3):
        expected = (oracle.p if OWN in members else 1 - oracle.p) / 10
        scores.append((found[sum(1 << m for m in members)] - expected) / math.sqrt(expected * (1 - expected) / USERS))
    return np.array(scores)


@pytest.mark.parametrize("buckets", [2, 4, 56])
def test_two_values_meet_once_in_as_many_seeds_as_there_are_buckets(buckets):
    seeds = secure_random.integers_below(2**32, 2**19).astype(np.uint32)[:, None]
    hashes = hash_values(seeds, np.arange(8, dtype=np.uint32)[None, :], buckets)
    deviation = math.sqrt((1 - 1 / buckets) / buckets / len(seeds))
    for first, second in itertools.combinations(range(8), 2):
        assert abs((hashes[:, first] == hashes[:, second]).mean() - 1 / buckets) < LIMIT * deviation
    alike = np.stack([(hashes == bucket).mean(axis=0) for bucket in range(buckets)])
    assert np.abs(alike - 1 / buckets).max() < LIMIT * deviation


def test_estimators_recover_a_known_table_from_reports():
    """End to end: regression and likelihood on Bloom bits; likelihood, unlike inversion, knows that no share is negative."""
    truth = np.zeros(SIZE)
    truth[:4] = (0.4, 0.3, 0.2, 0.1)
    values = np.random.default_rng(0).choice(SIZE, 20_000, p=truth).astype(np.int32)

    def reports_of(oracle):
        return np.asarray(jax.jit(lambda v, k: simulate_many(oracle.simulate, v, k))(values, jax.random.key(0)))

    bloom = Rappor(size=SIZE, epsilon=4.0, bits=64, hashes=2)
    reports = reports_of(bloom)
    shares = bloom.estimate_bits(bloom.counts(reports), len(values))
    assert np.abs(regress(bloom.candidates.T, shares, penalty=0.01) - truth).sum() < 0.1
    assert np.abs(maximise_likelihood(bloom.likelihoods(reports)) - truth).sum() < 0.1
    oue = Oue(size=SIZE, epsilon=1.0)
    reports = reports_of(oue)
    inverted = oue.estimate(oue.counts(reports), len(values))
    likely = maximise_likelihood(support_likelihoods(reports, math.e), iterations=1000)
    assert np.abs(likely - truth).sum() < np.abs(inverted - truth).sum() < 0.3
