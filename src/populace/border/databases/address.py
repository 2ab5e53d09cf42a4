"""What names a table in a database, as one text: `hospital.duckdb#table=patients`, `postgresql://host/db#query=SELECT ...`.

Guarantee: an address never holds a password; one that does is refused without being repeated. So addresses may stand in
specifications, ledgers, logs and messages.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from populace.border.own_files import is_own_file
from populace.errors import InputError

Kind = Literal["duckdb", "sqlite", "postgresql"]

SUFFIXES: dict[str, Kind] = {
    ".duckdb": "duckdb", ".sqlite": "sqlite", ".sqlite3": "sqlite", ".db": "sqlite",
}  # fmt: skip
SCHEMES = ("postgresql://", "postgres://")
COLLAPSED = re.compile(r"postgres(ql)?:/(?!/)")  # what becomes of a URL that was made a path
SELECTION = re.compile(r"#(table|query)=", re.DOTALL)
WITH_PASSWORD = re.compile(r"//[^/@]*:[^@]*@")  # of an address whose scheme is mistyped
#: What stands behind :// up to the parameters, where no password is; an @ behind it is part of a parameter.
WITH_PARAMETERS = re.compile(r"(?:[^:@/?#]*@)?[^:@/?#\[\]]*(?:\[[^\]@/?#]*\])?(?::\d*)?/[^:@/?#]*\?\w+=")
MOST_CHARACTERS = 2**16
PASSWORD_FROM = "password_from"  # noqa: S105 -- the parameter of a URL that names a variable of the environment
NO_PASSWORD = (
    "the address of the database holds a password; leave it out and set PGPASSWORD in the environment, write it to ~/.pgpass, "
    f"or name a variable that holds it with ?{PASSWORD_FROM}=VARIABLE: passwords are never stored"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Address:
    """A database and what is read of it: a table, or the rows of a query; neither where it was not said yet."""

    kind: Kind
    place: str
    table: str | None = None
    query: str | None = None

    @property
    def text(self) -> str:
        """The address as it is written in specifications."""
        if self.query is not None:
            return f"{self.place}#query={self.query}"
        return self.place if self.table is None else f"{self.place}#table={self.table}"

    @property
    def shown(self) -> str:
        """The address in messages: the query is not repeated."""
        return f"the query on {self.place}" if self.query is not None else self.text

    @property
    def path(self) -> Path | None:
        """The file, where it is one."""
        return None if self.kind == "postgresql" else Path(self.place)


def is_database(data: object) -> bool:
    """Whether this names a database, by its ending or scheme."""
    text = str(data)
    if text.startswith(SCHEMES) or COLLAPSED.match(text):
        return True
    return Path(_split(text)[0]).suffix.lower() in SUFFIXES


def parse_address(data: object) -> Address:
    """The address that a text is; what is no address, or holds a password, is refused."""
    text = str(data)
    if len(text) > MOST_CHARACTERS or "\0" in text:
        raise InputError(
            f"expected an address of a database of at most {MOST_CHARACTERS:,} characters and no zero byte"
        )
    if COLLAPSED.match(text):
        raise InputError(
            "expected the address of a PostgreSQL database as text, postgresql://host/database, got a path"
        )
    place, what, said = _split(text)
    if place.startswith(SCHEMES):
        kind: Kind = "postgresql"
        check_url(place)
    elif (suffix := Path(place).suffix.lower()) in SUFFIXES:
        kind = SUFFIXES[suffix]
    else:
        raise InputError(
            f"expected a database: one of {', '.join(SUFFIXES)}, or postgresql://host/database, got {place!r}"
        )
    if what is not None and not said.strip():
        raise InputError(
            f"expected {place}#{what}= with a {'name' if what == 'table' else 'SELECT'} behind it, got nothing"
        )
    return Address(
        kind=kind, place=place, table=said if what == "table" else None, query=said if what == "query" else None
    )


def _split(text: str) -> tuple[str, str | None, str]:
    found = SELECTION.search(text)
    return (text, None, "") if found is None else (text[: found.start()], found.group(1), text[found.end() :])


def check_url(url: str) -> None:
    """Refuse a PostgreSQL URL with a password in it, wherever it stands, and one that names no database."""
    rest = url.partition("://")[2]
    user = (rest.partition("?")[0] if WITH_PARAMETERS.match(rest) else rest).rpartition("@")[0]
    if ":" in user or any("password" in name.lower() and name != PASSWORD_FROM for name, _ in parameters(url)):
        raise InputError(NO_PASSWORD)
    if "#" in rest:
        raise InputError("expected #table=NAME or #query=SELECT ... behind the address of a database, got another #")
    try:
        database = unquote(urlsplit(url).path.strip("/"))
    except ValueError:
        raise InputError("expected an address like postgresql://host/database, got another form") from None
    if not database and not any(name == "dbname" for name, _ in parameters(url)):
        raise InputError("expected an address that names a database, postgresql://host/database, got one without")


def parameters(url: str) -> list[tuple[str, str]]:
    """The parameters behind the question mark of a URL, as libpq reads them: a plus is a plus."""
    parts = [part.partition("=") for part in url.partition("?")[2].split("&") if part]
    return [(unquote(name), unquote(value)) for name, _, value in parts]


def locate(data: Sequence[object], *, table: str | None = None, query: str | None = None) -> tuple[str, ...]:
    """The data as they were named, one text each: patterns become the files they match, databases get their table or query.

    Edge cases: a file whose very name is a pattern is that file. Ledgers match no pattern. A table or query is for databases
    alone.
    """
    if table is not None and query is not None:
        raise InputError("give --table or --query, not both")
    named = [each for one in data for each in _expanded(str(one))]
    found = [_selected(each, table, query) if is_database(each) else each for each in named]
    if (table is not None or query is not None) and not any(map(is_database, named)):
        flag = "--table" if table is not None else "--query"
        raise InputError(f"{flag} is for databases ({', '.join(SUFFIXES)}, postgresql://...), and the data are in none")
    return tuple(found)


def _expanded(text: str) -> list[str]:
    if not is_database(text) and ("://" in text or WITH_PASSWORD.search(text)):  # not repeated: it may hold a password
        raise InputError("expected files, folders, or postgresql://host/database, got the address of something else")
    if (is_database(text) and _split(text)[1] is not None) or text.startswith(SCHEMES):
        return [text]
    if not glob.has_magic(text) or Path(text).exists():
        return [text]
    try:
        matched = sorted(glob.glob(text))
    except (OSError, ValueError):  # a name that no file can have: reading it says so
        return [text]
    found = [file for file in matched if not (is_database(file) and is_own_file(Path(file)))]
    if not found:
        raise InputError(f"no file matches {text!r}" + " but ledgers, which are no data" * bool(matched))
    return found


def _selected(text: str, table: str | None, query: str | None) -> str:
    address = parse_address(text)
    if table is None and query is None:
        return address.text
    if address.table is not None or address.query is not None:
        raise InputError(f"{address.shown} says already what is read of it; leave --table and --query out")
    chosen = dataclasses.replace(address, table=table, query=query)
    return parse_address(chosen.text).text


def short_name(data: object) -> str:
    """The name of data in messages and ledgers: a file's, or a database's with its table; of a query a digest."""
    text = str(data)
    if not is_database(text):
        return Path(text).name
    address = parse_address(text)
    name = address.place if address.path is None else address.path.name
    if address.query is None:
        return name if address.table is None else f"{name}#table={address.table}"
    return f"{name}#query {hashlib.sha256(address.query.encode(errors='surrogatepass')).hexdigest()[:8]}"


def resolved(data: object) -> str:
    """The same data under an absolute name, whatever links lead there."""
    text = str(data)
    place = file_of(text)
    if place is None:
        return text
    try:
        return moved_to(text, place.resolve())
    except (OSError, ValueError, RuntimeError):  # a name that no file can have: reading it says so
        return text


def moved_to(data: str, place: Path) -> str:
    """The same data in another place: of a database the same table or query of another file."""
    return dataclasses.replace(parse_address(data), place=str(place)).text if is_database(data) else str(place)


def file_of(data: object) -> Path | None:
    """The file or folder in which data are; None for a server's."""
    text = str(data)
    return parse_address(text).path if is_database(text) else Path(text)
