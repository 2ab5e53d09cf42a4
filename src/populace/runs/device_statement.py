"""What may be stated about a study that people answered on devices of their own."""

from __future__ import annotations

import dataclasses

from populace.privacy.guarantee import Guarantee
from populace.privacy.shuffling import with_shuffling

FROM_DEVICES = "answers of single devices"
OWN_DEVICES = (
    "each device randomised its own record, kept its own ledger and sent one answer, in a place that it held alone",
    "the devices run the published page or library of this version, which the collector cannot check, and were not given "
    "another page by whoever serves it",
    "who was invited, that an invitation was used, when, and over which network, is not protected",
    "what other studies were told about the same person adds to this",
)
OPEN = "the study was open: anybody could answer, and often, so the estimates are only as good as those who came"


def stated_study(guarantee: Guarantee, *, answered: int, open_to_all: bool) -> Guarantee:
    """The guarantee of a local method as it may be stated about a study: the person's own device added the noise.

    Edge cases: how many answered is public; the bound is that of one answer and holds however often others answered.
    """
    return with_shuffling(
        dataclasses.replace(
            guarantee,
            protects="the record of one person who answered, all of it",
            units=answered,
            noise="system",
            assumptions=(*guarantee.assumptions, *OWN_DEVICES, *((OPEN,) if open_to_all else ())),
        ),
        answered=answered,
    )
