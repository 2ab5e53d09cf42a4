from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
from hypothesis import given

from populace.tables.checking import misfits
from populace.tables.proposal import propose
from populace.tables.schema import Column, Schema
from populace.tables.table import from_codes, make_table
from populace.tables.widening import widened

from .strategies import FAST, schemas_with_codes

SCHEMA = Schema(
    columns=(
        Column(name="n", kind="integer", edges=(0, 5, 10), spikes=(99,), clip=True),
        Column(name="few", kind="decimal", spikes=(0.5, 1.0), step=0.1),
        Column(name="w", kind="categorical", categories=("a", "b"), other="b"),
        Column(name="flag", kind="boolean", categories=("no", "yes")),
        Column(name="d", kind="date", edges=(0, 10)),
    )
)
ROWS = pa.table(
    {"n": [3, -7, 200, None], "few": [0.5, 0.7, 1.0, 3.2], "w": ["a", "z", "b", None], "flag": ["no", "yes", "perhaps", "no"],
     "d": [dt.date(1970, 1, 2), dt.date(2020, 1, 1), None, dt.date(1950, 1, 1)]}
)  # fmt: skip


def test_every_row_fits_a_widened_schema_as_it_is() -> None:
    wide = widened(SCHEMA, ROWS)
    table = make_table(ROWS, wide)
    assert table.clipped == {}
    assert table.frame.equals(ROWS.cast(table.frame.schema))
    assert wide.column("n").edges == (-7, 5, 200)
    assert wide.column("few").spikes == (0.5, 0.7, 1.0, 3.2)
    assert wide.column("w").categories == ("a", "b", "z")
    assert wide.column("flag").kind == "categorical"
    assert [column.nullable for column in wide.columns] == [True, False, True, False, True]


def test_rows_that_fit_leave_the_cells_as_they_are() -> None:
    fits = pa.table({"n": [3], "few": [0.5], "w": ["a"], "flag": ["no"], "d": [dt.date(1970, 1, 2)]})
    wide = widened(SCHEMA, fits)
    assert wide.sizes == SCHEMA.sizes
    assert [column.labels() for column in wide.columns] == [column.labels() for column in SCHEMA.columns]
    assert widened(SCHEMA).sizes == SCHEMA.sizes


@FAST
@given(schemas_with_codes())
def test_what_a_schema_makes_fits_it_widened(case: tuple[Schema, np.ndarray, np.random.Generator]) -> None:
    schema, codes, rng = case
    table = from_codes(codes, schema, rng)
    assert np.array_equal(make_table(table.frame, widened(schema, table.frame)).codes, codes)


def test_many_values_between_spikes_get_an_interval() -> None:
    many = pa.table({"few": np.arange(0, 50, 0.1).round(1)})
    wide = widened(Schema(columns=(SCHEMA.column("few"),)), many)
    assert make_table(many, wide).clipped == {}
    assert wide.sizes[0] < 10


def test_misfits_are_counted_and_said() -> None:
    said = misfits(SCHEMA, ROWS.drop_columns(["d"]))
    assert said == (
        "n: 2 of 4 values lie outside the domain and will be moved into it",
        "n: 1 of 4 values are missing and will be refused (say nullable = true)",
        "few: 2 of 4 values lie outside the domain and will be refused (--clip moves them)",
        "w: 1 of 4 values lie outside the domain and will be moved into it",
        "w: 1 of 4 values are missing and will be refused (say nullable = true)",
        "flag: 1 of 4 values lie outside the domain and will be refused (--clip moves them)",
        "d: not in the data",
    )
    assert misfits(propose(ROWS).schema, ROWS) == ()
