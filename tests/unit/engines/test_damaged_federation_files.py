"""Files of coordinators, sites and studies that were damaged: one sentence that names the file, and never a traceback."""

import copy
import json
import os
import zipfile

import pytest

from populace.collector.study import StudyFolder, plan_study
from populace.engines.agreement import Agreement
from populace.engines.flare import kits, processes
from populace.engines.roster import Roster, Seat
from populace.engines.segment import Plan, read_plan, read_roster, read_status
from populace.engines.site_file import SiteFile, open_site, read_site_file
from populace.errors import InputError, PopulaceError, RunError
from populace.federation.coordinator import Federation, Proposal, read_proposal
from populace.federation.site import SiteFolder
from populace.federation.sum_keys import make_sum_key, public_sum_key
from populace.methods.registry import make_protocol
from populace.privacy.ledger import Budget
from populace.privacy.ledger_file import head_path, read_head
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.files import write_json

WRONG = (None, [], {}, -1, "x", True, float("nan"), [[1]], 10**300, "gone")
DEEP = "[" * 100_000


def variants(document):
    for name in document:
        for value in WRONG:
            other = copy.deepcopy(document)
            other[name] = value
            if value == "gone":
                del other[name]
            yield other


def refused(read):
    sentence = ""
    try:
        read()
    except PopulaceError as error:
        sentence = str(error)
    assert "\n" not in sentence
    return sentence


def check(path, read, *, least=5):
    """A file with each of its fields wrong, nested deeply, of other bytes, a folder, a pipe: never anything but a sentence."""
    document = json.loads(path.read_text())
    assert not refused(read)
    said = 0
    for wrong in ([], None, 5, *variants(document)):
        write_json(path, wrong)
        said += bool(refused(read))
    assert said >= least
    for text in (DEEP, DEEP.replace("[", '{"a":'), '{"a": ' + "9" * 5_000 + "}", '{"name": "\\ud800"}', "\xff", ""):
        path.write_text(text, encoding="latin-1")
        assert path.name in refused(read)
    path.unlink()
    os.mkfifo(path)
    refused(read)
    path.unlink()
    write_json(path, document)
    assert not refused(read)


@pytest.fixture
def agreement(small_table):
    return Agreement(protocol=make_protocol("independent", {"epsilon": 1.0}), schema=small_table.schema)


def test_files_of_a_run(agreement, tmp_path):
    Plan(run="r", agreement=agreement, seed=1).save(tmp_path)
    check(tmp_path / "plan.json", lambda: read_plan(tmp_path), least=20)
    roster = Roster(seats=(Seat(site="a", first=0, clients=3),), records=1, seeded=True)
    write_json(tmp_path / "roster.json", roster.to_json())
    check(tmp_path / "roster.json", lambda: read_roster(tmp_path), least=15)
    write_json(tmp_path / "roster.json", {**roster.to_json(), "seats": [{"site": "a", "first": -1, "clients": 3}]})
    with pytest.raises(RunError, match=r"roster.json is damaged: 'seats.0.first'"):
        read_roster(tmp_path)
    sites = {"a": {"clients": 3, "replies": 2, "last": "missing", "epsilon": 1.0}}
    write_json(tmp_path / "status.json", {"state": "running", "round": 2, "why": "", "at": 1.5, "sites": sites})
    check(tmp_path / "status.json", lambda: read_status(tmp_path), least=15)


def test_files_of_a_federation(agreement, tmp_path):
    document = {"format": 1, "name": "wards", "host": "localhost", "port": 8002, "fingerprint": "SHA256:00"}
    write_json(tmp_path / "federation.json", document)
    federation = Federation(tmp_path)
    check(tmp_path / "federation.json", lambda: (federation.document, federation.name), least=15)
    proposal = Proposal(federation="wards", server="localhost:8002", fingerprint="SHA256:00", agreement=agreement)
    proposal.save(federation.proposal_path)
    check(federation.proposal_path, lambda: read_proposal(federation.proposal_path), least=15)
    check(federation.proposal_path, federation.agreement, least=10)
    write_json(tmp_path / "process.json", {"pid": 2**22 + 1, "began": 1.0})
    check(tmp_path / "process.json", lambda: processes.alive(tmp_path))


