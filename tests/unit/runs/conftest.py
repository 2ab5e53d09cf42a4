"""Shared by tests of runs: `booked_runs`, and the people it saves."""

import pytest

from booked_runs import save_people


@pytest.fixture
def people(tmp_path):
    """A file of 60 people with a declared schema, and one of 60 others."""
    return save_people(tmp_path)
