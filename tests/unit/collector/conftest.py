"""Both databases, for tests of what a store promises."""

import shutil

import pytest

from databases_for_tests import new_database


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request, tmp_path):
    """The address of an empty store, of either kind."""
    if request.param == "sqlite":
        return None
    running = request.getfixturevalue("database")
    return new_database(running, tmp_path.name)


@pytest.fixture
def folder(tmp_path):
    yield tmp_path / "here"
    shutil.rmtree(tmp_path / "here", ignore_errors=True)
