"""Lists of revoked certificates, renewal, expiry, and the signed count: what is taken, and what is refused in a sentence."""

import dataclasses
import datetime
import json
import shutil
import socket
import ssl
import threading
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("nvflare")

from certificates_for_tests import make_pair
from federation_for_tests import free_port
from populace.cli.main import call
from populace.engines import wire
from populace.engines.agreement import Agreement
from populace.engines.flare import kits, tally
from populace.engines.flare.certificates import Entry, check_list, make_list, read_certificate, read_list
from populace.engines.flare.policy import LIST_FILE
from populace.engines.flare.tally import Tally, check_tally
from populace.engines.flare.tls import Listed, RefusedCertificate, cut_refused
from populace.engines.messages import RefusedError
from populace.engines.site_file import read_site_file
from populace.errors import InputError, RunError, WireError
from populace.federation import members
from populace.federation.coordinator import Federation, read_proposal
from populace.federation.site import Hosting, SiteFolder
from populace.methods.registry import make_protocol
from populace.privacy.events import Pure
from populace.privacy.ledger import Charge
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.files import read_json, write_json

NAMES = {"name": "ward", "org": "clinic", "federation": "study"}


@pytest.fixture(scope="module")
def made(tmp_path_factory, small_table):
    """A federation and one site that has joined; copied for each test."""
    folder = tmp_path_factory.mktemp("made")
    rows = small_table.take(np.arange(6))
    pq.write_table(rows.frame, folder / "rows.parquet")
    agreement = Agreement(protocol=make_protocol("independent", {"epsilon": 2.0}), schema=rows.schema)
    federation, site = Federation(folder / "federation"), SiteFolder(folder / "ward")
    fingerprint = federation.create(agreement, name="study", host="localhost", port=free_port())
    _, signed = federation.approve(site.request(**NAMES))
    hosting = Hosting(data=folder / "rows.parquet", by="rows", epsilon=99.0)
    site.set_up(signed, read_proposal(federation.proposal_path), hosting, fingerprint=fingerprint)
    return folder


@pytest.fixture
def federation(made, tmp_path):
    shutil.copytree(made / "federation", tmp_path / "federation")
    return Federation(tmp_path / "federation")


@pytest.fixture
def site(made, tmp_path):
    shutil.copytree(made / "ward", tmp_path / "ward")
    return SiteFolder(tmp_path / "ward")


@pytest.fixture
def other(tmp_path):
    """The root of another federation of the same name."""
    (tmp_path / "other").mkdir()
    kits.make_root(tmp_path / "other", federation="study", host="localhost", port=18999)
    return tmp_path / "other"


def test_a_revoked_site_is_on_a_list_that_grows_and_that_only_the_root_signs(federation, site, other, tmp_path):
    own = site.certificate
    first = federation.revoke("ward")
    assert (first.number, first.names) == (1, {"ward"})
    assert first.holds("ward", own.serial)
    assert first.holds("ward", 7)  # whatever it shows: the name is revoked
    assert first.holds("x", own.serial)
    assert not first.holds("x", 7)
    with pytest.raises(InputError, match="revoked already"):
        federation.revoke("ward")
    with pytest.raises(InputError, match="never approved"):
        federation.revoke("nobody")
    forged = make_list(other / "ca", 9, [Entry(name="localhost", serial=5, whole_name=True)])
    with pytest.raises(InputError, match="not signed by this federation's root"):
        check_list(forged.content, federation.path / "ca" / "rootCA.pem", where="a test")
    stowaway = (other / "ca" / "rootCA.pem").read_bytes()
    for content in (first.content + stowaway, stowaway + first.content, first.content + forged.content):
        with pytest.raises(InputError, match=r"holds more than a list|not signed|holds no list"):
            check_list(content, federation.path / "ca" / "rootCA.pem", where="a test")
    with pytest.raises(InputError, match="the coordinator's own name"):
        federation.revoke("localhost")
    (federation.path / LIST_FILE).write_bytes(forged.content)
    with pytest.raises(InputError, match="not signed"):
        federation.start()
    (federation.path / LIST_FILE).unlink()
    with pytest.raises(RunError, match="gone or older than list 1"):
        federation.start()


