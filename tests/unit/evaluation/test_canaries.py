"""The one-run audit: published arithmetic, known values, and a toy of DP-SGD with and without enough noise."""

import math

import numpy as np
import pytest

from populace.errors import DataError, SpecError
from populace.evaluation.canaries import audit_scores, epsilon_from_guesses, p_value
from populace.privacy.accounting import epsilon_of
from populace.privacy.events import Gaussian, Repeated


@pytest.mark.parametrize(("canaries", "guesses", "correct", "delta", "confidence", "expected"), [
    (1000, 1000, 600, 0, 0.95, 0.297468), (1000, 200, 180, 1e-5, 0.95, 1.796285), (5000, 500, 480, 1e-5, 0.99, 2.620417),
    (100_000, 1500, 1429, 1e-5, 0.95, 2.668754), (10, 10, 10, 0.01, 0.95, 0.613793), (1000, 1000, 500, 1e-5, 0.95, 0),
])  # fmt: skip
def test_known_values(canaries, guesses, correct, delta, confidence, expected):
    """The same numbers as jax-privacy 2.0 (`auditing._epsilon_one_run`), to its tolerance."""
    found = epsilon_from_guesses(
        canaries=canaries, guesses=guesses, correct=correct, delta=delta, confidence=confidence
    )
    assert found == pytest.approx(expected, abs=2e-6)


def test_all_guesses_right_in_closed_form():
    """q^r = 0.05 at q = e^eps/(1 + e^eps)."""
    q = 0.05 ** (1 / 100)
    found = epsilon_from_guesses(canaries=100, guesses=100, correct=100)
    assert found == pytest.approx(math.log(q / (1 - q)), abs=1e-9)


def test_p_value_as_the_paper_computes_it():
    """The sums of Steinke et al., written out term by term."""
    m, r, v, eps, delta = 60, 40, 33, 0.7, 1e-3
    q = 1 / (1 + math.exp(-eps))
    pmf = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
    alpha = total = 0.0
    for i in range(1, v + 1):
        total += pmf[v - i]
        alpha = max(alpha, total / i)
    expected = sum(pmf[v:]) + alpha * delta * 2 * m
    assert p_value(canaries=m, guesses=r, correct=v, epsilon=eps, delta=delta) == pytest.approx(expected, rel=1e-12)
    assert p_value(canaries=m, guesses=r, correct=0, epsilon=eps) == 1
    more = [p_value(canaries=m, guesses=r, correct=v, epsilon=e, delta=delta) for e in (0, 0.5, 1, 2, 4)]
    assert more == sorted(more)


def toy_dp_sgd(*, canaries, steps, noise_multiplier, seed):
    """Full-batch DP-SGD with one coordinate per canary, whose clipped gradient is that unit vector; scores are the model."""
    rng = np.random.default_rng(seed)
    included = rng.random(canaries) < 0.5
    model = np.zeros(canaries)
    for _ in range(steps):
        model += included + rng.normal(0, noise_multiplier, canaries)
    return model, included


def test_a_toy_of_dp_sgd_stays_below_its_claim_and_a_broken_one_does_not():
    delta, steps, noise = 1e-5, 20, 10.0
    claim = epsilon_of(Repeated(Gaussian(noise), steps), delta=delta)
    scores, included = toy_dp_sgd(canaries=5000, steps=steps, noise_multiplier=noise, seed=1)
    honest = audit_scores(scores, included, delta=delta)
    assert 0.2 < honest.epsilon < claim
    scores, included = toy_dp_sgd(canaries=5000, steps=steps, noise_multiplier=noise / 8, seed=1)
    broken = audit_scores(scores, included, delta=delta)
    assert broken.epsilon > claim
    assert broken.correct <= broken.guesses <= broken.canaries


def test_scores_that_say_nothing_give_nothing():
    rng = np.random.default_rng(2)
    found = [audit_scores(rng.random(400), rng.random(400) < 0.5).epsilon for _ in range(40)]
    assert np.mean(np.array(found) > 0) <= 0.15


def test_bad_input_is_refused():
    with pytest.raises(SpecError, match="correct <= guesses"):
        epsilon_from_guesses(canaries=10, guesses=5, correct=6)
    with pytest.raises(SpecError, match="correct <= guesses"):
        epsilon_from_guesses(canaries=10, guesses=11, correct=6)
    with pytest.raises(SpecError, match="delta"):
        epsilon_from_guesses(canaries=10, guesses=5, correct=5, delta=1.0)
    with pytest.raises(SpecError, match="confidence"):
        epsilon_from_guesses(canaries=10, guesses=5, correct=5, confidence=1.0)
    with pytest.raises(DataError, match="one score and one coin"):
        audit_scores([0.1, 0.2], [True])
    with pytest.raises(DataError, match="not a number"):
        audit_scores([0.1, math.nan], [True, False])
    with pytest.raises(SpecError, match="guesses"):
        audit_scores([0.1, 0.2, 0.3], [True, False, True], guesses=4)
