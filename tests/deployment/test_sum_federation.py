"""Secure sums on NVIDIA FLARE: three sites, one of them killed at several moments; nothing is spent, drawn or opened twice."""

import contextlib
import dataclasses
import sqlite3

import numpy as np
import pytest

from builders import leaves
from federation_for_tests import SITES, TestFederation, environment, started, wait_until
from populace.engines import simulation
from populace.engines.flare.session import write_job
from populace.engines.runtime import make_key, population_of
from populace.engines.segment import read_status
from populace.engines.site_file import read_site_file
from populace.methods.census.protocol import Census
from populace.methods.moments.protocol import Moments
from populace.tables.partition import split_silos
from two_stages import two_stage_table

pytest.importorskip("nvflare")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROWS = 80
SIZES = (40, 20, 20)  # of the sites
TABLE = two_stage_table(ROWS)
CENSUS = Census(epsilon=2.0, delta=1e-6, trust="secure-sum", components=3, members=2, fit_steps=10)
MOMENTS = Moments(epsilon=2.0, delta=1e-6, trust="secure-sum", colluders=1)


def running(folder, seed, protocols=(CENSUS, MOMENTS), names=SITES):
    return started(folder, TABLE, protocols, seed=seed, by="site", names=names)


def steps_of(federation, run):
    """All steps in each site's journal, with what was asked and sent."""
    found = {}
    for name, site in federation.sites.items():
        with contextlib.closing(sqlite3.connect(read_site_file(site.file_path).ledger)) as ledger:
            query = "SELECT round, step, request, reply FROM sum_step WHERE run = ? ORDER BY round, step"
            found[name] = ledger.execute(query, (run,)).fetchall()
    return found


def assert_same_numbers(found, wanted):
    for a, b in zip(leaves(found), leaves(wanted), strict=True):
        np.testing.assert_array_equal(a, b)


def stages_of(protocol):
    return protocol.round_count(population_of(split_silos(TABLE, SIZES)))


def test_seeded_sites_end_where_a_simulation_ends_bit_for_bit(tmp_path):
    with running(tmp_path, 5) as federation:
        places = federation.run_all({"census": CENSUS, "moments": MOMENTS})
        for name, protocol in (("census", CENSUS), ("moments", MOMENTS)):
            alone = simulation.run(protocol, split_silos(TABLE, SIZES), root=make_key(5))
            assert_same_numbers(federation.state(places[name]), alone.state)
            assert federation.charges(f"run-{name}") == {site: [stages_of(protocol)] for site in SITES}