def test_a_connection_that_is_closed_meanwhile_does_not_stop_the_looks(federation, site):
    """FLARE closes a connection and forgets it a moment later; what is revoked next must still be cut."""
    listed = Listed(federation.path / LIST_FILE, federation.path / "ca" / "rootCA.pem")
    plain, other_end = socket.socketpair()
    closed = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(
        plain, do_handshake_on_connect=False, server_hostname="x"
    )
    closed._sslobj = None
    connection = SimpleNamespace(sock=closed, close=closed.close)
    driver = SimpleNamespace(conn_lock=threading.Lock(), connections={"one": connection})
    cut_refused(driver, listed)
    assert closed.fileno() == -1
    other_end.close()


def test_a_site_takes_lists_that_are_newer_and_does_not_start_when_it_is_on_one(federation, site, capsys, tmp_path):
    federation.revoke("ward")
    old = tmp_path / "old.crl"
    shutil.copy(federation.path / LIST_FILE, old)
    again = site.request(**NAMES, again=True)
    federation.approve(again, again=True)  # the name is good again, the old certificate is not
    newer = read_list(federation.path / LIST_FILE, federation.path / "ca" / "rootCA.pem")
    assert (newer.number, newer.names, newer.holds("ward", site.certificate.serial)) == (2, frozenset(), True)
    assert site.take_list(federation.path / LIST_FILE).number == 2
    with pytest.raises(InputError, match="is list 1, and this site has list 2"):
        site.take_list(old)
    assert call(["site", "join", str(site.path)]) == 2
    assert "is revoked; ask the coordinator why, and make a new request" in capsys.readouterr().err


def test_a_new_key_comes_by_a_new_request_and_the_old_one_stays_until_then(federation, site, tmp_path):
    with pytest.raises(InputError, match="leave --again out"):
        SiteFolder(tmp_path / "mistyped").request(name="ward", org="clinic", federation="study", again=True)
    assert not (tmp_path / "mistyped").exists()
    before, document = site.certificate, read_json(site.file_path)
    with pytest.raises(RunError, match="give --again"):
        site.request(**NAMES)
    with pytest.raises(InputError, match="is the folder of ward of clinic"):
        site.request(**{**NAMES, "org": "bank"}, again=True)
    request = site.request(**NAMES, again=True)
    assert site.certificate == before
    _, signed = federation.approve(request, again=True)
    site.renew(signed)
    after = site.certificate
    assert after.key != before.key
    assert read_json(site.file_path) == document
    assert not (site.path / "request.new").exists()
    assert members.current_list(federation.path).holds("ward", before.serial)
    assert not members.current_list(federation.path).holds("ward", after.serial)
    site.request(**NAMES, again=True)
    site.request(**NAMES, again=True)
    stale = tmp_path / "stale.signed.zip"
    shutil.copy(signed, stale)
    site.renew(stale)  # still the key in use
    shutil.rmtree(site.path / "request")
    with pytest.raises(InputError, match="not signed for a key of this folder"):
        site.renew(stale)


