"""What a method says about itself, and how it is read without importing the method: a list of methods loads no JAX."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Literal

from populace.errors import SpecError
from populace.privacy.guarantee import Trust, Unit

Kind = Literal["table", "images"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What `populace methods` prints. A built-in method writes them as literals, so that they can be read from its source."""

    name: str
    title: str
    paper: str
    trust: tuple[Trust, ...]
    unit: Unit
    kinds: tuple[Kind, ...]
    traffic: str
    #: What it is in at most 36 characters, for a list that fits a terminal.
    line: str = ""
    #: Its page in docs/methods, where that has another name than the method.
    page: str = ""
    #: Whether it can also protect a person with several records: `unit="person"`, and `--person COLUMN`.
    persons: bool = False


def read_facts(target: str) -> Facts:
    """The facts of a built-in method, `module:Class`, from its source file; nothing of it is executed."""
    module, _, name = target.partition(":")
    for node in ast.parse(_source(module)).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == "facts":
                    return _facts(statement.value, target)
    raise SpecError(f"{target} has no `facts: ClassVar[Facts] = Facts(...)` in the body of its class")


def _source(module: str) -> str:
    """The text of a module below this package, found beside this file: finding it by import would import its package."""
    inside = module.removeprefix(f"{__package__}.").replace(".", "/")
    return (Path(__file__).parent / f"{inside}.py").read_text(encoding="utf-8")


def _facts(value: ast.expr | None, target: str) -> Facts:
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != "Facts" or value.args:
        raise SpecError(f"the facts of {target} are not written as Facts(name=...)")
    try:
        return Facts(**{str(one.arg): ast.literal_eval(one.value) for one in value.keywords})
    except ValueError as error:
        raise SpecError(f"the facts of {target} are not literals: {error}") from error
