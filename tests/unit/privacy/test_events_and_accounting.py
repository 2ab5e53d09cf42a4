"""Events are data; accounting interprets them through dp-accounting."""

import json
import math

import pytest

from populace.errors import SpecError
from populace.privacy import events
from populace.privacy.accounting import (
    default_delta,
    epsilon_of,
    noise_multiplier_for,
    sampled_gaussian,
    steps_for,
)  # fmt: skip
from populace.privacy.events import Composed, Gaussian, NonPrivate, PoissonSampled, Pure, Repeated

EXAMPLES = [
    Pure(1.5),
    Gaussian(2.0),
    PoissonSampled(0.1, Gaussian(1.0)),
    Repeated(PoissonSampled(0.1, Gaussian(1.0)), 7),
    Composed((Pure(1.0), Repeated(Gaussian(3.0), 2))),
    NonPrivate("an encoder without noise"),
]


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_json_round_trip(event):
    assert events.from_json(json.loads(json.dumps(events.to_json(event)))) == event


def test_unknown_event_is_refused():
    with pytest.raises(SpecError, match="expected an event in"):
        events.from_json({"kind": "Magic"})


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_pure_needs_a_finite_positive_epsilon(epsilon):
    with pytest.raises(SpecError, match="epsilon"):
        Pure(epsilon)


def test_pure_events_add_up_exactly():
    assert epsilon_of(Composed((Pure(1.0), Repeated(Pure(0.5), 4))), delta=0.0) == 3.0


def test_pure_events_compose_better_with_a_delta_and_never_worse_than_the_sum():
    many = Repeated(Pure(0.1), 200)
    assert epsilon_of(many, delta=1e-5) < 0.5 * 20.0
    assert epsilon_of(Pure(1.0), delta=1e-9) <= 1.0


def test_gaussian_against_a_known_value():
    # A single Gaussian with multiplier 1 at delta 1e-5 has epsilon 4.377 (Balle and Wang 2018, by bisection).
    assert epsilon_of(Gaussian(1.0), delta=1e-5) == pytest.approx(4.377, abs=2e-3)


def test_tutorial_value_pld_below_rdp():
    # The well-known tutorial setting: q = 256/60000, sigma 1.1, 60 epochs.
    event = sampled_gaussian(noise_multiplier=1.1, probability=256 / 60000, steps=60 * 60000 // 256)
    pld, rdp = epsilon_of(event, delta=1e-5), epsilon_of(event, delta=1e-5, accountant="rdp")
    assert pld == pytest.approx(2.38, abs=0.02)
    assert rdp == pytest.approx(2.60, abs=0.02)


def test_non_private_is_infinite_wherever_it_stands():
    assert epsilon_of(Composed((Pure(1.0), Repeated(NonPrivate("no noise"), 3))), delta=1e-5) == math.inf
    assert epsilon_of(Gaussian(1.0), delta=0.0) == math.inf


@pytest.mark.parametrize(
    ("epsilon", "probability", "steps"), [(1.0, 1.0, 1), (3.0, 0.1, 20), (0.2, 1.0, 3), (0.002, 1.0, 1)]
)
def test_calibration_is_tight_from_below(epsilon, probability, steps):
    noise = noise_multiplier_for(epsilon=epsilon, delta=1e-5, probability=probability, steps=steps)
    at = epsilon_of(sampled_gaussian(noise_multiplier=noise, probability=probability, steps=steps), delta=1e-5)
    less = epsilon_of(sampled_gaussian(noise_multiplier=0.99 * noise, probability=probability, steps=steps), delta=1e-5)
    assert at <= epsilon < less


def test_steps_for_is_the_last_that_fits():
    steps = steps_for(epsilon=2.0, delta=1e-5, noise_multiplier=1.5, probability=0.1)
    fits = epsilon_of(sampled_gaussian(noise_multiplier=1.5, probability=0.1, steps=steps), delta=1e-5)
    over = epsilon_of(sampled_gaussian(noise_multiplier=1.5, probability=0.1, steps=steps + 1), delta=1e-5)
    assert fits <= 2.0 < over
    assert steps_for(epsilon=0.01, delta=1e-5, noise_multiplier=0.5, probability=1.0) == 0


def test_default_delta():
    assert default_delta(100) == 1e-5
    assert default_delta(10**6) == pytest.approx(10**-6.6)
