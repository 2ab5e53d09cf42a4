"""Sites and agreements for the tests of deployment."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from populace.engines.agreement import Agreement
from populace.engines.checkpoint import Checkpoint
from populace.engines.coordinator import Coordinator
from populace.engines.link import InProcess
from populace.engines.roster import enrol
from populace.engines.site import Hosted, Site
from populace.privacy.ledger import Budget
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.partition import split

ROWS = 12  # over all sites
SEED = 5


@pytest.fixture(scope="session")
def rows(small_table):
    return small_table.take(np.arange(ROWS))


@pytest.fixture
def make_site(tmp_path):
    """A site over some rows, one client per row (or per `records` rows), with its ledger in the test's folder."""

    def make(table, protocol, *, name="site", epsilon=2.0, delta=0.0, unit="client", seed=SEED, records=1, log=None):
        agreement = Agreement(protocol=protocol, schema=table.schema)
        clients = split(table, records_per_client=records)
        budget = Budget(epsilon=epsilon, delta=delta, unit=unit)
        SqliteLedger(tmp_path / f"{name}.sqlite", budget).close()  # as joining does
        return Site(
            hosted=Hosted(
                clients=clients, accounts=tuple(f"row {i + 1}" for i in range(len(clients))), records=clients.widest
            ),
            agreements={agreement.digest: agreement},
            ledger_path=tmp_path / f"{name}.sqlite",
            budget=budget,
            root=None if seed is None else jax.random.key(seed),
            log=log or (lambda _: None),
        )

    return make


@pytest.fixture
def make_sites(make_site):
    """Three sites that share a table, in unequal parts."""

    def make(table, protocol, **options):
        edges = (0, len(table) // 2, 3 * len(table) // 4, len(table))
        return {
            f"site-{i + 1}": make_site(table.take(np.arange(low, high)), protocol, name=f"site-{i + 1}", **options)
            for i, (low, high) in enumerate(itertools.pairwise(edges))
        }

    return make


@pytest.fixture
def make_coordinator(tmp_path):
    """The loop over sites in this process."""

    def make(table, protocol, link, *, seed=SEED, patience=0.0, run="run-1", roster=None, seeded=True):
        agreement = Agreement(protocol=protocol, schema=table.schema)
        link = link if hasattr(link, "exchange") else InProcess({name: site.reply for name, site in link.items()})
        roster = roster or enrol(agreement, link, run=run, least=1, timeout=1.0)
        return Coordinator(
            agreement=agreement, roster=roster, link=link, run=run, root=jax.random.key(seed),
            checkpoint=Checkpoint(tmp_path / f"{run}.npz"), timeout=1.0, patience=patience, seeded=seeded,
        )  # fmt: skip

    return make
