"""poll: its questions follow from public facts, and with little noise it finds the dependence that is there."""

import itertools
import math

import jax
import numpy as np
import pytest

from populace.engines import simulation
from populace.engines.exchange import population_of
from populace.errors import SpecError
from populace.evaluation.marginals import mean_over_pairs, two_way_distances
from populace.protocols.independent import Independent
from populace.protocols.poll import Poll, information, questions_for
from populace.tables.partition import split

BINARY = (2,) * 30


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0])
@pytest.mark.parametrize("target", [None, 3])
@pytest.mark.parametrize("sizes", [BINARY, (7, 16, 7, 14, 6, 5, 2, 41, 2), (3, 5, 2), (1, 900, 2, 2)])
def test_every_column_is_asked_and_the_target_in_every_question(sizes, epsilon, target):
    if target is not None and target >= len(sizes):
        target = 0
    groups = questions_for(sizes, epsilon, target)
    assert set(itertools.chain(*groups)) == set(range(len(sizes)))
    assert len(set(groups)) == len(groups)
    if target is not None:
        assert all(target in group for group in groups)
    assert groups == questions_for(sizes, epsilon, target)


def test_larger_epsilons_ask_about_more_columns():
    widths = [max(len(g) for g in questions_for(BINARY, epsilon, None)) for epsilon in (1.0, 2.0, 4.0, 8.0)]
    assert widths == sorted(widths)
    assert widths[0] <= 3
    assert widths[-1] >= 7


def test_information_falls_with_the_table_and_rises_with_epsilon():
    assert information(1, 1.0) == 0
    assert 0 < information(100, 1.0) < information(4, 1.0) < information(4, 4.0) < 1
    assert math.isclose(information(4, 20.0), 1, rel_tol=1e-3)


def test_with_little_noise_it_finds_the_dependence_independence_misses(small_table):
    table = small_table.take(np.random.default_rng(0).integers(0, len(small_table), 4_000))
    clients = split(table)
    poll = Poll(epsilon=12.0, classes=8, pull=0.1, members=1)
    found = simulation.run(poll, clients, root=jax.random.key(0)).generator.sample(4_000, jax.random.key(1))
    plain = simulation.run(Independent(epsilon=12.0), clients, root=jax.random.key(0)).generator
    near = mean_over_pairs(two_way_distances(table, found))
    far = mean_over_pairs(two_way_distances(table, plain.sample(4_000, jax.random.key(1))))
    assert near < 0.06
    assert far > 2 * near


def test_settings_are_chosen_from_the_answers_and_messages_stay_small(small_table):
    clients = split(small_table)
    population = population_of(clients)
    poll = Poll(epsilon=3.0, classes=2, members=1)
    assert poll.survey(population).groups == questions_for(population.table_schema.sizes, 3.0, 3)
    assert all(member.wire_bytes <= 32 for member in poll.survey(population).panel.members)
    outcome = simulation.run(poll, clients, root=jax.random.key(0))
    assert len(outcome.generator.weights) == 2


def test_bad_parameters_are_one_sentence():
    for wrong in ({"classes": -1}, {"members": 0}, {"batch": 0}, {"pull": -2.0}):
        with pytest.raises(SpecError):
            Poll(epsilon=1.0, **wrong)
