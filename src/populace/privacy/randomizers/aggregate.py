"""Sums of reports that merge: what the server keeps of many reports is a count per value and their number.

A tally of a hundred million reports is as small as one of ten; batches are counted as they come, in any order, at any number
of places, and added up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import jax
import numpy as np

from populace.errors import DataError
from populace.privacy.randomizers.base import Randomizer
from populace.types import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Tally:
    """How often each value (or bit) was supported, int64, and by how many reports. A pytree of NumPy arrays.

    Edge cases: tallies of different width do not add; that two of the same width come from the same question is for the
    caller to know.
    """

    counts: Array
    reports: Array | np.int64

    def __add__(self, other: Tally) -> Tally:
        if np.shape(self.counts) != np.shape(other.counts):
            raise DataError(f"expected tallies of {np.shape(self.counts)} counts, got {np.shape(other.counts)}")
        return Tally(counts=self.counts + other.counts, reports=self.reports + other.reports)


def empty_tally(oracle: Randomizer) -> Tally:
    """The tally of no reports."""
    return Tally(counts=np.zeros(oracle.width, np.int64), reports=np.int64(0))


def tally(oracle: Randomizer, reports: Array) -> Tally:
    """The tally of one batch of reports, first axis first."""
    reports = np.asarray(reports)
    if not len(reports):
        return empty_tally(oracle)
    return Tally(counts=oracle.counts(reports), reports=np.int64(len(reports)))


def tally_batches(oracle: Randomizer, batches: Iterable[Array]) -> Tally:
    """The tally of all batches; holds one at a time."""
    total = empty_tally(oracle)
    for batch in batches:
        total = total + tally(oracle, batch)
    return total
