"""populace: synthetic data from records that never leave their owners.

import populace as pop

run = pop.synthesize(df, epsilon=1, target="income")  # pandas, polars, Arrow, a file; a list of tables is a list of silos
print(run.guarantee)  # epsilon, delta, unit, who adds the noise, who must be trusted, what is not covered
synthetic = run.sample(100_000).to_pandas()
run.save("run")  # pop.load_run("run")
pop.evaluate(run, real=df, target="income").save("report.html")

pop.methods has every method as a class, `pop.methods.Moments(epsilon=4)`; pop.method makes one by its name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from populace.version import __version__ as __version__

if TYPE_CHECKING:
    from populace import methods as methods
    from populace.api import advise, attack, audit, method, plan, rehearse, split, synthesize
    from populace.collector.device import Device
    from populace.errors import BudgetError, InputError, PopulaceError, SpecError
    from populace.methods.base import Plan, Protocol
    from populace.privacy.guarantee import Guarantee
    from populace.report.page import Evaluation, evaluate
    from populace.runs.run import Run, load_run, simulate
    from populace.tables.images import Images, read_images
    from populace.tables.partition import Clients, split_by_column
    from populace.tables.schema import Column, Schema, load_schema
    from populace.tables.table import Table, make_table, read_table

_HOMES = {
    "api": ("advise", "attack", "audit", "method", "plan", "rehearse", "split", "synthesize"),
    "collector.device": ("Device",),
    "errors": ("BudgetError", "InputError", "PopulaceError", "SpecError"),
    "methods.base": ("Plan", "Protocol"),
    "privacy.guarantee": ("Guarantee",),
    "report.page": ("Evaluation", "evaluate"),
    "runs.run": ("Run", "load_run", "simulate"),
    "tables.images": ("Images", "read_images"),
    "tables.partition": ("Clients", "split_by_column"),
    "tables.schema": ("Column", "Schema", "load_schema"),
    "tables.table": ("Table", "make_table", "read_table"),
}
_WHERE = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "BudgetError", "Clients", "Column", "Device", "Evaluation", "Guarantee", "Images", "InputError", "Plan", "PopulaceError",
    "Protocol", "Run", "Schema", "SpecError", "Table", "advise", "attack", "audit", "evaluate", "load_run", "load_schema",
    "make_table", "method", "methods", "plan", "read_images", "read_table", "rehearse", "simulate", "split", "split_by_column",
    "synthesize",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Public names are imported when first used, so that `populace --help` answers at once."""
    if name == "methods":
        return importlib.import_module("populace.methods")
    if name not in _WHERE:
        raise AttributeError(f"module 'populace' has no attribute {name!r}")
    return getattr(importlib.import_module(f"populace.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
