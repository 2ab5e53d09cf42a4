"""Clients named by a column: one person has one account in whatever spelling, and its name stands nowhere in plain text."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders import code_of, request_of
from populace.engines import wire
from populace.engines.agreement import Agreement
from populace.engines.site_file import SiteFile, allow_other_clients, begin_accounts, open_site, read_hosted
from populace.errors import DataError
from populace.methods.registry import make_protocol
from populace.privacy.events import Pure
from populace.privacy.ledger import Charge
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.files import read_json, write_json
from populace.tables.schema import Column, Schema

DIAGNOSIS = Schema(columns=(Column(name="diagnosis", kind="categorical", categories=("healthy", "ill")),))
POLL = make_protocol("poll", {"epsilon": 2.0, "stages": 1})
NAMES = [f"{number:03d}" for number in range(1, 11)]


class Ward:
    """A site whose limit is one run, with its files in a folder; its table is written again and again."""

    def __init__(self, folder, names):
        self.folder = folder
        agreement = Agreement(protocol=POLL, schema=DIAGNOSIS)
        self.file = SiteFile(
            name="s", federation="f", data="", ledger=str(folder / "ledger.sqlite"), log=str(folder / "site.log"),
            by="column", records_per_client=1, client_column="patient", records=2, epsilon=2.0, delta=0.0, unit="client",
            seed=None, agreed=(agreement.to_json(),),
        )  # fmt: skip
        self.write(names)
        SqliteLedger(self.file.ledger, self.file.budget).close()
        begin_accounts(self.file, read_hosted(self.file, DIAGNOSIS))

    def write(self, names, *, parquet=False):
        told = ["ill" if place % 2 else "healthy" for place in range(len(names))]
        data = self.folder / ("data.parquet" if parquet else "data.csv")
        if parquet:
            pq.write_table(pa.table({"patient": pa.array(names), "diagnosis": told}), data)
        else:
            rows = "".join(f"{name},{one}\n" for name, one in zip(names, told, strict=True))
            data.write_text(f"patient,diagnosis\n{rows}")
        self.file = dataclasses.replace(self.file, data=str(data))

    def open(self):
        write_json(self.folder / "populace.json", self.file.to_json())
        return open_site(self.folder / "populace.json")

    def answers(self, run):
        """How many clients answer one more run."""
        site = self.open()
        reply = site.reply(request_of(POLL, DIAGNOSIS, total=len(site.hosted.accounts), records=2, run=run))
        return len(wire.unpack(reply).arrays["clients"]) if code_of(reply) == "reply" else code_of(reply)


@pytest.fixture
def ward(tmp_path):
    made = Ward(tmp_path, NAMES)
    assert made.answers("first") == 10
    assert made.answers("second") == "budget"
    return made


@pytest.mark.parametrize(
    "spell",
    [
        lambda ward: ward.write([f" {name}" for name in NAMES]),
        lambda ward: ward.write([f"{name} " for name in NAMES], parquet=True),
        lambda ward: ward.write(NAMES[::-1], parquet=True),
        lambda ward: ward.write([*NAMES, *(f" {name}" for name in NAMES)]),
    ],
)
def test_another_spelling_or_format_is_no_new_budget(ward, spell):
    spell(ward)
    assert ward.answers("third") == "budget"
    assert len(ward.open().hosted.accounts) == 10


@pytest.mark.parametrize("number", [int, float, str])
def test_numbers_are_one_name_in_text_and_in_numbers(tmp_path, number):
    ward = Ward(tmp_path, [str(n) for n in range(1, 11)])
    assert ward.answers("first") == 10
    ward.write([number(n) for n in range(1, 11)], parquet=True)
    assert ward.answers("second") == "budget"


@pytest.mark.parametrize(
    "names",
    [list(range(1, 11)), [float(n) for n in range(1, 11)], [str(n) for n in range(1, 11)], [f"P{n}" for n in NAMES]],
)
def test_names_of_which_most_are_unknown_are_refused_until_the_owner_says_they_are_others(ward, names):
    """Leading zeros lost, or new pseudonyms: all budgets would have begun anew."""
    ward.write(names, parquet=True)
    with pytest.raises(
        DataError, match=r"10 clients were charged, and only 0 of them are in .*join with --other-clients"
    ):
        ward.open()
    allow_other_clients(ward.file)
    assert ward.answers("others") == 10
    assert ward.answers("others-again") == "budget"
    ward.write(NAMES)
    with pytest.raises(DataError, match="only 0 of them"):  # now those of the other table are the charged ones
        ward.open()


def test_a_table_may_grow_and_lose_up_to_half(ward):
    ward.write([*NAMES[:5], *(f"new{n}" for n in range(20))])
    assert ward.answers("grown") == 20
    ward.write(NAMES[:4])
    with pytest.raises(DataError, match="30 clients were charged, and only 4"):
        ward.open()


def test_names_of_clients_stand_neither_in_the_ledger_nor_in_the_log(tmp_path):
    names = [f"mueller-{name}" for name in NAMES]
    ward = Ward(tmp_path, names)
    for run in ("first", "second"):
        ward.answers(run)
    request = request_of(POLL, DIAGNOSIS, total=10, records=2, run="first", heard=np.full(10, 5))
    ward.open().reply(request)
    written = [path for path in tmp_path.iterdir() if path.name.startswith(("ledger", "site.log", "data.json"))]
    assert len(written) == 4
    assert not any(b"mueller" in path.read_bytes() for path in written)
    assert "account 'client #" in (tmp_path / "site.log").read_text()
    with SqliteLedger(ward.file.ledger, ward.file.budget) as ledger:
        found = ledger.accounts()
    assert sorted(found) == sorted(ward.open().hosted.accounts)
    salt = read_json(tmp_path / "data.json")["salt"]
    (tmp_path / "other").mkdir()
    other = Ward(tmp_path / "other", names)
    assert read_json(tmp_path / "other" / "data.json")["salt"] != salt
    assert not set(found) & set(other.open().hosted.accounts)


def test_what_was_booked_under_plain_names_counts_in_whatever_spelling(tmp_path):
    """As older versions booked it, one patient twice under two spellings."""
    ward = Ward(tmp_path, NAMES)
    two, one = (Charge(event=Pure(epsilon), unit="client") for epsilon in (2.0, 1.0))
    with SqliteLedger(ward.file.ledger, ward.file.budget) as ledger:
        ledger.commit("patient 001", two, run="old", round_id=0, question="q", reply=b"")
        ledger.commit("patient  002", one, run="old", round_id=0, question="q", reply=b"")
        ledger.commit("patient 002 ", one, run="old", round_id=1, question="r", reply=b"")
        ledger.commit("patient 003", one, run="old", round_id=0, question="q", reply=b"")
    assert ward.answers("new") == 7  # 1 and 2 have spent 2 of 2, and 3 has 1 left where 2 are asked
    with SqliteLedger(ward.file.ledger, ward.file.budget) as ledger:
        assert len(ledger.accounts()) == 10
