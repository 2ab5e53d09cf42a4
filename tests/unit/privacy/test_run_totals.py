"""Totals over runs: bounds that hold, relations that are not mixed, and the smaller of two compositions."""

import dataclasses
import math

import pytest

from populace.privacy import events
from populace.privacy.accounting import epsilon_of
from populace.privacy.consequences import changed_epsilon
from populace.privacy.guarantee import Guarantee
from populace.privacy.run_totals import Cost, cost_of, shared_relation, total_of

PURE = Cost(epsilon=1.5, event=events.Pure(1.5), unit="client", neighbours="replace", trust="local")
GAUSSIAN = Cost(
    epsilon=epsilon_of(events.Gaussian(2.0), delta=1e-5), delta=1e-5, event=events.Gaussian(2.0), unit="record",
    neighbours="zero-out", trust="silo",
)  # fmt: skip


def total(*costs, unit="record"):
    return total_of(costs, unit=unit, neighbours=shared_relation(costs))


def test_pure_runs_add_and_nothing_costs_nothing():
    assert (total(PURE, PURE, PURE).epsilon, total(PURE, PURE).delta) == (4.5, 0)
    assert (total().epsilon, total().delta) == (0, 0)
    assert total(PURE).neighbours == "replace"


def test_loss_distributions_count_where_they_are_smaller_and_never_below_the_truth():
    both = total(GAUSSIAN, GAUSSIAN)
    assert both.delta == pytest.approx(2e-5)
    assert both.epsilon < 2 * GAUSSIAN.epsilon
    truth = epsilon_of(events.Gaussian(2.0 / math.sqrt(2)), delta=2e-5)  # two Gaussians are one with less noise
    assert both.epsilon == pytest.approx(truth, rel=1e-2)
    assert both.epsilon >= truth * (1 - 1e-3)
    unknown = dataclasses.replace(GAUSSIAN, event=None)
    assert total(GAUSSIAN, unknown).epsilon == pytest.approx(2 * GAUSSIAN.epsilon)  # basic composition


def test_what_samplers_add_grows_with_the_total():
    sampled = dataclasses.replace(GAUSSIAN, delta=1.1e-5, sampling_delta=1e-6)
    both = total(sampled, sampled)
    added = both.delta - 2e-5
    assert added == pytest.approx(2e-6 * math.exp(both.epsilon - sampled.epsilon), rel=1e-6)
    assert added > 2e-6


def test_zero_out_counts_twice_beside_replacement():
    mixed = total(PURE, GAUSSIAN)
    assert mixed.neighbours == "replace"
    assert mixed.epsilon == pytest.approx(1.5 + 2 * GAUSSIAN.epsilon)
    assert mixed.delta == pytest.approx(1e-5 * (1 + math.exp(GAUSSIAN.epsilon)))
    replaced = changed_epsilon(events.Gaussian(2.0), delta=mixed.delta, change="replaced")
    assert mixed.epsilon >= 1.5 + replaced  # group privacy is no less than the loss computed for replacement
    assert total(GAUSSIAN, GAUSSIAN).neighbours == "zero-out"


def test_a_client_with_several_records_bounds_each_of_them():
    client = dataclasses.replace(GAUSSIAN, unit="client", trust="central", records=30)
    assert total(client, unit="client").epsilon == GAUSSIAN.epsilon
    assert (
        total(client, unit="record").epsilon == 2 * GAUSSIAN.epsilon
    )  # its other records stay: taken out and put back
    replaced = dataclasses.replace(PURE, records=30)
    assert total(replaced, unit="record").epsilon == 1.5


def test_what_guarantees_nothing_makes_the_total_infinite():
    nothing = Cost(epsilon=math.inf, unit="client", neighbours="replace", trust="not-private")
    assert total(PURE, nothing).epsilon == math.inf
    assert total(dataclasses.replace(GAUSSIAN, delta=0.6), dataclasses.replace(GAUSSIAN, delta=0.6)).epsilon == math.inf


def test_the_cost_of_a_guarantee():
    claim = Guarantee(epsilon=2.0, unit="client", neighbours="replace", trust="local", mechanism="m", seeded=True)
    cost = cost_of(claim, None, records=7)
    assert (cost.event, cost.seeded, cost.records) == (events.Pure(2.0), True, 7)
    assert cost_of(dataclasses.replace(claim, unit="record"), None, records=7).records == 1
    assert cost_of(dataclasses.replace(claim, epsilon=math.inf, reason="r"), None, records=7).event is None
