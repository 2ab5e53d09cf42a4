"""DP-GenFL over sites that host images: all ends where a simulation ends, and generators survive a restart of their site."""

import dataclasses
import itertools
import sqlite3

import jax
import numpy as np
import pytest

from populace.engines import simulation
from populace.engines.agreement import Agreement
from populace.engines.checkpoint import Checkpoint
from populace.engines.coordinator import Coordinator
from populace.engines.link import InProcess
from populace.engines.roster import enrol
from populace.engines.runtime import population_of
from populace.engines.site import Hosted, Site
from populace.methods.genfl.protocol import DpFl, GenFl
from populace.privacy.ledger import Budget
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.images import Images
from populace.tables.partition import split

RECORDS, LABELS, SEED = 4, 2, 5
TINY = {
    "rounds": 2,
    "batch_size": 4,
    "features": 1,
    "hidden_size": 3,
    "critic_hidden_size": 3,
    "latent_size": 2,
    "basis_size": 2,
}
MIXED = GenFl(epsilon=2.0, synthetic_share=0.5, generator_steps=1, critic_steps=2, gan_batch_size=2, **TINY)
ALONE = DpFl(epsilon=2.0, **TINY)


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    return Images(x=rng.integers(0, 256, (16, 5, 5)).astype(np.uint8), y=np.arange(16) % LABELS, classes=LABELS)


def clients_of(images):
    return split(images, records_per_client=RECORDS)


@pytest.fixture
def federation(images, tmp_path):
    """Three sites of two, one and one clients, whose ledgers allow what the method claims."""

    def make(protocol):
        population = population_of(clients_of(images))
        agreement, claim = Agreement(protocol=protocol, schema=population.schema), protocol.guarantee(population)
        budget = Budget(epsilon=claim.epsilon, delta=claim.delta, unit=claim.unit)
        sites = {}
        for number, (low, high) in enumerate(itertools.pairwise((0, 8, 12, 16)), start=1):
            path = tmp_path / f"site-{number}.sqlite"
            SqliteLedger(path, budget).close()
            clients = clients_of(images.take(np.arange(low, high)))
            accounts = tuple(f"client {place + 1}" for place in range(len(clients)))
            sites[f"site-{number}"] = Site(
                hosted=Hosted(clients=clients, accounts=accounts, records=clients.widest), ledger_path=path, budget=budget,
                agreements={agreement.digest: agreement}, root=jax.random.key(SEED),
            )  # fmt: skip
        return sites

    return make


@pytest.fixture
def coordinator(images, tmp_path):
    def make(protocol, sites):
        agreement = Agreement(protocol=protocol, schema=population_of(clients_of(images)).schema)
        link = InProcess({name: site.reply for name, site in sites.items()})
        return Coordinator(
            agreement=agreement, roster=enrol(agreement, link, run="run-1", least=1, timeout=1.0), link=link, run="run-1",
            root=jax.random.key(SEED), checkpoint=Checkpoint(tmp_path / "run-1.npz"), timeout=1.0, patience=0.0, seeded=True,
        )  # fmt: skip

    return make


@pytest.fixture(scope="module")
def simulated(images):
    found = {}

    def run(protocol):
        if protocol not in found:
            found[protocol] = simulation.run(protocol, clients_of(images), root=jax.random.key(SEED))
        return found[protocol]

    return run


def assert_same(state, other):
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True):
        if not jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(a, b, atol=1e-4)


def stored(site):
    with SqliteLedger(site.ledger_path, site.budget) as ledger:
        return [ledger.memory(account, run="run-1") for account in site.hosted.accounts]


@pytest.mark.parametrize(
    "protocol", [pytest.param(MIXED, marks=pytest.mark.slow), ALONE], ids=lambda protocol: protocol.facts.name
)
def test_sites_end_where_a_simulation_ends(protocol, federation, coordinator, simulated):
    sites = federation(protocol)
    found, wanted = coordinator(protocol, sites).go(), simulated(protocol)
    assert found.over
    assert_same(found.state, wanted.state)
    assert found.ledger.spent() == wanted.ledger.spent()
    assert wanted.rounds == (3 if protocol is MIXED else 2)
    for site in sites.values():
        with SqliteLedger(site.ledger_path, site.budget) as ledger:
            assert {ledger.entries(account) for account in site.hosted.accounts} == {wanted.rounds}


@pytest.mark.slow
def test_generators_survive_a_restart_of_their_site(federation, coordinator, simulated):
    """A new site on the same ledger after every round; generators are made in the first and kept."""
    sites, kept = federation(MIXED), []
    for _ in range(simulated(MIXED).rounds):
        sites = {name: dataclasses.replace(site) for name, site in sites.items()}
        found = coordinator(MIXED, sites).go(lambda _: False)
        kept.append([stored(site) for site in sites.values()])
    assert all(memory for site in kept[0] for memory in site)
    assert kept[0] == kept[1] == kept[2]
    assert coordinator(MIXED, sites).go().over
    assert_same(found.state, simulated(MIXED).state)


def test_a_site_that_forgot_its_generators_would_end_elsewhere(federation, coordinator, simulated):
    """So the comparison above does look at them."""
    sites = federation(MIXED)
    coordinator(MIXED, sites).go(lambda _: False)
    for site in sites.values():
        with sqlite3.connect(site.ledger_path) as raw:
            raw.execute("DELETE FROM memory")
        raw.close()
    found = coordinator(MIXED, sites).go()
    assert np.abs(found.state.learner.weights - simulated(MIXED).state.learner.weights).max() > 1e-4
