"""Three real sites with mutual TLS on loopback: every kind of protocol ends where the debug engine ends, and one kill drill."""

import shutil
import threading
import time

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from builders import Relay, debug_state, leaves, mark_slow
from federation_for_tests import TestFederation, client_job, environment, files_with
from populace.engines import simulation
from populace.engines.flare import kits, policy, processes
from populace.engines.runtime import make_key
from populace.engines.segment import read_status
from populace.errors import InputError, RunError
from populace.federation.site import SiteFolder
from populace.methods.registry import make_protocol
from populace.tables.files import read_json, write_json
from populace.tables.partition import split

pytest.importorskip("nvflare")
# FLARE's client leaves a socket to a server that does not answer yet to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PROTOCOLS = {
    "independent": make_protocol("independent", {"epsilon": 2.0, "clients_per_batch": 5}),
    "poll": make_protocol(
        "poll",
        {
            "epsilon": 2.0,
            "clients_per_batch": 5,
            "latent_classes": 4,
            "prior_scale": 1.0,
            "chains": 1,
            "langevin_steps": 24,
        },
    ),
    "samprivsyn": make_protocol("samprivsyn", {"epsilon": 2.0, "clients_per_batch": 5}),
    "dp-fed-wae": make_protocol("dp-fed-wae", {"epsilon": 2.0, "cohort_size": 6, "latent_classes": 2}),
    "relay": Relay(epsilon=2.0, passes=2),
}
SLOW = ("poll", "dp-fed-wae")
DRILL = Relay(epsilon=3.0, passes=3)


@pytest.fixture(scope="module")
def federation(rows, tmp_path_factory):
    with environment():
        made = TestFederation(tmp_path_factory.mktemp("federation"), rows, [*PROTOCOLS.values(), DRILL])
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="module")
def runs(federation):
    """Runs in one job, so that processes start once: of the method asked for and of others that are as slow."""
    done = {}

    def run(name):
        if name not in done:
            done.update(
                federation.run_all({one: PROTOCOLS[one] for one in PROTOCOLS if (one in SLOW) == (name in SLOW)})
            )
        return done[name]

    return run


@pytest.mark.parametrize("name", mark_slow(PROTOCOLS, SLOW))
def test_three_sites_end_where_the_debug_engine_ends(federation, runs, rows, name):
    protocol = PROTOCOLS[name]
    found = federation.state(runs(name))
    clients = split(rows, records_per_client=1)
    if (
        name == "dp-fed-wae"
    ):  # very slow where nothing is compiled; tests/conformance holds simulation to the debug engine
        state, charges = (
            (outcome := simulation.run(protocol, clients, root=make_key(5))).state,
            outcome.ledger.spent()["charges"],
        )
    else:
        state, charges = debug_state(protocol, clients, make_key(5))
    for a, b in zip(leaves(found), leaves(state), strict=True):
        if a.dtype.kind in "iub":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, atol=1e-4)
    participations = charges // len(rows)
    for site, counts in federation.charges(f"run-{name}").items():
        assert counts == [participations] * federation.hosted()[site]


@pytest.mark.slow
def test_a_site_killed_in_mid_run_comes_back_and_nothing_is_spent_twice(federation, rows):
    """kill -9 of a site while a sequential run needs it; restarted, it is let back in, and the end is as if undisturbed."""
    place = federation.plan(DRILL, "drill", timeout=4.0)
    said = []
    supervisor = threading.Thread(target=federation.supervise, args=(place,), kwargs={"say": said.append})
    supervisor.start()
    wait_for_round(place, 8)
    federation.kill(federation.sites["site-2"].kit)
    time.sleep(1.0)
    federation.sites["site-2"].start()
    supervisor.join(timeout=150)
    assert not supervisor.is_alive()
    assert read_status(place)["state"] == "finished"
    assert any("a new segment" in line for line in said)
    state, _ = debug_state(DRILL, split(rows, records_per_client=1), make_key(5))
    assert leaves(federation.state(place))[1].tolist() == leaves(state)[1].tolist()
    for site, counts in federation.charges("drill").items():
        assert counts == [DRILL.passes] * federation.hosted()[site]


