"""What a whole run costs, told before it begins, is what its ledger books and what its claim says."""

import jax
import numpy as np
import pytest

from builders import Diary, mark_slow, small_protocol
from populace.engines import simulation
from populace.engines.runtime import population_of
from populace.errors import SpecError
from populace.privacy.accounting import epsilon_of
from populace.tables.partition import split

NAMES = ("fl-gan", "fedavg-gan", "c-dpd-vae", "moments", "independent", "krr")


@pytest.mark.parametrize("name", mark_slow(NAMES, ("fl-gan", "fedavg-gan")))
def test_told_before_as_booked_after(name, small_table):
    clients = split(small_table.take(np.arange(10)), records_per_client=2)
    protocol = small_protocol(name)
    claim, event = protocol.guarantee(population_of(clients)), protocol.spends(population_of(clients))
    assert epsilon_of(event, delta=claim.accounted_delta) == pytest.approx(claim.epsilon, rel=1e-9)
    booked = simulation.run(protocol, clients, root=jax.random.key(0)).ledger.worst_event()
    assert epsilon_of(booked, delta=claim.accounted_delta) == pytest.approx(claim.epsilon, rel=1e-6)


def test_a_method_that_is_no_composition_may_tell_epsilon_alone(small_table):
    with pytest.raises(SpecError, match="epsilon alone"):
        Diary().spends(population_of(split(small_table.take(np.arange(10)))))
