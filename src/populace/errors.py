"""What can go wrong, as a tree.

PopulaceError                 every error this package raises on purpose; the command line prints it and exits with 2
├── InputError                what the user gave cannot be used: a file, an option, a value
│   ├── SchemaError           a schema is malformed, or does not fit the data
│   ├── DataError             the data contradict the schema, are empty, or cannot be read
│   └── SpecError             a method or its parameters cannot be used as asked
├── BudgetError               a release would spend more than was agreed; nothing was released
├── RunError                  a run folder is in the way, damaged, or cannot be written
├── WireError                 a message from elsewhere is malformed, too large, or of another version
└── MissingExtra              an optional part is not installed; the message holds the install line
"""

import re

LONGEST = 560  # characters of a sentence that is shown
HIDDEN = "***"
#: What stands before a password, kept, and the password: in an address, in one whose beginning was cut off, and as a setting.
SECRETS = (
    re.compile(r"([A-Za-z][\w+.-]*:/{1,3}[^\s:/@?#]*:)(?:\S*|(?!\d+\W)[^'\"]*)@"),
    re.compile(r"((?<![^\s'\"(])[^\s:/@'\"(]+:)(?!/)[^\s@]+@(?=[\w\[])"),
    re.compile(
        r"(?i)((?:password|passwd|pwd)(?!_from)\w*\s*=\s*)"
        r"(?:\\?'(?:\\.|[^'\\])*'|\\?\"[^\"]*\"|[^\s&]+?(?=['\",;:.)]*(?:[\s&]|$)))"
    ),
)


def without_secrets(text: str) -> str:
    """The text without the passwords of addresses (`scheme://user:password@host`) and settings (`password=...`) in it."""
    for number, pattern in enumerate(SECRETS):
        text = pattern.sub(rf"\g<1>{HIDDEN}" + "@" * (number < 2), text)
    return text


def readable(sentence: str) -> str:
    """A sentence that people can read, on one line, whatever was quoted in it: of a long one its beginning and its end.

    Guarantee: a password of an address or setting that somebody gave in a wrong place is not repeated.
    """
    sentence = without_secrets(" ".join(sentence.splitlines()))
    return sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST - 205]} ... {sentence[-200:]}"


class PopulaceError(Exception):
    """Root of every error raised on purpose: one clear sentence without a password, no traceback needed."""

    def __init__(self, *said: object) -> None:
        super().__init__(*(without_secrets(each) if isinstance(each, str) else each for each in said))

    def __str__(self) -> str:
        return readable(super().__str__())


class InputError(PopulaceError):
    """What the user gave cannot be used."""


class SchemaError(InputError):
    """A schema is malformed or does not fit the data."""


class DataError(InputError):
    """The data contradict the schema, are empty, or cannot be read."""


class SpecError(InputError):
    """A method, or a parameter of it, cannot be used as asked."""


class BudgetError(PopulaceError):
    """A release would spend more than was agreed. Raised before the release: nothing has left."""


class RunError(PopulaceError):
    """A run folder is in the way, damaged, or cannot be written."""


class WireError(PopulaceError):
    """A message from elsewhere is malformed, too large, or of another version; nothing of it was used."""


class MissingExtra(PopulaceError):
    """An optional part is not installed; the message holds the install line."""


def out_of_range(name: str, expected: str, found: object, *, advice: str = "") -> SpecError:
    """The house form of a range error: expected <name> in <range>, got <value>; what to do."""
    return SpecError(f"expected {name} {expected}, got {found!r}" + (f"; {advice}" if advice else ""))