def test_requests_from_elsewhere(tmp_path):
    path = tmp_path / "request.zip"
    for content in (b"", b"PK", DEEP.encode(), b'{"kind": ' + b"9" * 5_000 + b"}", b"[]", b'{"kind": "\\ud800"}'):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("request.json", content)
        with pytest.raises(InputError):
            kits.requested_name(path)
        path.write_bytes(content)
        with pytest.raises(InputError):
            kits.requested_name(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError):
        kits.requested_name(path)


def test_files_of_a_site(agreement, small_table, tmp_path):
    write_json(tmp_path / "site.json", {"name": "a", "org": "b", "federation": "wards"})
    site = SiteFolder(tmp_path)
    check(tmp_path / "site.json", lambda: site.document, least=20)
    small_table.save(tmp_path / "data.parquet")
    file = SiteFile(
        name="a", federation="wards", data=str(tmp_path / "data.parquet"), ledger=str(tmp_path / "ledger.sqlite"),
        log=str(tmp_path / "site.log"), by="rows", records_per_client=1, client_column=None, records=1, epsilon=2.0, delta=0.0,
        unit="client", seed=1, agreed=(agreement.to_json(),),
    )  # fmt: skip
    path = tmp_path / "populace.json"
    write_json(path, file.to_json())
    check(path, lambda: read_site_file(path).agreements(), least=60)
    make_sum_key(tmp_path / "sum.key")
    assert len(public_sum_key(tmp_path / "sum.key")) == 64
    (tmp_path / "sum.key").write_bytes(b"short")
    with pytest.raises(RunError, match="is damaged: expected a key of 32 bytes, got 5"):
        public_sum_key(tmp_path / "sum.key")


def test_whose_accounts_a_ledger_keeps(agreement, small_table, tmp_path):
    """data.json decides which accounts are charged: a wrong one is never taken for a new one."""
    from populace.engines.site_file import begin_accounts, read_hosted

    small_table.save(tmp_path / "data.parquet")
    file = SiteFile(
        name="a", federation="wards", data=str(tmp_path / "data.parquet"), ledger=str(tmp_path / "ledger.sqlite"),
        log=str(tmp_path / "site.log"), by="rows", records_per_client=1, client_column=None, records=1, epsilon=2.0, delta=0.0,
        unit="client", seed=1, agreed=(agreement.to_json(),),
    )  # fmt: skip
    write_json(tmp_path / "populace.json", file.to_json())
    with SqliteLedger(file.ledger, file.budget):
        begin_accounts(file, read_hosted(file, agreement.schema))
    check(tmp_path / "data.json", lambda: open_site(tmp_path / "populace.json"), least=15)


def test_the_head_of_a_ledger(tmp_path):
    path = tmp_path / "ledger.sqlite"
    write_json(head_path(path), {"last": 3, "chain": "ab"})
    check(head_path(path), lambda: read_head(path), least=15)
    head_path(path).unlink()
    os.mkfifo(head_path(path))
    with pytest.raises(RunError, match="put it back"):
        read_head(path)
    os.mkfifo(path)
    with pytest.raises(RunError, match="Is a pipe"):
        SqliteLedger(path, Budget(epsilon=1.0, delta=0.0, unit="client"))


def test_studies(small_table, tmp_path):
    small_table.schema.save(tmp_path / "s.toml")
    study = plan_study(schema=str(tmp_path / "s.toml"), epsilon=2.0, clients=50)
    folder = StudyFolder(tmp_path / "study")
    folder.create(study, tmp_path / "s.toml")
    check(folder.facts_path, folder.read, least=30)
    folder.token_path.unlink()
    os.mkfifo(folder.token_path)
    with pytest.raises(RunError, match="put it back"):
        folder.token()
