"""Plain words must never promise more than the bound, and must never hide what is not covered."""

import math

import pytest

from populace.privacy.consequences import share_in_words
from populace.privacy.guarantee import Guarantee, best_guess
from populace.report.plain_language import in_plain_language


def statement(**changes):
    values = {
        "epsilon": 1.0, "unit": "client", "neighbours": "replace", "trust": "local", "mechanism": "randomised response",
    }  # fmt: skip
    return in_plain_language(Guarantee(**(values | changes)).to_json())


def test_the_guess_is_that_of_randomised_response():
    """Randomised response with epsilon is told apart with exactly this probability."""
    assert best_guess(math.log(3), 0) == pytest.approx(0.75)
    assert best_guess(0.1, 0.2) > best_guess(0.1, 0)
    assert best_guess(1000.0, 0) == 1
    assert "75 %" in statement(epsilon=math.log(3)).short


@pytest.mark.parametrize("share", [0.5, 0.7311, 0.98201, 0.9991, 0.99989])
def test_percentages_round_up(share):
    assert float(share_in_words(share).removesuffix(" %")) >= 100 * share - 1e-6


def test_beliefs_are_bounds_of_a_pure_guarantee_only():
    assert dict(statement(epsilon=math.log(9)).beliefs)["10 %"] == "50 %"
    assert statement(epsilon=1.0, delta=1e-6).beliefs == ()


def test_what_is_not_covered_is_said():
    said = " ".join(answer for _, answer in statement(read_from_data=("town",), delta=1e-5, trust="central").answers)
    assert "town" in said
    assert "1e-05" in said
    assert "The server" in said
    assert "keep it with the data" in said.lower()


def test_the_sentences_follow_from_the_relation():
    """Zero-out bounds presence at epsilon and contents at two; replacement bounds contents at one and presence not at all."""
    zero = dict(statement(epsilon=math.log(3), neighbours="zero-out", unit="record", trust="silo").answers)["How well?"]
    assert "left empty" in zero
    assert "75 %" in zero  # presence: 3 / 4
    assert "90 %" in zero  # contents: 9 / 10
    swapped = dict(statement(epsilon=math.log(3)).answers)["How well?"]
    assert "left empty" not in swapped
    assert "75 %" in swapped
    assert "90 %" not in swapped


def test_who_is_trusted_and_who_is_repeated_is_said():
    said = dict(
        statement(epsilon=1.0, unit="record", neighbours="zero-out", trust="silo", protects="one patient").answers
    )
    assert said["Who has to be trusted?"].startswith("Whoever already holds the records")
    assert "with 2: epsilon 2; with 5: epsilon 5" in said["Is somebody in the data more than once?"]
    assert "one patient" in said["What is protected?"].lower()
    everything = " ".join(said.values())
    assert "participant" not in everything
    assert "best of several" in everything


def test_expected_failures_and_counts_read_are_said():
    said = dict(
        statement(epsilon=1.0, delta=1e-6, units=10_000, counts_read=("the most records of one client (57)",)).answers
    )["What is not covered?"]
    assert "0.01 on average" in said
    assert "The most records of one client (57) was read from the data" in said


def test_no_protection_and_seeds_are_alarms():
    none = statement(epsilon=math.inf, trust="not-private", reason="a baseline")
    assert none.alarm.startswith("NOT PRIVATE")
    assert not none.private
    seeded = statement(seeded=True)
    assert "NOT PRIVATE" in seeded.alarm
    assert not seeded.private
    assert statement().alarm == ""
