"""Both faces of SignDS have the law they claim, to five and a half standard deviations, and planted errors lie far outside."""

import functools
import math

import jax
import numpy as np
import pytest

from builders import FAST_CODE
from populace.evaluation.audit import audit
from populace.privacy.randomizers.signds import SignDS, gain, mark_top, matched_share, rotate, rotate_back

SIZE, CHOSEN, EPSILON = 12, 3, 1.5
LIMIT = 5.5
VECTOR = np.array([3, -1, 0, 5, -7, 2, 0.5, 0.5, -3, 1, 4, -6], np.float32)
USERS = {"simulate": 400_000, "release": 12_000}


def law(mechanism, vector):
    """Exact probabilities of all 2 d reports."""
    found = np.zeros(2 * mechanism.size)
    for positive in (0, 1):
        top = np.asarray(mark_top(vector if positive else -vector, mechanism.chosen))
        found[positive::2] = [float(p) / 2 for p in mechanism.probabilities(top)]
    return found


@functools.cache
def frequencies(face):
    mechanism = SignDS(size=SIZE, epsilon=EPSILON, chosen=CHOSEN)
    if face == "simulate":
        keys = jax.random.split(jax.random.key(3), USERS[face])
        reports = np.asarray(
            jax.jit(jax.vmap(lambda key: mechanism.simulate(VECTOR, key)), compiler_options=FAST_CODE)(keys)
        )
    else:
        reports = np.array([mechanism.release(VECTOR) for _ in range(USERS[face])])
    return np.bincount(reports, minlength=2 * SIZE) / len(reports)


def z_scores(found, expected, users):
    return np.abs(found - expected) / np.sqrt(expected * (1 - expected) / users)


@pytest.mark.parametrize("face", ["simulate", "release"])
def test_the_law_is_accepted_and_wrong_ones_are_rejected(face):
    mechanism = SignDS(size=SIZE, epsilon=EPSILON, chosen=CHOSEN)
    found = frequencies(face)
    assert z_scores(found, law(mechanism, VECTOR), USERS[face]).max() < LIMIT
    apart = 1.2 if face == "simulate" else 2.0
    for wrong in (
        SignDS(size=SIZE, epsilon=EPSILON * apart, chosen=CHOSEN),
        SignDS(size=SIZE, epsilon=EPSILON, chosen=4),
    ):
        assert z_scores(found, law(wrong, VECTOR), USERS[face]).max() > LIMIT


@functools.cache
def told_along(epsilon, filled, turns=1):
    """sqrt(d) times the mean inner product of reports with a one-sided unit vector, through eight rotations and back."""
    rng = np.random.default_rng(0)
    size, users, found = 1024, 20_000, []
    mechanism = SignDS(size=size, epsilon=epsilon, chosen=max(1, round(matched_share(epsilon) * size)))
    many = jax.jit(
        lambda vector, keys: jax.vmap(lambda key: mechanism.simulate(vector, key))(keys), compiler_options=FAST_CODE
    )
    for turn in range(8):
        vector = np.zeros(size, np.float32)
        vector[:filled] = rng.exponential(size=filled)
        signs = np.where(rng.random((turns, size)) < 0.5, 1, -1).astype(np.float32)
        reports = many(rotate(vector, signs), jax.random.split(jax.random.key(turn), users))
        told = rotate_back(mechanism.add_up(reports, np.ones(users, bool)), signs, size) / users
        found.append(float(np.asarray(told) @ vector / np.linalg.norm(vector)) * math.sqrt(size))
    return np.mean(found), gain(epsilon, mechanism.chosen / size)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [2.0, 8.0])
def test_mean_report_points_along_the_vector_with_the_predicted_length(epsilon):
    """For a vector far from Gaussian, half of whose coordinates are zero: the gain of the closed form."""
    along, expected = told_along(epsilon, 600)
    assert along == pytest.approx(expected, rel=0.1)
    assert along != pytest.approx(1.2 * expected, rel=0.05)


@pytest.mark.slow
def test_of_a_vector_with_few_coordinates_one_turn_tells_less_and_two_tell_all():
    """Sums of forty terms have thinner tails than a Gaussian: a quarter of the gain is lost where k/d is small."""
    along, expected = told_along(8.0, 40)
    assert 0.6 * expected < along < 0.87 * expected
    again, _ = told_along(8.0, 40, turns=2)
    assert again == pytest.approx(expected, rel=0.08)


def audited(mechanism, claimed):
    vectors = [VECTOR, -VECTOR]
    many = jax.jit(
        lambda vector, keys: jax.vmap(lambda key: mechanism.simulate(vector, key))(keys), compiler_options=FAST_CODE
    )

    def draw(pair, count, part):
        roots = jax.random.split(jax.random.key(100 + part), 2)
        first, second = (
            np.asarray(many(vector, jax.random.split(root, count)))[:, None]
            for vector, root in zip(vectors, roots, strict=True)
        )
        return first, second

    return audit(draw, ["a vector and its negative"], what="signds", claimed=claimed, samples=60_000)


def test_audit_finds_nearly_all_of_epsilon_and_refutes_a_smaller_claim():
    mechanism = SignDS(size=SIZE, epsilon=EPSILON, chosen=CHOSEN)
    honest = audited(mechanism, EPSILON)
    assert not honest.flagged
    assert honest.measured.epsilon > 0.9 * EPSILON
    assert audited(mechanism, 0.8 * EPSILON).flagged
