"""What may be stated about a run: the guarantee, what one unit was, where the noise came from, and who answered."""

from __future__ import annotations

import dataclasses

from populace.privacy.guarantee import Guarantee, Noise
from populace.privacy.shuffling import with_shuffling
from populace.tables.images import Images
from populace.tables.partition import Clients

CLIENTS_COUNTED = "the number of records and of clients is public"
SILOS_COUNTED = "the number of silos, and how many records each of them holds, is public"
OTHERS_ADD = "what other releases about the same records cost adds to this"
SLOTS_PUBLIC = ("zero-out", "replace")  # neighbours that have as many records in every silo


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulated:
    """What the statement about a simulation says of its clients, all of it public: nobody needs records to make it again.

    `records` is the most that one client holds, `declared` whether somebody said so; `records_in_all` is their sum; `holds`
    says what one client holds, in words. `silos` is their number where every client is a silo; `person` is the column that says
    whose a row is.
    """

    clients: int
    records: int
    records_in_all: int
    declared: bool
    images: bool
    holds: str = ""
    silos: int | None = None
    person: str | None = None


def simulated_of(clients: Clients) -> Simulated:
    """The public facts of these clients."""
    most = clients.widest if clients.most is None else clients.most
    silos, person = ((clients.asked or {}).get(name) for name in ("silos", "person"))
    return Simulated(
        clients=len(clients), records=max(1, int(most)), records_in_all=len(clients.data), declared=clients.most is not None,
        images=isinstance(clients.data, Images), holds=clients.holds,
        silos=None if silos is None else int(silos), person=None if person is None else str(person),
    )  # fmt: skip


def stated_simulation(
    guarantee: Guarantee, clients: Clients | Simulated, *, seeded: bool, noise: Noise, answered: int
) -> Guarantee:
    """The guarantee of a method as it may be stated about a simulation with these clients.

    `answered` is how many of them sent anything: only they hide one another under shuffling. Of one silo under a method that
    protects records it is no simulation: that silo holds all records, and released what it made of them.
    """
    facts = clients if isinstance(clients, Simulated) else simulated_of(clients)
    counted = facts.silos is not None and guarantee.unit != "client" and guarantee.neighbours in SLOTS_PUBLIC
    alone = facts.silos == 1 and guarantee.unit != "client" and guarantee.trust in ("silo", "central")
    read = (
        () if facts.declared or counted else (f"the most records of one client ({facts.records:,})",)
    )  # it sets the width of what clients compute, and with it sampling rates and the default of delta
    return with_shuffling(
        dataclasses.replace(
            guarantee,
            protects=_unit(guarantee, facts),
            units=facts.clients if guarantee.unit == "client" else facts.records_in_all,
            counts_read=read,
            simulated=not alone,
            sole_holder=alone,
            seeded=seeded,
            noise=noise,
            assumptions=(*guarantee.assumptions, SILOS_COUNTED if counted else CLIENTS_COUNTED, OTHERS_ADD),
        ),
        answered=answered,
    )


def _unit(guarantee: Guarantee, facts: Simulated) -> str:
    if guarantee.unit == "person":
        where = "rows" if facts.silos == 1 else "rows at a silo"
        return "one person" + (f" (all {where} with one value of column {facts.person!r})" if facts.person else "")
    if guarantee.unit == "record" or (facts.declared and facts.records == 1):
        return "one image" if facts.images else "one row of the table"
    return facts.holds or "everything one simulated client holds"
