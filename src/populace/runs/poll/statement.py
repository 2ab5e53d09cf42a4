"""What may be stated about a fit of answers by somebody who has only seen files of them."""

from __future__ import annotations

import dataclasses

from populace.privacy.guarantee import Guarantee
from populace.privacy.shuffling import with_shuffling

COLLECTED = (
    "answers came in files: whoever acted for the clients added the noise and charged their ledgers, as the files say"
)
SEEDED = "some answers were drawn from a seed, by a simulation of the mechanism"
FROM_FILES = "answers from files"


def stated_collection(guarantee: Guarantee, *, records: int, seeded: bool, answered: int) -> Guarantee:
    """The guarantee of a method as it may be stated about collected answers.

    Whoever collected held the records of many and added the noise. Files do not say whether the most records of one client
    was declared, so it counts as read from the data.
    """
    return with_shuffling(
        dataclasses.replace(
            guarantee,
            trust="silo" if guarantee.trust == "local" else guarantee.trust,
            protects="one row of a collected file" if records == 1 else "all rows of one client of a collected file",
            units=answered,
            counts_read=() if records == 1 else (f"the most records of one client ({records:,})",),
            noise="" if seeded else "system",
            seeded=seeded,
            assumptions=(*guarantee.assumptions, COLLECTED, *((SEEDED,) if seeded else ())),
        ),
        answered=answered,
    )
