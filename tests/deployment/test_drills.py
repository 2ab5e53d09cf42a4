"""Kill drills: a site, the coordinator, everything, in mid-run; a site that hangs. Nothing is spent twice."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import psutil
import pytest

from federation_for_tests import TestFederation, environment
from populace.engines import simulation
from populace.engines.flare import processes
from populace.engines.runtime import make_key
from populace.engines.segment import read_plan, read_status
from populace.methods.registry import make_protocol
from populace.tables.files import read_json
from populace.tables.partition import split

pytest.importorskip("nvflare")
pytestmark = [
    pytest.mark.slow,
    # FLARE's client leaves a socket to a server that was killed to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROWS = 40
PROTOCOL = make_protocol(
    "independent", {"epsilon": 2.0, "clients_per_batch": 1}
)  # one client a round: who is killed is missed


@pytest.fixture(scope="module")
def federation(small_table, tmp_path_factory):
    with environment():
        made = TestFederation(tmp_path_factory.mktemp("drills"), small_table.take(np.arange(ROWS)), [PROTOCOL])
        try:
            made.start()
            yield made
        finally:
            made.stop()


class Command:
    """`populace federation run` as a person gives it."""

    def __init__(self, federation, out, *, timeout=5.0):
        words = [
            "federation",
            "run",
            str(federation.federation.path),
            "--out",
            str(out),
            "--sites",
            "3",
            "--rows",
            "50",
        ]
        words += ["--timeout", str(timeout), "--seed", "5", "--patience", "150"]
        self.out = out
        self.log = (out.parent / "command.log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "populace", *words], stdout=self.log, stderr=subprocess.STDOUT, env=dict(os.environ)
        )

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()

    def wait(self, seconds=240):
        try:
            code = self.process.wait(timeout=seconds)
        finally:
            self.process.kill()
            self.process.wait()
            self.log.close()
        assert code == 0, (self.out.parent / "command.log").read_text()[-2000:]

    @property
    def run(self):
        return read_json(self.out / "run.json")["spec"]["run"]


def wait_for_round(federation, command, number, seconds=120.0):
    until = time.monotonic() + seconds
    while not (command.out / "run.json").is_file():
        assert time.monotonic() < until
        time.sleep(0.05)
    place = federation.federation.run_folder(command.run)
    while read_status(place)["round"] < number:
        assert time.monotonic() < until, read_status(place)
        assert command.process.poll() is None, (command.out.parent / "command.log").read_text()[-2000:]
        time.sleep(0.05)
    return place


def assert_as_if_undisturbed(federation, command):
    """The same counts as a simulation with the same seeds, and one charge per participation in every ledger."""
    place = federation.federation.run_folder(command.run)
    found = federation.state(place)
    expected = simulation.run(PROTOCOL, split(federation.table, records_per_client=1), root=make_key(5)).state
    for a, b in zip(jax.tree.leaves(found.learner.counts), jax.tree.leaves(expected.learner.counts), strict=True):
        np.testing.assert_array_equal(a, b)
    for site, counts in federation.charges(command.run).items():
        assert counts == [1] * federation.hosted()[site]
    assert read_json(command.out / "run.json")["status"] == "finished"


def test_a_site_is_killed_and_comes_back(federation, tmp_path):
    command = Command(federation, tmp_path / "run")
    wait_for_round(federation, command, 10)
    federation.kill(federation.sites["site-2"].kit)
    time.sleep(3)
    federation.sites["site-2"].start()
    command.wait()
    assert_as_if_undisturbed(federation, command)


def test_only_the_job_process_of_a_site_dies(federation, tmp_path):
    """FLARE then fails the job for everybody; the supervisor submits another."""
    command = Command(federation, tmp_path / "run")
    wait_for_round(federation, command, 10)
    for member in processes.family(federation.sites["site-3"].kit)[1:]:
        with contextlib.suppress(psutil.Error):
            member.kill()
    command.wait()
    assert_as_if_undisturbed(federation, command)


def test_the_coordinator_is_killed_with_its_command(federation, tmp_path):
    command = Command(federation, tmp_path / "run")
    wait_for_round(federation, command, 10)
    command.kill()
    federation.kill(federation.federation.server_kit)
    federation.federation.start()
    again = Command(federation, tmp_path / "run", timeout=7.0)
    again.wait()
    assert "from now on: --timeout 7 (was 5)" in (tmp_path / "command.log").read_text()
    assert read_plan(federation.federation.run_folder(again.run)).timeout == 7.0
    assert_as_if_undisturbed(federation, again)


def test_only_the_server_is_killed_and_the_command_starts_it_again(federation, tmp_path):
    command = Command(federation, tmp_path / "run")
    wait_for_round(federation, command, 10)
    federation.kill(federation.federation.server_kit)
    command.wait()
    assert_as_if_undisturbed(federation, command)


def test_everything_is_killed(federation, tmp_path):
    command = Command(federation, tmp_path / "run")
    wait_for_round(federation, command, 15)
    command.kill()
    federation.kill(federation.federation.server_kit)
    for site in federation.sites.values():
        federation.kill(site.kit)
    federation.start()
    again = Command(federation, tmp_path / "run")
    again.wait()
    assert_as_if_undisturbed(federation, again)


def test_a_site_that_hangs_is_missed_and_let_back_in(federation, tmp_path):
    """Stopped and later continued: what it was asked meanwhile is asked again, or was charged and is answered from store."""
    command = Command(federation, tmp_path / "run")
    wait_for_round(federation, command, 10)
    members = processes.family(federation.sites["site-2"].kit)
    for member in members:
        member.suspend()
    time.sleep(9)
    for member in members:
        with contextlib.suppress(psutil.Error):
            member.resume()
    command.wait()
    assert_as_if_undisturbed(federation, command)


def test_a_coordinator_that_lost_its_memory_spends_nothing_twice(federation, tmp_path):
    """The checkpoint is put back to the start: all rounds are asked again, and every site answers from store."""
    command = Command(federation, tmp_path / "run")
    place = wait_for_round(federation, command, 1)
    command.wait()
    run, charges = command.run, federation.charges(command.run)
    for name in ("checkpoint.npz", "status.json"):
        (place / name).unlink()
    federation.supervise(place)
    assert read_status(place)["state"] == "finished"
    assert federation.charges(run) == charges
    assert_as_if_undisturbed(federation, command)
