"""Shared by tests of experiments: `booked_runs`, and the people it saves."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from booked_runs import save_people


@pytest.fixture
def people(tmp_path):
    """A file of 60 people with a declared schema, and one of 60 others."""
    return save_people(tmp_path)
