# ruff: noqa: S608 -- queries are what is tested
"""Tables in databases: the same rows as from a CSV, streamed, and never a way to write."""

import shutil
import socket
import sqlite3
import time

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from databases_for_tests import new_database
from populace.border.databases.reading import database_batches, database_columns, one_snapshot
from populace.cli.main import call
from populace.errors import DataError, InputError, MissingExtra
from populace.tables.coded import read_coded
from populace.tables.proposal import propose
from populace.tables.reading import read_frame
from populace.tables.schema import load_schema
from populace.tables.stream import stream_frames
from populace.tables.table import make_table

#: Queries that do something else than read, or more than one thing.
NOT_SELECTS = (
    "DELETE FROM patients", "DROP TABLE patients", "SELECT 1 AS a; DELETE FROM patients", "SELECT 1 AS a; SELECT 2 AS a",
    "SELECT 1 AS a) AS x; DELETE FROM patients; SELECT * FROM (SELECT 1 AS a", "INSERT INTO patients (age) VALUES (1)",
    "UPDATE patients SET age = 1", "CREATE TABLE t (a INT)", "PRAGMA journal_mode = WAL", "ATTACH 'other.db' AS other",
    "COPY patients TO 'stolen.csv'", "SET x = 1", "EXPLAIN SELECT 1", "", ";", "-- SELECT 1", "VACUUM", "selec age",
    "WITH gone AS (DELETE FROM patients RETURNING age) SELECT * FROM gone", "BEGIN; DELETE FROM patients; COMMIT",
)  # fmt: skip


@pytest.mark.parametrize(
    "what", ["#table=patients", "#query=SELECT * FROM patients;", "#query=SELECT * FROM patients -- all"]
)
def test_every_database_gives_the_rows_of_the_csv_bit_for_bit(place, what, files):
    csv = read_frame(files / "patients.csv")
    expected = propose(csv).schema
    frame = read_frame(place + what)
    assert propose(frame).schema == expected
    table, same = make_table(frame, expected), make_table(csv, expected)
    assert np.array_equal(table.codes, same.codes)
    assert table.frame.equals(same.frame)
    streamed, _ = read_coded(place + what, expected)
    assert np.array_equal(streamed.codes, same.codes)


def test_rows_are_streamed_in_pieces_and_by_the_order_of_a_key(place, files):
    schema = propose(read_frame(files / "patients.csv")).schema
    pieces = list(stream_frames(f"{place}#table=patients", schema, also=("patient",), rows=64))
    assert [piece.num_rows for piece in pieces] == [64] * 6 + [16]
    names = [name for piece in pieces for name in piece.column("patient").to_pylist()]
    assert names == sorted(names)
    assert pieces[0].column_names == [*schema.names, "patient"]


@pytest.mark.parametrize("query", NOT_SELECTS)
def test_a_query_cannot_write(place, query, files):
    with pytest.raises((DataError, InputError)) as refused:
        read_frame(f"{place}#query={query}")
    assert "\n" not in str(refused.value)
    assert len(read_frame(f"{place}#table=patients")) == 400


def test_functions_that_write_and_files_of_others_are_out_of_reach(files, server, database):
    with pytest.raises(DataError, match="read-only"):
        read_frame(f"{server}#query=SELECT setval('numbers', 5) FROM (SELECT 1) AS t")
    for query in (
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM frame",
    ):
        with pytest.raises(DataError):
            read_frame(f"{files / 'patients.duckdb'}#query={query}")
    for query in ("SELECT load_extension('x')", "SELECT * FROM pragma_database_list", "SELECT writefile('x', 'y')"):
        with pytest.raises(DataError):
            read_frame(f"{files / 'patients.sqlite'}#query={query}")


@pytest.fixture(autouse=True, scope="module")
def _sequence(server):
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("CREATE SEQUENCE IF NOT EXISTS numbers")


def test_what_to_read_must_be_said_and_be_there(place):
    with pytest.raises(InputError, match=r"say what to read with --table NAME or --query.*it holds patients"):
        read_frame(place)
    with pytest.raises(InputError, match=r"no table 'persons' in .*it holds patients"):
        read_frame(f"{place}#table=persons")
    with pytest.raises(DataError, match=r"cannot read the query on .*nothing"):
        read_frame(f"{place}#query=SELECT nothing FROM patients")
    with pytest.raises(DataError, match="has no rows"):
        read_frame(f"{place}#query=SELECT * FROM patients WHERE age > 1000")
    with pytest.raises(InputError, match="with a name behind it"):
        read_frame(f"{place}#table=")


