"""JSON and TOML from anywhere: bounded in length, depth and digits, and without text that cannot be written again."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from populace.border.regular import MOST_BYTES, first_line, read_bytes
from populace.errors import PopulaceError, RunError

MOST_DEPTH = 100  # of brackets in brackets; what we write has about a dozen
MOST_DIGITS = 400  # of a whole number; floats end at 309
MOST_TOML = 2**24  # bytes; its parser is slow
_GREATEST = 10**MOST_DIGITS
#: What decides the depth of a text: brackets, and what hides them. A string without an end reaches to the end of the text.
_IN_JSON = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{\]}]', re.DOTALL)
_IN_TOML = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"""|\Z)|\'\'\'.*?(?:\'\'\'|\Z)|"(?:[^"\\\n]++|\\.)*+"?|\'[^\'\n]*+\'?|#[^\n]*+|[\[{\]}]',
    re.DOTALL,
)


_BETWEEN_KEYS = re.compile(r"[=,\n\[\]{}]")


class _LimitError(ValueError):
    """A document beyond a limit."""


def parse_json(text: str | bytes, *, where: str, error: type[PopulaceError] = RunError, strict: bool = False) -> Any:
    """A JSON document; `where` names it in the sentence. A `strict` one has no NaN or infinity, and no name twice."""
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        _check_depth(text, _IN_JSON)
        document = json.loads(text, **(_STRICT if strict else {}))
        _check_values(document)
    except (ValueError, RecursionError, MemoryError) as reason:
        raise error(f"cannot read {where}: {_words(reason, 'JSON')}") from reason
    return document


def parse_toml(text: str | bytes, *, where: str, error: type[PopulaceError] = RunError) -> dict[str, Any]:
    """A TOML document; `where` names it in the sentence."""
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        _check_depth(text, _IN_TOML)
        _check_keys(text)
        document = tomllib.loads(text)
        _check_values(document)
    except (ValueError, RecursionError, MemoryError) as reason:
        raise error(f"cannot read {where}: {_words(reason, 'TOML')}") from reason
    return document


def read_json(
    path: Path, *, error: type[PopulaceError] = RunError, most: int = MOST_BYTES, strict: bool = False
) -> Any:
    """The document in a JSON file."""
    return parse_json(read_bytes(path, most=most, error=error), where=str(path), error=error, strict=strict)


def _check_depth(text: str, tokens: re.Pattern[str]) -> None:
    """Refuse brackets too deep for a parser that calls itself; counted, so that nothing is called for it."""
    if text.count("[") + text.count("{") <= MOST_DEPTH:
        return
    depth = 0
    for token in tokens.finditer(text):
        first = text[token.start()]
        if first in "[{":
            depth += 1
            if depth > MOST_DEPTH:
                raise _LimitError(
                    f"expected at most {MOST_DEPTH} brackets in each other, got more; it is damaged or forged"
                )
        elif first in "]}":
            depth -= 1


def _check_keys(text: str) -> None:
    """Refuse keys of too many parts before they are read: tomllib takes the square of their number in time and memory."""
    if text.count(".") <= MOST_DEPTH:
        return
    plain = _IN_TOML.sub(lambda token: token[0] if token[0] in "[{]}" else " ", text)
    if any(part.count(".") > MOST_DEPTH for part in _BETWEEN_KEYS.split(plain)):
        raise _LimitError(f"expected keys of at most {MOST_DEPTH} parts, got more; it is damaged or forged")


def _check_values(document: object) -> None:
    """Refuse numbers too long for a float and text that is no text; TOML's dotted keys make depth without brackets."""
    level: list[object] = [document]
    for _ in range(MOST_DEPTH + 2):
        if not level:
            return
        below: list[object] = []
        for value in level:
            if isinstance(value, str):
                _check_string(value)
            elif isinstance(value, dict):
                for key in value:
                    _check_string(key)
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, int) and not -_GREATEST < value < _GREATEST:
                raise _LimitError(f"expected numbers of at most {MOST_DIGITS} digits, got a longer one")
        level = below
    raise _LimitError(f"expected keys at most {MOST_DEPTH} deep, got more; it is damaged or forged")


def _check_string(text: str) -> None:
    if not text.isascii():
        text.encode("utf-8")  # half of a surrogate pair is no character: it could not be printed or written


def _no_constant(name: str) -> None:
    raise _LimitError(f"expected numbers, got {name}")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _LimitError("expected each name once, got one twice")
    return found


_STRICT: dict[str, Any] = {"parse_constant": _no_constant, "object_pairs_hook": _no_doubles}


def _words(reason: BaseException, language: str) -> str:
    if isinstance(reason, RecursionError | MemoryError):
        return "it is nested too deeply or too large; it is damaged or forged"
    if isinstance(reason, UnicodeError):
        return "it is not UTF-8 text; save it in UTF-8"
    if isinstance(reason, _LimitError):
        return str(reason)
    if "integer string conversion" in str(reason):
        return f"expected numbers of at most {MOST_DIGITS} digits, got a longer one"
    return f"it is not {language}: {first_line(str(reason))}"
