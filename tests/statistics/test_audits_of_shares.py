"""Audits of sums with noise in shares: right shares pass, to the world and to a coalition, and wrong ones are caught."""

import jax
import numpy as np
import pytest

from populace.audits.methods import Subject, audit_subject, canaries, grey_box
from populace.audits.shares import claimed_event, claimed_law, left_over, views_of
from populace.engines import sums
from populace.methods.base import Population
from populace.methods.census.protocol import Census
from populace.methods.moments.protocol import Moments
from populace.privacy.accounting import epsilon_of
from populace.privacy.events import Composed, Gaussian, PoissonSampled, Pure, Repeated
from populace.privacy.gaussian import GaussianSum
from populace.privacy.noise_shares import NoiseShares
from populace.privacy.source import Keyed

EPSILON = 2.0


def subject(name="census", kind="table", **settings) -> Subject:
    settings = {"trust": "secure-sum", **settings}
    return Subject(name=name, epsilon=EPSILON, kind=kind, settings=settings, seed=1)


@pytest.mark.parametrize(
    ("name", "settings", "views"),
    [
        ("census", {}, ("to the world", "to one site of the sum")),
        ("census", {"colluders": 2, "dropouts": 1}, ("to the world", "to 2 colluding site(s)")),
        pytest.param("moments", {"colluders": 1}, ("to the world", "to 1 colluding site(s)"), marks=pytest.mark.slow),
    ],
)
def test_right_shares_are_accepted_under_both_claims(name, settings, views):
    found = audit_subject(subject(name, **settings))
    (recorded,) = found.recorded
    assert recorded.problems == ()
    assert recorded.sums > 0
    assert recorded.trust == "secure-sum"
    assert 0.8 < recorded.largest < 1.01
    assert [finding.what.split(", ")[2] for finding in found.findings] == [view for view in views for _ in range(2)]
    assert not any(finding.flagged for finding in found.findings)
    scales = [finding for finding in found.findings if "scale" in finding.what]
    assert all(0.75 * one.claimed < one.certain.epsilon < one.claimed for one in scales)  # the audit has power
    world, coalition = (one.claimed for one in scales)
    assert world < coalition
    assert (coalition if settings else world) <= EPSILON


def too_small_draws(monkeypatch, clients):
    """Every site divides its share by the number of sites."""
    right = NoiseShares.draw
    monkeypatch.setattr(
        NoiseShares,
        "draw",
        lambda self, source: np.rint(np.asarray(right(self, source)) / clients).astype(np.int32),
    )


def too_small_scale(monkeypatch, clients):
    """Shares are calibrated with a K-th of the deviation instead of the K-th of the variance."""
    monkeypatch.setattr(NoiseShares, "share", property(lambda self: self._scaled(self.mechanism.deviation / clients)))


def colluders_forgotten(monkeypatch, clients):
    """The noise of all sites together is what the honest ones should have."""
    del clients
    monkeypatch.setattr(
        NoiseShares,
        "share",
        property(lambda self: self._scaled(self.mechanism.deviation / np.sqrt(self.least_survivors))),
    )


def one_share_for_all(monkeypatch, clients):
    """All sites draw the same share."""
    del clients
    right = NoiseShares.draw
    monkeypatch.setattr(NoiseShares, "draw", lambda self, source: right(self, Keyed(jax.random.key(7))))


def left_out(monkeypatch, clients):
    """Sites draw a share and add it with the wrong sign every other time: it is not in the sum as it was drawn."""
    del clients
    right, calls = sums.with_share, []

    def with_share(reply, shares, source):
        calls.append(None)
        noised = right(reply, shares, source)
        return noised if len(calls) % 3 else sums.numbers_of(reply).view(np.uint64).astype(noised.dtype)

    monkeypatch.setattr(sums, "with_share", with_share)


def counted_twice(monkeypatch, clients):
    """Every record counts twice in what a site sends."""
    del clients
    right = Census.answer

    def answer(self, common, own, shard, memory, source):
        reply, memory = right(self, common, own, shard, memory, source)
        return jax.tree.map(lambda leaf: 2 * leaf, reply), memory

    monkeypatch.setattr(Census, "answer", answer)


@pytest.mark.parametrize(
    ("plant", "sentence"),
    [
        (too_small_draws, "times as large as"),
        (too_small_scale, "was booked"),
        (colluders_forgotten, "was booked"),
        (one_share_for_all, "all shares together"),
        (left_out, "one share of noise each"),
        (counted_twice, "and the noise covers"),
    ],
)
def test_what_is_planted_is_recorded(plant, sentence, monkeypatch):
    audited = subject(colluders=2)
    plant(monkeypatch, audited.silos)
    found = grey_box(audited)
    assert any(sentence in problem for problem in found.problems)


@pytest.mark.parametrize(
    ("plant", "views"),
    [(too_small_draws, (True, True)), (too_small_scale, (False, True)), (colluders_forgotten, (False, True))],
)
def test_the_scale_refutes_noise_that_is_too_small(plant, views, monkeypatch):
    """Noise drawn too small is refuted under both claims. Shares that are calibrated too small are refuted where their noise is
    what was booked; to the world, the method claims what it then has."""
    audited = subject(colluders=2)
    plant(monkeypatch, audited.silos)
    found = canaries(audited)
    assert tuple(finding.flagged for finding in found if "scale" in finding.what) == views


def test_guesses_about_canaries_refute_noise_that_hides_nothing(monkeypatch):
    """A tenth of the noise: right guesses, whatever the law of the noise, are too many under both claims."""
    too_small_draws(monkeypatch, 10)
    guessed = canaries(subject(colluders=2))[::2]
    assert len(guessed) == 2
    assert all("canaries in one run" in finding.what and finding.flagged for finding in guessed)


def test_views_and_their_laws():
    population = Population(schema=subject().shape(), clients=7, records=4)
    assert views_of(Census(epsilon=1.0, trust="central"), population) == ()
    assert views_of(Moments(epsilon=1.0, trust="secure-sum"), population) == (0, 1)
    assert views_of(Moments(epsilon=1.0, trust="secure-sum", colluders=3, dropouts=1), population) == (0, 3)
    mechanism = GaussianSum(bound=5.0, noise_multiplier=20.0, size=6, whole=True)
    shares = NoiseShares(mechanism=mechanism, clients=7, colluders=3, dropouts=1)
    assert claimed_law(shares, 3) == mechanism
    assert claimed_law(shares, 0).noise_multiplier == pytest.approx(20.0 * np.sqrt(6 / 3))
    parts = np.arange(42).reshape(7, 6)
    np.testing.assert_array_equal(left_over(shares, parts, 0), parts[:6].sum(axis=0))
    np.testing.assert_array_equal(left_over(shares, parts, 3), parts[:3].sum(axis=0))
    booked = Composed((Repeated(PoissonSampled(0.5, Gaussian(20.0)), 3), Gaussian(4.0), Pure(0.1)))
    world = claimed_event(booked, [shares], 0)
    assert world.events[0].event.event.noise_multiplier == pytest.approx(20.0 * np.sqrt(2))
    assert world.events[1:] == booked.events[1:]
    assert claimed_event(booked, [shares], 3) is booked
    assert epsilon_of(world, delta=1e-5) < epsilon_of(booked, delta=1e-5)


def test_numbers_of_silos_follow_what_a_sum_allows_for():
    assert subject().silos == 3
    assert subject(colluders="4", dropouts=1).silos == 8
    assert subject(trust="central").silos == 2
