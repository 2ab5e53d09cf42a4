"""Numbers of clients tell nothing: a secret order, drawn for each run and kept with the ledger."""

import dataclasses
import sqlite3

import jax
import numpy as np
import pytest

from builders import INDEPENDENT, code_of, entries, request_of
from populace.engines import wire
from populace.engines.agreement import Agreement
from populace.engines.site import NUMBERS, Hosted, Site
from populace.engines.site_file import SiteFile, read_hosted
from populace.methods.registry import make_protocol
from populace.privacy.ledger import Budget
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.partition import split
from populace.tables.schema import Column, Schema
from populace.tables.table import from_codes, write_frame

DIAGNOSIS = Schema(columns=(Column(name="diagnosis", kind="categorical", categories=("healthy", "ill")),))
POLL = make_protocol("poll", {"epsilon": 2.0, "stages": 1})
SURE = make_protocol("poll", {"epsilon": 50.0, "stages": 1})  # nobody lies: an answer is the record
PATIENTS = 200


def hospital(tmp_path, diagnoses, *, seed=None, protocol=POLL, name="hospital"):
    """A site whose file has these diagnoses, one patient per row."""
    table = from_codes(np.asarray(diagnoses, np.int32)[:, None], DIAGNOSIS, np.random.default_rng(0))
    agreement, budget = Agreement(protocol=protocol, schema=DIAGNOSIS), Budget(epsilon=100.0)
    path = tmp_path / f"{name}.sqlite"
    SqliteLedger(path, budget).close()
    return Site(
        hosted=Hosted(clients=split(table), accounts=tuple(f"row {i + 1}" for i in range(len(table))), records=1),
        agreements={agreement.digest: agreement}, ledger_path=path, budget=budget,
        root=None if seed is None else jax.random.key(seed),
    )  # fmt: skip


def told(site, *, run="run-1", protocol=POLL, total=PATIENTS):
    """By number, how much each reply speaks for illness."""
    arrays = wire.unpack(site.reply(request_of(protocol, DIAGNOSIS, total=total, run=run))).arrays
    reports = arrays["value/0"][np.argsort(arrays["clients"])].astype(int)
    return reports[:, 1] - reports[:, 0]


def numbers_of(site, run="run-1"):
    with SqliteLedger(site.ledger_path, site.budget) as ledger:
        return np.frombuffer(ledger.begun(run).numbers, NUMBERS)


def guessed_from_numbers(heard):
    """Diagnoses, if the file is sorted: all below the likeliest number are healthy, all others ill."""
    likely = [heard[at:].sum() - heard[:at].sum() for at in range(len(heard) + 1)]
    return np.arange(len(heard)) >= int(np.argmax(likely))


def test_a_file_sorted_by_diagnosis_gives_nothing_away(tmp_path):
    """A coordinator that hears epsilon-2 answers and guesses by number: 99 % of the diagnoses in version 0.1.0."""
    ill = np.arange(PATIENTS) >= PATIENTS // 2
    right = []
    for number in range(5):
        site = hospital(tmp_path, ill, name=f"h{number}")
        heard = told(site)
        right.append((guessed_from_numbers(heard) == ill[numbers_of(site)]).mean())
    assert 0.4 < np.mean(right) < 0.6
    seeded = hospital(tmp_path, ill, seed=3, name="seeded")  # in the order of the file: so the guess has power
    assert (guessed_from_numbers(told(seeded)) == ill).mean() > 0.95


def test_numbers_stand_for_the_patients_the_ledger_says(tmp_path):
    """With answers nobody lies in: what a number says is the record of its account, and its account is charged."""
    ill = np.random.default_rng(0).random(60) < 0.5
    site = hospital(tmp_path, ill, protocol=SURE)
    ask = request_of(SURE, DIAGNOSIS, total=60, who=range(20))
    arrays = wire.unpack(site.reply(ask)).arrays
    asked = numbers_of(site)[:20]
    assert np.array_equal(arrays["value/0"][:, 1], ill[asked])
    with SqliteLedger(site.ledger_path, site.budget) as ledger:
        assert set(ledger.accounts()) == {f"row {place + 1}" for place in asked}


def test_numbers_are_kept_over_restarts_and_drawn_anew_for_each_run(tmp_path):
    ill = np.arange(PATIENTS) >= 100
    first = hospital(tmp_path, ill)
    half = request_of(POLL, DIAGNOSIS, total=PATIENTS, who=range(100))
    before = first.reply(half)
    kept = numbers_of(first)
    assert sorted(kept) == list(range(PATIENTS))
    again = hospital(tmp_path, ill)  # a new process on the same ledger
    assert again.reply(half) == before
    told(again)
    assert np.array_equal(numbers_of(again), kept)
    assert entries(again) == PATIENTS  # each patient once, whichever numbers were asked first
    told(again, run="run-2")
    fixed = (numbers_of(again, "run-2") == kept).sum()
    assert fixed < 10  # of 200, one on average


def test_two_sites_with_one_file_number_it_differently(tmp_path):
    ill = np.arange(PATIENTS) >= 100
    found = []
    for name in ("a", "b"):
        site = hospital(tmp_path, ill, name=name)
        told(site)
        found.append(numbers_of(site))
    assert (found[0] == found[1]).sum() < 10


