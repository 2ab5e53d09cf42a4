"""What may be stated about a run: the guarantee, what one unit was, where the noise came from, and who answered."""

from __future__ import annotations

import dataclasses

from populace.privacy.guarantee import Guarantee, Noise
from populace.privacy.shuffling import with_shuffling
from populace.tables.images import Images
from populace.tables.partition import Clients

SIMULATED = (
    "the number of records and of clients is public",
    "what other releases about the same records cost adds to this",
)


def stated_simulation(
    guarantee: Guarantee, clients: Clients, *, seeded: bool, noise: Noise, answered: int
) -> Guarantee:
    """The guarantee of a method as it may be stated about a simulation with these clients.

    `answered` is how many of them sent anything: only they hide one another under shuffling.
    """
    read = (
        () if clients.most is not None else (f"the most records of one client ({clients.widest:,})",)
    )  # it sets the width of what clients compute, and with it sampling rates and the default of delta
    return with_shuffling(
        dataclasses.replace(
            guarantee,
            protects=_unit(guarantee, clients),
            units=len(clients.data) if guarantee.unit == "record" else len(clients),
            counts_read=read,
            simulated=True,
            seeded=seeded,
            noise=noise,
            assumptions=(*guarantee.assumptions, *SIMULATED),
        ),
        answered=answered,
    )


def _unit(guarantee: Guarantee, clients: Clients) -> str:
    one = "one image" if isinstance(clients.data, Images) else "one row of the table"
    if guarantee.unit == "record" or clients.most == 1:
        return one
    return clients.holds or "everything one simulated client holds"
