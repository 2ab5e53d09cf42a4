"""What a run that found its lists of categories under noise could not list: a warning, made of synthetic rows alone."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from populace.tables.schema import Schema
from populace.tables.table import Table

MUCH = 0.05  # share of a column's synthetic values that stand for whatever no list names


def unlisted_shares(schema: object, drawn: object) -> dict[str, float]:
    """Of columns whose lists were found under noise, the share of synthetic rows beyond the lists, where it is large.

    It is computed from synthetic rows, so that it tells nothing that they do not.
    """
    if not isinstance(schema, Schema) or not isinstance(drawn, Table) or not len(drawn):
        return {}
    found = {}
    for column in schema.columns:
        if column.domain == "released" and column.other and column.name in drawn.frame.column_names:
            values = drawn.frame.column(column.name).cast(pa.string())
            share = (pc.sum(pc.equal(values, column.other)).as_py() or 0) / len(drawn)
            if share > MUCH:
                found[column.name] = share
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def unlisted_in_words(schema: object, drawn: object) -> tuple[str, ...]:
    """The warning, with what to do; empty where the lists hold nearly everything."""
    shares = unlisted_shares(schema, drawn)
    if not shares or not isinstance(schema, Schema):
        return ()
    each = ", ".join(f"{100 * share:.0f} % of {name} ({schema.column(name).other})" for name, share in shares.items())
    return (
        f"warning: synthetic values that stand for all that no list names: {each}. Lists found under noise hold frequent "
        "values alone; what is beyond them is lost. Declare such a list of codes in a schema, from a public source: that "
        'costs no privacy (`populace schema`, then --schema FILE; docs/schema.md, "Long lists of codes"). A new run spends '
        "its budget anew",
    )
