"""`populace device`: one person's side of a study."""

from __future__ import annotations

import os
from pathlib import Path

import typer

EXAMPLE = "Example:  populace device answer 'https://study.example/#oR4...' --record me.json"

app = typer.Typer(
    help="Answer a study as one person: randomise here, send once, keep the ledger.", no_args_is_help=True
)


def default_ledger() -> Path:
    """The one ledger of whoever is logged in: a ledger for each record file would forget what was spent under another name."""
    home = os.environ.get("XDG_DATA_HOME", "")
    folder = (Path(home) if os.path.isabs(home) else Path.home() / ".local" / "share") / "populace"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / "device.ledger"


@app.command()
def answer(
    url: str = typer.Argument(help="The link of the invitation, in quotes, with what stands after #."),
    record: Path = typer.Option(
        ..., "--record", help="One record: JSON with a value for each column, or a table of one row."
    ),
    ledger: Path | None = typer.Option(
        None, "--ledger", help="The ledger over all studies; default one for each user."
    ),
    limit: float | None = typer.Option(
        None, "--limit", help="The most epsilon over all studies; default the first study's, or what the ledger keeps."
    ),
    patience: float = typer.Option(
        60.0, "--patience", help="Seconds to wait for a question or for a server that is away."
    ),
) -> None:
    """Ask for the question, randomise the answer with the operating system's randomness, book it, and send it.

    Given again, the command sends the very same answer again and spends nothing.
    """
    from populace.cli import show
    from populace.collector.device import Device

    place = ledger or default_ledger()
    receipt = Device(url, ledger=place, limit=limit).answer(record, patience=patience)
    show.say("the answer is in" if receipt.fresh else "the answer was in already; nothing more was spent")
    show.say(f"receipt {receipt.receipt}")
    show.say(f"{place}  the ledger of this device: epsilon {receipt.epsilon:g} was spent on this study")
