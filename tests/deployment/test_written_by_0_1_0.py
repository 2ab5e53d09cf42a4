"""What version 0.1.0 left: a ledger, a site's folder, a run under way, a collection. It counts, or is refused in words."""

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from builders import code_of, request_of
from populace.cli.main import call
from populace.engines.agreement import agreement_from_json
from populace.engines.link import InProcess
from populace.engines.segment import advance, read_status
from populace.engines.site_file import open_site, read_site_file
from populace.errors import BudgetError
from populace.privacy.events import Pure
from populace.privacy.ledger import Budget, Charge
from populace.privacy.sqlite_ledger import LAYOUT, SqliteLedger, kept_budget
from populace.runs.poll.collect import Collection, collect
from populace.tables.files import read_json

WRITTEN = Path(__file__).parent / "written-by-0.1.0"


@pytest.fixture
def written(tmp_path):
    folder = tmp_path / "old"
    shutil.copytree(WRITTEN, folder)
    local = folder / "ward" / "kit" / "local"
    local.mkdir(parents=True)
    text = (folder / "ward" / "populace.json").read_text()
    (local / "populace.json").write_text(text.replace("@FOLDER@", str(folder / "ward")))
    return folder


def layout(path):
    with sqlite3.connect(path) as raw:
        found = raw.execute("PRAGMA user_version").fetchone()[0]
    raw.close()
    return found


def test_an_old_ledger_opens_and_all_its_entries_count(written):
    path = written / "ward" / "ledger.sqlite"
    assert layout(path) == 0
    budget = kept_budget(path)
    assert budget == Budget(epsilon=4.0)
    with SqliteLedger(path, budget, create=False) as ledger:
        assert len(ledger.accounts()) == 10
        assert ledger.spent("patient p03") == 2.0
        assert ledger.summary()["runs"][0]["run"] == "study-1"
        two = Charge(event=Pure(2.0), unit="client")
        ledger.commit("patient p03", two, run="new", round_id=0, question="q", reply=b"")
        with pytest.raises(BudgetError, match="would have spent epsilon 6 of 4"):
            ledger.commit("patient p03", two, run="newer", round_id=0, question="q", reply=b"")
    assert layout(path) == LAYOUT
    with SqliteLedger(path, budget, create=False) as ledger:
        assert ledger.spent("patient p03") == 4.0


def test_an_old_site_opens_and_answers_a_new_run_with_what_is_left(written, capsys):
    """Ten of twelve patients have spent 2 of 4: all answer once more, and then only the two who had not answered then."""
    pytest.importorskip("nvflare")
    site = open_site(written / "ward" / "kit" / "local" / "populace.json")
    protocol = next(iter(site.agreements.values())).protocol
    schema = next(iter(site.agreements.values())).schema

    def answers(run):
        return sum(
            len(wire_clients(site.reply(ask)))
            for round_id in range(3)
            for ask in [asks(protocol, schema, run, round_id)]
            if code_of(site.reply(ask)) == "reply"
        )

    assert answers("study-2") == 12
    assert answers("study-3") == 2
    assert answers("study-4") == 0
    assert call(["site", "status", str(written / "ward")]) == 0
    assert "spent by the account that spent most: 4" in capsys.readouterr().out


def asks(protocol, schema, run, round_id):
    """Round by round, five of twelve numbers each."""
    who = np.arange(5 * round_id, min(5 * round_id + 5, 12), dtype=np.int32)
    return request_of(
        protocol, schema, total=12, run=run, round_id=round_id, clients=who, heard=np.zeros(len(who)),
        own=np.zeros(len(who), np.int32),
    )  # fmt: skip


def wire_clients(reply):
    from populace.engines import wire

    return wire.unpack(reply).arrays["clients"]


def test_a_run_under_way_is_refused_in_words_and_what_was_spent_stays(written):
    """Rounds that were answered, the one that was booked and never heard, and the next."""
    site = open_site(written / "ward" / "kit" / "local" / "populace.json")
    for round_id in range(3):
        agreement = next(iter(site.agreements.values()))
        assert code_of(site.reply(asks(agreement.protocol, agreement.schema, "study-1", round_id))) == "old-run"
    assert "begun under version 0.1.0" in (written / "ward" / "site.log").read_text()
    state = advance(written / "run", InProcess({"ward": site.reply}))
    assert state == "waiting"
    why = read_status(written / "run")["why"]
    assert "ward: the run was begun under version 0.1.0; begin a new one, what was spent stays counted" in why
    file = read_site_file(written / "ward" / "kit" / "local" / "populace.json")
    with SqliteLedger(file.ledger, file.budget, create=False) as ledger:
        assert ledger.summary()["charges"] == 10


def test_a_ledger_whose_unit_was_switched_adds_nothing_up(written):
    """Version 0.1.0 said that anna had spent 5 per client: 3 per record and 2 per client."""
    with SqliteLedger(written / "mixed.sqlite", Budget(epsilon=9.0), create=False) as ledger:
        for who in ("anna", "bert"):
            with pytest.raises(BudgetError, match="holds charges per record"):
                ledger.check(who, Charge(event=Pure(1.0), unit="client"))
        found = ledger.summary()
    assert found["epsilon_of_the_account_that_spent_most"] == 2.0
    assert found["other_units"]["record"]["epsilon_of_the_account_that_spent_most"] == 3.0


def test_an_old_agreement_to_moments_means_the_silo(written):
    found = agreement_from_json(read_json(written / "moments.agreement.json"), where="a file of 0.1.0")
    assert found.protocol.trust == "silo"
    assert found.parameters["trust"] == "silo"  # what a request of this version names


def test_an_old_collection_is_refused_in_words_and_stays_spent(written):
    poll = written / "poll"
    wanted = Collection(
        data=str(poll / "people.csv"), schema_file=str(poll / "people.toml"), epsilon=2.0, client_column="patient"
    )
    with pytest.raises(BudgetError, match=r"have answered under other numbers.*0\.1\.0"):
        collect(wanted, poll / "answers.parquet")
    assert not (poll / "answers.parquet").exists()
    with SqliteLedger(wanted.ledger_file, Budget(epsilon=2.0), create=False) as ledger:
        assert len(ledger.accounts()) == 12
        assert {ledger.spent(account) for account in ledger.accounts()} == {2.0}
