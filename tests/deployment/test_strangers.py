"""Who is not of the federation is refused by its server, also with a client whose own checks were taken out."""

import os
import shutil
import socket
import ssl
import subprocess
import sys
import time

import pytest

from certificates_for_tests import knock, make_pair
from federation_for_tests import HERE, environment, free_port
from populace.engines.agreement import Agreement
from populace.engines.flare import kits, processes
from populace.federation.coordinator import Federation
from populace.federation.site import SiteFolder
from populace.methods.registry import make_protocol
from populace.tables.files import read_json, write_json

pytest.importorskip("nvflare")
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NAME, SITES = "study", ("site-1", "site-2")
TLS_VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


class Founded:
    """A federation with its sites' kits, and nothing that runs."""

    def __init__(self, folder, agreement):
        self.federation = Federation(folder / "federation")
        self.port = free_port()
        root = self.federation.create(agreement, name=NAME, host="localhost", port=self.port)
        self.kits = {}
        for name in SITES:
            site = SiteFolder(folder / name)
            _, signed = self.federation.approve(site.request(name=name, org="clinic", federation=NAME))
            self.kits[name] = kits.assemble(site.path, signed, site.path / "request" / "key", root)


@pytest.fixture(scope="module")
def ours_and_theirs(tmp_path_factory, small_table):
    """Two federations of the same names; ours has a running server."""
    agreement = Agreement(protocol=make_protocol("independent", {"epsilon": 2.0}), schema=small_table.schema)
    with environment():
        ours, theirs = (Founded(tmp_path_factory.mktemp(name), agreement) for name in ("ours", "theirs"))
        ours.federation.start()
        try:
            ours.federation.connect().close()
            yield ours, theirs
        finally:
            ours.federation.stop()


def test_the_server_keeps_a_connection_of_its_own_site_alone(ours_and_theirs, tmp_path):
    ours, theirs = ours_and_theirs
    ca = ours.federation.path / "ca"
    strangers = {
        "another root, same names": theirs.kits["site-1"] / "startup",
        "no certificate": None,
        "expired": make_pair(tmp_path / "expired", "site-1", ca=ca, days=(-30, -1)),
        "not yet valid": make_pair(tmp_path / "early", "site-1", ca=ca, days=(1, 30)),
        "signed by itself": make_pair(tmp_path / "itself", "site-1"),
        "signed by itself, as the root is called": make_pair(tmp_path / "root", NAME),
    }
    for version in TLS_VERSIONS:
        kept = {name: knock(ours.port, pair, version=version) for name, pair in strangers.items()}
        assert "kept" not in kept.values(), (version, kept)
        assert knock(ours.port, ours.kits["site-1"] / "startup", version=version) == "kept"
        assert knock(ours.port, make_pair(tmp_path / "good", "site-1", ca=ca), version=version) == "kept"


def test_who_connects_and_says_nothing_keeps_nobody_out(ours_and_theirs):
    """FLARE's own server shakes hands with one after the other."""
    ours, _ = ours_and_theirs
    with socket.create_connection(("localhost", ours.port)), socket.create_connection(("localhost", ours.port)):
        assert knock(ours.port, ours.kits["site-1"] / "startup") == "kept"


def registered(server, kit, log, *, seconds, tls_pair=None):
    """Whether FLARE's client without its checks is among the connected sites within so many seconds."""
    (kit / "transfer").mkdir(exist_ok=True)
    words = [
        "-m", str(kit), "-s", "fed_client.json", "--set", "secure_train=true", "uid=site-1", "org=clinic",
        "config_folder=config",
    ]  # fmt: skip
    extra = {} if tls_pair is None else {"POPULACE_TLS_PAIR": str(tls_pair)}
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-u", str(HERE / "unchecking_client.py"), *words], stdout=output, stderr=subprocess.STDOUT,
            env={**os.environ, **extra},
        )  # fmt: skip
    link = server.connect()
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if "site-1" in link.sites():
                return True
            time.sleep(0.2)
        return False
    finally:
        link.close()
        process.kill()
        process.wait()


def aimed_at(kit, port, out):
    """A copy of a kit that speaks to another server."""
    shutil.copytree(kit, out)
    document = read_json(out / "startup" / "fed_client.json")
    document["servers"][0]["service"]["target"] = f"localhost:{port}"
    write_json(out / "startup" / "fed_client.json", document)
    return out


def test_a_foreign_client_without_checks_of_its_own_is_refused_by_the_server(ours_and_theirs, tmp_path):
    ours, theirs = ours_and_theirs
    foreign = aimed_at(theirs.kits["site-1"], ours.port, tmp_path / "foreign")
    began = time.monotonic()
    own = aimed_at(ours.kits["site-1"], ours.port, tmp_path / "own")
    with environment():
        assert registered(ours.federation, own, tmp_path / "own.log", seconds=60)  # the same client, as one of ours
        took = time.monotonic() - began
        ours.federation.stop()
        ours.federation.start()
        seconds = max(15.0, 2 * took)
        assert not registered(ours.federation, foreign, tmp_path / "foreign.log", seconds=seconds)
        # Let in by the certificate of another site of ours, it still cannot assert the name with a foreign one.
        pair = ours.kits["site-2"] / "startup"
        assert not registered(ours.federation, foreign, tmp_path / "mixed.log", seconds=seconds, tls_pair=pair)
    log = (ours.federation.server_kit / "process.log").read_text()
    assert "requires identity 'site-1'" in log
    assert processes.alive(ours.federation.server_kit) is not None