def test_the_coordinator_renews_from_the_same_root(federation, site):
    root = federation.document["fingerprint"]
    server, lead = (federation._certificate(each) for each in ("server", "lead"))
    policy = read_json(federation.server_kit / "local" / "resources.json")
    assert federation.renew() is None
    assert {federation._certificate(each).key for each in ("server", "lead")} == {server.key, lead.key}
    assert federation._certificate("server").serial != server.serial
    assert members.current_list(federation.path).number == 0
    federation.renew(new_keys=True)
    assert kits.fingerprint(federation.path / "ca" / "rootCA.pem") == root
    assert kits.fingerprint(federation.server_kit / "startup" / "rootCA.pem") == root
    listed = members.current_list(federation.path)
    for name, old in (("server", server), ("lead", lead)):
        new = federation._certificate(name)
        assert new.key != old.key
        assert listed.holds(old.name, old.serial)
        assert not listed.holds(new.name, new.serial)
    assert read_json(federation.server_kit / "local" / "resources.json") == policy
    # a site for the key it has: nothing to revoke, the old certificate simply ends
    before = site.certificate
    signed = federation.renew("ward")
    site.renew(signed)
    assert site.certificate.key == before.key
    assert site.certificate.serial != before.serial
    assert not members.current_list(federation.path).holds("ward", before.serial)
    federation.revoke("ward")
    assert members.current_list(federation.path).holds("x", before.serial)  # both are on the list
    with pytest.raises(InputError, match="ward is revoked"):
        federation.renew("ward")
    with pytest.raises(InputError, match="no request of bay is kept"):
        federation.renew("bay")


def swap(kit, kind, name, ca, days):
    """Give a kit a certificate of the right root with other days."""
    pair = make_pair(kit / "swapped", name, ca=ca, days=days)
    for end in ("crt", "key"):
        shutil.copy(pair / f"client.{end}", kit / "startup" / f"{kind}.{end}")


def test_certificates_that_end_are_named_in_time_and_refused_in_words(federation, site, capsys):
    ca = federation.path / "ca"
    for folder, words in ((federation.path, "federation"), (site.path, "site")):
        assert call([words, "status", str(folder)]) == 0
        said = capsys.readouterr().out
        assert "WARNING" not in said
        assert "ends" in said or "end:" in said
    swap(site.kit, "client", "ward", ca, (-300, 20))
    swap(federation.server_kit, "server", "localhost", ca, (-300, 20))
    assert call(["site", "status", str(site.path)]) == 0
    assert "WARNING: the certificate of this site ends on" in capsys.readouterr().out
    assert call(["federation", "status", str(federation.path)]) == 0
    assert "WARNING: the certificate of the federation's server ends on" in capsys.readouterr().out
    swap(site.kit, "client", "ward", ca, (-300, -2))
    swap(federation.server_kit, "server", "localhost", ca, (-300, -2))
    assert call(["site", "join", str(site.path)]) == 2
    assert "ended on" in (said := capsys.readouterr().err)
    assert "site request" in said
    assert call(["federation", "start", str(federation.path)]) == 2
    assert "ended on" in (said := capsys.readouterr().err)
    assert "federation renew" in said
    assert call(["federation", "renew", str(federation.path)]) == 0
    assert "new certificates, until 20" in capsys.readouterr().out