@pytest.mark.parametrize(
    ("made", "what"),
    [
        ("SELECT 1 AS a, ARRAY[1, 2] AS odd", r"integer\[\]"), ("SELECT 1 AS a, '{}'::json AS odd", "json"),
        ("SELECT 1 AS a, '{}'::jsonb AS odd", "jsonb"), ("SELECT 1 AS a, 'x'::bytea AS odd", "bytea"),
        ("SELECT 1 AS a, INTERVAL '1 day' AS odd", "interval"), ("SELECT 1 AS a, '<a/>'::xml AS odd", "xml"),
        ("SELECT 1 AS a, point(1, 2) AS odd", "point"), ("SELECT 1 AS a, ROW(1, 2) AS odd", "record"),
    ],
)  # fmt: skip
def test_what_is_no_single_value_is_refused_by_the_name_of_its_column(server, made, what):
    with pytest.raises(DataError, match=rf"column 'odd' of the query on .* holds values of the type {what}"):
        read_frame(f"{server}#query={made}")
    assert database_columns(f"{server}#query={made}") == ["a", "odd"]
    assert [batch.to_pydict() for batch in database_batches(f"{server}#query={made}", columns=["a"])] == [{"a": [1]}]


@pytest.mark.parametrize("odd", ["[1, 2]", "'{}'::JSON", "'x'::BLOB", "INTERVAL 1 DAY", "{'x': 1}", "MAP {'x': 1}"])
def test_the_same_in_duckdb_and_sqlite(files, odd):
    with pytest.raises(DataError, match=r"column 'odd' of the query on .* holds values of the type"):
        read_frame(f"{files / 'patients.duckdb'}#query=SELECT 1 AS a, {odd} AS odd")
    with pytest.raises(DataError, match=r"column 'odd' of the query on .* holds bytes"):
        read_frame(f"{files / 'patients.sqlite'}#query=SELECT 1 AS a, X'00' AS odd")


def test_types_that_a_csv_has_no_word_for(server, files):
    frame = read_frame(
        f"{server}#query=SELECT 0.1::float4 AS f, 12.5::money AS m, 'a'::char(3) AS c, '10.0.0.1'::inet AS ip, 7::oid AS o, "
        "'NaN'::numeric AS n, '2024-02-01 12:00+02'::timestamptz AS t"
    )
    row = frame.to_pylist()[0]
    assert (row["f"], float(row["m"]), row["c"].strip(), row["ip"], row["o"]) == ("0.1", 12.5, "a", "10.0.0.1/32", 7)
    assert row["t"].hour == 10
    duck = read_frame(
        f"{files / 'patients.duckdb'}#query=SELECT 0.1::FLOAT AS f, 12345678901234567890123::HUGEINT AS h, "
        "1.50::DECIMAL(5,2) AS d"
    )
    assert duck.to_pylist() == [{"f": "0.1", "h": "12345678901234567890123", "d": "1.50"}]
    with pytest.raises(DataError, match="outside the years"):
        read_frame(f"{server}#query=SELECT 'infinity'::timestamp AS t")
    with pytest.raises(DataError, match="two columns named 'a'"):
        read_frame(f"{server}#query=SELECT 1 AS a, 2 AS a")


def test_values_of_another_type_than_the_first_are_read_in_sqlite(tmp_path):
    path = tmp_path / "odd.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(None, 1)] * 70_000 + [("many", 0.1)])
    connection.close()
    frame = read_frame(f"{path}#table=t")
    assert frame.column("a").null_count == 70_000
    assert frame.slice(70_000).to_pylist() == [{"a": "many", "b": "0.1"}]


def test_one_snapshot_is_one_moment(server):
    address = f"{server}#table=growing"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS growing")
        connection.execute("CREATE TABLE growing AS SELECT generate_series(1, 10) AS a")
        with one_snapshot(address):
            next(database_batches(address))
            connection.execute("INSERT INTO growing VALUES (11)")
            assert sum(batch.num_rows for batch in database_batches(address)) == 10
        assert sum(batch.num_rows for batch in database_batches(address)) == 11


def test_tables_of_other_schemas_and_odd_names(server, files):
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA IF NOT EXISTS clinic; DROP TABLE IF EXISTS clinic."odd.na""me"')
        connection.execute('CREATE TABLE clinic."odd.na""me" AS SELECT 5 AS "a b"')
    assert read_frame(f'{server}#table=clinic."odd.na""me"').to_pylist() == [{"a b": 5}]
    with pytest.raises(InputError, match=r"expected --table as NAME or SCHEMA\.NAME"):
        read_frame(f"{server}#table=a.b.c.d")
    with pytest.raises(InputError, match="no table"):
        read_frame(f"{server}#table=patients; DROP TABLE patients")


@pytest.mark.parametrize("ending", ["duckdb", "sqlite", "db"])
@pytest.mark.parametrize(
    "content", [b"", b"no database", b"SQLite format 3\0" + bytes(5000), bytes(8) + b"DUCK" + bytes(9000)]
)
def test_files_that_are_no_databases(tmp_path, ending, content):
    path = tmp_path / f"damaged.{ending}"
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_frame(f"{path}#table=patients")
    assert str(path) in str(refused.value)
    assert path.read_bytes() == content
    with pytest.raises(InputError, match="no file"):
        read_frame(f"{tmp_path / 'none'}.{ending}#table=t")


