"""Schedules: whom each round asks, and that cohorts known ahead are those that are asked."""

import jax
import numpy as np

from populace.methods.blocks.schedules import Subsets
from populace.privacy.source import Keyed


def test_subsets_are_drawn_anew_each_round_by_a_public_coin_and_known_ahead():
    schedule = Subsets(clients=40, cohort_size=6, wanted=200)
    order, source = schedule.start(jax.random.key(3)), Keyed(jax.random.key(0))
    ahead = np.asarray(schedule.cohorts(order, 0, 200))
    for number in (0, 7, 199):
        np.testing.assert_array_equal(schedule.cohort(order, number, source).clients, ahead[number])
    np.testing.assert_array_equal(schedule.cohorts(order, 5, 3), ahead[5:8])
    assert all(len(set(cohort)) == 6 for cohort in ahead.tolist())
    times = np.bincount(ahead.ravel(), minlength=40)
    assert (len(times), times.min() > 0, times.mean()) == (40, True, 30)
    assert (schedule.exchanges, schedule.participations, schedule.secret) == (200, 200, False)
    other = schedule.cohorts(schedule.start(jax.random.key(4)), 0, 200)
    assert (np.asarray(other) != ahead).any(axis=1).all()