def test_what_the_server_looks_at_needs_no_restart_and_bears_a_damaged_list(federation, site):
    listed = Listed(federation.path / LIST_FILE, federation.path / "ca" / "rootCA.pem")
    listed.check(site.certificate)
    federation.revoke("ward")
    with pytest.raises(RefusedCertificate, match="of ward is revoked"):
        listed.check(site.certificate)
    for content in (b"", b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"):
        (federation.path / LIST_FILE).write_bytes(content)
        with pytest.raises(RefusedCertificate):
            listed.check(site.certificate)
    (federation.path / LIST_FILE).unlink()
    with pytest.raises(RefusedCertificate):
        listed.check(site.certificate)
    late = dataclasses.replace(
        site.certificate, name="x", serial=1, ends=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    )
    with pytest.raises(RefusedCertificate, match="is valid from"):
        listed.check(late)


def book(site, run, rounds):
    file = read_site_file(site.file_path)
    with SqliteLedger(file.ledger, file.budget) as ledger:
        for number in range(rounds):
            ledger.commit(
                "rows from 1", Charge(event=Pure(0.5), unit="client"), run=run, round_id=number, question=f"q{number}",
                reply=b"",
            )  # fmt: skip


def refusal(statement, site):
    try:
        check_tally(statement, site.kit)
    except RefusedError as no:
        return no.code
    except WireError:
        return "malformed"
    return "taken"


def test_a_ledger_that_knows_less_than_was_absorbed_is_an_old_copy(federation, site):
    counts = Tally(federation.path)
    assert refusal(counts.statement("ward"), site) == "taken"
    book(site, "run-1", 3)
    counts.note("run-1", {"ward": 3})
    assert refusal(counts.statement("ward"), site) == "taken"
    counts.note("run-1", {"ward": 1})  # the coordinator lost its checkpoint and asks again: not counted twice
    counts.note("run-1", {"ward": 3})
    assert refusal(counts.statement("ward"), site) == "taken"
    counts.note("run-2", {"ward": 1})
    assert refusal(counts.statement("ward"), site) == "rolled-back"
    book(site, "run-2", 1)
    assert refusal(counts.statement("ward"), site) == "taken"
    assert oct((federation.path / tally.COUNTS).stat().st_mode & 0o777) == "0o600"


def test_a_count_is_the_coordinators_own_for_this_very_site(federation, site, other, made, tmp_path):
    statement = Tally(federation.path).statement("ward")
    message = wire.unpack(statement)
    for name, value in {"federation": "x", "site": "bay", "key": "0" * 64, "replies": -1}.items():
        changed = dataclasses.replace(message, fields={**message.fields, name: value})
        assert refusal(wire.pack(changed), site) == "coordinator", name
    assert refusal(None, site) == "coordinator"  # an older coordinator says nothing
    for name in message.arrays:
        less = dataclasses.replace(message, arrays={k: v for k, v in message.arrays.items() if k != name})
        assert refusal(wire.pack(less), site) == "malformed"
        odd = dataclasses.replace(message, arrays={**message.arrays, name: np.ones(9, np.uint8)})
        assert refusal(wire.pack(odd), site) in ("malformed", "coordinator")
    # signed by another root's server, or by a site of ours
    write_json(other / "federation.json", {"name": "study"})
    (other / "sites").mkdir()
    shutil.copy(federation.path / "sites" / "ward.signed.zip", other / "sites")
    assert refusal(Tally(other).statement("ward"), site) == "coordinator"
    kit = tmp_path / "federation" / "server" / "kit" / "startup"
    for end in ("crt", "key"):
        shutil.copy(site.kit / "startup" / f"client.{end}", kit / f"server.{end}")
    assert refusal(Tally(federation.path).statement("ward"), site) == "coordinator"


def test_the_list_comes_with_the_count_and_a_revoked_server_is_refused(federation, site):
    old = Tally(federation.path).statement("ward")
    assert refusal(old, site) == "taken"
    federation.renew(new_keys=True)
    new = Tally(federation.path).statement("ward")
    assert refusal(old, site) == "taken"  # the site has not heard of it yet
    assert refusal(new, site) == "taken"
    assert site.revoked.number == members.current_list(federation.path).number
    assert refusal(old, site) == "coordinator"  # who stole the old key says it in vain
    assert site.revoked.number == members.current_list(federation.path).number


def test_a_federation_that_was_founded_earlier_has_its_records_in_flares_own(federation, site):
    (federation.path / members.ISSUED).unlink()
    document = {name: value for name, value in federation.document.items() if name != "list"}
    write_json(federation.path / "federation.json", document)
    (federation.path / "sites" / "ward.request.zip").unlink()
    assert {one.name for one in members.issued(federation.path)} == {"localhost", kits.LEAD, "ward"}
    with pytest.raises(InputError, match="no request of ward is kept"):
        federation.renew("ward")
    assert federation.revoke("ward").holds("x", site.certificate.serial)
    (federation.path / members.ISSUED).write_text(json.dumps([{"name": "ward"}]))
    with pytest.raises(RunError, match="damaged"):
        federation.status()
    assert read_certificate(federation.path / "ca" / "rootCA.pem").days_left() > 3000
