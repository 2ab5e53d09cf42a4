"""The sites of a run: who takes part, which clients are whose, and how they enrol."""

from __future__ import annotations

import dataclasses

from populace.engines import messages
from populace.engines.agreement import Agreement
from populace.engines.link import Link
from populace.errors import RunError, WireError
from populace.types import JsonObject


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seat:
    """A site's clients in a run: those numbered `first` to `first + clients - 1`; `hosts` says what one client is."""

    site: str
    first: int
    clients: int
    hosts: messages.Hosts | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roster:
    """Who takes part in a run, fixed when it begins. `records_read`: a site read the most records from its data."""

    seats: tuple[Seat, ...]
    records: int
    seeded: bool
    records_read: bool = False

    @property
    def clients(self) -> int:
        return sum(seat.clients for seat in self.seats)

    def to_json(self) -> JsonObject:
        return dataclasses.asdict(self)


def roster_from_json(document: JsonObject) -> Roster:
    try:
        seats = tuple(
            Seat(
                site=str(seat["site"]), first=int(seat["first"]), clients=int(seat["clients"]), hosts=seat.get("hosts")
            )
            for seat in document["seats"]
        )
        return Roster(
            seats=seats, records=int(document["records"]), seeded=bool(document["seeded"]),
            records_read=bool(document.get("records_read", False)),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise RunError(f"the roster of the run is damaged: {error!r}") from error


def enrol(agreement: Agreement, link: Link, *, run: str, least: int, timeout: float) -> Roster:
    """Ask the sites for their public facts and enrol those that agree; raises RunError with fewer than `least`."""
    request = messages.make_facts_request(agreement, run=run)
    answers = link.exchange(dict.fromkeys(link.sites(), request), timeout)
    seats: list[Seat] = []
    records, seeded, read, refused = 1, False, False, []
    for site, data in sorted(answers.items()):
        try:
            facts = messages.read_facts(data)
        except (messages.RefusedError, WireError) as error:
            refused.append(f"{site}: {error}")
            continue
        first = sum(seat.clients for seat in seats)
        seats.append(Seat(site=site, first=first, clients=facts.clients, hosts=facts.hosts))
        records, seeded = max(records, facts.records), seeded or facts.seeded
        read = read or bool(facts.records_read)
    if len(seats) < max(1, least):
        said = f"; {'; '.join(refused)}" if refused else ""
        raise RunError(f"expected at least {max(1, least)} sites that take part, got {len(seats)}{said}")
    return Roster(seats=tuple(seats), records=records, seeded=seeded, records_read=read)
