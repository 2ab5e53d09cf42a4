"""`populace methods`: what can be run."""

from __future__ import annotations

import dataclasses

import typer

EXAMPLE = "Example:  populace methods poll"
PLURAL = {"table": "tables", "images": "images"}


def command(
    name: str | None = typer.Argument(None, metavar="[METHOD]", help="Show this one with its parameters, for --set."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """List every method: whom one must trust, what is protected, what data it takes, where it comes from."""
    from populace.cli import show
    from populace.methods.registry import DEFAULTS, all_facts, parameters, protocol_class

    facts = all_facts() if name is None else (protocol_class(name).facts,)
    if name is not None and not as_json:
        _show_one(name)
        return
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


def _show_one(name: str) -> None:
    """One method: what it is, what it guarantees, and its parameters with their defaults."""
    import inspect

    from populace.cli import show
    from populace.methods.registry import parameters, protocol_class

    cls = protocol_class(name)
    show.say(f"{name}: {cls.facts.title} ({cls.facts.paper})")
    show.say(
        f"trust {', '.join(cls.facts.trust)}; protects one {cls.facts.unit}; takes {', '.join(cls.facts.kinds)}; "
        f"{cls.facts.traffic}\n"
    )
    show.say(f"{inspect.cleandoc(cls.__doc__ or '')}\n")
    show.table(
        ["parameter", "default", "type"],
        [[field.name, _default(field), str(field.type)] for field in parameters(name).values()],
    )


def _default(field: dataclasses.Field[object]) -> str:
    if field.default is dataclasses.MISSING:
        return "given by --epsilon" if field.name == "epsilon" else "needed"
    return str(field.default) or "(empty)"
