"""The same patients in a CSV, a DuckDB file, a SQLite file and PostgreSQL."""

import pytest

from databases_for_tests import new_database, patient_rows, write_csv, write_duckdb, write_postgresql, write_sqlite


@pytest.fixture(scope="session")
def rows():
    return patient_rows()


@pytest.fixture(scope="session")
def server(database, rows):
    """The address of a PostgreSQL database with the patients in it."""
    return write_postgresql(rows, new_database(database, "patients"))


@pytest.fixture(scope="session")
def files(rows, tmp_path_factory):
    """A folder with the patients in every kind of file."""
    folder = tmp_path_factory.mktemp("patients")
    write_csv(rows, folder / "patients.csv")
    write_duckdb(rows, folder / "patients.duckdb")
    write_sqlite(rows, folder / "patients.sqlite")
    return folder


@pytest.fixture(params=["duckdb", "sqlite", "postgresql"])
def place(request):
    """A database without a word about what to read of it."""
    if request.param == "postgresql":
        return request.getfixturevalue("server")
    return str(request.getfixturevalue("files") / f"patients.{request.param}")
