"""A site that dies for good, and a silo that never answers: rounds go on without the first, and the second is passed over."""

import contextlib
import json
import subprocess
import sys
import threading

import numpy as np
import psutil
import pytest

from builders import CentralMean
from federation_for_tests import started, wait_until
from populace.engines.flare import processes
from populace.engines.segment import read_plan, read_status
from populace.federation.supervisor import Options, run_federation
from populace.methods.gan.fl_gan import FlGan
from populace.methods.registry import make_protocol
from populace.tables.files import read_json

pytest.importorskip("nvflare")
pytestmark = [
    pytest.mark.slow,
    # FLARE's client leaves a socket to a server that was killed to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

AGREED = make_protocol("independent", {"epsilon": 2.0})  # what is proposed must be a method of the installation
MEAN = CentralMean(epsilon=3.0, noise_multiplier=100.0, total_rounds=400, quorum_share=0.2)
TRAVELS = FlGan(
    epsilon=2.0, delta=1e-4, generator_steps=1, critic_steps=2, batch_size=1, hidden_size=3, critic_hidden_size=3, latent_size=2
)  # fmt: skip
TIMEOUT = 6.0


def populace(*words):
    """What a command says; in a process of its own, because the supervisor's thread turns the output of this one away."""
    command = [sys.executable, "-m", "populace", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_rounds_go_on_without_a_site_that_was_killed_for_good(small_table, tmp_path):
    """One round waits for its timeout; the others are finished without the site, in the same segment."""
    said = []
    with started(tmp_path, small_table.take(np.arange(30)), [AGREED, MEAN]) as federation:
        place = federation.plan(MEAN, "mean", timeout=TIMEOUT)
        worker = threading.Thread(target=federation.supervise, args=(place,), kwargs={"say": said.append})
        worker.start()
        wait_until(lambda: read_status(place)["round"] >= 20, place)
        federation.kill(federation.sites["site-2"].kit)
        killed = read_status(place)["round"]
        worker.join(timeout=240)
        assert not worker.is_alive(), read_status(place)
    status = read_status(place)
    assert (status["state"], status["segment"], said) == ("finished", 1, [])
    lines = [json.loads(line) for line in (place / "rounds.jsonl").read_text().splitlines()]
    since = [line for line in lines if line["round"] > killed + 1]
    assert len(since) >= 300  # over more than the half minute for which FLARE lists a dead site as connected
    assert all(line["missing"] == ["site-2"] for line in since)
    assert sum(line["seconds"] >= TIMEOUT for line in lines if line["round"] > killed) <= 1
    assert sorted(line["seconds"] for line in since)[len(since) // 2] < 1.0
    assert status["sites"]["site-2"]["replies_in_last_round"] == 0
    assert killed * 8 >= status["sites"]["site-2"]["replies_in_all"] >= 20 * 7


def test_a_model_that_travels_passes_over_a_silo_that_never_answers(small_table, tmp_path):
    """The coordinator names the silo and the command; once it is given, the next silo goes on from the model as it was."""
    shown, made, out = [], [], tmp_path / "out"
    options = Options(least=3, timeout=TIMEOUT, patience=200.0)
    with started(tmp_path, small_table.take(np.arange(12)), [TRAVELS], by="site") as federation:
        home = federation.federation
        worker = threading.Thread(
            target=lambda: made.append(run_federation(home, out, rows=20, seed=5, options=options, watch=shown.append))
        )
        worker.start()
        wait_until(lambda: list(home.path.glob("runs/*/roster.json")), home.path)
        members = processes.family(federation.sites["site-2"].kit)
        for member in members:
            member.suspend()
        [place] = home.path.glob("runs/*")
        try:
            hint = f"`populace federation skip {home.path} site-2 --run {place.name}` passes over site-2"
            wait_until(lambda: hint in populace("federation", "status", home.path), place)
            stuck = read_status(place)
            assert "passed over for the rest of" in populace("federation", "skip", home.path, "site-2")
            worker.join(timeout=120)
        finally:
            for member in members:
                with contextlib.suppress(psutil.Error):
                    member.resume()
        assert not worker.is_alive(), read_status(place)
    assert stuck["waiting"]["sites"] == ["site-2"]
    status, document = read_status(place), read_json(out / "run.json")
    assert (status["state"], status["segment"], status["round"]) == ("finished", 1, 3)
    assert {site: one["replies_in_all"] for site, one in document["sites"].items()} == {
        "site-1": 1, "site-2": 0, "site-3": 1,
    }  # fmt: skip
    assert document["skipped"] == ["site-2"]
    doing = [at["doing"]["state"] for at in shown]
    assert [state for i, state in enumerate(doing) if doing[i - 1 : i] != [state]][-5:] == [
        "rounds", "fitting", "sampling", "writing", "finished",
    ]  # fmt: skip
    population = read_plan(place).agreement.population(clients=3, records=document["population"]["records"])
    assert made[0].guarantee.epsilon == TRAVELS.guarantee(population).epsilon
