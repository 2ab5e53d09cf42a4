"""From files of reports to the counts an estimate needs, in bounded memory; files may be counted anywhere and added up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from populace.errors import DataError
from populace.privacy.randomizers.aggregate import Tally, tally_batches
from populace.privacy.randomizers.base import Randomizer
from populace.tables.reports import BATCH, report_batches
from populace.types import NumpyArray


def tally_files(oracle: Randomizer, paths: Sequence[str | Path], *, rows: int = BATCH) -> Tally:
    """Support counts of all reports in these files. Holds `rows` reports at a time, whatever the files hold.

    `oracle.estimate(tally.counts, tally.reports)` turns them into frequencies. Tallies of parts of the files, made by other
    processes or machines, add up to the same (`Tally.__add__`).
    """
    return tally_batches(oracle, map(_checked(oracle), report_batches(paths, width=oracle.width, rows=rows)))


def _checked(oracle: Randomizer) -> Callable[[NumpyArray], NumpyArray]:
    def check(batch: NumpyArray) -> NumpyArray:
        """A value outside the domain would be counted somewhere; it is refused instead."""
        if batch.ndim == 1 and len(batch) and not (batch.min() >= 0 and batch.max() < oracle.size):
            raise DataError(
                f"a report names a value outside the domain of {oracle.size} values; check which question it answers"
            )
        return batch

    return check
