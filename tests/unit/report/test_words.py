"""Plain words must never promise more than the bound, and must never hide what is not covered."""

import math

import pytest

from populace.privacy.guarantee import Guarantee, best_guess
from populace.report.words import certain, in_plain_words


def statement(**changes):
    values = {
        "epsilon": 1.0, "unit": "client", "neighbours": "replace", "trust": "local", "mechanism": "randomised response",
    }  # fmt: skip
    return in_plain_words(Guarantee(**(values | changes)).to_json())


def test_the_guess_is_that_of_randomised_response():
    """Randomised response with epsilon is told apart with exactly this probability."""
    assert best_guess(math.log(3), 0) == pytest.approx(0.75)
    assert best_guess(0.1, 0.2) > best_guess(0.1, 0)
    assert best_guess(1000.0, 0) == 1
    assert "75 %" in statement(epsilon=math.log(3)).short


@pytest.mark.parametrize("share", [0.5, 0.7311, 0.98201, 0.9991, 0.99989])
def test_percentages_round_up(share):
    assert float(certain(share).removesuffix(" %")) >= 100 * share - 1e-6


def test_beliefs_are_bounds_of_a_pure_guarantee_only():
    assert dict(statement(epsilon=math.log(9)).beliefs)["10 %"] == "50 %"
    assert statement(epsilon=1.0, delta=1e-6).beliefs == ()


def test_what_is_not_covered_is_said():
    said = " ".join(answer for _, answer in statement(read_from_data=("town",), delta=1e-5, trust="central").answers)
    assert "town" in said
    assert "1e-05" in said
    assert "The server" in said
    assert "keep it with the data" in said.lower()


def test_no_protection_and_seeds_are_alarms():
    none = statement(epsilon=math.inf, trust="not-private", reason="a baseline")
    assert none.alarm.startswith("NOT PRIVATE")
    assert not none.private
    seeded = statement(seeded=True)
    assert "NOT PRIVATE" in seeded.alarm
    assert not seeded.private
    assert statement().alarm == ""
