"""The settings of a method, checked against their types by pydantic: text from the command line, values from Python."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping, Sequence

import numpy as np
import pydantic

from populace.errors import SpecError

NONE = "none"  # on the command line
TRUTHS = {"true": True, "false": False}
RANGES = {"gt": "above {}", "ge": "of at least {}", "lt": "below {}", "le": "of at most {}"}
KINDS: dict[object, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class Configured(typing.Protocol):
    """What of a method's class is read here."""

    facts: typing.ClassVar[typing.Any]
    renamed: typing.ClassVar[Mapping[str, str]]


def fields_of(cls: type) -> dict[str, dataclasses.Field[object]]:
    """The settings of a method by name."""
    return {field.name: field for field in dataclasses.fields(cls)}


@functools.lru_cache(maxsize=256)
def types_of(cls: type) -> dict[str, typing.Any]:
    """The type of every setting, with its ranges where they are annotated."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {name: hints[name] for name in fields_of(cls)}


@functools.lru_cache(maxsize=256)
def _adapter(cls: type, setting: str) -> pydantic.TypeAdapter[object]:
    config = pydantic.ConfigDict(arbitrary_types_allowed=True, strict=True)
    return pydantic.TypeAdapter(types_of(cls)[setting], config=config)


def check_settings(cls: type[Configured], settings: Mapping[str, object]) -> None:
    """Raise one sentence for a setting that the method does not have, or whose value is of another type."""
    for name, value in settings.items():
        read_setting(cls, name, value, text=False)


def read_settings(cls: type[Configured], settings: Mapping[str, object]) -> dict[str, object]:
    """Settings by name, text read as the setting's type; what is missing, unknown or wrong is one sentence."""
    values = {name: read_setting(cls, name, value, text=True) for name, value in settings.items()}
    for name, field in fields_of(cls).items():
        if name not in values and dataclasses.MISSING is field.default is field.default_factory:
            raise SpecError(
                f"method {cls.facts.name!r} needs {name!r}: give {name}=VALUE (with --set on the command line)"
            )
    return values


def read_setting(cls: type[Configured], name: str, value: object, *, text: bool) -> object:
    """One setting; where `text` is true a string is read as the setting's type, as on the command line."""
    method = cls.facts.name
    if name not in types_of(cls):
        raise SpecError(_unknown(cls, name))
    hint = types_of(cls)[name]
    given = value.item() if isinstance(value, np.generic) else value
    if text and isinstance(given, str):
        given = _from_text(given, hint)
    try:
        checked = _adapter(cls, name).validate_python(given)
    except pydantic.ValidationError:
        raise SpecError(f"expected {method}.{name} as {in_words(hint)}, got {value!r}") from None
    if checked != checked:  # NaN passes no comparison, so no range would refuse it
        raise SpecError(f"expected {method}.{name} as {in_words(hint)}, got {value!r}")
    return checked


def _unknown(cls: type[Configured], name: str) -> str:
    method = cls.facts.name
    if name in cls.renamed:
        return f"method {method!r} has no setting {name!r}; it is called {cls.renamed[name]!r}"
    return f"method {method!r} has no setting {name!r}; its settings are {', '.join(fields_of(cls))}"


def _from_text(text: str, hint: object) -> object:
    """Text as the setting's type where it can be read so, and as it stands where not: the check then refuses it."""
    options = _options(hint)
    if text.lower() == NONE and type(None) in options:
        return None
    for option in options:
        if option is bool and text.lower() in TRUTHS:
            return TRUTHS[text.lower()]
        if option is int or option is float:
            try:
                return int(text) if option is int else float(text)
            except ValueError:
                continue
        if _is_sequence(option):
            return _items(text, option)
    return text


def _items(text: str, hint: object) -> tuple[object, ...]:
    """`a, b` as two items, `a+b, c` as groups of items."""
    inner = next(iter(typing.get_args(hint)), str)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not _is_sequence(inner):
        return tuple(_from_text(part, inner) for part in parts)
    return tuple(tuple(item.strip() for item in part.split("+")) for part in parts)


def _is_sequence(hint: object) -> bool:
    origin = typing.get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Sequence)


def _options(hint: object) -> tuple[object, ...]:
    """The types a setting may have, ranges left out."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _options(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return tuple(option for part in typing.get_args(hint) for option in _options(part))
    return (hint,)


def in_words(hint: object) -> str:
    """What a setting has to be: `a number above 0`, `one of adam, sgd`, `a whole number or none`."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, typing.get_args(hint)))}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(in_words(part) for part in typing.get_args(hint)))
    if origin is typing.Annotated:
        kind, *marks = typing.get_args(hint)
        return " ".join([in_words(kind), *(words for mark in marks for words in _range(mark))])
    if origin is dict:
        return "a JSON object"
    if hint is type(None):
        return NONE
    if _is_sequence(hint):
        inner = next(iter(typing.get_args(hint)), str)
        return "groups of column names" if _is_sequence(inner) else "a list"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a mapping"
    if isinstance(hint, type) and hint not in KINDS:
        return "a method" if hasattr(hint, "facts") or hint.__name__ == "Protocol" else f"a {hint.__name__}"
    return KINDS.get(hint, str(hint))


def _range(mark: object) -> list[str]:
    """The words of an annotated range."""
    parts = getattr(mark, "metadata", [mark])
    return [
        words.format(getattr(part, name)) for part in parts for name, words in RANGES.items() if hasattr(part, name)
    ]
