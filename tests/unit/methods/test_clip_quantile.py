"""`c-dpd-vae` with a clipping norm that follows a quantile: what one client adds to vector and count, and what it may add."""

import dataclasses

import jax
import numpy as np
import pytest

from builders import small_protocol
from populace.engines.runtime import padded_shard, population_of
from populace.privacy.source import Keyed
from populace.tables.partition import split


def messages_of(protocol, clients):
    """What a client sends with its records, and with nothing in their place."""
    population = population_of(clients)
    learner = protocol.parts(population).learner
    question = learner.question(learner.begin(jax.random.key(1)), 0)
    shard = padded_shard(clients, 0, population)
    empty = dataclasses.replace(shard, mask=np.zeros_like(np.asarray(shard.mask)))
    for one in (shard, empty):
        source = Keyed(jax.random.key(7))
        yield learner.answer_and_keep(question, np.True_, one, learner.remember(), source)[0]


@pytest.mark.parametrize("trust", ["central", "secure-sum"])
def test_who_has_nothing_adds_nothing_to_the_count(trust, small_table):
    """Long updates count -1/2. Nothing counted as a short one, +1/2, would be twice what is accounted for."""
    protocol = small_protocol("c-dpd-vae", 8.0, trust=trust, sampling_rate=1.0, clip_quantile=0.5, clip_norm=1e-3)
    clients = split(small_table.take(np.arange(12)), records_per_client=2)
    steps = protocol.parts(population_of(clients)).release.steps
    full, empty = messages_of(protocol, clients)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(empty))
    grid = steps.mechanism.grid
    moved = np.linalg.norm(np.asarray(full["change"], np.float64) * grid)
    assert 0.5 < moved <= steps.mechanism.sensitivity
    if trust == "central":
        assert float(full["below"]) == -0.5
        assert steps.count.bound == 0.5
    else:
        assert np.asarray(full["change"])[-1] * grid == pytest.approx(-0.5 * steps.count_weight, abs=grid)
