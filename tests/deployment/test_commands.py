"""The commands of federation and site: bad input is one sentence and exit code 2, and a site's folder says what it did."""

import dataclasses
import json
import math
import zipfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from populace.cli.main import call
from populace.engines.agreement import Agreement
from populace.engines.flare import kits, policy
from populace.engines.site_file import SiteFile, check_data, open_site, read_hosted, read_site_file
from populace.errors import BudgetError, DataError, InputError, MissingExtra, RunError, SpecError
from populace.federation.coordinator import Federation, Proposal, read_proposal
from populace.federation.propose import propose
from populace.federation.site import Hosting, SiteFolder
from populace.methods.registry import make_protocol
from populace.privacy.events import Gaussian, Pure
from populace.privacy.ledger import Charge
from populace.privacy.ledger_file import head_path
from populace.privacy.relation import Relation
from populace.privacy.sqlite_ledger import RolledBackError, SqliteLedger, kept_budget
from populace.tables.files import read_json, write_json
from populace.tables.table import write_frame

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
        (["federation", "init", "f", "--name", "f", "--schema", "SCHEMA", "--epsilon", "1", "--method", "census", "--set",
          "lists_share=0.1"], "list the categories in the schema"),
        (["site", "status", "nowhere"], "is not a site's folder"),
        (["site", "stop", "nowhere"], "is not a site's folder"),
        (["site", "join", "nowhere"], "is not a site's folder"),
        (["site", "join", "nowhere", "--data", "x.csv", "--epsilon", "2"], "--epsilon changes what was agreed"),
        (["site", "join", "nowhere", "--restored"], "--restored changes what was agreed"),
        (["site", "join", "nowhere", "x.signed.zip"], "give --fingerprint, --proposal, --data, --epsilon"),
        (["site", "request", "s", "--name", "UPPER", "--org", "o", "--federation", "f"], "a site's name"),
        (["site", "request", "SCHEMA", "--name", "a", "--org", "o", "--federation", "f"], "s.toml: File exists"),
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
        kits.make_root(tmp_path, federation="f", host="localhost", port=8002)


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
    for method, cls in (
        ("independent", "os:system"),
        ("mine", "mine:Mine"),
        ("poll", "populace.methods.baselines.krr:Krr"),
    ):
        write_json(path, {**document, "agreement": {**document["agreement"], "method": method, "class": cls}})
        with pytest.raises(InputError, match="not a method of this installation"):
            read_proposal(path)


@pytest.fixture(scope="module")
def founded(tmp_path_factory, small_schema):
    """A federation and a site's signed request, made once; nothing is started."""
    folder = tmp_path_factory.mktemp("founded")
    federation = Federation(folder / "federation")
    agreement = Agreement(
        protocol=make_protocol("independent", {"epsilon": 2.0, "clients_per_batch": 100}), schema=small_schema
    )
    fingerprint = federation.create(agreement, name="study", host="localhost", port=18999)
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
    assert "agreed: independent with epsilon 2, clients_per_batch 100" in said
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
    begin_anew(site)
    proposal = read_proposal(federation.proposal_path)
    data = tmp_path / "rows.parquet"
    pq.write_table(rows.frame.append_column("ward", [["a", "b", "b"] * 4]), data)
    by_column = hosting(data, by="column", client_column="ward")
    site.set_up(signed, proposal, by_column, fingerprint=fingerprint)
    hosted = open_site(site.file_path).hosted
    assert read_hosted(read_site_file(site.file_path), rows.schema).accounts == ("ward a", "ward b")
    assert [name.startswith("client #") for name in hosted.accounts] == [True, True]
    assert hosted.records == 8
    site.set_up(signed, proposal, hosting(data, by="site"), fingerprint=fingerprint)
    assert open_site(site.file_path).hosted.accounts == ("site",)
    with pytest.raises(DataError, match="8 records, 3 were declared"):
        site.set_up(
            signed, proposal, hosting(data, by="column", client_column="ward", records=3), fingerprint=fingerprint
        )
    with pytest.raises(DataError, match="no client or person column"):
        site.set_up(signed, proposal, hosting(data, by="column", client_column="bed"), fingerprint=fingerprint)