def wait_for_round(place, number, seconds=90.0):
    until = time.monotonic() + seconds
    while read_status(place)["round"] < number:
        assert time.monotonic() < until, read_status(place)
        time.sleep(0.05)


def test_ports_are_on_loopback_only(federation):
    kits = [federation.federation.server_kit, *(site.kit for site in federation.sites.values())]
    listening = [
        connection.laddr.ip
        for kit in kits
        for member in processes.family(kit)
        for connection in member.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1"}


SHIPPED = """
from pathlib import Path
Path({marker!r}).touch()
from nvflare.apis.executor import Executor
class Shipped(Executor):
    def execute(self, *_):
        Path({marker!r}).touch()
"""
HARMFUL = "Component 'subprocess.Popen' at config path"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("ships code", "{site}: NVFLARE_ERROR: BYOC not permitted"),
        ("names another class", f"{HARMFUL} 'executors.#1.executor' is not in allow_list"),
        pytest.param(
            "gives the class arguments",
            "SiteExecutor.__init__() got an unexpected keyword argument 'folder'",
            marks=pytest.mark.slow,
        ),
        pytest.param("names a filter of its own", f"{HARMFUL} 'task_result_filters", marks=pytest.mark.slow),
        ("asks for another scope", "{site}: NVFLARE_ERROR: privacy scope 'nofilter' is not allowed"),
    ],
)
def test_jobs_that_try_more_are_refused_by_the_sites(federation, tmp_path, what, said):
    """The coordinator here allows itself everything; each site refuses, in its answer to the server or in its own log."""
    marker, shipped = tmp_path / "marker", {"path": "shipped.Shipped", "args": {}}
    harmful = {"path": "subprocess.Popen", "args": {"args": ["touch", str(marker)]}}
    job = {
        "ships code": lambda: client_job(
            tmp_path / "job", marker, executor=shipped, custom=SHIPPED.format(marker=str(marker))
        ),
        "names another class": lambda: client_job(tmp_path / "job", marker, executor=harmful),
        "gives the class arguments": lambda: client_job(
            tmp_path / "job", marker, executor={"path": policy.EXECUTOR, "args": {"folder": str(tmp_path)}}
        ),
        "names a filter of its own": lambda: client_job(
            tmp_path / "job", marker, task_result_filters=[{"tasks": ["*"], "filters": [harmful]}]
        ),
        "asks for another scope": lambda: client_job(tmp_path / "job", marker),
    }[what]()
    if what == "asks for another scope":
        write_json(job / "meta.json", {**read_json(job / "meta.json"), "scope": "nofilter"})
    before = {site: federation.mark_logs(place.kit) for site, place in federation.sites.items()}
    before_server = federation.mark_logs(federation.federation.server_kit)
    link = federation.federation.connect()
    job_id = link.submit(job)
    until = time.monotonic() + 60
    while not link.over(job_id):
        assert time.monotonic() < until, link.status(job_id)
        time.sleep(0.2)
    status = link.status(job_id)
    link.close()
    assert status.startswith("FINISHED:"), status
    assert not status.endswith("COMPLETED"), status
    assert not marker.exists()
    answers = federation.log_since(federation.federation.server_kit, before_server)
    for site, place in federation.sites.items():
        new = federation.log_since(place.kit, before[site])
        assert said.format(site=site) in (answers if "{site}" in said else new), f"{site} does not say so"


def test_a_site_certificate_does_not_serve_for_another_site(federation, tmp_path):
    """site-1's kit, claiming to be another: the server knows the name in the certificate."""
    kit = tmp_path / "kit"
    shutil.copytree(federation.sites["site-1"].kit, kit, ignore=shutil.ignore_patterns("process.*", "*.fl", "transfer"))
    startup = read_json(kit / "startup" / "fed_client.json")
    startup["client"]["fqsn"] = "site-9"
    write_json(kit / "startup" / "fed_client.json", startup)
    _never_connects(federation, kit, "site-9", said="authenticated as 'site-1' but claimed")


