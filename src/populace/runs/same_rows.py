"""Silos that hold the same rows: a table under two names, or a copy of a file. Each of its records would be in both."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np

from populace.errors import DataError
from populace.runs.ledger.accounts import Accounts
from populace.runs.sources import PrivateData
from populace.tables.images import Images

LEAST_DIFFERENT = 10  # rows; with fewer, silos may come to the same ones by chance


def check_different_rows(private: PrivateData, sizes: Sequence[int]) -> None:
    """Refuse silos, of so many rows each in their order, of which two hold the very same rows, in whatever order.

    Guarantee: all cells of all columns are compared, by digests that are not kept. Edge cases: silos that share some of their
    rows are not noticed, nor are those with fewer than ten different rows, which may be alike by chance.
    """
    if len(sizes) < 2:
        return
    alike: dict[tuple[int, bytes], list[int]] = {}
    ends = np.cumsum([0, *sizes])
    for silo, size in enumerate(sizes):
        alike.setdefault((size, _sums(private, slice(ends[silo], ends[silo + 1]))), []).append(silo)
    suspects = [silos for (size, _), silos in alike.items() if len(silos) > 1 and size >= LEAST_DIFFERENT]
    if not suspects:
        return
    accounts = Accounts(private, secrets.token_bytes(32))
    rows = accounts.rows(accounts.columns)
    for silos in suspects:
        found: dict[bytes, int] = {}
        for silo in silos:
            held = np.sort(rows[ends[silo] : ends[silo + 1]])
            first = found.setdefault(held.tobytes(), silo)
            if first != silo and len(np.unique(held)) >= LEAST_DIFFERENT:
                raise DataError(
                    f"silos {first + 1} and {silo + 1} of the data hold the very same rows: every record would be in both, and "
                    "be protected half as well as the statement says; name each table once, and no copy of it"
                )


def _sums(private: PrivateData, rows: slice) -> bytes:
    """What is quick to compute and the same wherever the same rows are."""
    data = private.clients.data
    return bytes(np.asarray((data.y if isinstance(data, Images) else data.codes)[rows].sum(axis=0)).tobytes())
