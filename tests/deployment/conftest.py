"""Sites and a coordinator in the folder of each test."""

import functools

import numpy as np
import pytest

import builders


@pytest.fixture(scope="session")
def rows(small_table):
    return small_table.take(np.arange(12))  # over all sites


@pytest.fixture
def make_site(tmp_path):
    return functools.partial(builders.make_site, tmp_path)


@pytest.fixture
def make_sites(tmp_path):
    return functools.partial(builders.make_sites, tmp_path)


@pytest.fixture
def make_coordinator(tmp_path):
    def make(table, *args, **options):
        return builders.make_coordinator(tmp_path, table.schema, *args, **options)

    return make
