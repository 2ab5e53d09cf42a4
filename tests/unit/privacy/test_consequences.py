"""What a guarantee means: presence, content, groups, and everybody together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from populace.errors import PopulaceError
from populace.privacy import events
from populace.privacy.accounting import epsilon_of, sampled_gaussian
from populace.privacy.consequences import GROUPS, best_test, changed_epsilon, consequences
from populace.privacy.gaussian import gaussian_epsilon
from populace.privacy.guarantee import Guarantee, best_guess

DELTA = 1e-6


def approximate(event: events.Event, **more: object) -> Guarantee:
    epsilon = epsilon_of(event, delta=DELTA)
    values = {"unit": "record", "neighbours": "zero-out", "trust": "silo", "mechanism": "m", "delta": DELTA, **more}
    return Guarantee(epsilon=epsilon, **values)  # type: ignore[arg-type]


def test_a_gaussian_release_replaced_or_in_groups_is_one_with_more_sensitivity() -> None:
    for z in (1.0, 4.0):
        for change, times in (("replaced", 2), (2, 2), (5, 5)):
            found = changed_epsilon(events.Gaussian(z), delta=DELTA, change=change)  # type: ignore[arg-type]
            exact = gaussian_epsilon(z / times, DELTA)
            assert exact <= found <= exact * 1.001
            assert found > gaussian_epsilon(z / (0.9 * times), DELTA)  # a smaller change would be too little


def test_a_group_of_one_is_the_event_itself() -> None:
    event = sampled_gaussian(noise_multiplier=1.0, probability=0.05, steps=50)
    assert changed_epsilon(event, delta=DELTA, change=1) == pytest.approx(epsilon_of(event, delta=DELTA), rel=2e-3)


def sampled_delta_of(epsilon: float, *, z: float, probability: float, first: float, second: float) -> float:
    """delta of one Poisson-sampled Gaussian between sums moved by `first` and `second`, by numerical integration."""
    grid = np.linspace(-12 * z - 3, 12 * z + 3, 400_001)

    def density(move: float) -> np.ndarray:
        return probability * norm.pdf(grid, move, z) + (1 - probability) * norm.pdf(grid, 0, z)

    gap = np.maximum(density(first) - math.exp(epsilon) * density(second), 0)
    return float(gap.sum() * (grid[1] - grid[0]))


def test_replacement_under_poisson_sampling_against_integration() -> None:
    """Two steps bound every pair of contents, and little is lost: what one step alone allows would not do."""
    z, probability = 1.0, 0.1
    event = sampled_gaussian(noise_multiplier=z, probability=probability)
    found, one = changed_epsilon(event, delta=1e-4, change="replaced"), epsilon_of(event, delta=1e-4)
    worst = max(
        sampled_delta_of(found, z=z, probability=probability, first=first, second=second)
        for first in (1.0, 0.5, -1.0) for second in (-1.0, -0.5, 0.5, 1.0)
    )  # fmt: skip
    assert worst <= 1e-4
    assert sampled_delta_of(one, z=z, probability=probability, first=1, second=-1) > 1e-4
    assert one < found < 3 * one
    apart = sampled_delta_of(0.0, z=z, probability=probability, first=1, second=-1)
    assert (1 + apart) / 2 <= best_test(event, change="replaced") < (1 + apart) / 2 + 0.05


def test_pure_bounds_double_and_multiply() -> None:
    claim = Guarantee(epsilon=2.0, unit="record", neighbours="zero-out", trust="silo", mechanism="m")
    what = consequences(claim, events.Pure(2.0))
    assert what is not None
    assert (what.content_epsilon, what.content_delta) == (4.0, 0.0)
    assert what.presence == best_guess(2.0, 0.0)
    assert what.groups == tuple((k, 2.0 * k, 0.0) for k in GROUPS)
    assert any("factor of e^4" in line for line in what.sentences())


def test_replacement_bounds_contents_and_says_that_presence_is_public() -> None:
    claim = Guarantee(
        epsilon=2.0, unit="client", neighbours="replace", trust="local", mechanism="m", protects="one phone"
    )
    what = consequences(claim)
    assert what is not None
    assert what.presence is None
    assert what.content_epsilon == 2.0
    text = " ".join(what.sentences())
    assert "who took part, and how many did, is public" in text
    assert "one phone" in text
    assert "left out" not in text  # no promise about presence


def test_zero_out_promises_presence_at_epsilon_and_contents_at_more() -> None:
    event = sampled_gaussian(noise_multiplier=2.0, probability=0.1, steps=20)
    what = consequences(approximate(event, units=1_000), event)
    assert what is not None
    assert what.presence is not None
    assert what.presence < what.content < 1
    assert what.expected_failures == pytest.approx(1e-3)
    assert "0.001" in " ".join(what.sentences())


def test_without_the_event_general_group_privacy_stands_in_and_is_never_smaller() -> None:
    event = sampled_gaussian(noise_multiplier=2.0, probability=0.1, steps=20)
    claim = approximate(event)
    computed, general = consequences(claim, event), consequences(claim)
    assert computed is not None
    assert general is not None
    for (k, epsilon, delta), (_, most, grown) in zip(computed.groups, general.groups, strict=True):
        assert delta == DELTA
        assert grown == pytest.approx(DELTA * sum(math.exp(i * claim.epsilon) for i in range(k)))
        assert changed_epsilon(event, delta=grown, change=k) <= most  # at the same delta it is never more
        assert epsilon > claim.epsilon


def test_what_samplers_add_to_delta_grows_with_epsilon() -> None:
    event = events.Gaussian(3.0)
    claim = approximate(event, delta=DELTA + 1e-12, sampling_delta=1e-12)
    what = consequences(claim, event)
    assert what is not None
    _k, epsilon, delta = what.groups[0]
    assert delta == pytest.approx(DELTA + 1e-12 * math.exp(epsilon - claim.epsilon), abs=1e-18)
    assert delta > claim.delta


def test_nothing_follows_from_nothing() -> None:
    claim = Guarantee(
        epsilon=math.inf, unit="record", neighbours="zero-out", trust="silo", mechanism="m", reason="the proof fails"
    )
    assert consequences(claim) is None
    assert changed_epsilon(events.NonPrivate("x"), delta=DELTA, change=2) == math.inf
    assert changed_epsilon(events.Gaussian(1.0), delta=0.0, change=2) == math.inf


def test_no_group_is_empty() -> None:
    with pytest.raises(PopulaceError, match="at least 1"):
        changed_epsilon(events.Gaussian(1.0), delta=DELTA, change=0)