@pytest.mark.slow
def test_a_foreign_certificate_does_not_connect(federation, tmp_path):
    """A site with a kit of another root, sent to this server."""
    other = tmp_path / "other"
    other.mkdir()
    port = federation.federation.document["port"]
    fingerprint = kits.make_root(other, federation="study", host="localhost", port=port)
    site = SiteFolder(tmp_path / "stranger")
    signed = tmp_path / "stranger.signed.zip"
    kits.approve(other, site.request(name="stranger", org="org", federation="study"), signed)
    kit = kits.assemble(site.path, signed, site.path / "request" / "key", fingerprint)
    _never_connects(federation, kit, "stranger", said="CERTIFICATE_VERIFY_FAILED")


def _never_connects(federation, kit, name, *, said, seconds=5.0):
    """Tried, refused with these words in the log of either side, and tried again for a while."""
    kits_of_both = (federation.federation.server_kit, kit)
    before = [federation.mark_logs(one) for one in kits_of_both]
    processes.start(kit, "client", name=name, org="org")
    try:
        link = federation.federation.connect()
        until = time.monotonic() + 45.0
        refused_at = None
        while refused_at is None or time.monotonic() < refused_at + seconds:
            assert name not in link.sites()
            new = "".join(map(federation.log_since, kits_of_both, before))
            if refused_at is None and said in new:
                refused_at = time.monotonic()
            assert refused_at is not None or time.monotonic() < until, "no refusal was logged"
            time.sleep(0.5)
        link.close()
    finally:
        processes.stop(kit)


def test_a_wrong_fingerprint_is_refused_before_anything_is_joined(federation, tmp_path):
    site = SiteFolder(tmp_path / "careful")
    _, signed = federation.federation.approve(site.request(name="careful", org="org", federation="study"))
    wrong = federation.fingerprint[:-2] + ("00" if federation.fingerprint[-2:] != "00" else "11")
    with pytest.raises(InputError, match="refused"):
        kits.assemble(site.path, signed, site.path / "request" / "key", wrong)
    assert not site.kit.exists()


def test_a_loosened_policy_file_stops_the_start(federation, tmp_path):
    """Each file as written, or nothing starts."""
    for name in ("resources.json", "authorization.json", "privacy.json"):
        kit = tmp_path / name
        shutil.copytree(federation.sites["site-1"].kit / "local", kit / "local")
        policy.check_site_policy(kit)
        document = read_json(kit / "local" / name)
        document["loosened"] = True
        write_json(kit / "local" / name, document)
        with pytest.raises(RunError, match="not as populace wrote it"):
            policy.check_site_policy(kit)
    (kit / "local" / name).unlink()
    with pytest.raises(RunError):
        policy.check_site_policy(kit)


@pytest.mark.slow
def test_no_words_of_a_site_reach_the_coordinator(federation):
    """A site fails over a value in its rows: its own log names it, and nothing of the coordinator's holds it."""
    marker, site = "secret-value-42", federation.sites["site-3"]
    data = federation.folder / "site-3.parquet"
    frame = pq.read_table(data)
    place = frame.column_names.index("colour")
    values = [marker, *frame.column("colour").to_pylist()[1:]]
    try:
        pq.write_table(frame.set_column(place, "colour", [values]), data)
        run = federation.plan(PROTOCOLS["independent"], "marked", least=2)
        federation.supervise(run)
    finally:
        pq.write_table(frame, data)
    assert read_status(run)["state"] == "finished"
    assert set(read_status(run)["sites"]) == {"site-1", "site-2"}
    assert marker in (site.path / "site.log").read_text()
    assert files_with(federation.federation.path, b"site-3")
    assert files_with(federation.federation.path, marker.encode()) == []
    for other in federation.sites.values():
        assert not (read_json(other.kit / "local" / "resources.json")["allow_log_streaming"])
