"""`populace methods`: what can be run."""

from __future__ import annotations

import dataclasses

import typer

EXAMPLE = "Example:  populace methods --json"
PLURAL = {"table": "tables", "images": "images"}


def command(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List every method: whom one must trust, what is protected, what data it takes, where it comes from."""
    from populace.cli import show
    from populace.protocols.registry import DEFAULTS, all_facts, parameters

    facts = all_facts()
    if as_json:
        show.say_json([{**dataclasses.asdict(fact), "parameters": list(parameters(fact.name))} for fact in facts])
        return
    defaults = {name: kind for kind, name in DEFAULTS.items()}
    show.table(
        ["method", "trust", "unit", "data", "what it is", "paper", "traffic"],
        [
            [
                fact.name + (f" (default for {PLURAL[defaults[fact.name]]})" if fact.name in defaults else ""),
                ", ".join(fact.trust), fact.unit, ", ".join(fact.kinds), fact.title, fact.paper, fact.traffic,
            ]
            for fact in facts
        ],
    )  # fmt: skip
