"""How a federated run looks while it goes on: a table that renews itself on a terminal, plain lines elsewhere, or JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator

import typer

from populace.types import JsonObject

HEADER = ["site", "clients", "replies", "last round", "epsilon asked at most"]


def sentence(at: JsonObject) -> str:
    """Where a run stands, in one line."""
    if not at.get("rounds"):
        state = "waiting for the sites' first answers" if at["state"] in ("new", "running") else str(at["state"])
        return state + (f": {at['why']}" if at.get("why") else "")
    parts = [
        f"{at['method']}, round {at['round']} of {at['rounds']}, {at['state']}",
        f"{at['seconds_of_last_round']:.2f} s for the last round",
        f"{_bytes(at['bytes_to_sites'])} to the sites, {_bytes(at['bytes_from_sites'])} from them",
    ]
    if at.get("seeded"):
        parts.append("reproducible, not private")
    return "; ".join(parts) + (f"; {at['why']}" if at.get("why") else "")


def lines(at: JsonObject) -> list[list[str]]:
    return [
        [site, f"{one['clients']:,}", f"{one['replies']:,}", one["last"], f"{one['epsilon']:g}"]
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
