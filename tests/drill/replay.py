"""The same run without disturbances, in this process, over copies of the sites' folders as they were before it.

A participation that the disturbed run lost is lost here too: not asked where the site never charged it, asked and then dropped
where it did (what the client keeps at home has changed with it).
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from populace.engines import wire
from populace.engines.link import InProcess, Link
from populace.engines.segment import coordinator_of
from populace.engines.site import Site
from populace.engines.site_file import open_site
from populace.privacy.ledger_file import back_up
from populace.tables.files import read_json, write_json

from .evidence import Books, Log, read_books
from .invariants import absorbed_in


def copy_site(folder: Path, file_path: Path, out: Path) -> Path:
    """What a site answers from, with a ledger of its own; returns the copy of its file. Also while the site answers."""
    out.mkdir(parents=True)
    shutil.copy(folder / "ledger.sqlite.head", out / "ledger.sqlite.head")  # first: a ledger may be ahead of it
    back_up(folder / "ledger.sqlite", out / "ledger.sqlite")
    shutil.copy(folder / "data.json", out / "data.json")
    own = {**read_json(file_path), "ledger": str(out / "ledger.sqlite"), "log": str(out / "site.log")}
    write_json(out / "populace.json", own, mode=0o600)
    return out / "populace.json"


class Undisturbed(Link):
    """A link to sites in this process that loses what the disturbed run lost, and keeps what was asked."""

    def __init__(self, sites: Mapping[str, Site], log: Log, books: Mapping[str, Books], place: Path) -> None:
        self._sites, self._log, self._books, self._place = sites, log, books, place
        self._charged = {site: {entry.round for entry in books[site].of(log.run)} for site in sites}
        self.asked: dict[tuple[str, int], bytes] = {}
        self.replied: dict[tuple[str, int], bytes] = {}
        self.undecided: list[str] = []

    def sites(self) -> list[str]:
        return list(self._sites)

    def exchange(self, asks: Mapping[str, bytes], timeout: float) -> dict[str, bytes]:
        del timeout
        found = {}
        for site, ask in asks.items():
            message = wire.unpack(ask)
            if message.kind != "ask":
                found[site] = self._sites[site].reply(ask)
                continue
            number = int(message.fields["round"])
            absorbed = absorbed_in(self._log, self._books, site, number)
            if absorbed is None:
                self.undecided.append(f"whether {site} was heard in round {number} cannot be told")
            if absorbed or number in self._charged[site]:
                self.asked[site, number] = ask
                self.replied[site, number] = reply = self._sites[site].reply(ask)
                if absorbed:
                    found[site] = reply
        # A round that nobody was heard in went by because the site that it asked was passed over.
        write_json(self._place / "skipped.json", [] if found else sorted(asks))
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replayed:
    """The undisturbed run: its last checkpoint, its generator's files, the sites with what they charged and were asked."""

    checkpoint: Mapping[str, np.ndarray]
    generator: Path
    sites: Mapping[str, Site]
    books: Mapping[str, Books]
    link: Undisturbed


def replay(place: Path, copies: Mapping[str, Path], log: Log, books: Mapping[str, Books], out: Path) -> Replayed:
    """Run it again from the plan and the roster of `place`."""
    again = out / "federation" / "runs" / place.name
    again.mkdir(parents=True)
    for name in ("plan.json", "roster.json"):
        shutil.copy(place / name, again / name)
    sites = {site: open_site(copies[site]) for site in log.seats}
    link = Undisturbed(sites, log, books, again)
    coordinator_of(again, link).go()
    coordinator = coordinator_of(again, InProcess({}))
    keys, state, *_ = coordinator.start()
    generator = coordinator.agreement.protocol.finish(state, coordinator.population, keys.finish())
    (out / "generator").mkdir()
    generator.save(out / "generator")
    with np.load(again / "checkpoint.npz", allow_pickle=False) as stored:
        checkpoint = dict(stored)
    return Replayed(
        checkpoint=checkpoint, generator=out / "generator", sites=sites, link=link,
        books={site: read_books(copies[site].parent / "ledger.sqlite") for site in sites},
    )  # fmt: skip
