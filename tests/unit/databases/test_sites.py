"""Sites whose records lie in a database: answers as from a file, and accounts that stay when the table grows."""

import dataclasses
import sqlite3

import psycopg
import pytest

from builders import code_of, request_of
from databases_for_tests import new_database
from populace.engines import wire
from populace.engines.agreement import Agreement
from populace.engines.site_file import SiteFile, begin_accounts, open_site, read_hosted, read_site_file
from populace.errors import InputError
from populace.federation.coordinator import Proposal
from populace.federation.site import Hosting, SiteFolder
from populace.methods.registry import make_protocol
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.files import write_json
from populace.tables.schema import Column, Schema

DIAGNOSIS = Schema(columns=(Column(name="diagnosis", kind="categorical", categories=("healthy", "ill")),))
POLL = make_protocol("poll", {"epsilon": 2.0, "stages": 1})
TABLE = "CREATE TABLE patients (patient TEXT, diagnosis TEXT)"
INSERT = "INSERT INTO patients VALUES "


class Ward:
    """A site whose limit is one run, over a database."""

    def __init__(self, folder, data):
        self.path = folder / "populace.json"
        agreement = Agreement(protocol=POLL, schema=DIAGNOSIS)
        self.file = SiteFile(
            name="s", federation="f", data=data, ledger=str(folder / "ledger.sqlite"), log=str(folder / "site.log"),
            by="column", records_per_client=1, client_column="patient", records=2, epsilon=2.0, delta=0.0, unit="client",
            seed=None, agreed=(agreement.to_json(),),
        )  # fmt: skip
        SqliteLedger(self.file.ledger, self.file.budget).close()
        begin_accounts(self.file, read_hosted(self.file, DIAGNOSIS))
        write_json(self.path, self.file.to_json())

    def answers(self, run):
        """How many clients answer one more run."""
        site = open_site(self.path)
        reply = site.reply(request_of(POLL, DIAGNOSIS, total=len(site.hosted.accounts), records=2, run=run))
        return len(wire.unpack(reply).arrays["clients"]) if code_of(reply) == "reply" else code_of(reply)


@pytest.fixture(params=["sqlite", "postgresql"])
def base(request, tmp_path):
    """Ten patients in a database, and a way to change it."""
    if request.param == "sqlite":
        place = str(tmp_path / "ward.sqlite")

        def change(statement):
            with sqlite3.connect(place) as connection:
                connection.execute(statement)
            connection.close()
    else:
        place = new_database(request.getfixturevalue("database"), tmp_path.name)

        def change(statement):
            with psycopg.connect(place, autocommit=True) as connection:
                connection.execute(statement)

    change(TABLE)
    change(INSERT + ", ".join(f"('p{number}', '{'ill' if number % 2 else 'healthy'}')" for number in range(10)))
    return place, change


def test_accounts_stay_with_their_owners_when_the_table_grows_and_turns(base, tmp_path):
    place, change = base
    ward = Ward(tmp_path, f"{place}#table=patients")
    assert ward.answers("first") == 10
    assert ward.answers("second") == "budget"
    change("UPDATE patients SET diagnosis = 'ill' WHERE patient = 'p0'")  # PostgreSQL puts the row at the end
    change(INSERT + "('p10', 'healthy'), ('p11', 'ill')")
    assert ward.answers("third") == 2


def test_a_site_by_rows_is_refused_and_one_by_a_key_is_not(base, tmp_path):
    place, _ = base
    (tmp_path / "ward").mkdir()
    write_json(tmp_path / "ward" / "site.json", {"name": "ward", "org": "clinic", "federation": "study"})
    agreement = Agreement(protocol=POLL, schema=DIAGNOSIS)
    proposal = Proposal(federation="study", server="localhost:1", fingerprint="", agreement=agreement)
    site = SiteFolder(tmp_path / "ward")
    rows = Hosting(data=f"{place}#table=patients", by="rows", epsilon=2.0)
    with pytest.raises(InputError, match=r"rows of a database have no numbers that stay.*--client-column"):
        site.set_up(tmp_path / "signed.zip", proposal, rows, fingerprint="")
    keyed = dataclasses.replace(rows, by="column", client_column="patient")
    with pytest.raises(InputError, match=r"signed\.zip"):  # all but the certificate is in order
        site.set_up(tmp_path / "signed.zip", proposal, keyed, fingerprint="")


def test_a_folder_that_moved_finds_its_database(tmp_path):
    folder = tmp_path / "ward"
    (folder / "kit" / "local").mkdir(parents=True)
    sqlite3.connect(folder / "ward.sqlite").execute(TABLE).connection.close()
    made = SiteFile(
        name="s", federation="f", data=f"{folder / 'ward.sqlite'}#table=patients", ledger=str(folder / "ledger.sqlite"),
        log=str(folder / "site.log"), by="site", records_per_client=1, client_column=None, records=2, epsilon=2.0, delta=0.0,
        unit="client", seed=None, agreed=(Agreement(protocol=POLL, schema=DIAGNOSIS).to_json(),),
    )  # fmt: skip
    write_json(folder / "kit" / "local" / "populace.json", made.to_json(folder))
    moved = folder.rename(tmp_path / "elsewhere")
    assert read_site_file(moved / "kit" / "local" / "populace.json").data == f"{moved / 'ward.sqlite'}#table=patients"
    server = dataclasses.replace(made, data="postgresql://db.clinic/ward#query=SELECT a/b FROM t")
    write_json(moved / "kit" / "local" / "populace.json", server.to_json(moved))
    assert read_site_file(moved / "kit" / "local" / "populace.json").data == server.data