def test_a_seeded_site_keeps_the_order_of_its_file(tmp_path):
    site = hospital(tmp_path, np.arange(12) >= 6, seed=3, protocol=SURE)
    assert told(site, protocol=SURE, total=12).tolist() == [-1] * 6 + [1] * 6
    assert len(numbers_of(site)) == 0
    private = dataclasses.replace(site, root=None)  # the owner takes the seed away in the middle of the run
    assert code_of(private.reply(request_of(SURE, DIAGNOSIS, total=12))) == "changed"


def test_a_request_that_was_not_agreed_leaves_nothing_behind(tmp_path):
    site = dataclasses.replace(hospital(tmp_path, np.arange(12) >= 6), agreements={})
    ask = request_of(POLL, DIAGNOSIS, total=12, agreement=Agreement(protocol=POLL, schema=DIAGNOSIS))
    assert code_of(site.reply(ask)) == "version"
    with SqliteLedger(site.ledger_path, site.budget) as ledger:
        assert ledger.begun("run-1") is None


def test_numbers_stay_where_nobody_asked_first_could_pay(tmp_path):
    """Drawn anew for the next cohort, some patients would be asked twice in a run and others never."""
    protocol = make_protocol("independent", {"epsilon": 2.0, "clients_per_batch": 5})
    site = dataclasses.replace(hospital(tmp_path, np.arange(40) >= 20, protocol=protocol), budget=Budget(epsilon=2.0))
    SqliteLedger(site.ledger_path, site.budget, raise_budget=True).close()

    def answers(run, numbers):
        return [
            client
            for round_id, number in enumerate(numbers)
            for ask in [request_of(protocol, DIAGNOSIS, total=40, run=run, round_id=round_id % 8, clients=np.array([number]),
                               heard=np.zeros(1), own=np.array([0], np.int32))]
            for client in wire.unpack(site.reply(ask)).arrays.get("clients", ())
        ]  # fmt: skip

    assert len(answers("run-1", range(35))) == 35
    assert len(answers("run-2", range(40))) == 5


def test_numbers_are_readable_by_their_owner_alone(tmp_path):
    site = hospital(tmp_path, np.arange(12) >= 6)
    told(site, total=12)
    files = sorted(path.name for path in tmp_path.glob("hospital.sqlite*"))
    assert files == ["hospital.sqlite", "hospital.sqlite.head"]
    assert all((tmp_path / name).stat().st_mode & 0o077 == 0 for name in files)
    with sqlite3.connect(site.ledger_path) as raw:
        for statement in ("DELETE FROM numbering", "UPDATE numbering SET numbers = x''"):
            with pytest.raises(sqlite3.IntegrityError, match="keeps its numbers"):
                raw.execute(statement)
        (held,) = raw.execute("SELECT length(numbers) FROM numbering").fetchone()
    raw.close()
    assert held == 4 * 12  # four bytes a client


def test_a_damaged_numbering_is_refused(tmp_path):
    said = []
    site = dataclasses.replace(hospital(tmp_path, np.arange(12) >= 6), log=said.append)
    told(site, total=12)
    with sqlite3.connect(site.ledger_path) as raw:
        raw.execute("DROP TRIGGER numbering_never_changes")
        raw.execute("UPDATE numbering SET numbers = ?", (np.zeros(12, NUMBERS).tobytes(),))
    raw.close()
    assert code_of(site.reply(request_of(POLL, DIAGNOSIS, total=12))) == "failed"
    assert "damaged" in said[-1]


def test_a_table_that_grows_or_is_sorted_anew_in_the_middle_of_a_run_is_refused_in_words(rows, tmp_path):
    """Another order would hand one patient's number to another; in the next run all is well."""
    protocol, data, said = dataclasses.replace(INDEPENDENT, clients_per_batch=2), tmp_path / "rows.csv", []
    file = SiteFile(
        name="s", federation="f", data=str(data), ledger=str(tmp_path / "l.sqlite"), log="", by="column",
        records_per_client=1, client_column="patient", records=9, epsilon=9.0, delta=0.0, unit="client", seed=None,
        agreed=(),
    )  # fmt: skip
    agreement = Agreement(protocol=protocol, schema=rows.schema)
    SqliteLedger(file.ledger, file.budget).close()

    def site(patients):
        frame = rows.take(np.arange(len(patients))).frame
        write_frame(frame.append_column("patient", [patients]), data)
        return Site(
            hosted=read_hosted(file, rows.schema), agreements={agreement.digest: agreement},
            ledger_path=tmp_path / "l.sqlite", budget=file.budget, log=said.append,
        )  # fmt: skip

    def ask(run, who, round_id, total=7):
        return request_of(protocol, rows.schema, total=total, records=9, who=who, run=run, round_id=round_id,
                      own=np.zeros(2, np.int32))  # fmt: skip

    six = [f"p{i}" for i in range(6)]
    assert code_of(site(six).reply(ask("run-1", [0, 1], 0))) == "reply"
    for others in ([*six, "p6"], six[::-1], six[:5]):
        assert code_of(site(others).reply(ask("run-1", [0, 1], 1))) == "population"
        assert "put the data back as they were until it is over" in said[-1]
    assert code_of(site(six).reply(ask("run-1", [0, 1], 0))) == "reply"
    assert code_of(site([*six, "p6"]).reply(ask("run-2", [0, 1], 0))) == "reply"
