"""`populace schema`: propose a schema for one or several tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from populace.cli.sources import KINDS, QUERY, TABLE

if TYPE_CHECKING:
    from populace.tables.proposal import Proposal

LONG_LIST = 30  # values
ROWS_OF_A_RARE_VALUE, ROWS_OF_A_LOST_VALUE = (
    500,
    100,
)  # rows per value, on average, below which lists under noise are short
EXAMPLE = (
    "Example:  populace schema ward-a.csv ward-b.csv -o wards.toml --id patient --drop remarks, and from a database:  populace "
    "schema postgresql://db.clinic/ward --table patients -o ward.toml"
)


def command(
    data: list[str] | None = typer.Argument(None, help=f"Tables of one form: {KINDS}; 'ward-*.csv' for several."),
    output: Path = typer.Option(
        ..., "--output", "-o", help="Where to write the schema: .toml, or .json for SDV metadata."
    ),
    drop: list[str] = typer.Option([], "--drop", help="Leave this column out.", metavar="COLUMN"),
    ids: list[str] = typer.Option([], "--id", help="An identifier: generated anew, never collected.", metavar="COLUMN"),
    kinds: list[str] = typer.Option([], "--kind", help="Override the recognised kind.", metavar="COLUMN=KIND"),
    clip: bool = typer.Option(
        False, "--clip", help="Clip later values to the domains, and count how many were clipped."
    ),
    public: Path | None = typer.Option(
        None, "--public", help="Take the domains from this public table; DATA is only checked against it."
    ),
    target: str | None = typer.Option(None, "--target", help="The column that matters most."),
    table: str | None = TABLE,
    query: str | None = QUERY,
) -> None:
    """Propose a schema, marking what was read from the data.

    Edit the file: replace what was read by what is publicly known, set domain = "declared" and say in `source` who declares
    it. Only then does a privacy statement cover the domains. docs/schema.md describes the format.
    """
    from populace.border.databases.address import locate
    from populace.cli import show
    from populace.errors import InputError, RunError
    from populace.tables.checking import misfits
    from populace.tables.files import write_json
    from populace.tables.proposal import propose
    from populace.tables.reading import read_frame
    from populace.tables.sdv import to_sdv

    if output.suffix not in (".toml", ".json"):
        raise InputError(f"expected an output name ending in .toml or .json, got {output.name!r}")
    if output.exists():
        raise RunError(f"{output} exists; choose another name, or remove it")
    if not data and public is None:
        raise InputError("expected at least one table, or --public FILE")
    named = locate(data or (), table=table, query=query)
    overruled = _pairs(kinds)
    _named_once(drop, ids, overruled)
    with show.progress("schema") as report:
        report.doing("reading rows")
        frames = [read_frame(path, without=drop) for path in named]
        read = [read_frame(public)] if public else frames
        report.doing("proposing kinds and domains")
        proposed = propose(
            *read, drop=drop, ids=ids, kinds=overruled, clip=clip, target=target, public=public.name if public else "",
        )  # fmt: skip
    if output.suffix == ".json":
        write_json(output, to_sdv(proposed.schema))
    else:
        proposed.schema.save(output)
    _show(proposed)
    notes = [*proposed.notes, *(misfits(proposed.schema, *frames) if public and frames else ())]
    if notes:
        show.say("\n" + "\n".join(notes))
    long = [] if public else _long_lists(proposed, sum(frame.num_rows for frame in frames))
    if long:
        show.say("\n" + "\n".join(long))
    if public:
        show.say(f"\n{output}: every domain was read from the public table {public}.")
    else:
        show.say(
            f"\n{output}: every domain was read from the data. Declare what is publicly known, and who says so, before you "
            "rely on a guarantee."
        )


def _long_lists(proposed: Proposal, rows: int) -> list[str]:
    """What becomes of columns with a long list of codes where nobody declares it."""
    found = []
    for column in proposed.schema.columns:
        each = rows / max(column.levels, 1)
        if column.is_scale or column.levels < LONG_LIST or each >= ROWS_OF_A_RARE_VALUE:
            continue
        most = "most of them" if each < ROWS_OF_A_LOST_VALUE else "the rare ones"
        found.append(
            f"{column.name}: a list of {column.levels:,} values in {rows:,} rows. Without --schema, synthesize finds lists "
            f"under noise, and {most} become '(other)'. Declare the list here, from a public source: it costs no privacy "
            '(docs/schema.md, "Long lists of codes")'
        )
    return found


def _pairs(kinds: list[str]) -> dict[str, str]:
    from populace.errors import InputError

    found = {}
    for pair in kinds:
        name, equals, kind = pair.rpartition("=")
        if not equals:
            raise InputError(f"expected --kind column=kind, got {pair!r}")
        if name in found:
            raise InputError(f"--kind names column {name!r} twice; it has one kind")
        found[name] = kind
    return found


def _named_once(drop: list[str], ids: list[str], kinds: dict[str, str]) -> None:
    from populace.errors import InputError

    named = [*dict.fromkeys(drop), *dict.fromkeys(ids), *kinds]
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        raise InputError(f"{', '.join(twice)}: named by more than one of --drop, --id and --kind; give one")


def _show(proposed: Proposal) -> None:
    from populace.cli import show

    columns = {column.name: column for column in proposed.schema.columns}
    others = {other.name: other.kind for other in proposed.schema.others}
    rows = []
    for name in proposed.schema.order:
        missing = f"{proposed.missing[name]:,}" if name in proposed.missing else "no"
        if name in others:
            what = "made afresh" if others[name] == "id" else "left out"
            rows.append([name, others[name], what, "", ""])
            continue
        column = columns[name]
        rows.append([name, column.kind, _values(column.levels, scale=column.is_scale), missing, column.domain])
    show.table(["column", "kind", "values", "missing", "domain"], rows)


def _values(levels: int, *, scale: bool) -> str:
    what = "cell" if scale else "value"
    return f"{levels:,} {what}{'' if levels == 1 else 's'}"
