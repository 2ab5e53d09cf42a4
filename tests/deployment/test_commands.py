"""The commands of federation and site: bad input is one sentence and exit code 2, and a site's folder says what it did."""

import dataclasses
import json
import zipfile

import numpy as np
import pyarrow.parquet as pq
import pytest

from populace.cli.main import call
from populace.engines.agreement import Agreement
from populace.engines.flare import kits, policy
from populace.engines.site_file import open_site, read_site_file
from populace.errors import BudgetError, DataError, InputError, MissingExtra, RunError, SpecError
from populace.experiments.federation.coordinator import Federation, Proposal, read_proposal
from populace.experiments.federation.propose import propose
from populace.experiments.federation.site import Hosting, SiteFolder
from populace.protocols.registry import make_protocol
from populace.tables.files import read_json, write_json

pytest.importorskip("nvflare")


@pytest.fixture
def schema_file(small_schema, tmp_path):
    small_schema.save(tmp_path / "s.toml")
    return str(tmp_path / "s.toml")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["federation", "status", "nowhere"], "is not a federation's folder"),
        (["federation", "start", "nowhere"], "is not a federation's folder"),
        (["federation", "stop", "nowhere"], "is not a federation's folder"),
        (["federation", "approve", "nowhere", "x.zip"], "is not a federation's folder"),
        (["federation", "run", "nowhere", "--out", "run"], "is not a federation's folder"),
        (["federation", "init", "f", "--name", "Bad Name", "--schema", "SCHEMA", "--epsilon", "1"], "a federation's name"),
        (["federation", "init", "f", "--name", "f", "--schema", "none.toml", "--epsilon", "1"], "none.toml"),
        (["federation", "init", "f", "--name", "f", "--schema", "SCHEMA", "--epsilon", "-1"], "epsilon"),
        (["federation", "init", "f", "--name", "f", "--schema", "SCHEMA", "--epsilon", "1", "--method", "no"], "unknown"),
        (["federation", "init", "f", "--name", "f", "--schema", "SCHEMA", "--epsilon", "1", "--port", "1"], "a port in 1024"),
        (["federation", "init", "f", "--name", "f", "--schema", "SCHEMA", "--epsilon", "1", "--set", "x"], "--set name=value"),
        (["site", "status", "nowhere"], "is not a site's folder"),
        (["site", "stop", "nowhere"], "is not a site's folder"),
        (["site", "join", "nowhere"], "is not a site's folder"),
        (["site", "join", "nowhere", "x.signed.zip"], "give --fingerprint, --proposal, --data, --epsilon"),
        (["site", "request", "s", "--name", "UPPER", "--org", "o", "--federation", "f"], "a site's name"),
        (["site", "nonsense"], "nonsense"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(words, sentence, schema_file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call([schema_file if word == "SCHEMA" else word for word in words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert "Traceback" not in error


def test_without_flare_the_install_line_is_given(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"pip install 'populace\[federation\]'"):
        kits.found(tmp_path, federation="f", host="localhost", port=8002)


def test_a_proposal_needs_a_declared_schema(small_schema, tmp_path):
    read = dataclasses.replace(small_schema.columns[0], domain="read-from-data")
    dataclasses.replace(small_schema, columns=(read, *small_schema.columns[1:])).save(tmp_path / "s.toml")
    with pytest.raises(InputError, match="the domain of colour was read from data"):
        propose(schema=str(tmp_path / "s.toml"), epsilon=1.0, settings={})


def test_a_proposal_cannot_name_code_of_its_choice(small_schema, tmp_path):
    agreement = Agreement(protocol=make_protocol("independent", {"epsilon": 1.0}), schema=small_schema)
    path = tmp_path / "p.json"
    Proposal(federation="f", server="h:1", fingerprint="x", agreement=agreement).save(path)
    assert read_proposal(path).agreement.digest == agreement.digest
    document = read_json(path)
    for method, cls in (("independent", "os:system"), ("mine", "mine:Mine"), ("poll", "populace.protocols.krr:Krr")):
        write_json(path, {**document, "agreement": {**document["agreement"], "method": method, "class": cls}})
        with pytest.raises(InputError, match="not a method of this installation"):
            read_proposal(path)


@pytest.fixture(scope="module")
def founded(tmp_path_factory, small_schema):
    """A federation and a site's signed request, made once; nothing is started."""
    folder = tmp_path_factory.mktemp("founded")
    federation = Federation(folder / "federation")
    agreement = Agreement(protocol=make_protocol("independent", {"epsilon": 2.0, "batch": 100}), schema=small_schema)
    fingerprint = federation.found(agreement, name="study", host="localhost", port=18999)
    site = SiteFolder(folder / "site")
    _, signed = federation.approve(site.request(name="ward", org="clinic", federation="study"))
    return federation, site, signed, fingerprint


def hosting(data, **changes):
    return Hosting(**{"data": data, "by": "rows", "epsilon": 2.0, **changes})


def test_a_site_joins_under_its_own_limit_and_keeps_it(founded, rows, tmp_path, capsys):
    federation, site, signed, fingerprint = founded
    proposal = read_proposal(federation.proposal_path)
    data = tmp_path / "rows.parquet"
    pq.write_table(rows.frame, data)
    with pytest.raises(BudgetError, match="raise --epsilon, or do not join"):
        site.set_up(signed, proposal, hosting(data, epsilon=1.5), fingerprint=fingerprint)
    site.set_up(signed, proposal, hosting(data), fingerprint=fingerprint)
    policy.check_site_policy(site.kit)
    assert site.kit.stat().st_mode & 0o077 == 0
    assert (site.kit / "startup" / "client.key").stat().st_mode & 0o077 == 0
    assert site.file_path.stat().st_mode & 0o077 == 0
    with pytest.raises(BudgetError, match="its owner may change it"):
        site.set_up(signed, proposal, hosting(data, epsilon=9.0), fingerprint=fingerprint)
    site.set_up(signed, proposal, hosting(data, epsilon=9.0, change_limit=True), fingerprint=fingerprint)
    assert read_site_file(site.file_path).epsilon == 9.0
    assert len(open_site(site.file_path).hosted.accounts) == len(rows)
    assert call(["site", "status", str(site.path)]) == 0
    said = capsys.readouterr().out
    assert "agreed: independent with epsilon 2, batch 100" in said
    assert "limit: epsilon 9 per client; spent by the account that spent most: 0" in said
    assert call(["site", "status", str(site.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["process"] is None
    assert found["ledger"]["charges"] == 0
    pq.write_table(rows.take(np.arange(len(rows))[::-1]).frame, data)
    with pytest.raises(DataError, match="accounts are row numbers"):
        open_site(site.file_path)


def test_whom_a_site_hosts(founded, rows, tmp_path):
    federation, site, signed, fingerprint = founded
    for path in site.path.glob("data.json"):
        path.unlink()
    for path in site.path.glob("ledger.sqlite*"):
        path.unlink()
    proposal = read_proposal(federation.proposal_path)
    data = tmp_path / "rows.parquet"
    pq.write_table(rows.frame.append_column("ward", [["a", "b", "b"] * 4]), data)
    by_column = hosting(data, by="column", client_column="ward")
    site.set_up(signed, proposal, by_column, fingerprint=fingerprint)
    hosted = open_site(site.file_path).hosted
    assert hosted.accounts == ("ward a", "ward b")
    assert hosted.records == 8
    site.set_up(signed, proposal, hosting(data, by="site"), fingerprint=fingerprint)
    assert open_site(site.file_path).hosted.accounts == ("site",)
    with pytest.raises(DataError, match="8 records, 3 were declared"):
        site.set_up(
            signed, proposal, hosting(data, by="column", client_column="ward", records=3), fingerprint=fingerprint
        )
    with pytest.raises(DataError, match="no client column"):
        site.set_up(signed, proposal, hosting(data, by="column", client_column="bed"), fingerprint=fingerprint)


def test_one_schema_per_site_and_one_federation(founded, rows, tmp_path):
    federation, site, signed, fingerprint = founded
    proposal = read_proposal(federation.proposal_path)
    data = tmp_path / "rows.parquet"
    pq.write_table(rows.frame, data)
    site.set_up(signed, proposal, hosting(data, by="site"), fingerprint=fingerprint)
    schema = dataclasses.replace(rows.schema, target="colour")
    other = dataclasses.replace(proposal, agreement=dataclasses.replace(proposal.agreement, schema=schema))
    with pytest.raises(SpecError, match="one schema"):
        site.set_up(signed, other, hosting(data, by="site"), fingerprint=fingerprint)
    with pytest.raises(InputError, match="asked to join 'study'"):
        site.set_up(signed, dataclasses.replace(proposal, federation="x"), hosting(data), fingerprint=fingerprint)


def test_a_request_holds_no_private_key_and_is_made_once(founded, tmp_path):
    _, site, _, _ = founded
    request = next((site.path / "request" / "key").glob("*.request.zip"))
    with zipfile.ZipFile(request) as content:
        assert not any(b"PRIVATE KEY" in content.read(name) for name in content.namelist())
    with pytest.raises(RunError, match="holds a site already"):
        site.request(name="ward", org="clinic", federation="study")
    with pytest.raises(RunError, match="holds a federation already"):
        founded[0].found(founded[0].agreement(), name="study", host="localhost", port=18999)


def test_a_run_needs_a_running_server(founded, tmp_path, capsys):
    assert call(["federation", "run", str(founded[0].path), "--out", str(tmp_path / "run")]) == 2
    assert "is not running; `populace federation start" in capsys.readouterr().err
    assert call(["federation", "status", str(founded[0].path)]) == 0
    assert "not running" in capsys.readouterr().out
