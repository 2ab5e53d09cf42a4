"""Small runs on 60 people and 60 others, and what their folders say, for tests of the ledger."""

import json

import numpy as np

from populace.runs.spec import make_spec
from populace.tables.embedded import harbour

ROWS = 60


def save_people(folder):
    """A file of 60 people with a declared schema, and one of 60 others."""
    table = harbour()
    table.schema.save(folder / "people.toml")
    table.take(np.arange(ROWS)).save(folder / "people.parquet")
    table.take(np.arange(ROWS, 2 * ROWS)).save(folder / "others.csv")
    return folder


def spec_of(folder, *, data="people.parquet", epsilon=1.0, **more):
    more = {"method": "independent", "rows": 5, "seed": 1, "schema_file": str(folder / "people.toml"), **more}
    return make_spec(data=str(folder / data), epsilon=epsilon, **more)


def history(run):
    """What the owner is told: which runs share records."""
    return json.loads((run / "run.json").read_text())["booked"]["standing"]


def published(run):
    return json.loads((run / "privacy.json").read_text())["history"]


class StopError(Exception):
    pass


def interrupt(*_):
    raise StopError
