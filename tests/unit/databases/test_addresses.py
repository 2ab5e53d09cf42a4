"""Addresses of tables in databases: what they are, and that none ever holds a password."""

import pytest

from populace.border.databases.address import (
    is_database,
    locate,
    moved_to,
    parameters,
    parse_address,
    resolved,
    short_name,
)
from populace.border.databases.postgresql import refused
from populace.errors import InputError

SECRET = "hunter2-canary"  # noqa: S105
WITH_PASSWORDS = (
    f"postgresql://reader:{SECRET}@host/db",
    f"postgres://reader:{SECRET}@host:5432/db?sslmode=require",
    f"postgresql://reader:{SECRET}/x@host/db",
    f"postgresql://reader:{SECRET}#x@host/db",
    f"postgresql://reader:a@b{SECRET}@host/db",
    f"postgresql://:{SECRET}@host/db",
    f"postgresql://reader:1/x?{SECRET}@host/db",
    f"postgresql://reader:{SECRET}/x?a=b@host/db",
    f"postgresql://host/db?password={SECRET}",
    f"postgresql://host/db?user=reader&PASSWORD={SECRET}",
    f"postgresql://host/db?sslpassword={SECRET}",
    f"postgresql://host/db?pass%77ord={SECRET}",
)


@pytest.mark.parametrize("address", WITH_PASSWORDS)
@pytest.mark.parametrize("what", ["", "#table=patients", "#query=SELECT 1"])
def test_a_password_is_refused_and_not_repeated(address, what):
    assert is_database(address + what)
    with pytest.raises(InputError, match=r"holds a password; leave it out and set PGPASSWORD") as refused:
        parse_address(address + what)
    assert SECRET not in str(refused.value)
    with pytest.raises(InputError, match="PGPASSWORD"):
        locate([address], table="patients")


@pytest.mark.parametrize(
    "address",
    [
        "host/db?application_name=me@ward",
        "host:5432/db?application_name=me@ward",
        "me@[::1]:5432/db?application_name=a:b@c",
    ],
)
def test_a_parameter_may_hold_an_at(address):
    assert parse_address(f"postgresql://{address}#table=t").table == "t"


def test_parameters_are_read_as_libpq_reads_them():
    assert parameters("postgresql://h/d?application_name=a+b&options=-c%20x%3D1&empty=") == [
        ("application_name", "a+b"), ("options", "-c x=1"), ("empty", ""),
    ]  # fmt: skip


def test_a_user_is_taken_out_of_messages_as_a_word_and_a_password_wherever_it_is(monkeypatch):
    monkeypatch.setenv("PGUSER", "ward")
    monkeypatch.setenv("PGPASSWORD", SECRET)
    said = str(
        refused(parse_address("postgresql://h/d#table=t"), ValueError(f"ERROR: ward, wards, award and x{SECRET}x"))
    )
    assert said.endswith("***, wards, award and x***x")


@pytest.mark.parametrize("scheme", ["mysql", "postgresq", "POSTGRESQL", "https"])
def test_other_addresses_are_refused_and_not_repeated(scheme):
    with pytest.raises(InputError, match="the address of something else") as refused:
        locate([f"{scheme}://reader:{SECRET}@host/db"])
    assert SECRET not in str(refused.value)


def test_names_that_no_file_can_have_are_left_to_their_reader():
    for odd in ("a\0b.csv", "a\ud800.csv", "a\ud800.sqlite#table=t"):
        assert resolved(odd) == odd


def test_a_table_or_query_is_for_databases_and_said_once():
    assert locate(["a.duckdb", "b.csv"], table="t") == ("a.duckdb#table=t", "b.csv")
    assert locate(["postgresql://h/d"], query="SELECT 1") == ("postgresql://h/d#query=SELECT 1",)
    assert locate(["a.db#table=t"]) == ("a.db#table=t",)
    for data, table, query, said in (
        (["a.csv"], "t", None, "--table is for databases"),
        (["a.csv"], None, "SELECT 1", "--query is for databases"),
        (["a.db"], "t", "SELECT 1", "not both"),
        (["a.db#table=t"], "t", None, "says already"),
        (["postgresql://host"], "t", None, "names a database"),
        (["postgresql://h/d#tabel=t"], None, None, "got another #"),
        (["postgresql:/h/d"], "t", None, "as text"),
    ):
        with pytest.raises(InputError, match=said):
            locate(data, table=table, query=query)


def test_a_pattern_is_the_files_it_matches(tmp_path):
    for name in ("ward-b.csv", "ward-a.csv", "other.csv", "odd[1].csv"):
        (tmp_path / name).touch()
    assert locate([tmp_path / "ward-*.csv"]) == (str(tmp_path / "ward-a.csv"), str(tmp_path / "ward-b.csv"))
    assert locate([tmp_path / "odd[1].csv"]) == (str(tmp_path / "odd[1].csv"),)
    with pytest.raises(InputError, match="no file matches"):
        locate([tmp_path / "nothing-*.csv"])
    for name in ("a.sqlite", "b.sqlite"):
        (tmp_path / name).touch()
    assert locate([tmp_path / "?.sqlite"], table="t") == tuple(f"{tmp_path / name}.sqlite#table=t" for name in "ab")


def test_names_for_ledgers_and_messages(tmp_path):
    assert short_name("/home/x/ward.csv") == "ward.csv"
    assert short_name("/home/x/ward.db#table=t") == "ward.db#table=t"
    query = short_name("postgresql://h/d#query=SELECT a/b FROM t")
    assert query.startswith("postgresql://h/d#query ")
    assert "SELECT" not in query
    assert query != short_name("postgresql://h/d#query=SELECT a FROM t")
    link = tmp_path / "link.db"
    (tmp_path / "real.db").touch()
    link.symlink_to(tmp_path / "real.db")
    assert resolved(f"{link}#table=t") == f"{(tmp_path / 'real.db').resolve()}#table=t"
    assert moved_to("a/b.db#table=t", tmp_path / "b.db") == f"{tmp_path / 'b.db'}#table=t"