def test_a_database_is_known_by_its_first_bytes_under_another_ending(files, tmp_path):
    shutil.copy(files / "patients.duckdb", tmp_path / "patients.db")
    assert len(read_frame(f"{tmp_path / 'patients.db'}#table=patients")) == 400


def test_a_duckdb_that_somebody_writes_to_says_so(files, tmp_path):
    """Another process holds the file; one of this process would share it."""
    import subprocess
    import sys

    path = tmp_path / "busy.duckdb"
    shutil.copy(files / "patients.duckdb", path)
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout.readline() == b"open\n"
        with pytest.raises(DataError, match="another program has it open"):
            read_frame(f"{path}#table=patients")
        writer.stdin.close()


def test_a_column_named_clock_is_no_lock(files):
    with pytest.raises(DataError, match="clock") as refused:
        read_frame(f"{files / 'patients.duckdb'}#query=SELECT clock FROM patients")
    assert "another program" not in str(refused.value)


def test_a_server_that_is_not_there_is_said_at_once(monkeypatch):
    monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
    began = time.monotonic()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/ward?connect_timeout=2#table=t"
        with pytest.raises(DataError, match=r"cannot read postgresql://127.0.0.1.*no connection to the server"):
            read_frame(address)
    with pytest.raises(DataError, match=r"no connection to the server.*refused"):
        read_frame("postgresql://127.0.0.1:1/ward#table=t")
    with pytest.raises(DataError, match="no connection to the server"):
        read_frame("postgresql://127.0.0.1:1/ward?unheard=of#table=t")
    assert time.monotonic() - began < 6


def test_a_missing_package_answers_with_its_install_line(monkeypatch, files):
    for name in ("duckdb", "adbc_driver_postgresql.dbapi"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    for address in (f"{files / 'patients.duckdb'}#table=patients", "postgresql://host/db#table=t"):
        with pytest.raises(MissingExtra, match=r"pip install 'populace\[databases\]'"):
            read_frame(address)
    assert len(read_frame(f"{files / 'patients.sqlite'}#table=patients")) == 400


def test_duckdb_reads_no_variable_of_the_process(files):
    frame = pa.table({"a": [1]})
    with pytest.raises(DataError, match="frame"):
        read_frame(f"{files / 'patients.duckdb'}#query=SELECT * FROM frame")
    assert len(frame) == 1


def odd_columns(url, tmp_path):
    """A table with columns that cannot be modelled, in PostgreSQL and DuckDB."""
    import duckdb

    made = "CREATE TABLE odd (a INTEGER, j JSON, b INTEGER, l INTEGER[])"
    filled = "INSERT INTO odd SELECT i % 7, '{}', i % 5, ARRAY[i] FROM generate_series(1, 60) AS g(i)"
    with psycopg.connect(url) as connection:
        connection.execute(made)
        connection.execute(filled)
    with duckdb.connect(str(tmp_path / "odd.duckdb")) as connection:
        connection.execute(made)
        connection.execute(filled)
    return url, str(tmp_path / "odd.duckdb")


def test_columns_that_cannot_be_modelled_are_named_together_and_not_read_when_dropped(database, tmp_path, capsys):
    for number, place in enumerate(odd_columns(new_database(database, tmp_path.name), tmp_path)):
        output = tmp_path / f"{number}.toml"
        given = ["schema", place, "--table", "odd", "-o", str(output)]
        assert call(given) == 2
        said = capsys.readouterr().err.lower()
        assert "cannot be modelled: 'j' (json), 'l' (integer[]); leave them out" in said
        assert call([*given, "--drop", "j"]) == 2
        assert "column 'l' of" in capsys.readouterr().err
        assert call([*given, "--drop", "j", "--drop", "nothing", "--drop", "l"]) == 2
        assert "no column 'nothing'" in capsys.readouterr().err
        assert call([*given, "--drop", "j", "--drop", "l"]) == 0
        assert load_schema(output).names == ("a", "b")
        assert call([*given[:-1], str(tmp_path / "x.toml"), *(f"--drop={name}" for name in "ajbl")]) == 2
        assert "keep at least one" in capsys.readouterr().err


@pytest.mark.parametrize(
    "query",
    ["SELECT 1 AS a; DROP TABLE patients", "WITH x AS (DELETE FROM patients RETURNING age) SELECT age FROM x"],
)
def test_a_query_that_is_no_single_select_is_said_in_words(server, query):
    with pytest.raises(DataError, match="populace only reads: give one SELECT without a semicolon"):
        read_frame(f"{server}#query={query}")
