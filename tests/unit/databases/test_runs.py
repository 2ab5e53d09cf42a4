"""Commands on tables in databases: the same runs as from a CSV, and no password anywhere."""

import contextlib
import json
import os
import sqlite3

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import populace as pop
from databases_for_tests import new_database, patient_rows, write_postgresql, write_sqlite
from populace.cli.main import call
from populace.errors import BudgetError, DataError, InputError
from populace.privacy.ledger import Budget
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.runs.ledger.history import LEDGER
from populace.runs.poll.client_terms import keep_client_terms
from populace.tables.table import read_frame

USER, PASSWORD = "reader_canary", "pass word/canary%2F"
QUICK = ("--method", "independent", "--rows", "30", "--epsilon", "2")


@pytest.fixture
def guarded(database, tmp_path, monkeypatch):
    """A database that asks for a password, which stands in the environment."""
    url = write_postgresql(patient_rows(60), new_database(database, tmp_path.name))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP ROLE IF EXISTS {USER}")
        connection.execute(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
        connection.execute(f"GRANT SELECT ON patients TO {USER}")
        rules = database.data / "pg_hba.conf"
        kept = rules.read_text()
        rules.write_text(f"local all {USER} scram-sha-256\n{kept}")
        connection.execute("SELECT pg_reload_conf()")
        monkeypatch.setenv("PGUSER", USER)
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
        monkeypatch.chdir(tmp_path)
        yield url.replace("postgres@", "")
        rules.write_text(kept)
        connection.execute("SELECT pg_reload_conf()")
        connection.execute(f"DROP OWNED BY {USER}")
        connection.execute(f"DROP ROLE {USER}")


@pytest.mark.parametrize("variable", ["PGPASSWORD", "WARD_PASSWORD"])
def test_no_password_is_stored_or_printed(guarded, tmp_path, monkeypatch, capfd, variable):
    data = guarded
    if variable != "PGPASSWORD":
        monkeypatch.delenv("PGPASSWORD")
        monkeypatch.setenv(variable, PASSWORD)
        data = f"{guarded}&password_from={variable}"
    of = (data, "--table", "patients")
    assert call(["schema", *of, "-o", "s.toml"]) == 0
    assert call(["synthesize", *of, *QUICK, "--ledger", "ledger.sqlite", "--out", "run"]) == 0
    assert call(["evaluate", "run", "--real", *of]) == 0
    assert call(["ledger", "show", "run"]) == 0
    collect = ("--schema", "s.toml", "--epsilon", "4", "--client-column", "patient", "--ledger", "c.ledger")
    assert call(["poll", "collect", *of, *collect, "--out", "a.parquet"]) == 0
    assert call(["synthesize", data, "--query", "SELECT nothing FROM patients", *QUICK, "--out", "bad"]) == 2
    assert call(["synthesize", data, "--query", "SELECT 1/0 AS a", *QUICK, "--out", "bad"]) == 2
    monkeypatch.setenv(variable, PASSWORD + "wrong")
    assert call(["schema", *of, "-o", "t.toml"]) == 2
    said = capfd.readouterr()
    assert "does not accept the user or the password; set PGUSER and PGPASSWORD" in said.err
    assert "Traceback" not in said.err
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert len(written) > 10_000
    for canary in ("canary", PASSWORD.split("/")[0], "canary%252F", "pass%20word"):
        assert canary not in said.out + said.err
        assert canary.encode() not in written


def test_a_password_in_the_address_is_refused_by_every_command(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    bad = "postgresql://reader:canary@127.0.0.1:1/ward"
    for command in (
        ["schema", bad, "--table", "t", "-o", "s.toml"], ["synthesize", bad, "--table", "t", *QUICK, "--out", "run"],
        ["synthesize", f"{bad}#table=t", *QUICK, "--no-ledger", "--out", "run"],
        ["evaluate", "run", "--real", bad], ["attack", "independent", bad, "--table", "t"], ["ledger", "show", bad],
        ["poll", "collect", bad, "--table", "t", "--schema", "s.toml", "--epsilon", "1", "--out", "a.parquet"],
        ["site", "join", "ward", "--data", bad, "--table", "t"],
    ):  # fmt: skip
        assert call(command) == 2, command
    said = capfd.readouterr()
    assert "canary" not in said.out + said.err
    assert said.err.count("PGPASSWORD") == 7
    assert not list(tmp_path.iterdir())


def test_a_seeded_run_is_that_of_the_csv(place, files, tmp_path, capsys):
    given = [*QUICK, "--seed", "3", "--ledger", str(tmp_path / "l.sqlite")]
    assert call(["synthesize", str(files / "patients.csv"), *given, "--out", str(tmp_path / "csv")]) == 0
    assert call(["synthesize", place, "--table", "patients", *given, "--out", str(tmp_path / "base")]) == 0
    rows = [pq.read_table(tmp_path / name / "synthetic.parquet") for name in ("csv", "base")]
    assert rows[0].equals(rows[1])
    booked = json.loads((tmp_path / "base" / "run.json").read_text())
    assert booked["booked"]["standing"]["runs_before"] == 1  # the same rows, from wherever they came
    assert booked["spec"]["data"] == f"{place}#table=patients"
    capsys.readouterr()


def test_runs_on_a_server_need_a_named_ledger(server, tmp_path, capsys):
    out = ["--out", str(tmp_path / "run")]
    assert call(["synthesize", server, "--table", "patients", *QUICK, *out]) == 2
    assert "name one with --ledger FILE, the same file for every run" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert call(["ledger", "show", server]) == 2
    assert "lies where --ledger said" in capsys.readouterr().err
    with pytest.raises(InputError, match="--ledger FILE"):
        pop.synthesize(f"{server}#table=patients", epsilon=2, method="independent")
    run = pop.synthesize(f"{server}#table=patients", epsilon=2, method="independent", rows=5, ledger=False)
    assert len(run.sample(7)) == 7


def test_the_ledger_of_a_file_lies_beside_it(tmp_path, capsys):
    path = write_sqlite(patient_rows(40), tmp_path / "ward.sqlite")
    for number in (1, 2):
        assert call(["synthesize", str(path), "--table", "patients", *QUICK, "--out", str(tmp_path / str(number))]) == 0
    assert (tmp_path / LEDGER).is_file()
    capsys.readouterr()
    for named in (path, tmp_path / LEDGER, tmp_path / "2"):
        assert call(["ledger", "show", str(named)]) == 0
        assert "total per record: epsilon 4" in capsys.readouterr().out
    assert (
        call(["synthesize", str(path), "--table", "patients", *QUICK, "--records-per-client", "2", "--out", "x"]) == 2
    )
    assert "--client-column" in capsys.readouterr().err


def test_several_tables_are_several_silos(tmp_path, capsys):
    for name, seed in (("north", 1), ("south", 2)):
        write_sqlite(patient_rows(40, seed), tmp_path / f"{name}.sqlite")
    run = pop.synthesize(
        [f"{tmp_path / name}.sqlite#table=patients" for name in ("north", "south")],
        method="independent",
        epsilon=2,
        rows=5,
    )
    assert run.details["clients"] == 80
    pattern = str(tmp_path / "*th.sqlite")
    assert (
        call(["synthesize", pattern, "--table", "patients", *QUICK, "--no-ledger", "--out", str(tmp_path / "run")]) == 0
    )
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["spec"]["data"]) == 2
    twice = [str(tmp_path / "north.sqlite"), str(tmp_path / "north.sqlite")]
    assert call(["synthesize", *twice, "--table", "patients", *QUICK, "--out", str(tmp_path / "other")]) == 2
    assert "given twice" in capsys.readouterr().err


def test_a_poll_of_a_database_goes_by_a_key(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = write_sqlite(patient_rows(40), tmp_path / "ward.sqlite")
    assert call(["schema", "ward.sqlite", "--table", "patients", "--id", "patient", "-o", "s.toml"]) == 0
    asked = ["poll", "collect", "ward.sqlite", "--table", "patients", "--schema", "s.toml", "--epsilon", "4"]
    assert call([*asked, "--out", "none.parquet"]) == 2
    assert "rows of a database have no order that stays" in capsys.readouterr().err
    assert call([*asked, "--client-column", "patient", "--out", "first.parquet"]) == 0
    assert os.path.exists("ward.sqlite.ledger")
    with sqlite3.connect(path) as connection:  # the same rows in another order
        connection.execute("CREATE TABLE turned AS SELECT * FROM patients ORDER BY age DESC")
        connection.execute("DROP TABLE patients")
        connection.execute("ALTER TABLE turned RENAME TO patients")
    connection.close()
    assert call([*asked, "--client-column", "patient", "--out", "second.parquet"]) == 0
    assert "40 clients had answered before" in capsys.readouterr().out
    assert pq.read_table("first.parquet").equals(pq.read_table("second.parquet"))


@pytest.mark.parametrize("what", ["table=patients", "query=SELECT age, ward FROM patients WHERE age > 40"])
def test_advise_counts_the_rows_of_a_database(place, what, capsys):
    name, _, said = what.partition("=")
    expected = read_frame(f"{place}#{what}").num_rows
    assert call(["advise", "--data", place, f"--{name}", said, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["situation"]
    assert (found["rows"], found["columns"]) == (expected, 11 if name == "table" else 2)
    advice = pop.advise(f"{place}#{what}")
    assert (advice.situation.rows, advice.situation.files) == (expected, (f"{place}#{what}",))
    assert ("--ledger" in advice.commands[0]) == place.startswith("postgresql")


def two_keys(path):
    """The patients of a SQLite file with a second column that names them."""
    write_sqlite(patient_rows(40), path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE patients ADD COLUMN ssn TEXT")
        connection.execute("UPDATE patients SET ssn = 'ssn ' || rowid")
        connection.commit()
    return path


def test_people_answer_under_one_key_however_their_table_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    two_keys(tmp_path / "ward.sqlite")
    os.symlink("ward.sqlite", "link.sqlite")
    of = ["ward.sqlite", "--table", "patients"]
    assert call(["schema", *of, "--id", "patient", "--id", "ssn", "-o", "s.toml"]) == 0
    asked = ["--schema", "s.toml", "--epsilon", "4", "--ledger", "clients.ledger"]
    assert call(["poll", "collect", *of, *asked, "--client-column", "patient", "--out", "first.parquet"]) == 0
    capsys.readouterr()
    for again in (of, ["ward.sqlite", "--table", "PATIENTS"], ["ward.sqlite", "--query", "SELECT * FROM patients"],
                  ["link.sqlite", "--table", "patients"]):  # fmt: skip
        assert call(["poll", "collect", *again, *asked, "--client-column", "ssn", "--out", "second.parquet"]) == 2
        assert "told apart by the column 'patient'" in capsys.readouterr().err
        assert not os.path.exists("second.parquet")


def test_client_columns_of_servers_and_of_older_ledgers(tmp_path):
    server = "postgresql://db.clinic/ward#table=patients"
    with contextlib.closing(SqliteLedger(tmp_path / "a", Budget(epsilon=1.0, unit="client"))) as ledger:
        keep_client_terms(ledger, server, 1, "pid")
        keep_client_terms(ledger, server, 1, "pid")
        for alias in (
            "postgresql://db.clinic:5432/ward#table=patients",
            "postgres://db.clinic/ward#table=public.patients",
        ):
            keep_client_terms(ledger, alias, 1, "pid")
            with pytest.raises(BudgetError, match="told apart by the column 'pid'"):
                keep_client_terms(ledger, alias, 1, "ssn")
    with contextlib.closing(SqliteLedger(tmp_path / "b", Budget(epsilon=1.0, unit="client"))) as ledger:
        for key, column in (("w.sqlite#table=a", "pid"), ("w.sqlite#table=b", "sid"), ("w.sqlite3#table=a", "x")):
            ledger.keep_terms(f"clients of {key}", f"rows by {column}")  # as they were kept once
        keep_client_terms(ledger, "w.sqlite#table=a", 1, "pid")
        keep_client_terms(ledger, "w.sqlite#table=b", 1, "sid")
        keep_client_terms(ledger, "w.sqlite3#table=A", 1, "x")
        for table, column in (("a", "sid"), ("A", "pid"), ("c", "new")):
            with pytest.raises(BudgetError, match="told apart by the column"):
                keep_client_terms(ledger, f"w.sqlite#table={table}", 1, column)


@pytest.mark.parametrize("other", ["#table=PATIENTS", "#query=SELECT * FROM patients ORDER BY age"])
def test_one_table_is_not_two_silos(tmp_path, monkeypatch, capsys, other):
    monkeypatch.chdir(tmp_path)
    write_sqlite(patient_rows(60), tmp_path / "ward.sqlite")
    for keeping in ([], ["--no-ledger"]):
        silos = ["ward.sqlite#table=patients", f"ward.sqlite{other}"]
        assert call(["synthesize", *silos, *QUICK, *keeping, "--out", "run"]) == 2
        assert "silos 1 and 2 of the data hold the very same rows" in capsys.readouterr().err
    assert not os.path.exists("run")


def test_silos_with_few_different_rows_may_be_alike():
    def made(*silos):
        return pop.synthesize(list(silos), epsilon=4, method="independent", rows=5, seed=1)

    few = pa.table({"a": ["x", "y", "y"] * 20, "b": ["k", "l", "k", "m"] * 15})
    many = few.append_column("c", pa.array(range(60)))
    turned = many.take(list(range(59, -1, -1)))
    made(few, few)
    with pytest.raises(DataError, match="silos 1 and 3 of the data hold the very same rows"):
        made(many, many.slice(5), turned)
    made(many, turned.set_column(2, "c", many["c"]))  # the same values in each column, other rows


def test_a_pattern_over_sqlite_files_works_again_and_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("north", 1), ("south", 2)):
        write_sqlite(patient_rows(60, seed), tmp_path / f"{name}.sqlite")
    for run in ("first", "second"):
        assert call(["synthesize", "*.sqlite", "--table", "patients", *QUICK, "--out", run]) == 0
        assert os.path.exists(LEDGER)
        assert len(json.loads((tmp_path / run / "run.json").read_text())["spec"]["data"]) == 2
    os.remove("north.sqlite")
    os.remove("south.sqlite")
    assert call(["synthesize", "*.sqlite", "--table", "patients", *QUICK, "--out", "third"]) == 2
    assert "but ledgers, which are no data" in capsys.readouterr().err
