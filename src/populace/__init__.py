"""populace: synthetic data from records that never leave their owners.

import populace as pop

table = pop.read_table("adult.parquet", schema="adult.toml")
run = pop.simulate(pop.Poll(epsilon=4), pop.split(table, records_per_client=1), seed=0)
print(run.guarantee)
synthetic = run.sample(100_000)
pop.evaluate(synthetic, real=table).save("report.html")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from populace.version import __version__ as __version__

if TYPE_CHECKING:
    from populace.errors import BudgetError, InputError, PopulaceError
    from populace.methods.baselines.independent import Independent
    from populace.methods.poll.protocol import Poll
    from populace.privacy.guarantee import Guarantee
    from populace.report.page import Evaluation, evaluate
    from populace.runs.run import Run, load_run, simulate
    from populace.tables.images import Images, read_images
    from populace.tables.partition import Clients, split, split_by_column
    from populace.tables.schema import Column, Schema, load_schema
    from populace.tables.table import Table, make_table, read_table

_WHERE = {
    "BudgetError": "errors", "InputError": "errors", "PopulaceError": "errors",
    "Run": "runs.run", "load_run": "runs.run", "simulate": "runs.run",
    "Guarantee": "privacy.guarantee", "Independent": "methods.baselines.independent", "Poll": "methods.poll.protocol",
    "Evaluation": "report.page", "evaluate": "report.page",
    "Images": "tables.images", "read_images": "tables.images",
    "Clients": "tables.partition", "split": "tables.partition", "split_by_column": "tables.partition",
    "Column": "tables.schema", "Schema": "tables.schema", "load_schema": "tables.schema",
    "Table": "tables.table", "make_table": "tables.table", "read_table": "tables.table",
}  # fmt: skip

__all__ = [
    "BudgetError", "Clients", "Column", "Evaluation", "Guarantee", "Images", "Independent", "InputError", "Poll",
    "PopulaceError", "Run", "Schema", "Table", "evaluate", "load_run", "load_schema", "make_table", "read_images",
    "read_table", "simulate", "split", "split_by_column",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that `populace --help` answers at once."""
    if name not in _WHERE:
        raise AttributeError(f"module 'populace' has no attribute {name!r}")
    return getattr(importlib.import_module(f"populace.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
