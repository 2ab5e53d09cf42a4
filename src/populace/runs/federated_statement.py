"""What may be stated about a run over sites: who adds the noise, what one unit is, how many there are, and who answered."""

from __future__ import annotations

import dataclasses
from typing import Literal

from populace.engines.messages import Hosts
from populace.engines.roster import Roster
from populace.privacy.guarantee import Guarantee
from populace.privacy.shuffling import with_shuffling

Kind = Literal["table", "images"]

DEPLOYED = (
    "run over sites that answered for themselves: each drew its own noise and kept its own ledger, which refuses, before it "
    "answers, what would exceed the guarantee of the run or the site's own limit over all runs",
    "the sites run the published code of this version, which the coordinator cannot check",
    "the numbers of clients and the most records of one are public",
    "what other releases about the same records cost adds to this",
)
APART = "the sites stand on machines of different owners, which the coordinator cannot check"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def stated_federation(
    guarantee: Guarantee, roster: Roster, *, kind: Kind, answered: int, seeded: bool, host: str = ""
) -> Guarantee:
    """The guarantee of a method as a coordinator may state it about a run over these sites.

    A site answers for its clients: it holds their records and adds the noise, so nothing is "each person's own device".
    `answered` is how many clients sent anything; only they hide one another under shuffling. Sites that do not tell what their
    clients are (version 0.1.0) are named in general words. `host` is where the server listens: on loopback it is a rehearsal.
    """
    count = sum(seat.clients for seat in roster.seats) * (1 if guarantee.unit == "client" else roster.records)
    read = (f"the most records of one client ({roster.records:,})",) if roster.records_read else ()
    return with_shuffling(
        dataclasses.replace(
            guarantee,
            trust="silo" if guarantee.trust == "local" else guarantee.trust,
            protects=_units(guarantee, roster, kind),
            units=count,
            counts_read=read,
            noise="" if seeded else "system",
            seeded=seeded,
            rehearsal=host in LOOPBACK,
            assumptions=(*guarantee.assumptions, *DEPLOYED, *(() if host in LOOPBACK else (APART,))),
        ),
        answered=answered,
    )


def seated_in_words(roster: Roster) -> str:
    """Who took part, with how many clients."""
    return f"{len(roster.seats)} sites: " + ", ".join(f"{seat.site} with {seat.clients}" for seat in roster.seats)


def stated_site(
    guarantee: Guarantee, *, hosts: Hosts, clients: int, records: int, column: str | None, kind: Kind, seeded: bool
) -> Guarantee:
    """The same as a site may state it to its own people about one run; it knows the name of its own column."""
    return dataclasses.replace(
        guarantee,
        trust="silo" if guarantee.trust == "local" else guarantee.trust,
        protects=unit_of(guarantee, hosts, records, kind, column=column),
        units=clients * (1 if guarantee.unit == "client" else records),
        noise="" if seeded else "system",
        seeded=seeded,
    )


def unit_of(guarantee: Guarantee, hosts: Hosts | None, records: int, kind: Kind, *, column: str | None = None) -> str:
    """What one unit is at a site."""
    if guarantee.unit == "person":
        return "one person (all rows of a site's table that name them)"
    one = "one image of a site" if kind == "images" else "one row of a site's table"
    if guarantee.unit == "record" or (hosts == "rows" and records == 1):
        return one
    if hosts == "rows":
        return f"up to {records:,} {'images' if kind == 'images' else 'rows'} of a site that follow one another in its file"
    if hosts == "column":
        return f"everything a site holds under one value of {f'column {column!r}' if column else 'its client column'}"
    return "all records of one site" if hosts == "site" else "everything a site holds of one client"


def _units(guarantee: Guarantee, roster: Roster, kind: Kind) -> str:
    """One unit in words; where it is another one at other sites, each with the names of its sites."""
    found: dict[str, list[str]] = {}
    for seat in roster.seats:
        found.setdefault(unit_of(guarantee, seat.hosts, roster.records, kind), []).append(seat.site)
    if len(found) == 1:
        return next(iter(found))
    return "; or ".join(f"{words} ({', '.join(sites)})" for words, sites in found.items())
