"""Our own files: JSON that a model describes. A field that is missing or wrong is named, with its file, in one sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pydantic

from populace.border.documents import read_json
from populace.border.regular import first_line
from populace.errors import PopulaceError, RunError
from populace.types import JsonObject

RESTORE = "restore it from a copy"
#: What documents raise whose parts do not fit each other.
DAMAGED = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


class Form(pydantic.BaseModel):
    """What a file must hold for the code that reads it. What else stands in it is left alone: other versions write more.

    A number written as text, or a truth value as a number, is a wrong field.
    """

    model_config = pydantic.ConfigDict(strict=True, extra="allow", frozen=True)


def read_document(
    path: Path, form: type[Form], *, error: type[PopulaceError] = RunError, advice: str = RESTORE
) -> JsonObject:
    """The JSON object in a file, in this form."""
    return check_document(read_json(path, error=error), form, where=str(path), error=error, advice=advice)


def check_document(
    document: object,
    form: type[Form],
    *,
    where: str,
    error: type[PopulaceError] = RunError,
    advice: str = RESTORE,
) -> JsonObject:
    """A document as it is, if it is in this form."""
    if not isinstance(document, dict):
        raise error(f"{where} is damaged: expected an object, got {_shown(document)}; {advice}")
    try:
        form.model_validate(document)
    except pydantic.ValidationError as reason:
        first = reason.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "its content"
        if first["type"] == "missing":
            raise error(f"{where} is damaged: it lacks {field!r}; {advice}") from None
        words = first["msg"][:1].lower() + first["msg"][1:]
        raise error(
            f"{where} is damaged: {field!r}: {first_line(words)}, got {_shown(first['input'])}; {advice}"
        ) from None
    return document


@contextlib.contextmanager
def interpreting(where: str, *, error: type[PopulaceError] = RunError, advice: str = RESTORE) -> Iterator[None]:
    """What goes wrong while a document of our own is given its meaning, in one sentence: its parts contradict each other."""
    try:
        yield
    except PopulaceError:
        raise
    except DAMAGED as reason:
        words = first_line(str(reason), most=120)
        raise error(f"{where} is damaged: {type(reason).__name__} {words}; {advice}".replace(" ;", ";")) from reason


def _shown(value: object) -> str:
    """What kind of value it is; never the value: some of these files hold keys."""
    kinds = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "a truth value",
        int: "a whole number",
        float: "a number",
    }
    return kinds.get(type(value), "nothing")
