"""How a federated run looks while it goes on: a table that renews itself on a terminal, plain lines elsewhere, or JSON."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator

import typer

from populace.types import JsonObject

HEADER = ["site", "clients", "replies in the last round", "replies in all", "last round", "epsilon asked at most"]
NOBODY = "nobody is at work on it: give the same `populace federation run` again to go on"
DONE = "all rounds are done"


def sentence(at: JsonObject) -> str:
    """Where a run stands and what is done about it, in one line."""
    doing = at.get("doing") or {}
    parts = [_rounds(at)] if at.get("rounds") else []
    parts += _doing(at, doing)
    busy = doing.get("state", "rounds") == "rounds"
    if at.get("rounds") and at["state"] != "finished" and busy:
        parts += [
            f"{at['seconds_of_last_round']:.2f} s for the last round",
            f"{_bytes(at['bytes_to_sites'])} to the sites, {_bytes(at['bytes_from_sites'])} from them",
        ]
    parts += _waiting(at, doing)
    if at.get("seeded"):
        parts.append("reproducible, not private")
    why = str(at.get("why") or "") if busy else ""  # of the last segment: the command has its own reasons
    return "; ".join([*parts, *([why] if why else [])])


def _rounds(at: JsonObject) -> str:
    segment = f", segment {at['segment']}" if at.get("segment") else ""
    return f"{at['method']}{segment}, round {at['round']} of {at['rounds']}"


def _doing(at: JsonObject, doing: JsonObject) -> list[str]:
    """What the command does that supervises a run; where there is none, what the last segment came to."""
    over = at["state"] == "finished"
    state = doing.get("state", "")
    if state == "nobody":
        return [*([DONE, "no rows are written yet"] if over else []), NOBODY]
    if state in ("finished", "paused"):
        return [f"{state}: {doing['words']}"]
    if state == "rounds":
        return [] if at.get("rounds") else ["waiting for the sites' first answers"]
    if state:
        return [*([DONE] if over else []), str(doing["words"])]
    if over:
        return [DONE]
    return [str(at["state"]) if at.get("rounds") or at["state"] not in ("new", "running") else "not begun"]


def _waiting(at: JsonObject, doing: JsonObject) -> list[str]:
    """For whom a round waits, and how to pass over a site that has had its time."""
    waiting = at.get("waiting")
    if not waiting or not waiting["sites"] or doing.get("state", "rounds") != "rounds":
        return []
    seconds, sites = time.time() - waiting["since"], waiting["sites"]
    have = "has" if len(sites) == 1 else "have"
    found = [f"round {waiting['round']}: {', '.join(sites)} {have} not answered for {seconds:.0f} s"]
    if seconds > at.get("timeout", math.inf):
        found.append(f"`populace federation skip {at['folder']} {sites[0]} --run {at['name']}` passes over {sites[0]}")
    return found


def lines(at: JsonObject) -> list[list[str]]:
    """The rows of a run's table, one for each site."""
    return [
        [
            site,
            f"{one['clients']:,}",
            f"{one.get('replies_in_last_round', one.get('replies', 0)):,}",
            f"{one['replies_in_all']:,}" if "replies_in_all" in one else "–",
            one["last"],
            f"{one['epsilon']:g}",
        ]
        for site, one in at.get("sites", {}).items()
    ]


def answered(document: JsonObject) -> str:
    """Whose replies a finished run has, in one line."""
    each = ", ".join(f"{site} {one['replies_in_all']:,}" for site, one in document["sites"].items())
    return f"replies over {document['rounds']:,} round{'s' if document['rounds'] != 1 else ''}: {each}"


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


@contextlib.contextmanager
def rounds(*, as_json: bool) -> Iterator[tuple[Callable[[JsonObject], None], Callable[[str], None]]]:
    """Callbacks for a run's status and for what is said beside it."""
    if as_json:
        yield (lambda at: typer.echo(json.dumps(at))), (lambda text: typer.echo(text, err=True))
        return
    if not sys.stderr.isatty():
        yield (lambda at: typer.echo(sentence(at), err=True)), (lambda text: typer.echo(text, err=True))
        return
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    def drawn(at: JsonObject) -> Table:
        table = Table(*HEADER, title=sentence(at), title_justify="left", box=None)
        for line in lines(at):
            table.add_row(*line)
        return table

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as shown:
        yield (lambda at: shown.update(drawn(at))), (lambda text: shown.console.print(text))
