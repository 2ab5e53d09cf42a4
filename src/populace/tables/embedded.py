"""The table that comes with the package: a survey of an invented harbour town, for first steps, examples and tests.

All people in it are invented: `tools/make_harbour.py` draws them, and says which columns depend on which. It has 4,000
rows and 11 columns of every kind a schema knows, one of them nullable, a structural zero, a comparison, and a target.
"""

from __future__ import annotations

import functools
from importlib import resources

from populace.tables.schema import Schema, load_schema
from populace.tables.table import Table, read_table

FOLDER = resources.files("populace.tables") / "harbour"


@functools.cache
def harbour_schema() -> Schema:
    """The declared schema of the invented survey."""
    with resources.as_file(FOLDER / "harbour.toml") as path:
        return load_schema(path)


def harbour() -> Table:
    """The invented survey: 4,000 people who never lived."""
    with resources.as_file(FOLDER / "harbour.csv") as path:
        return read_table(path, harbour_schema())
