"""The VAE methods over sites: the replies of a simulation, and encoders that survive a restart of their site."""

import dataclasses
import sqlite3

import jax
import numpy as np
import pytest

from populace.engines import simulation
from populace.engines.runtime import population_of
from populace.errors import RunError
from populace.methods.vae.c_dpd_vae import CDpdVae
from populace.methods.vae.central_vae import CentralVae
from populace.methods.vae.fed_vae import FedVae
from populace.methods.vae.l_dpd_vae import LDpdVae
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.partition import split

RECORDS = 2
TINY = {"hidden_size": 3, "latent_size": 2}
LOCAL = LDpdVae(
    epsilon=4.0, encoder="joint", participations=3, batch_size=1, clip_norm=0.3, encoder_learning_rate=0.5,
    server_optimizer="sgd", server_learning_rate=1.0,
    ema_decay=0.0, **TINY,
)  # fmt: skip
CENTRAL = CDpdVae(epsilon=2.0, rounds=3, sampling_rate=0.6, local_epochs=1, batch_size=RECORDS, ema_decay=0.0, **TINY)
FEDERATED = FedVae(rounds=3, sampling_rate=1.0, local_epochs=1, batch_size=RECORDS, **TINY)
POOLED = CentralVae(training_steps=2, **TINY)


@pytest.fixture(scope="module")
def eight(rows):
    return rows.take(np.arange(8))


@pytest.fixture
def federation(eight, make_sites):
    """Three sites of two, one and one clients, whose ledgers allow what the method claims."""

    def make(protocol):
        claim = protocol.guarantee(population_of(split(eight, records_per_client=RECORDS)))
        return make_sites(eight, protocol, records=RECORDS, epsilon=claim.epsilon, delta=claim.delta, unit=claim.unit)

    return make


@pytest.fixture(scope="module")
def simulated(eight):
    """What a simulation from the same key ends with."""
    found = {}

    def run(protocol):
        if protocol not in found:
            clients = split(eight, records_per_client=RECORDS)
            found[protocol] = simulation.run(protocol, clients, root=jax.random.key(5), compiled=False)
        return found[protocol]

    return run


def assert_same(state, other):
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True):
        if not jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(
    "protocol",
    [LOCAL, CENTRAL, pytest.param(FEDERATED, marks=pytest.mark.slow), POOLED],
    ids=lambda protocol: protocol.facts.name,
)
def test_sites_end_where_a_simulation_ends(protocol, eight, federation, make_coordinator, simulated):
    sites = federation(protocol)
    found = make_coordinator(eight, protocol, sites).go()
    wanted = simulated(protocol)
    assert found.over
    assert_same(found.state, wanted.state)
    assert found.ledger.spent() == wanted.ledger.spent()
    for site in sites.values():
        with SqliteLedger(site.ledger_path, site.budget) as ledger:
            assert {ledger.entries(account) for account in site.hosted.accounts} == {wanted.rounds}


def stored(site):
    with SqliteLedger(site.ledger_path, site.budget) as ledger:
        return [ledger.memory(account, run="run-1") for account in site.hosted.accounts]


@pytest.mark.parametrize("protocol", [LOCAL, CENTRAL], ids=lambda protocol: protocol.facts.name)
def test_encoders_survive_a_restart_of_their_site(protocol, eight, federation, make_coordinator, simulated):
    """A new site on the same ledger after every round; the coordinator goes on from its checkpoint."""
    sites = federation(protocol)
    before = None
    for _ in range(3):
        sites = {name: dataclasses.replace(site) for name, site in sites.items()}
        found = make_coordinator(eight, protocol, sites).go(lambda _: False)
        after = [stored(site) for site in sites.values()]
        assert after != before
        before = after
    assert make_coordinator(eight, protocol, sites).go().over
    assert_same(found.state, simulated(protocol).state)


def test_a_site_that_forgot_its_encoders_would_end_elsewhere(eight, federation, make_coordinator, simulated):
    """So the comparison above does look at them."""
    sites = federation(LOCAL)
    make_coordinator(eight, LOCAL, sites).go(lambda _: False)
    for site in sites.values():
        with sqlite3.connect(site.ledger_path) as raw:
            raw.execute("DELETE FROM memory")
        raw.close()
    found = make_coordinator(eight, LOCAL, sites).go()
    assert np.abs(found.state.learner.theta - simulated(LOCAL).state.learner.theta).max() > 1e-4


def test_a_site_refuses_the_round_that_would_overspend(eight, make_sites, make_coordinator):
    """Its ledger allows the claim of two participations; the third round of the coordinator's plan hears nobody."""
    two = dataclasses.replace(LOCAL, participations=2, noise_multiplier=LOCAL.calibrated_noise(_population(eight)))
    claim = two.guarantee(_population(eight))
    sites = make_sites(eight, LOCAL, records=RECORDS, epsilon=claim.epsilon, delta=claim.delta, unit=claim.unit)
    seen = []
    with pytest.raises(RunError, match="quorum"):
        make_coordinator(eight, LOCAL, sites).go(lambda at: seen.append(sum(at.replies.values())) or True)
    assert seen == [4, 4]


def _population(table):
    return population_of(split(table, records_per_client=RECORDS))
