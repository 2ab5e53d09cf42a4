"""A small table that `census` counts in two stages: a column with more codes than cells, and two short ones."""

import numpy as np

from populace.tables.columns import Column
from populace.tables.schema import Schema
from populace.tables.table import from_codes

SCHEMA = Schema(
    columns=(
        Column(name="cost", kind="integer", edges=tuple(float(edge) for edge in range(121)), source="invented"),
        Column(name="ward", kind="categorical", categories=("north", "south", "east"), source="invented"),
        Column(name="ill", kind="categorical", categories=("no", "yes"), source="invented"),
    ),
    target="ill",
)


def two_stage_table(rows):
    rng = np.random.default_rng(3)
    return from_codes(rng.integers(0, SCHEMA.sizes, (rows, 3)), SCHEMA, rng)
