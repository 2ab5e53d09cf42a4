"""Synthetic rows into databases: types kept, all or nothing, and never over what was there unasked."""

import contextlib
import datetime as dt
import json
import re
import shlex
import sqlite3

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import populace as pop
from databases_for_tests import NAMES, new_database
from populace.border.databases.writing import write_database
from populace.cli.main import call
from populace.errors import InputError, PopulaceError, RunError
from populace.privacy.ledger import Budget
from populace.privacy.run_ledger import make_ledger
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.reading import read_frame

FRAME = pa.table(
    {
        "n": pa.array([1, None], pa.int64()), "x": pa.array([0.1, None]), "b": pa.array([True, None]),
        "d": pa.array([dt.date(2024, 2, 29), None]),
        "t": pa.array([dt.datetime(2024, 2, 29, 1, 2, 3), None], pa.timestamp("s")),
        "c": pa.array([dt.time(1, 2, 3), None], pa.time32("s")), "s": pa.array(["Núñez, \"x\"", None]),
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def run(files, tmp_path_factory):
    """A run on the patients."""
    folder = tmp_path_factory.mktemp("run") / "run"
    data = str(files / "patients.sqlite")
    given = ["--method", "independent", "--epsilon", "4", "--rows", "20", "--seed", "1", "--no-ledger"]
    assert call(["synthesize", data, "--table", "patients", *given, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(params=["duckdb", "sqlite", "postgresql"])
def base(request, tmp_path):
    """A database to write to; the file is not there yet."""
    if request.param == "postgresql":
        return new_database(request.getfixturevalue("database"), tmp_path.name)
    return str(tmp_path / f"made.{request.param}")


def test_types_and_gaps_are_kept(base):
    write_database(FRAME, f"{base}#table=made")
    found = read_frame(f"{base}#table=made")
    if base.endswith("sqlite"):
        assert found.to_pylist()[0] == {
            "n": "1", "x": "0.1", "b": "true", "d": "2024-02-29", "t": "2024-02-29 01:02:03", "c": "01:02:03",
            "s": "Núñez, \"x\"",
        }  # fmt: skip
    else:
        assert found.to_pylist() == FRAME.to_pylist()
    assert set(found.to_pylist()[1].values()) == {None}


def test_a_table_that_exists_stays_unless_it_may_be_replaced(base):
    write_database(FRAME, f"{base}#table=made")
    with pytest.raises(RunError, match=r"the table made of .* exists; choose another --table, or give --replace"):
        write_database(FRAME.slice(0, 1), f"{base}#table=made")
    assert len(read_frame(f"{base}#table=made")) == 2
    write_database(FRAME.slice(0, 1), f"{base}#table=made", replace=True)
    assert len(read_frame(f"{base}#table=made")) == 1
    write_database(FRAME, f'{base}#table="odd. ""name"')
    assert len(read_frame(f'{base}#table="odd. ""name"')) == 2


def foreign_table(base, statements):
    """Statements of the owner's, in the database itself."""
    if base.endswith("duckdb"):
        import duckdb

        with duckdb.connect(base) as connection:
            for statement in statements:
                connection.execute(statement)
    else:
        opened = psycopg.connect(base) if base.startswith("postgres") else sqlite3.connect(base)
        with contextlib.closing(opened) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()


def test_only_tables_that_were_written_here_are_replaced(base):
    foreign_table(base, ["CREATE TABLE records (n INTEGER)", "INSERT INTO records VALUES (7)",
                         "CREATE VIEW seen AS SELECT * FROM records"])  # fmt: skip
    names = ["records", "seen", *(["public.records"] if base.startswith("postgres") else [])]
    if not base.startswith("postgres"):  # there RECORDS is another table
        names += ["RECORDS", '"Records"']
    if base.endswith("duckdb"):
        names += ["main.RECORDS"]
    for name in names:
        for replace in (False, True):
            with pytest.raises(
                RunError, match="is not as populace wrote it; choose another --table, or drop it yourself"
            ):
                write_database(FRAME, f"{base}#table={name}", replace=replace)
    assert [str(row["n"]) for row in read_frame(f"{base}#table=records").to_pylist()] == ["7"]

    write_database(FRAME, f"{base}#table=made")
    foreign_table(base, ["INSERT INTO made (n) VALUES (8)"])
    with pytest.raises(RunError, match="is not as populace wrote it"):  # somebody's rows are in it
        write_database(FRAME, f"{base}#table=made", replace=True)
    assert len(read_frame(f"{base}#table=made")) == 3
    foreign_table(base, ["CREATE TABLE copied AS SELECT * FROM made"])
    with pytest.raises(RunError, match="is not as populace wrote it"):
        write_database(FRAME, f"{base}#table=copied", replace=True)


def test_a_ledger_takes_no_rows(tmp_path):
    runs, clients = tmp_path / "runs.sqlite", tmp_path / "clients.sqlite"
    make_ledger(runs)
    SqliteLedger(clients, Budget(epsilon=1.0, unit="client")).close()
    for ledger, table in ((runs, "run"), (runs, "new"), (clients, "entry"), (clients, "new")):
        before = ledger.read_bytes()
        for replace in (False, True):
            with pytest.raises(InputError, match="is a ledger, or another file that populace keeps"):
                write_database(FRAME, f"{ledger}#table={table}", replace=replace)
        assert ledger.read_bytes() == before


def test_a_write_that_fails_leaves_what_was_there(base):
    nested = pa.table({"a": pa.array([object.__name__]), "l": pa.array([{"x": [1]}])})
    write_database(FRAME, f"{base}#table=made")
    if base.endswith("duckdb"):
        nested = pa.table(
            {"a": pa.array([1], pa.decimal256(70, 2))}
        )  # DuckDB takes records, and no numbers of 256 bits
    with pytest.raises(PopulaceError):
        write_database(nested, f"{base}#table=made", replace=True)
    assert len(read_frame(f"{base}#table=made")) == 2


def test_a_file_that_could_not_be_written_is_not_left(tmp_path):
    for ending, odd in (
        ("sqlite", pa.table({"l": [{"x": 1}]})),
        ("duckdb", pa.table({"a": pa.array([1], pa.decimal256(70, 2))})),
    ):
        with pytest.raises(PopulaceError):
            write_database(odd, f"{tmp_path / 'made'}.{ending}#table=t")
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="say which table to write"):
        write_database(FRAME, str(tmp_path / "made.duckdb"))


def test_sample_writes_a_table_and_metadata(run, base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert (
        call(["sample", str(run), "--rows", "12", "-o", base, "--table", "made", "--sdv-metadata", "--seed", "1"]) == 0
    )
    assert call(["sample", str(run), "--rows", "12", "-o", "made.parquet", "--seed", "1"]) == 0
    parquet, table = pq.read_table("made.parquet"), read_frame(f"{base}#table=made")
    assert table.column_names == list(NAMES)
    assert [str(value) for value in table.column("age").to_pylist()] == [
        str(v) for v in parquet.column("age").to_pylist()
    ]
    found = json.loads(next(tmp_path.glob("*.metadata.json")).read_text())
    assert found["METADATA_SPEC_VERSION"] == "SINGLE_TABLE_V1"
    assert found["primary_key"] == "patient"
    assert set(found) == {"METADATA_SPEC_VERSION", "columns", "primary_key"}
    assert {name: entry["sdtype"] for name, entry in found["columns"].items()} == {
        "patient": "id", "ward": "categorical", "age": "numerical", "weight": "numerical", "dose": "numerical",
        "alive": "boolean", "admitted": "datetime", "seen": "datetime", "checked": "datetime", "round": "datetime",
        "smokes": "categorical",
    }  # fmt: skip
    assert all("datetime_format" in entry for entry in found["columns"].values() if entry["sdtype"] == "datetime")
    again = ["sample", str(run), "--rows", "5", "-o", base, "--table", "made"]
    assert call(again) == 2
    assert "--replace" in capsys.readouterr().err
    assert call([*again, "--replace"]) == 0
    assert len(read_frame(f"{base}#table=made")) == 5


def test_columns_of_postgresql_have_their_types(run, database, tmp_path):
    url = new_database(database, tmp_path.name)
    assert call(["sample", str(run), "--rows", "9", "-o", url, "--table", "made"]) == 0
    with psycopg.connect(url) as connection:
        kinds = dict(
            connection.execute(
                "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'made'"
            )
        )
    assert kinds["age"] == "bigint"
    assert kinds["alive"] == "boolean"
    assert (kinds["admitted"], kinds["round"]) == ("date", "time without time zone")
    assert kinds["seen"].startswith("timestamp")


def test_rows_never_go_over_the_records_or_into_nowhere(run, files, tmp_path, capsys):
    before = (files / "patients.sqlite").read_bytes()
    over = ["sample", str(run), "--rows", "3", "-o", str(files / "patients.sqlite"), "--table", "patients", "--replace"]
    assert call(over) == 2
    assert "made from this very table" in capsys.readouterr().err
    assert (files / "patients.sqlite").read_bytes() == before
    for options, said in (
        (["-o", "x.csv", "--table", "t"], "--table and --replace are for databases"),
        (["-o", str(tmp_path / "x.duckdb")], "say which table to write"),
        (["-o", "postgresql://u:canary@h/d", "--table", "t"], "PGPASSWORD"),
        (
            ["-o", "postgresql://127.0.0.1:1/d", "--table", "t"],
            "cannot write postgresql://127.0.0.1:1/d.*no connection",
        ),
        (["-o", "x.xlsx"], "or a database with --table"),
    ):
        assert call(["sample", str(run), "--rows", "3", *options]) == 2
        error = capsys.readouterr().err
        assert re.search(said, error), error
        assert "canary" not in error
    assert isinstance(pop.load_run(run).sample(3), pop.Table)
    with sqlite3.connect(files / "patients.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM patients").fetchone() == (400,)
    connection.close()


def test_decimals_with_a_number_of_places_are_exact_in_a_database(base, run, capsys):
    assert call(["sample", str(run), "--rows", "40", "--seed", "2", "-o", base, "--table", "made"]) == 0
    capsys.readouterr()
    found = read_frame(f"{base}#table=made").column("weight").drop_null().to_pylist()
    assert all(abs(float(one) * 100 - round(float(one) * 100)) < 1e-6 for one in found)
    if base.endswith("sqlite"):
        return
    assert all(re.fullmatch(r"-?\d+\.\d\d", one) for one in found)  # decimals are read as the text a CSV holds
    mean = read_frame(f"{base}#query=SELECT round(avg(weight), 2) AS mean FROM made").column("mean")[0].as_py()  # noqa: S608
    assert abs(float(mean) - sum(map(float, found)) / len(found)) < 0.006


def test_what_to_do_next_names_the_data(place, tmp_path, capsys):
    given = ["--method", "independent", "--epsilon", "4", "--rows", "5", "--no-ledger", "--out", str(tmp_path / "run")]
    assert call(["synthesize", place, "--table", "patients", *given, "--target", "alive"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("next: "))
    words = shlex.split(line.removeprefix("next: populace "))
    assert words == ["evaluate", str(tmp_path / "run"), "--real", place, "--table", "patients", "--target", "alive"]