@pytest.mark.parametrize(
    "limit", [{"epsilon": e} for e in (math.nan, math.inf, 0.0, -1.0)] + [{"delta": d} for d in (math.nan, -0.1, 1.0)]
)
def test_a_limit_is_a_number_that_limits(founded, limit, tmp_path, capsys):
    federation, site, signed, fingerprint = founded
    with pytest.raises(InputError, match="expected a limit of epsilon above 0 and finite"):
        site.set_up(
            signed,
            read_proposal(federation.proposal_path),
            hosting(tmp_path / "none.csv", **limit),
            fingerprint=fingerprint,
        )
    given = {"epsilon": 2.0, **limit}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    words += ["--fingerprint", fingerprint, "--proposal", str(federation.proposal_path), "--data", "none.csv"]
    assert call(["site", "join", str(site.path), str(signed), *words]) == 2
    assert "expected a limit of epsilon above 0 and finite" in capsys.readouterr().err


def begin_anew(site):
    for pattern in ("data.json", "ledger.sqlite*"):
        for path in site.path.glob(pattern):
            path.unlink()


def test_joining_again_forgets_nothing_that_was_spent(founded, rows, tmp_path, capsys):
    """Another way to name accounts, a lost ledger, a lost record of whose accounts they are: refused in one sentence."""
    federation, site, signed, fingerprint = founded
    proposal = read_proposal(federation.proposal_path)
    begin_anew(site)
    data = tmp_path / "rows.parquet"
    pq.write_table(rows.frame.append_column("ward", [["a", "b", "b"] * 4]).append_column("bed", [["c", "d"] * 6]), data)

    def join(fingerprint=fingerprint, **changes):
        site.set_up(signed, proposal, hosting(data, **changes), fingerprint=fingerprint)

    ward = {"by": "column", "client_column": "ward"}
    join(**ward)
    file = read_site_file(site.file_path)
    with SqliteLedger(file.ledger, file.budget) as ledger:
        ledger.commit("ward a", Charge(event=Pure(2.0), unit="client"), run="r", round_id=0, question="q", reply=b"r")
    for changes in ({"by": "site"}, {"by": "rows"}, {"by": "column", "client_column": "bed"}):
        with pytest.raises(InputError, match="would be forgotten; say it as at the first join"):
            join(**changes)
        altered = dataclasses.replace(file, records=99, **changes)
        with pytest.raises(InputError, match="would be forgotten"):
            check_data(altered, read_hosted(altered, proposal.agreement.schema))
    with pytest.raises(InputError, match="certificate step was refused"):
        join(
            fingerprint=fingerprint[:-2] + ("00" if fingerprint[-2:] != "00" else "11"),
            epsilon=9.0,
            change_limit=True,
            **ward,
        )
    assert kept_budget(file.ledger) == file.budget  # a join that fails changes no limit
    kept = (site.path / "data.json").read_text()
    (site.path / "data.json").unlink()
    with pytest.raises(RunError, match="put it back"):
        join(**ward)
    (site.path / "data.json").write_text(kept)
    for path in site.path.glob("ledger.sqlite*"):
        path.unlink()
    with pytest.raises(RunError, match="is gone, and with it what was spent"):
        join(**ward)
    assert call(["site", "status", str(site.path)]) == 2
    assert "is gone, and with it what was spent" in capsys.readouterr().err
    assert not (site.path / "ledger.sqlite").exists()
    begin_anew(site)


