"""The numbers of the clients of a data file in a poll: a secret random order, drawn once and kept with their ledgers."""

from __future__ import annotations

import numpy as np

from populace.border.databases.address import short_name
from populace.errors import BudgetError
from populace.privacy import secure_random
from populace.privacy.sqlite_ledger import Begun, SqliteLedger
from populace.runs.poll.client_stream import Census, ClientStream
from populace.types import Array

NUMBERS = np.dtype("<i4")


def kept_numbers(ledger: SqliteLedger, run: str, stream: ClientStream, census: Census) -> Array:
    """The number of each client in the order of the data, from 0 on.

    Guarantee: drawn from the operating system, every order equally likely, and on disk before anybody answers.
    Edge cases: a file whose clients are others than when they were numbered, or stand in another order, is refused; so are
    clients that answered this poll under other numbers: their answers would come with numbers that were not theirs.
    """
    name = short_name(stream.data)
    where = f"{run} of {name}"
    kept = ledger.begun(where)
    if kept is None:
        first = next(stream.blocks(census.widest)).names
        charges = ledger.read(first, run=run)
        if any(charges.entries(account) for account in first):
            raise BudgetError(
                f"clients of {name} have answered under other numbers: in another file, or with version 0.1.0, which numbered "
                "them in the order of the data. They do not answer again; fit the file that was written then"
            )
        order = secure_random.permutation(census.clients).astype(NUMBERS)
        kept = Begun(terms=f"clients of {name}", accounts=census.digest, numbers=order.tobytes())
        ledger.begin(where, kept)
    if kept.accounts != census.digest:
        raise BudgetError(
            f"the clients of {name} are others than when they were first asked, or stand in another order; give the file as it "
            "was, and collect from new people in a file of their own, with --first-client"
        )
    order = np.frombuffer(kept.numbers, NUMBERS)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order))  # kept is who has a number, as at sites; asked for is whose number is which
    return numbers
