"""The noise that FLAIM's server adds: its scale is the one that is booked; one that is off by a tenth is noticed."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats

from builders import small_schema
from populace.methods.base import Population
from populace.methods.flaim.protocol import Flaim
from populace.privacy.events import Composed, Gaussian, Pure
from populace.privacy.source import Keyed, System

RUNS = 400
ACCEPT, REJECT = 1e-6, 1e-8  # p-values: the operating system's draws differ each time


def learner_of(variant):
    return (
        Flaim(epsilon=1.0, variant=variant, rounds=3)
        .parts(Population(schema=small_schema(), clients=4, records=50))
        .learner
    )


def source_of(face, seed):
    return System() if face == "system" else Keyed(jax.random.key(seed))


def first_noise(learner, face):
    """The noise on counts of columns, from states after a first exchange without a record."""
    state, nobody = learner.begin(None), np.zeros((4, learner.workload.one_way_cells), np.int32)
    found = []
    for seed in range(RUNS):
        after = learner._absorb_columns(state, np.arange(4), nobody, source_of(face, seed))
        found.append(after.weighted[: learner.workload.one_way_cells] / after.records.sum())
    return np.concatenate(found)


def later_noise(learner, face):
    """The noise on the cells of one marginal that all clients chose, and of the columns where they are measured again."""
    chosen = int(learner.workload.cells.argmax())
    state = learner._add(
        learner.begin(None), np.zeros(learner.workload.total_cells), np.zeros(len(learner.workload.sets))
    )
    state.records[:] = 10.0
    values = {
        "choice": np.full(4, chosen),
        "table": np.zeros((4, learner.workload.widest), np.int32),
        "one_way": np.zeros((4, learner.workload.one_way_cells), np.int32),
    }
    found = []
    for seed in range(RUNS):
        after = learner._absorb_choices(state, np.arange(4), values, 1, source_of(face, seed))
        measured = after.precision > 0
        assert measured[chosen]
        assert measured[: len(learner.workload.sizes)].all() == learner.augmented
        found.append(after.weighted[measured[learner.workload.set_of_cell]] / 40)
    return np.concatenate(found)


@pytest.mark.parametrize("face", ["keyed", "system"])
@pytest.mark.parametrize("variant", ["naive", "augmented"])
@pytest.mark.parametrize("noise", [first_noise, later_noise])
def test_the_scale_of_the_noise_is_what_is_booked(noise, variant, face):
    learner = learner_of(variant)
    number = int(noise is later_noise)
    event = learner.release.event(number)
    gaussian = event.events[1] if isinstance(event, Composed) else event
    assert isinstance(gaussian, Gaussian)
    tables = 5 if variant == "augmented" or number == 0 else 1
    booked = gaussian.noise_multiplier * tables**0.5
    found = noise(learner, face)

    def p_value(deviation):
        """Of the sum of squares, either way; rounding to whole numbers adds a twelfth."""
        total = float((found**2).sum()) / (deviation**2 + 1 / 12)
        return 2 * min(stats.chi2.cdf(total, len(found)), stats.chi2.sf(total, len(found)))

    assert p_value(booked) > ACCEPT
    for wrong in (0.9, 1.1):
        assert p_value(wrong * booked) < REJECT
    assert abs(found.mean()) < 6 * booked / len(found) ** 0.5


def test_a_choice_is_booked_with_the_epsilon_of_its_mechanism():
    release = learner_of("augmented").release
    assert release.event(2).events[0] == Pure(release.choice.epsilon) == release.choice.event
