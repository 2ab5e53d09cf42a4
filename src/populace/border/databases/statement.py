"""The one SELECT that is asked of a database, and sentences for what goes wrong there.

Statements are built so that the database's own grammar lets nothing but a SELECT through: a query stands in parentheses, as a
table to select from. That they cannot write is the part of each reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from populace.border.databases.address import Address
from populace.border.regular import first_line
from populace.errors import DataError, InputError

ROWS = "populace_rows"  # the name of a query's rows
COMMENT = re.compile(r"\A(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)+", re.DOTALL)
FIRST_WORDS = ("select", "with", "values", "table", "from")
NAMED_TABLES = 12
PART = re.compile(r'"(?:[^"]|"")+"|[^".]+')


def quoted(name: str) -> str:
    """A name in double quotes, for any SQL."""
    if "\0" in name:
        raise InputError("expected names without a zero byte")
    return '"' + name.replace('"', '""') + '"'


def table_parts(name: str) -> tuple[str, ...]:
    """`schema.table` as its parts; a part with a dot in it stands in double quotes."""
    parts = PART.findall(name)
    if not parts or ".".join(parts) != name or len(parts) > 3:
        raise InputError(f"expected --table as NAME or SCHEMA.NAME, got {name!r}")
    return tuple(part[1:-1].replace('""', '"') if part.startswith('"') else part for part in parts)


def inner_query(address: Address) -> str:
    """The query of an address without its last semicolon; refuses what begins with another word than a SELECT does."""
    text = (address.query or "").rstrip().rstrip(";").rstrip()
    plain = COMMENT.sub("", text)
    word = re.match(r"[A-Za-z]*", plain.lstrip("("))
    if word is None or word.group().lower() not in FIRST_WORDS:
        raise InputError(
            f"expected the query on {address.place} to be one SELECT (or WITH ... SELECT), got one that begins otherwise; "
            "populace only reads"
        )
    return text


def source_of(address: Address) -> str:
    """What stands behind FROM: the table, or the query in parentheses."""
    if address.table is not None:
        return ".".join(map(quoted, table_parts(address.table)))
    return f"({inner_query(address)}\n) AS {ROWS}"


def select(address: Address, expressions: Sequence[str] = ("*",), order: Sequence[str] = ()) -> str:
    """A SELECT of these expressions; in the order of these columns where there are any."""
    ordered = f" ORDER BY {', '.join(map(quoted, order))}" if order else ""
    return f"SELECT {', '.join(expressions)} FROM {source_of(address)}{ordered}"  # noqa: S608 -- names are quoted


def which_table(address: Address, tables: Iterable[str]) -> InputError:
    """The sentence for a database of which nobody said what to read, or whose table is not there."""
    listed = sorted(tables)
    shown = ", ".join(listed[:NAMED_TABLES]) + (
        f" and {len(listed) - NAMED_TABLES} more" * (len(listed) > NAMED_TABLES)
    )
    holds = f"it holds {shown}" if listed else "it holds no table"
    if address.table is None:
        return InputError(
            f"{address.place} is a database: say what to read with --table NAME or --query SELECT ... (or behind a #: "
            f"{address.place}#table=NAME); {holds}"
        )
    return InputError(f"no table {address.table!r} in {address.place}; {holds}")


def refuse_columns(address: Address, kinds: Mapping[str, str]) -> DataError:
    """The sentence for columns whose values are no single number, text, truth value, date or time, and what they are."""
    if len(kinds) == 1:
        name, what = next(iter(kinds.items()))
        return DataError(
            f"column {name!r} of {address.shown} holds {what}, which cannot be modelled; leave it out, or take parts of it, "
            "with --query"
        )
    listed = ", ".join(f"{name!r} ({what.removeprefix('values of the type ')})" for name, what in kinds.items())
    return DataError(
        f"columns of {address.shown} cannot be modelled: {listed}; leave them out, or take parts of them, with --query"
    )


def failed(address: Address, reason: object) -> DataError:
    """The sentence for a statement that the database refused."""
    words = first_line(str(reason)) or type(reason).__name__
    return DataError(f"cannot read {address.shown}: {words}")