def test_a_ledger_with_charges_keeps_its_unit(founded, rows, tmp_path, capsys):
    """Version 0.1.0 let `--change-limit` switch it from client to record, and added both up from then on."""
    federation, site, signed, fingerprint = founded
    begin_anew(site)
    data = tmp_path / "rows.parquet"
    pq.write_table(rows.frame, data)
    proposal = read_proposal(federation.proposal_path)
    record = Agreement(
        protocol=make_protocol("moments", {"epsilon": 2.0, "delta": 1e-3}), schema=proposal.agreement.schema
    )
    other = dataclasses.replace(proposal, agreement=record)
    by_record = hosting(data, by="site", epsilon=3.0, delta=1e-2, change_limit=True)
    site.set_up(signed, proposal, hosting(data, by="site"), fingerprint=fingerprint)
    with pytest.raises(InputError, match=r"independent \(per client.*moments \(per record.*not add up to one limit"):
        site.set_up(signed, other, by_record, fingerprint=fingerprint)
    withdraw(site)
    site.set_up(signed, other, by_record, fingerprint=fingerprint)  # nothing is booked yet
    file = read_site_file(site.file_path)
    assert (file.unit, kept_budget(file.ledger).unit) == ("record", "record")
    with SqliteLedger(file.ledger, file.budget) as ledger:
        charge, relation = Charge(event=Gaussian(5.0), unit="record"), Relation(neighbours="zero-out", trust="silo")
        ledger.commit_many([("site", "q", b"r", None)], charge, run="r", round_id=0, relation=relation)
    before = (site.kit / "startup" / "client.key").read_bytes(), site.file_path.read_bytes()
    with pytest.raises(BudgetError, match=r"holds charges per record.*its unit does not change any more"):
        site.set_up(signed, proposal, hosting(data, by="site", epsilon=9.0, change_limit=True), fingerprint=fingerprint)
    assert before == ((site.kit / "startup" / "client.key").read_bytes(), site.file_path.read_bytes())
    assert kept_budget(file.ledger) == file.budget
    site.set_up(signed, other, dataclasses.replace(by_record, epsilon=5.0), fingerprint=fingerprint)
    assert kept_budget(file.ledger).epsilon == 5.0
    begin_anew(site)
    withdraw(site)


def withdraw(site):
    """All that a site agreed to, as its owner does it."""
    write_json(site.file_path, {**read_json(site.file_path), "agreed": []}, mode=0o600)


def test_methods_whose_charges_do_not_add_up_are_not_agreed_to_in_one_folder(founded, rows, tmp_path, capsys):
    """`replace` and `zero-out`, silo and central: at the join where both are agreed to, and against what is booked."""
    federation, site, signed, fingerprint = founded
    begin_anew(site)
    withdraw(site)
    data = tmp_path / "rows.parquet"
    pq.write_table(rows.frame, data)
    proposal = read_proposal(federation.proposal_path)
    central = dataclasses.replace(
        proposal,
        agreement=Agreement(protocol=make_protocol("c-dpd-vae", {"epsilon": 2.0}), schema=proposal.agreement.schema),
    )
    wide = hosting(data, epsilon=9.0, delta=1e-2)
    with pytest.raises(
        InputError, match=r"the coordinator sees your clients' messages without noise.*--trust-coordinator"
    ):
        site.set_up(signed, central, wide, fingerprint=fingerprint)
    trusting = dataclasses.replace(wide, trust_coordinator=True)
    site.set_up(signed, proposal, wide, fingerprint=fingerprint)
    with pytest.raises(InputError, match=r"`replace`, trust `local`.*`zero-out`, trust `central`.*a folder of its own"):
        site.set_up(signed, central, trusting, fingerprint=fingerprint)
    file = read_site_file(site.file_path)
    with SqliteLedger(file.ledger, file.budget) as ledger:
        ledger.commit(
            "rows from 1", Charge(event=Pure(2.0), unit="client"), run="r", round_id=0, question="q", reply=b""
        )
    withdraw(site)
    with pytest.raises(BudgetError, match=r"holds charges under `replace`.*Agree to it in another folder"):
        site.set_up(signed, central, trusting, fingerprint=fingerprint)
    site.set_up(signed, proposal, wide, fingerprint=fingerprint)
    begin_anew(site)
    withdraw(site)
    assert site.set_up(signed, central, trusting, fingerprint=fingerprint).trust == "central"
    begin_anew(site)
    withdraw(site)


