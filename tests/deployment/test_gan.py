"""The GANs over sites: the model travels, every silo's ledger is charged once, and all ends where a simulation ends."""

import dataclasses

import jax
import numpy as np
import pytest

from populace.engines import simulation
from populace.engines.runtime import population_of
from populace.methods.gan.fedavg_gan import FedAvgGan
from populace.methods.gan.fl_gan import UflGan
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.partition import split

RECORDS = 2
TINY = {"hidden_size": 3, "critic_hidden_size": 3, "latent_size": 2, "batch_size": 1}
TRAVELS = UflGan(epsilon=4.0, generator_steps=1, critic_steps=2, **TINY)
AVERAGED = FedAvgGan(epsilon=4.0, rounds=2, local_steps=1, **TINY)


@pytest.fixture(scope="module")
def eight(rows):
    return rows.take(np.arange(8))


@pytest.mark.parametrize(
    "protocol", [pytest.param(TRAVELS, marks=pytest.mark.slow), AVERAGED], ids=lambda protocol: protocol.facts.name
)
def test_sites_end_where_a_simulation_ends(protocol, eight, make_sites, make_coordinator):
    clients = split(eight, records_per_client=RECORDS)
    claim = protocol.guarantee(population_of(clients))
    sites = make_sites(eight, protocol, records=RECORDS, epsilon=claim.epsilon, delta=claim.delta, unit=claim.unit)
    wanted = simulation.run(protocol, clients, root=jax.random.key(5))
    if protocol is TRAVELS:  # a new site on the same ledger after the first visit: the model is with the coordinator
        assert not make_coordinator(eight, protocol, sites).go(lambda _: False).over
        sites = {name: dataclasses.replace(site) for name, site in sites.items()}
    found = make_coordinator(eight, protocol, sites).go()
    assert found.over
    for a, b in zip(jax.tree.leaves(found.state), jax.tree.leaves(wanted.state), strict=True):
        if not jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(a, b, atol=1e-4)
    assert found.ledger.spent() == wanted.ledger.spent()
    visits = 1 if protocol is TRAVELS else wanted.rounds
    for site in sites.values():
        with SqliteLedger(site.ledger_path, site.budget) as ledger:
            assert {ledger.entries(account) for account in site.hosted.accounts} == {visits}
