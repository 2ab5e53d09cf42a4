"""Sites that protect persons: the proposal asks for it, each site names its own column, and none joins without one."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from populace.engines.agreement import agreement_from_json
from populace.engines.site_file import SiteFile, begin_accounts, check_data, read_hosted, read_site_file
from populace.errors import BudgetError, DataError, InputError, SpecError
from populace.federation.coordinator import Proposal
from populace.federation.propose import propose
from populace.federation.site import Hosting, SiteFolder
from populace.privacy.ledger import Budget
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.runs.federated_statement import stated_site
from populace.tables.files import write_json
from populace.tables.schema import Column, Schema

ROWS = 60
SMALL = {"components": "3", "members": "2", "fit_steps": "10"}


@pytest.fixture
def folder(tmp_path):
    columns = (Column(name=name, kind="categorical", categories=("x", "y"), source="us") for name in ("a", "b"))
    Schema(columns=tuple(columns)).save(tmp_path / "s.toml")
    rows = {"a": ["x", "y"] * (ROWS // 2), "b": ["x", "x", "y"] * (ROWS // 3)}
    pq.write_table(pa.table({**rows, "patient": [f"p{row // 3}" for row in range(ROWS)]}), tmp_path / "ward.parquet")
    pq.write_table(pa.table(rows), tmp_path / "bare.parquet")
    (tmp_path / "ward").mkdir()
    write_json(tmp_path / "ward" / "site.json", {"name": "ward", "org": "clinic", "federation": "study"})
    return tmp_path


def proposal(folder, **options):
    agreement = propose(schema=str(folder / "s.toml"), epsilon=1.0, delta=1e-6, settings=SMALL, **options)
    return Proposal(federation="study", server="localhost:1", fingerprint="", agreement=agreement)


def hosting(folder, data="ward.parquet", **more):
    return Hosting(data=folder / data, by="site", epsilon=9.0, delta=1e-3, **more)


def set_up(folder, what, how):
    """Everything before the kit of certificates, which a refusal comes before."""
    return SiteFolder(folder / "ward").set_up(folder / "signed.zip", what, how, fingerprint="")


def test_a_proposal_says_that_persons_are_protected_and_names_no_column(folder):
    agreement = proposal(folder, person=True).agreement
    assert agreement.protocol.protected_unit == "person"
    assert agreement.terms["parameters"]["unit"] == "person"
    again = agreement_from_json(agreement.to_json(), where="a test")
    assert again.digest == agreement.digest
    assert again.digest != proposal(folder).agreement.digest
    with pytest.raises(SpecError, match="method 'flaim' protects one record"):
        proposal(folder, person=True, method="flaim")


def test_a_site_joins_with_its_own_person_column_only(folder):
    with pytest.raises(InputError, match=r"say which column of your table names them, with --person COLUMN"):
        set_up(folder, proposal(folder, person=True), hosting(folder))
    with pytest.raises(DataError, match="no client or person column 'patient'"):
        set_up(folder, proposal(folder, person=True), hosting(folder, "bare.parquet", person="patient"))
    with pytest.raises(InputError, match="the proposal protects one record, not persons"):
        set_up(folder, proposal(folder), hosting(folder, person="patient"))
    with pytest.raises(DataError, match="would be synthesised; do not join"):
        set_up(folder, proposal(folder, person=True), hosting(folder, person="a"))
    little = dataclasses.replace(hosting(folder, person="patient"), epsilon=0.5)
    with pytest.raises(BudgetError, match="per person, more than the limit"):
        set_up(folder, proposal(folder, person=True), little)


def site_file(folder, person="patient"):
    how = hosting(folder, person=person)
    return SiteFolder(folder / "ward")._file(proposal(folder, person=person is not None).agreement, how)


def test_the_file_of_a_site_keeps_the_column_and_its_limit_is_per_person(folder):
    file = site_file(folder)
    assert (file.unit, file.person, file.budget.unit) == ("person", "patient", "person")
    write_json(folder / "file.json", file.to_json())
    assert read_site_file(folder / "file.json") == dataclasses.replace(file, agreed=read_agreed(folder))
    hosted = read_hosted(file, proposal(folder).agreement.schema)
    np.testing.assert_array_equal(hosted.clients.persons, np.arange(ROWS) // 3)
    assert read_hosted(site_file(folder, None), proposal(folder).agreement.schema).clients.persons is None
    old = {name: value for name, value in file.to_json().items() if name != "person"}
    write_json(folder / "file.json", old)
    assert read_site_file(folder / "file.json").person is None


def read_agreed(folder) -> tuple:
    return read_site_file(folder / "file.json").agreed


def test_accounts_begun_with_one_person_column_are_not_charged_for_another(folder):
    file = site_file(folder)
    hosted = read_hosted(file, proposal(folder).agreement.schema)
    begin_accounts(file, hosted)
    check_data(file, hosted)
    with pytest.raises(InputError, match="persons by column 'patient'"):
        check_data(dataclasses.replace(file, person="ward"), hosted)
    with SqliteLedger(folder / "l.sqlite", file.budget) as ledger:
        assert ledger.budget.unit == "person"
    with pytest.raises(BudgetError):
        SqliteLedger(folder / "l.sqlite", Budget(epsilon=9.0, delta=1e-3, unit="record")).close()


def test_a_site_tells_its_people_what_one_person_is(folder):
    agreement = proposal(folder, person=True).agreement
    claim = agreement.protocol.guarantee(agreement.population(clients=1, records=ROWS))
    stated = stated_site(claim, hosts="site", clients=1, records=ROWS, column=None, kind="table", seeded=False)
    assert stated.unit_in_words == "one person (all rows of a site's table that name them)"
    assert stated.units == ROWS
    assert isinstance(site_file(folder), SiteFile)