def test_a_backup_is_whole_and_only_the_newest_is_taken_back(founded, rows, tmp_path, capsys):
    federation, site, signed, fingerprint = founded
    begin_anew(site)
    data, proposal = tmp_path / "rows.parquet", read_proposal(federation.proposal_path)
    pq.write_table(rows.frame, data)
    wide = hosting(data, epsilon=99.0)
    site.set_up(signed, proposal, wide, fingerprint=fingerprint)
    file = read_site_file(site.file_path)
    copies = []
    for number in range(2):
        with SqliteLedger(file.ledger, file.budget) as ledger:
            ledger.commit(
                "rows from 1", Charge(event=Pure(2.0), unit="client"), run="r", round_id=number, question=str(number), reply=b""
            )  # fmt: skip
        copies.append(tmp_path / f"{number}.zip")
        assert call(["site", "backup", str(site.path), "-o", str(copies[-1])]) == 0
    assert copies[0].stat().st_mode & 0o077 == 0
    assert sorted(zipfile.ZipFile(copies[0]).namelist()) == ["data.json", "ledger.sqlite"]
    zipfile.ZipFile(copies[0]).extractall(site.path)
    with pytest.raises(RolledBackError, match="is not the one that was written last"):
        site.set_up(signed, proposal, dataclasses.replace(wide, restored=True), fingerprint=fingerprint)
    zipfile.ZipFile(copies[1]).extractall(site.path)
    site.set_up(signed, proposal, wide, fingerprint=fingerprint)
    head_path(Path(file.ledger)).unlink()  # another machine: the archive is all there is
    with pytest.raises(RunError, match="join with --restored"):
        site.set_up(signed, proposal, wide, fingerprint=fingerprint)
    site.set_up(signed, proposal, dataclasses.replace(wide, restored=True), fingerprint=fingerprint)
    assert site.status()["ledger"]["charges"] == 2
    begin_anew(site)


def test_other_people_are_hosted_only_if_the_owner_says_so_at_a_join(founded, rows, tmp_path):
    federation, site, signed, fingerprint = founded
    begin_anew(site)
    data, proposal = tmp_path / "rows.parquet", read_proposal(federation.proposal_path)

    def join(first, **changes):
        names = [f"{first}{number}" for number in range(len(rows))]
        pq.write_table(rows.frame.append_column("patient", [names]), data)
        by_column = hosting(data, by="column", client_column="patient", **changes)
        site.set_up(signed, proposal, by_column, fingerprint=fingerprint)
        return open_site(site.file_path).hosted.accounts

    charged = join("a")
    file = read_site_file(site.file_path)
    with SqliteLedger(file.ledger, file.budget) as ledger:
        for account in charged:
            ledger.commit(account, Charge(event=Pure(2.0), unit="client"), run="r", round_id=0, question="q", reply=b"")
    with pytest.raises(DataError, match=r"only 0 of them.*join with --other-clients"):
        join("b")
    others = join("b", other_clients=True)
    assert not set(others) & set(charged)
    assert join("b") == others  # said once
    assert join("A") == charged  # what they spent still counts on them
    begin_anew(site)


def test_accounts_keep_their_names_when_the_table_grows(rows, tmp_path):
    """Identifiers are text, also where they look like numbers, and where the column is one of the schema's."""
    data = tmp_path / "rows.csv"
    names = [f"{i // 2:03d}" for i in range(len(rows))]
    file = SiteFile(
        name="s", federation="f", data=str(data), ledger="", log="", by="column", records_per_client=1,
        client_column="patient", records=99, epsilon=1.0, delta=0.0, unit="client", seed=None, agreed=(),
    )  # fmt: skip
    found = []
    for last in ("005", "x5"):
        write_frame(rows.frame.append_column("patient", [[*names[:-1], last]]), data)
        found.append(read_hosted(file, rows.schema).accounts)
    assert found[0] == tuple(f"patient {i:03d}" for i in range(6))
    assert found[1] == (*found[0], "patient x5")
    write_frame(rows.frame.drop_null(), data)
    sized = read_hosted(dataclasses.replace(file, client_column="size"), rows.schema).accounts
    assert set(sized) == {f"size {n}" for n in rows.frame.column("size").drop_null().to_pylist()}


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
        founded[0].create(founded[0].agreement(), name="study", host="localhost", port=18999)


def test_a_run_needs_a_running_server(founded, tmp_path, capsys):
    assert call(["federation", "run", str(founded[0].path), "--out", str(tmp_path / "run")]) == 2
    assert "is not running; `populace federation start" in capsys.readouterr().err
    assert call(["federation", "status", str(founded[0].path)]) == 0
    assert "not running" in capsys.readouterr().out
