"""What may be stated about a study that people answered on devices of their own."""

from __future__ import annotations

import dataclasses

from populace.privacy.guarantee import Guarantee

FROM_DEVICES = "answers of single devices"
OWN_DEVICES = (
    "each answer was randomised on a device, from one record, noted there before it was sent, and sent in a place of its own",
    "the devices run the published page or library of this version, which the collector cannot check, and were not given "
    "another page by whoever serves it",
    "who was invited, that an invitation was used, when, and over which network, is not protected",
    "what other studies were told about the same person adds to this",
)
INVITED = (
    "an invitation answers once; somebody with several invitations may have answered several times, and pays for each"
)
OPEN = (
    "the study was open: one person may have sent several answers, and k answers have k times epsilon; the estimates are only "
    "as good as those who came"
)
ONE_PERSON = "the record of one person who answered once, all of it"
ONE_ANSWER = "the record behind one answer, all of it; one person may have sent several"


def stated_study(guarantee: Guarantee, *, answered: int, open_to_all: bool) -> Guarantee:
    """The guarantee of a local method as it may be stated about a study: the person's own device added the noise.

    Edge cases: how many answered is public; the bound is that of one answer and holds however often others answered. Nothing
    is claimed from shuffling: people come in an order that is not random and that others see.
    """
    return dataclasses.replace(
        guarantee,
        protects=ONE_ANSWER if open_to_all else ONE_PERSON,
        units=answered,
        noise="system",
        assumptions=(*guarantee.assumptions, *OWN_DEVICES, OPEN if open_to_all else INVITED),
        shuffles=False,
    )
