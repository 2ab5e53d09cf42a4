"""`representation-a9a`: 124 binary columns written as 0 and 1, and as no and yes; how a table is written must not matter.

The 50,000 rows of `poll-a9a`, as a CSV, with the schema that `synthesize` proposes. Both are judged after the same relabelling.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from populace.papers import poll
from populace.papers.grid import Cell, Chart, Result, View, benchmark_of, lines_over, mean_over_seeds
from populace.papers.user_path import synthesize_csv
from populace.tables.schema import Column, Schema
from populace.tables.table import make_table
from populace.types import NumpyArray

Pair = tuple[int, int] | tuple[str, str]

DATA = "a9a"
EPSILONS = (1, 2, 4, 8)
#: How it is written -> the two values.
WRITTEN: dict[str, Pair] = {"0 and 1": (0, 1), "no and yes": ("no", "yes")}
METRICS = ("two_way", "avd4", "seconds_run")
WITHIN = 0.05


def cells(quick: bool, seeds: int) -> list[Cell]:
    return [
        {"written": written, "epsilon": epsilon, "seed": seed}
        for seed, epsilon, written in itertools.product(range(seeds), EPSILONS[:1] if quick else EPSILONS, WRITTEN)
    ]


def measure(cell: Cell) -> Result:
    """One run on the table written in one way, and its distances."""
    values = WRITTEN[str(cell["written"])]
    table = poll.load(DATA)
    real = written_as(table.codes, table.schema.names, values)
    made = synthesize_csv(
        real, None, method="poll", epsilon=float(cell["epsilon"] or 0), target=table.schema.target, rows=poll.ROWS,
        seed=int(cell["seed"] or 0),
    )  # fmt: skip
    schema = binary_schema(table.schema, values)
    judged = poll.table_scores(made.table(schema), make_table(real, schema), None)
    return {"seconds_run": made.seconds, "two_way": judged["two_way"], "avd4": judged["avd4"]}


def written_as(codes: NumpyArray, names: Sequence[str], values: Pair) -> pa.Table:
    """Rows of codes 0 and 1 with these two values in every column."""
    pair = np.array(values)
    return pa.table({name: pa.array(pair[codes[:, place]]) for place, name in enumerate(names)})


def binary_schema(schema: Schema, values: Pair) -> Schema:
    """The same columns, each with these two values: what both tables are judged under."""
    categories = (str(values[0]), str(values[1]))
    dtype: Literal["integer", "string"] = "integer" if isinstance(values[0], int) else "string"
    columns = (Column(name=name, kind="boolean", categories=categories, dtype=dtype) for name in schema.names)
    return Schema(columns=tuple(columns), target=schema.target)


def views(results: Sequence[Result]) -> list[View]:
    means = mean_over_seeds(results, METRICS, ("epsilon", "written"))
    numbers, words = WRITTEN
    rows = []
    for epsilon in dict.fromkeys(epsilon for epsilon, _ in means):
        pair = [means.get((epsilon, written), {}).get("avd4") for written in (numbers, words)]
        found = ["-" if value is None else f"{value:.4f}" for value in pair]
        ratio = pair[0] / pair[1] if pair[0] is not None and pair[1] else None
        reached = ["-", "-"] if ratio is None else [f"{ratio:.3f}", "yes" if abs(ratio - 1) <= WITHIN else "no"]
        rows.append([f"{epsilon:g}", *found, *reached])
    header = ["epsilon", *(f"as {written}" for written in WRITTEN), "ratio", f"within {WITHIN:.0%}"]
    return [View(title="poll on a9a, proposed schema: 4-way AVD by how the table is written", header=header, rows=rows)]


def charts(results: Sequence[Result]) -> list[Chart]:
    lines = lines_over(results, "avd4", "epsilon", by="written")
    return [Chart(name="avd4-by-epsilon", title=DATA, across="epsilon", up="4-way AVD", lines=lines)]


def prepare() -> None:
    poll.load(DATA)


A9A = benchmark_of(
    __name__,
    name="representation-a9a",
    title="one table written in two ways: 124 binary columns, 50,000 clients",
    reference="our own; both ways must do alike",
    revision=1,
    prepare=prepare,
)
