"""The page about the command line, written from the commands themselves: `python tools/command_reference.py` prints it."""

from __future__ import annotations

import enum
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from populace.cli.main import app

PROGRAM = "populace"
EXIT_CODES = (
    "| exit code | |", "|---|---|",
    "| 0 | success |",
    "| 1 | `audit` refutes a claim, or `verify` finds something that does not hold |",
    "| 2 | bad input: one sentence says what was expected, what was found and what to do |",
    "| 3 | `verify` finds nothing wrong, but could not check everything (a run of 0.1.0, files left out) |",
    "| 130 | interrupted; give the same command again to go on |",
)  # fmt: skip
KINDS = {float: "NUMBER", int: "N", str: "TEXT", Path: "PATH"}


def commands(command: Any = None, name: str = PROGRAM) -> Iterator[tuple[str, Any]]:
    """Every command with its full name, groups before what is in them, in the order of `--help`."""
    command = typer.main.get_command(app) if command is None else command
    yield name, command
    for part, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from commands(inner, f"{name} {part}")


def reference() -> str:
    """The page, in Markdown."""
    found = list(commands())
    lines = [
        "# The command line", "",
        "Written from the commands themselves when this site is built; `populace COMMAND --help` says the same.", "",
        *EXIT_CODES, "",
        "| command | |", "|---|---|",
        *(f"| [`{name}`](#{_anchor(name)}) | {_cell(_first(one.help))} |" for name, one in found[1:]), "",
    ]  # fmt: skip
    for name, command in found:
        lines += _section(name, command)
    return "\n".join(lines)


def _section(name: str, command: Any) -> list[str]:
    level = "##" if name.count(" ") < 2 else "###"
    given = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    usage = " ".join([name, *(_argument(one) for one in given), *(["[OPTIONS]"] if options else [])])
    if getattr(command, "commands", None):
        usage += " COMMAND"
    lines = [f"{level} `{name}` {{ #{_anchor(name)} }}", "", _prose(command.help), "", f"    {usage}", ""]
    rows = [_row(_argument(one), one) for one in given] + [_row(_option(one), one) for one in options]
    if rows:
        lines += ["| | | default |", "|---|---|---|", *rows, ""]
    return [*lines, *_example(command.epilog)]


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name or "").upper().replace("_", " ").strip("[]")
    name = re.sub(r"[\[\].]", "", name).replace(" ", "-") or parameter.name.upper()
    more = " ..." if parameter.nargs == -1 else ""
    return f"{name}{more}" if parameter.required else f"[{name}{more}]"


def _option(parameter: Any) -> str:
    names = ", ".join(parameter.opts)
    if parameter.secondary_opts:
        return f"{names} / {', '.join(parameter.secondary_opts)}"
    if getattr(parameter, "is_flag", False):
        return names
    return f"{names} {parameter.metavar or _kind(parameter.type_descriptor.annotation)}"


def _kind(annotation: Any) -> str:
    """What an option takes, in a word: a number, text, a path, or one of a few words."""
    inner = typing.get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return "|".join(str(one.value) for one in annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return "|".join(map(str, inner))
    if inner:
        return _kind(inner[0])
    return KINDS.get(annotation, "VALUE")


def _row(shown: str, parameter: Any) -> str:
    text = getattr(parameter, "help", None) or ""
    needed = "*required*" if parameter.required else _default(parameter)
    return f"| `{_cell(shown)}` | {_cell(_prose(text))} | {needed} |"


def _default(parameter: Any) -> str:
    shown = getattr(parameter, "show_default", True)
    if isinstance(shown, str):
        return _cell(shown)
    value = parameter.default
    flag = getattr(parameter, "is_flag", False) and not parameter.secondary_opts
    if value is None or value in ((), [], "") or callable(value) or flag or not shown:
        return ""
    if getattr(parameter, "is_flag", False):
        return f"`{(parameter.opts if value else parameter.secondary_opts)[0]}`"
    return f"`{_cell(str(getattr(value, 'value', value)))}`"


def _example(epilog: str | None) -> list[str]:
    """What stands below a command's help: an example, each of its commands on a line."""
    if not epilog:
        return []
    return ["```text", *re.sub(r" && (?=populace )", "\n", epilog).splitlines(), "```", ""]


def _first(text: str | None) -> str:
    return _prose((text or "").split("\n\n")[0])


def _prose(text: str | None) -> str:
    """Text as Markdown: paragraphs kept, pages of this site as links."""
    parts = [" ".join(part.split()) for part in (text or "").split("\n\n")]
    return re.sub(r"docs/([\w/-]+\.md)", r"[\g<0>](../\1)", "\n\n".join(part for part in parts if part))


def _cell(text: str) -> str:
    return text.replace("\n\n", " ").replace("|", "\\|")


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


if __name__ == "__main__":
    print(reference())
