"""Bounds from counts, scores of messages, and what an audit does with its samples."""

import math

import numpy as np
import pytest

from populace.errors import DataError, SpecError
from populace.evaluation.audit import audit, best_event, epsilon_bound, scored
from populace.evaluation.binomial import clustered_interval, interval, lower_bound, upper_bound


def test_clopper_pearson_against_the_published_table():
    """5 of 10 at 95 %: 0.1871 to 0.8129; 0 of 10: up to 0.3085 (Clopper and Pearson 1934)."""
    assert interval(5, 10, 0.95) == pytest.approx((0.18708603, 0.81291397), abs=1e-7)
    assert interval(0, 10, 0.95) == pytest.approx((0.0, 0.30849711), abs=1e-7)
    assert lower_bound([0, 10], 10, 0.025) == pytest.approx([0, 0.69150289], abs=1e-7)
    assert upper_bound([0, 10], 10, 0.025) == pytest.approx([0.30849711, 1], abs=1e-7)
    assert 0 < float(lower_bound(1, 10**6, 1e-12)) < float(upper_bound(1, 10**6, 1e-12)) < 1


def test_clopper_pearson_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    for p in (0.02, 0.4):
        hits = rng.binomial(200, p, 20_000)
        assert (lower_bound(hits, 200, 0.05) > p).mean() <= 0.05 + 0.006
        assert (upper_bound(hits, 200, 0.05) < p).mean() <= 0.05 + 0.006


def test_an_interval_over_clusters_is_wide_when_their_members_agree():
    rng = np.random.default_rng(1)
    alone = rng.random((40, 30)) < 0.5
    together = np.repeat(rng.random((40, 1)) < 0.5, 30, axis=1)
    _, low, high = clustered_interval(alone, 0.95)
    _, wide_low, wide_high = clustered_interval(together, 0.95)
    assert high - low < 0.07
    assert wide_high - wide_low > 0.25
    assert clustered_interval(np.ones((10, 3)), 0.95)[0] == 1.0
    assert clustered_interval(np.ones((10, 3)), 0.95)[1] == pytest.approx(0.025 ** (1 / 10))
    with pytest.raises(SpecError, match="clusters"):
        clustered_interval(np.ones((1, 3)), 0.95)


def test_the_bound_is_the_ratio_of_the_bounds():
    low, high = float(lower_bound(900, 1000, 0.025)), float(upper_bound(100, 1000, 0.025))
    assert epsilon_bound(900, 100, 1000, alpha=0.05) == pytest.approx(math.log(low / high))
    assert epsilon_bound(900, 100, 1000, alpha=0.05, delta=0.1) == pytest.approx(math.log((low - 0.1) / high))
    assert epsilon_bound(100, 900, 1000, alpha=0.05) == 0
    assert epsilon_bound(10, 0, 1000, alpha=0.05, delta=0.5) == 0


def coins(epsilon, parts=1, kind=bool, seed=0):
    """Randomised response on a bit that is sent `parts` times, each with epsilon."""
    rng = np.random.default_rng(seed)
    p = math.exp(epsilon) / (1 + math.exp(epsilon))

    def draw(pair, count, part):
        return tuple((bit ^ (rng.random((count, parts)) > p)).astype(kind) for bit in (False, True))

    return draw


@pytest.mark.parametrize("kind", [bool, np.int64, np.float64])
def test_messages_of_any_kind(kind):
    found = audit(coins(1.0, kind=kind), ["0 and 1"], what="coin", claimed=1.0, samples=20_000)
    assert 0.85 < found.measured.epsilon < 1.1
    assert found.certain.epsilon <= 1.0
    assert not found.flagged
    assert found.row()["share_of_claim"] == found.measured.epsilon
    assert found.row()["samples"] == 40_000


def test_a_budget_spent_twice_is_seen_in_the_whole_message_only():
    found = audit(coins(1.0, parts=2), ["0 and 1"], what="two coins", claimed=1.0, samples=20_000)
    assert found.flagged
    assert found.certain.epsilon > 1.7


def test_real_numbers_are_scored_by_their_means():
    rng = np.random.default_rng(3)

    def draw(pair, count, part):
        return tuple(rng.laplace(loc, 1.0, (count, 4)) for loc in (0.0, np.array([1.0, 0, 0, 0])))

    found = audit(draw, ["0 and 1"], what="Laplace", claimed=1.0, samples=20_000)
    assert 0.7 < found.measured.epsilon < 1.1
    assert not found.flagged


def test_what_parts_say_only_together_is_seen():
    """Two fair bits whose sum tells the input: no part alone says anything."""
    rng = np.random.default_rng(4)

    def draw(pair, count, part):
        first = rng.random((2, count)) < 0.5
        flip = rng.random((2, count)) < 0.25
        return tuple(np.stack([a, a ^ f ^ bit], axis=1) for bit, a, f in zip((False, True), first, flip, strict=True))

    found = audit(draw, ["0 and 1"], what="xor", claimed=math.log(3), samples=20_000)
    assert found.measured.epsilon > 0.9
    assert not found.flagged


def test_the_most_telling_pair_is_taken():
    rng = np.random.default_rng(5)

    def draw(pair, count, part):
        if pair == 1:
            return coins(2.0, seed=part)(pair, count, part)
        same = rng.random((2, count, 1)) < 0.5
        return same[0], same[1]

    found = audit(draw, ["dull", "telling", "dull too"], what="pairs", claimed=2.0, samples=10_000)
    assert found.pair == "telling"
    assert found.measured.epsilon > 1.7


def test_the_event_is_chosen_on_other_samples_than_those_counted():
    """Messages that say nothing: the chosen event looks good where it was chosen, and the bound stays at nothing."""
    rng = np.random.default_rng(6)
    first, second = rng.integers(0, 40, (2, 500, 5))
    promise, event = best_event(scored(first, second), first, second, alpha=0.05, delta=0.0)
    assert promise > 0.2
    fresh = rng.integers(0, 40, (2, 5000, 5))
    assert epsilon_bound(event.count(fresh[0]), event.count(fresh[1]), 5000, alpha=0.05) < 0.05
    constant = audit(lambda *_: (np.zeros((400, 1)),) * 2, ["same"], what="silence", claimed=1.0, samples=400)
    assert constant.measured.epsilon == 0


def test_bad_input_is_refused():
    draw = coins(1.0)
    with pytest.raises(SpecError, match="samples"):
        audit(draw, ["a"], what="x", claimed=1.0, samples=10)
    with pytest.raises(SpecError, match="confidence"):
        audit(draw, ["a"], what="x", claimed=1.0, confidence=1.0)
    with pytest.raises(SpecError, match="confidence"):
        audit(draw, ["a"], what="x", claimed=1.0, confidence=1 - 1e-9)
    with pytest.raises(DataError, match="at least one pair"):
        audit(draw, [], what="x", claimed=1.0)
    with pytest.raises(DataError, match="rows of numbers"):
        audit(lambda *_: (np.array(["a"] * 200),) * 2, ["a"], what="x", claimed=1.0, samples=200)
    with pytest.raises(DataError, match="not finite"):
        audit(lambda *_: (np.full((200, 1), np.nan),) * 2, ["a"], what="x", claimed=1.0, samples=200)
