"""Membership inference from a model's scores: it catches what memorises and does not accuse what is blind."""

import numpy as np
import pytest

from populace.errors import DataError, SpecError
from populace.evaluation.attacks.membership import PROVES_NOTHING
from populace.evaluation.attacks.scores import Scored, attack_scores
from populace.evaluation.binomial import interval

EACH = 200  # members, and as many others
SURE = 0.9999  # of the intervals, so that chance does not fail a test; the memorising model is caught at the same


def scored(seed, shift=0.0, features=2, each=EACH):
    """Members score higher by `shift` standard deviations, in the first feature."""
    rng = np.random.default_rng(seed)
    members = rng.permutation(np.arange(2 * each) < each)
    values = rng.normal(size=(2 * each, features))
    values[:, 0] += shift * members
    return Scored(features=values, members=members)


def test_a_memorising_model_is_caught():
    """Normals two standard deviations apart: no guess is right with more than Phi(1), .841; precision has no such limit."""
    found = attack_scores(scored(0, shift=2.0), scored(1, shift=2.0), confidence=SURE)
    assert found["accuracy_low"] > 0.7
    assert found["accuracy_low"] < 0.841 < found["accuracy_high"] + 0.02
    assert found["precision_low"] > 0.7
    assert found["n"] == 2 * EACH
    assert found["attacker"] in {row["attacker"] for row in found["attackers"]}
    assert found["caveat"] == PROVES_NOTHING


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_a_blind_model_is_not_accused_whatever_the_shadow_shows(shift):
    found = attack_scores(scored(2, shift=shift), scored(3), confidence=SURE)
    assert found["accuracy_low"] <= 0.5 <= found["accuracy_high"]
    assert found["precision_low"] <= 0.5 <= found["precision_high"]


def test_the_intervals_are_of_the_confidence_asked():
    shadow, target = scored(0, shift=2.0, each=50), scored(1, shift=2.0, each=50)
    wide, narrow = (attack_scores(shadow, target, confidence=one) for one in (SURE, 0.95))
    low, high = interval(round(narrow["accuracy"] * narrow["n"]), narrow["n"], 0.95)
    assert (narrow["accuracy_low"], narrow["accuracy_high"]) == (low, high)
    assert wide["accuracy_low"] < low < high < wide["accuracy_high"]


def test_what_only_a_network_can_tell_is_told_by_it():
    """Members sit near zero, the others away from it on both sides: no line separates them."""

    def ring(seed):
        rng = np.random.default_rng(seed)
        members = np.arange(2 * EACH) % 2 == 0
        far = rng.choice([-2.0, 2.0], 2 * EACH) * ~members
        return Scored(features=np.stack([far + rng.normal(0, 0.3, 2 * EACH)] * 2, axis=1), members=members)

    found = attack_scores(ring(0), ring(1))
    assert found["attacker"] == "neural network"
    assert found["accuracy_low"] > 0.9
    by = {row["attacker"]: row["accuracy"] for row in found["attackers"]}
    assert by["logistic regression"] < 0.7


def test_the_attacker_is_chosen_without_the_target():
    """A target that contradicts the shadow changes what is guessed right, not who guesses."""
    shadow = scored(5, shift=1.0, each=50)
    same, other = (attack_scores(shadow, scored(6, shift=shift, each=50)) for shift in (1.0, -1.0))
    assert [row["validation_accuracy"] for row in same["attackers"]] == [
        row["validation_accuracy"] for row in other["attackers"]
    ]
    best = max(same["attackers"], key=lambda row: row["validation_accuracy"])
    assert same["attacker"] == other["attacker"] == best["attacker"]
    assert other["accuracy"] < 0.5 < same["accuracy"]


def test_members_and_others_are_as_many():
    rng = np.random.default_rng(0)
    found = Scored(features=rng.normal(size=(100, 1)), members=np.arange(100) < 80)
    assert len(found.features) == 40
    assert found.members.sum() == 20


def test_nobody_called_a_member_leaves_precision_open():
    """Members of the shadow score high, and nobody does at the target."""
    rng = np.random.default_rng(0)
    members = np.arange(40) % 2 == 0
    low = Scored(features=rng.normal(-10, 0.1, (40, 1)), members=members)
    high = Scored(features=rng.normal(0, 0.1, (40, 1)) + 5 * members[:, None], members=members)
    found = attack_scores(high, low)
    assert found["precision"] is None
    assert (found["precision_low"], found["precision_high"]) == (0.0, 1.0)
    assert found["accuracy"] == 0.5
    assert found["called_members"] == 0


def test_what_cannot_be_attacked_is_refused():
    some, marks = np.zeros((40, 2)), np.arange(40) < 20
    with pytest.raises(DataError, match="finite"):
        Scored(features=np.full((40, 2), np.nan), members=marks)
    with pytest.raises(DataError, match="one mark for each"):
        Scored(features=some, members=marks[:-1])
    with pytest.raises(SpecError, match="members and non-members"):
        Scored(features=some, members=np.ones(40, bool))
    with pytest.raises(DataError, match="as many features"):
        attack_scores(Scored(features=some, members=marks), Scored(features=some[:, :1], members=marks))
    with pytest.raises(SpecError, match="confidence"):
        attack_scores(Scored(features=some, members=marks), Scored(features=some, members=marks), confidence=1.0)
