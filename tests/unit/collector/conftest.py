"""Both databases, for tests of what a store promises."""

import shutil

import pytest
from benchmarks.collector_load import postgres, postgres_folder


@pytest.fixture(scope="session")
def database():
    """A PostgreSQL that runs during the tests of one process."""
    if postgres_folder() is None:
        pytest.skip("no PostgreSQL is installed here (postgres, initdb): tests of that store are left out")
    with postgres() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request, tmp_path):
    """The address of an empty store, of either kind."""
    if request.param == "sqlite":
        return None
    running = request.getfixturevalue("database")
    return new_database(running, tmp_path.name)


def new_database(running, name):
    """An empty database of that name in a running PostgreSQL."""
    import psycopg

    plain = "t_" + "".join(letter if letter.isalnum() else "_" for letter in name.lower())[:50]
    with psycopg.connect(running.url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {plain} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {plain}")
    return running.url.replace("/postgres?", f"/{plain}?")


@pytest.fixture
def folder(tmp_path):
    yield tmp_path / "here"
    shutil.rmtree(tmp_path / "here", ignore_errors=True)
