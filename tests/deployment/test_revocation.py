"""A federation on FLARE, whose sites are revoked, renewed, moved and set back to old copies while it lives."""

import shutil

import numpy as np
import pytest

pytest.importorskip("nvflare")

from builders import CentralMean
from certificates_for_tests import knock, make_pair
from federation_for_tests import TestFederation, environment, wait_until
from populace.cli.main import call
from populace.engines.flare import processes
from populace.engines.flare.certificates import read_certificate
from populace.engines.segment import read_status
from populace.engines.site_file import read_site_file
from populace.federation.site import SiteFolder
from populace.methods.registry import make_protocol
from populace.tables.files import read_json

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

ROWS, ROUNDS = 16, 40
PROPOSED = make_protocol("independent", {"epsilon": 2.0})
PROTOCOL = CentralMean(epsilon=20.0, total_rounds=ROUNDS)  # everybody in every round


@pytest.fixture(scope="module")
def federation(small_table, tmp_path_factory):
    with environment():
        made = TestFederation(
            tmp_path_factory.mktemp("revoked"), small_table.take(np.arange(ROWS)), [PROPOSED, PROTOCOL]
        )
        try:
            made.start()
            yield made
        finally:
            made.stop()


def port(federation):
    return int(federation.federation.document["port"])


def test_a_site_that_is_revoked_in_a_run_is_cut_off_and_the_others_finish(federation, tmp_path):
    place = federation.plan(PROTOCOL, "run-1", timeout=20.0)
    third = federation.sites["site-3"]
    pair = third.kit / "startup"
    assert knock(port(federation), pair) == "kept"
    server = federation.federation.server_kit
    mark = federation.mark_logs(server)

    def watch(status):
        if status["round"] == 3:
            assert call(["federation", "revoke", str(federation.federation.path), "site-3"]) == 0

    federation.supervise(place, watch=watch)
    assert read_status(place)["state"] == "finished"
    charges = federation.charges("run-1")
    assert charges["site-1"] == [ROUNDS] * 8
    assert charges["site-2"] == [ROUNDS] * 4
    assert 3 <= max(charges["site-3"]) < ROUNDS
    assert knock(port(federation), pair) == "SSLV3_ALERT_CERTIFICATE_REVOKED"
    unknown = make_pair(tmp_path / "unknown", "site-3", ca=federation.federation.path / "ca")
    assert knock(port(federation), unknown) == "closed"  # another certificate of that name is no way in
    for name in ("site-1", "site-2"):
        assert federation.sites[name].revoked.names == {"site-3"}  # it came with the requests
    said = federation.log_since(server, mark)
    assert "refused a connection: the certificate of site-3 is revoked" in said  # the one it had was cut
    assert "certificate revoked" in said  # and it tried again
    assert processes.alive(server) is not None


def test_the_way_back_is_a_new_key_and_the_old_one_stays_out(federation, tmp_path):
    third = federation.sites["site-3"]
    old = tmp_path / "old"
    shutil.copytree(third.kit / "startup", old)
    third.stop()
    words = ["--name", "site-3", "--org", "org2", "--federation", "study"]
    assert call(["site", "request", str(third.path), *words, "--again"]) == 0
    request = next((third.path / "request.new" / "key").glob("*.request.zip"))
    assert call(["federation", "approve", str(federation.federation.path), str(request), "--again"]) == 0
    signed = federation.federation.path / "sites" / "site-3.signed.zip"
    assert call(["site", "join", str(third.path), str(signed)]) == 0
    federation.wait_for(["site-3"])
    assert knock(port(federation), old) == "SSLV3_ALERT_CERTIFICATE_REVOKED"
    assert knock(port(federation), third.kit / "startup") == "kept"


def test_the_servers_certificate_is_renewed_between_runs_and_sites_come_back(federation):
    startup = federation.federation.server_kit / "startup" / "server.crt"
    before = read_certificate(startup)
    assert call(["federation", "renew", str(federation.federation.path)]) == 0
    assert (read_certificate(startup).key, read_certificate(startup).serial == before.serial) == (before.key, False)
    federation.wait_for(federation.names)  # by themselves
    assert call(["federation", "renew", str(federation.federation.path), "--new-keys"]) == 0
    assert read_certificate(startup).key != before.key
    for site in federation.sites.values():
        site.stop()
        site.start()
    federation.wait_for(federation.names)
    federation.run_all({"renewed": PROTOCOL})
    assert all(set(counts) == {ROUNDS} for counts in federation.charges("run-renewed").values())
    assert federation.sites["site-1"].revoked.holds(before.name, before.serial)


def join(federation, folder, data):
    """Start a site from its folder, and wait until the server knows the new process."""
    kit = SiteFolder(folder).kit
    mark = federation.mark_logs(kit)
    assert call(["site", "join", str(folder), "--data", str(data)]) == 0
    wait_until(lambda: "Successfully registered client" in federation.log_since(kit, mark), folder)


def test_a_folder_that_was_copied_elsewhere_goes_on_and_an_old_copy_is_refused_between_runs(
    federation, tmp_path, capsys
):
    first = federation.sites["site-1"]
    first.stop()
    shutil.copytree(first.path, tmp_path / "old-copy")
    # another folder, as on another machine: data elsewhere too, and a process file that names somebody else's process
    moved = tmp_path / "moved" / "site-1"
    shutil.copytree(first.path, moved)
    data = tmp_path / "moved" / "rows.parquet"
    shutil.move(read_site_file(first.file_path).data, data)
    shutil.move(first.path, tmp_path / "gone")
    assert call(["site", "join", str(moved)]) == 2
    assert "--data" in capsys.readouterr().err
    join(federation, moved, data)
    federation.sites["site-1"] = SiteFolder(moved)
    federation.run_all({"moved": PROTOCOL})
    assert federation.charges("run-moved")["site-1"] == [ROUNDS] * 8
    booked = SiteFolder(moved).status()["ledger"]["charges"]
    # the copy from before that run is put back: the next run is refused at its first request
    SiteFolder(moved).stop()
    shutil.rmtree(moved)
    shutil.copytree(tmp_path / "old-copy", moved)
    back = SiteFolder(moved)
    join(federation, moved, data)
    place = federation.plan(PROTOCOL, "run-after", timeout=20.0, least=2)
    federation.supervise(place)
    assert [seat["site"] for seat in read_json(place / "roster.json")["seats"]] == ["site-2", "site-3"]
    status = back.status()
    assert status["ledger"]["charges"] < booked
    assert "run-after" not in {run["run"] for run in status["ledger"]["runs"]}
    assert "refused (rolled-back): the coordinator has had" in status["refusals"]["last"]


def test_without_the_count_the_old_copy_would_have_answered(federation):
    """What the check above is there for: the coordinator's count lost, nothing notices."""
    from populace.engines.flare.tally import COUNTS

    (federation.federation.path / COUNTS).unlink()
    place = federation.plan(PROTOCOL, "run-uncounted", timeout=20.0, least=3)
    federation.supervise(place)
    assert federation.charges("run-uncounted")["site-1"] == [ROUNDS] * 8
