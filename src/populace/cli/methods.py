"""`populace methods`: what can be run."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import typer

from populace.cli import completion

if TYPE_CHECKING:
    from populace.methods.base import Facts, Protocol

EXAMPLE = "Example:  populace methods poll"
PLURAL = {"table": "tables", "images": "images"}
WIDTH = 80
NOISE = {
    "local": "each person", "silo": "silo", "secure-sum": "silos", "central": "server", "not-private": "nobody",
}  # fmt: skip
PAGES = "docs/methods"


def command(
    name: str | None = typer.Argument(
        None, metavar="[METHOD]", help="Show this one in full, with its settings.", autocompletion=completion.methods
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """List every method: the data it takes, what one unit of its guarantee is, who adds the noise, and what it is."""
    from populace.cli import show
    from populace.methods.registry import BUILT_IN, protocol_class

    if as_json:
        show.say_json([_document(protocol_class(one)) for one in (BUILT_IN if name is None else (name,))])
    elif name is None:
        _show_all()
    else:
        _show_one(protocol_class(name))


def _show_all() -> None:
    """One line for each method; those of other packages by name only, because none is imported to be listed."""
    from populace.cli import show
    from populace.methods.registry import built_in_facts, offered
    from populace.runs.advise.rule import defaults

    others = [one for one in offered() if not one.problem]
    show.table(
        ["method", "data", "unit", "noise added by", "what it is"],
        [[fact.name, _data(fact), fact.unit, _noise(fact), fact.line] for fact in built_in_facts()]
        + [[one.name, "", "", "", f"from package {one.package}"] for one in others],
        width=WIDTH,
    )
    show.say("\ndefault for " + ", for ".join(f"{PLURAL[kind]}: {name}" for kind, name in defaults().items()))
    show.say("one in full, with its settings: populace methods NAME")
    for one in offered():
        if one.problem:
            show.say(f"left out: {one.problem}")


def _show_one(cls: type[Protocol]) -> None:
    """One method: what it is, what is sent, what it guarantees, and its settings with default, type and meaning."""
    import inspect
    import textwrap

    from populace.cli import show

    facts = cls.facts
    rows = {
        "paper": facts.paper, "data": ", ".join(PLURAL[kind] for kind in facts.kinds), "unit": f"one {_unit(facts)}",
        "noise": f"added by: {_noise(facts)} (trust {', '.join(facts.trust)})", "sent": facts.traffic, "page": _page(facts),
    }  # fmt: skip
    show.say("\n".join(textwrap.wrap(f"{facts.name}: {facts.title}", WIDTH)) + "\n")
    for title, words in rows.items():
        show.say(textwrap.fill(words, WIDTH, initial_indent=f"{title:7}", subsequent_indent=" " * 7))
    show.say("")
    for paragraph in inspect.cleandoc(cls.__doc__ or "").split("\n\n"):
        for part in _parts(paragraph):
            show.say(textwrap.fill(part, WIDTH))
        show.say("")
    show.table(
        ["setting", "default", "meaning"],
        [
            [
                one["name"],
                one["default"],
                f"{one['meaning'].rstrip('.')} ({one['type']})" if one["meaning"] else one["type"],
            ]
            for one in _settings(cls)
        ],
        width=WIDTH,
    )


def _parts(paragraph: str) -> list[str]:
    """The lines of a paragraph joined, but `Guarantee:` and `Edge cases:` begin one of their own."""
    parts: list[str] = []
    for line in paragraph.splitlines():
        if not parts or line.startswith(("Guarantee:", "Edge cases:")):
            parts.append(line)
        else:
            parts[-1] += f" {line}"
    return parts


def _document(cls: type[Protocol]) -> dict[str, object]:
    settings = _settings(cls)
    facts = {**dataclasses.asdict(cls.facts), "page": _page(cls.facts)}
    return {**facts, "parameters": [one["name"] for one in settings], "settings": settings, "text": cls.__doc__ or ""}


def _settings(cls: type[Protocol]) -> list[dict[str, str]]:
    from populace.methods.blocks.settings import fields_of, in_words, types_of

    return [
        {
            "name": name,
            "default": _default(field),
            "type": in_words(types_of(cls)[name]),
            "meaning": cls.meanings.get(name, ""),
        }
        for name, field in fields_of(cls).items()
    ]


def _default(field: dataclasses.Field[object]) -> str:
    if field.default is dataclasses.MISSING:
        return "given by --epsilon" if field.name == "epsilon" else "needed"
    return "none" if field.default is None else str(field.default) or "(empty)"


def _data(facts: Facts) -> str:
    return "both" if len(facts.kinds) > 1 else PLURAL[facts.kinds[0]]


def _unit(facts: Facts) -> str:
    return f"{facts.unit}, or one person with all their rows at a silo (--person)" if facts.persons else facts.unit


def _noise(facts: Facts) -> str:
    """Who adds the noise; several where the method offers the choice."""
    return ", ".join(dict.fromkeys(NOISE[trust] for trust in facts.trust))


def _page(facts: Facts) -> str:
    return f"{PAGES}/{facts.page or facts.name}.md"
