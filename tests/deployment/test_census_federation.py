"""`census` on NVIDIA FLARE: three sites, one of them killed between stages; nothing is spent or drawn twice."""

import contextlib
import json
import sqlite3
import threading

import numpy as np
import pytest

from builders import leaves
from federation_for_tests import SITES, started, wait_until
from populace.engines import simulation
from populace.engines.flare.session import write_job
from populace.engines.runtime import make_key, population_of
from populace.engines.segment import read_status
from populace.engines.site_file import read_site_file
from populace.federation.supervisor import Options, run_federation
from populace.methods.census.protocol import Census
from populace.report.statement import write_statement
from populace.runs.verify.checks import read_papers, verify_papers
from populace.tables.files import read_json
from populace.tables.partition import split_silos
from two_stages import two_stage_table

pytest.importorskip("nvflare")
pytestmark = [
    pytest.mark.slow,
    # As in the other federations: sockets that nvflare leaves open are collected while a later test runs.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROWS = 80
SIZES = (40, 20, 20)  # of the sites
TABLE = two_stage_table(ROWS)
PROTOCOL = Census(epsilon=2.0, delta=1e-6, components=3, members=2, fit_steps=10)


@pytest.fixture(scope="module")
def stages():
    found = PROTOCOL.round_count(population_of(split_silos(TABLE, SIZES)))
    assert found >= 2
    return found


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Sites whose noise is the operating system's: what was drawn again would be something else."""
    with started(tmp_path_factory.mktemp("census"), TABLE, [PROTOCOL], seed=None, by="site") as made:
        yield made


def stop_after_first_stage(place):
    """Let the segment that is under way end after the stage it is in."""
    wait_until(lambda: read_status(place)["state"] == "running", place)
    (place / "stop").touch()
    wait_until(lambda: read_status(place)["state"] == "interrupted", place)
    assert read_status(place)["round"] == 1


def run_first_stage(federation, place):
    link = federation.federation.connect()
    try:
        job = link.submit(write_job(federation.folder / f"job-{place.name}", place))
        stop_after_first_stage(place)
        wait_until(lambda: link.over(job), place)
    finally:
        link.close()


def kill_and_restart(federation, site):
    """kill -9, and wait until the server knows the new process."""
    federation.kill(federation.sites[site].kit)
    federation.restart(site)


def forget(place):
    """The coordinator loses all that it heard."""
    for name in ("checkpoint.npz", "status.json"):
        (place / name).unlink()


def entries(federation, run):
    """All lines of each site's ledger about a run, replies included."""
    found = {}
    for name, site in federation.sites.items():
        with contextlib.closing(sqlite3.connect(read_site_file(site.file_path).ledger)) as ledger:
            found[name] = ledger.execute("SELECT id, account, round, reply FROM entry WHERE run = ?", (run,)).fetchall()
    return found


def assert_same_numbers(found, wanted):
    for a, b in zip(leaves(found), leaves(wanted), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_site_killed_between_stages_leaves_no_trace_in_the_result(tmp_path, stages):
    """Seeded sites: the end is that of a simulation, in which nobody died."""
    with started(tmp_path, TABLE, [PROTOCOL], seed=5, by="site") as federation:
        place = federation.plan(PROTOCOL, "killed")
        run_first_stage(federation, place)
        kill_and_restart(federation, "site-2")
        federation.supervise(place)
        assert read_status(place)["state"] == "finished"
        found = federation.state(place)
        assert federation.charges("killed") == {site: [stages] for site in SITES}
    undisturbed = simulation.run(PROTOCOL, split_silos(TABLE, SIZES), root=make_key(5))
    assert_same_numbers(found, undisturbed.state)


def test_replies_that_were_lost_are_sent_again_and_not_drawn_again(federation, stages):
    """The first stage's replies are lost while a site dies; then, at the end, those of all stages."""
    place = federation.plan(PROTOCOL, "lost")
    run_first_stage(federation, place)
    paid = entries(federation, "lost")
    assert {site: len(lines) for site, lines in paid.items()} == dict.fromkeys(SITES, 1)
    forget(place)
    kill_and_restart(federation, "site-2")
    federation.supervise(place)
    first, paid_in_all = federation.state(place), entries(federation, "lost")
    assert {site: lines[:1] for site, lines in paid_in_all.items()} == paid
    assert federation.charges("lost") == {site: [stages] for site in SITES}
    forget(place)
    federation.supervise(place)
    assert_same_numbers(federation.state(place), first)
    assert entries(federation, "lost") == paid_in_all


def test_a_site_that_stays_away_is_missing_from_later_stages_and_the_run_says_so(federation, stages, tmp_path):
    out, options = tmp_path / "run", Options(least=len(SITES), timeout=6.0, patience=150.0)
    command = threading.Thread(
        target=run_federation, args=(federation.federation, out), kwargs={"rows": 60, "seed": None, "options": options}
    )
    command.start()
    try:
        wait_until((out / "run.json").is_file, out)
        place = federation.federation.run_folder(read_json(out / "run.json")["spec"]["run"])
        stop_after_first_stage(place)
        federation.kill(federation.sites["site-3"].kit)
        command.join(timeout=240)
        assert not command.is_alive()
    finally:
        federation.sites["site-3"].start()
        federation.wait_for(SITES)
    expected = {"site-1": stages, "site-2": stages, "site-3": 1}
    assert federation.charges(place.name) == {site: [count] for site, count in expected.items()}
    rounds = [json.loads(line) for line in (place / "rounds.jsonl").read_text().splitlines()]
    assert [sum(line["replies"].values()) for line in rounds] == [3] + [2] * (stages - 1)
    assert federation.state(place).learner.messages.tolist() == [3] + [2] * (stages - 1)
    document = read_json(out / "run.json")
    assert {site: one["replies_in_all"] for site, one in document["sites"].items()} == expected
    write_statement(out)
    assert "3 of 3 clients answered" in (out / "privacy.html").read_text()
    assert [check for check in verify_papers(read_papers(out)) if check.result == "fails"] == []