def test_ten_sites_end_where_a_simulation_ends_bit_for_bit(tmp_path):
    """Two may collude and one may be missing; nobody is."""
    names = tuple(f"site-{number}" for number in range(10))
    protocols = tuple(dataclasses.replace(one, colluders=2, dropouts=1) for one in (CENSUS, MOMENTS))
    with running(tmp_path, 5, protocols, names) as federation:
        places = federation.run_all(dict(zip(("census", "moments"), protocols, strict=True)))
        for name, protocol in zip(("census", "moments"), protocols, strict=True):
            alone = simulation.run(protocol, split_silos(TABLE, (ROWS // 10,) * 10), root=make_key(5))
            assert_same_numbers(federation.state(places[name]), alone.state)
            rounds = alone.rounds
            assert federation.charges(f"run-{name}") == {site: [rounds] for site in names}


def ledger_of(federation, site):
    return read_site_file(federation.sites[site].file_path).ledger


def has_taken(ledger, step):
    """Whether a site's journal has this step of any sum."""
    with contextlib.closing(sqlite3.connect(ledger, timeout=5.0)) as db, contextlib.suppress(sqlite3.Error):
        return db.execute("SELECT 1 FROM sum_step WHERE step = ?", (step,)).fetchone() is not None
    return False


def assert_went_on(federation, place, run, before):
    """A finished run in which every step, charge and opening happened once, those of before the kill with the same bytes."""
    assert read_status(place)["state"] == "finished"
    after = steps_of(federation, run)
    for site in SITES:
        assert set(before[site]) <= set(after[site])
        assert len(after[site]) == 5 * stages_of(CENSUS)
    assert federation.charges(run) == {site: [stages_of(CENSUS)] for site in SITES}
    assert federation.state(place).learner.messages.tolist() == [3] * stages_of(CENSUS)


@pytest.mark.parametrize("moment", ["before masking", "while masking", "after masking"])
def test_a_site_killed_in_the_middle_of_a_sum_goes_on_with_its_stored_bytes(tmp_path, moment):
    """The noise is the operating system's: what was drawn or masked again would be something else."""
    with running(tmp_path, None) as federation, contextlib.ExitStack() as locks:
        place = federation.plan(CENSUS, "killed", timeout=8.0)
        ledger = ledger_of(federation, "site-2")
        link = federation.federation.connect()
        link.submit(write_job(federation.folder / "job-killed", place))
        wait_until(lambda: has_taken(ledger, "mask" if moment == "after masking" else "share"), place)
        before = steps_of(federation, "killed")
        if moment == "while masking":
            # The site computes its numbers, draws its share, and cannot write them: it dies with them in its hands.
            held = locks.enter_context(contextlib.closing(sqlite3.connect(ledger, timeout=20.0, isolation_level=None)))
            held.execute("BEGIN IMMEDIATE")
            wait_until(lambda: has_taken(ledger_of(federation, "site-1"), "mask"), place)
            assert not has_taken(ledger, "mask")
        federation.kill(federation.sites["site-2"].kit)
        locks.close()
        federation.restart("site-2")
        link.close()
        federation.supervise(place)
        assert_went_on(federation, place, "killed", before)


@pytest.mark.parametrize("step", ["share", "mask", "confirm", "reveal"])
def test_a_coordinator_killed_in_the_middle_of_a_sum_goes_on_with_what_it_decided(tmp_path, step):
    with running(tmp_path, None) as federation:
        place = federation.plan(CENSUS, "orphan", timeout=8.0)
        link = federation.federation.connect()
        link.submit(write_job(federation.folder / "job-orphan", place))
        wait_until(lambda: has_taken(ledger_of(federation, "site-2"), step), place)
        federation.kill(federation.federation.server_kit)
        before = steps_of(federation, "orphan")
        link.close()
        assert read_status(place)["state"] != "finished"
        federation.federation.start()
        federation.wait_for(SITES)
        federation.supervise(place)
        assert_went_on(federation, place, "orphan", before)


def test_a_site_refuses_to_join_where_its_key_is_not_its_own(tmp_path):
    from populace.errors import InputError
    from populace.federation.coordinator import read_proposal
    from populace.federation.site import Hosting

    with environment():
        federation = TestFederation(tmp_path, TABLE, [CENSUS], seed=None, by="site")
        site = federation.sites["site-1"]
        proposal = read_proposal(federation.federation.proposal_path)
        swapped = dataclasses.replace(
            proposal.agreement.roster,
            members=(
                dataclasses.replace(proposal.agreement.roster.members[0], key="0" * 64),
                *proposal.agreement.roster.members[1:],
            ),
        )
        agreement = dataclasses.replace(proposal.agreement, roster=swapped)
        hosting = Hosting(data=tmp_path / "site-1.parquet", by="site", epsilon=9.0, delta=1e-3)
        with pytest.raises(InputError, match="with its own key"):
            site.set_up(
                federation.federation.path / "sites" / "site-1.signed.zip",
                dataclasses.replace(proposal, agreement=agreement), hosting, fingerprint=federation.fingerprint,
            )  # fmt: skip
        with pytest.raises(InputError, match="join with --whole"):
            site.set_up(
                federation.federation.path / "sites" / "site-1.signed.zip", proposal,
                dataclasses.replace(hosting, by="rows"), fingerprint=federation.fingerprint,
            )  # fmt: skip
