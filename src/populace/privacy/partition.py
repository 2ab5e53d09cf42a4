"""Which values a column has, found under privacy: a silo's own list, counts with noise, rare values left out.

A silo counts how many of its records have each value of each of c columns, adds rounded Gaussian noise to the count of every
value that occurs, and shows the values whose noisy counts are above a threshold (Korolova et al. 2009; Desfontaines et al. 2022
call it partition selection). What it costs, for neighbours D and D', of which D' has one record of D zeroed out:

Let S be the values that occur in D'. A record has one value in each column, or none, so counts of the values in S change by at
most 1 in c places, sqrt(c) in L2: noise of standard deviation z sqrt(c) on them, and what a threshold shows of it, is the
Gaussian mechanism with noise multiplier z. Call the list that D gives of the values in S alone P, and what D' gives Q. D may
hold up to c values more, one in each column, each with a count of 1. Their noise is independent of all other, and a list
with one of them is no list that D' can give. So if f is the probability that any of them is shown, D gives P with probability
1 - f and with probability f something else, apart from it. Then

- what D gives and D' gives differ by no more than P and Q do, and by f: delta grows by f, and epsilon does not;
- what D' gives and D gives differ by no more than Q and (1 - f) P do: every privacy loss grows by -log(1 - f).

Both hold release by release, so that over several releases the fs and the -log(1 - f)s add up, whatever is chosen adaptively.
A count of 1 is above a whole threshold t where the rounded noise is at least t, which is where the noise is at least t - 1/2:
f = 1 - (1 - Phi(-(t - 1/2) / (z sqrt(c))))^c, exactly, with the rounding of noise counted.

Persons with several rows: in each column at most one row of a person is counted, drawn by the silo among their rows that have a
value. A person then has one value in each column, or none, and with the draw held fixed the proof is word for word the same,
"record" read as "person"; over the draw, what holds for each of its outcomes holds for their mixture (hockey-stick divergences
are jointly convex). Counting all rows would not do: a person alone may have many values of a column, or one value many times.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from populace.errors import out_of_range
from populace.privacy.events import NoisyLists
from populace.privacy.gaussian import GaussianSum
from populace.privacy.source import Source

MOST_THRESHOLD = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValueLists:
    """The noisy lists of the values of `columns` columns of one silo.

    Guarantee: one silo's lists cost `event`, one record zeroed out; a value that one record alone has is shown with probability
    at most `delta`, in all columns together. For persons the same, where one row of a person, at most, counts in a column.
    Values come in alphabetical order, so that nothing tells where they stood.
    Edge cases: a silo without records, or with rare values only, shows nothing. Values that are missing are not counted: that
    there may be none is public. One draw of noise is within `gaussian.NOISE_DISTANCE` of its law, for each of the counts that
    one record changes.
    """

    columns: int
    noise_multiplier: float
    delta: float

    def __post_init__(self) -> None:
        if self.columns < 1:
            raise out_of_range("columns", "at least 1", self.columns)
        if not 0 < self.delta < 1:
            raise out_of_range("delta", "in (0, 1)", self.delta)
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise out_of_range("noise_multiplier", "above 0 and finite", self.noise_multiplier)

    @property
    def event(self) -> NoisyLists:
        """What the lists of one silo are, for the ledger: with the least threshold that keeps within `delta`."""
        low, high = 0, 1
        while self._at(high).failure() > self.delta:
            low, high = high, 2 * high
            if high > MOST_THRESHOLD:
                raise out_of_range("noise_multiplier", "small enough for counts of 32 bits", self.noise_multiplier)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._at(middle).failure() <= self.delta else (middle, high)
        return self._at(high)

    def _at(self, threshold: int) -> NoisyLists:
        return NoisyLists(self.noise_multiplier, self.columns, threshold)

    def release(self, counts: Sequence[Mapping[str, int]], source: Source) -> tuple[dict[str, int], ...]:
        """The noisy counts of the values of each column that are above the threshold.

        `counts` holds, for each column, how many records have each value that occurs.
        """
        if len(counts) != self.columns:
            raise out_of_range("counts", f"of {self.columns} columns", len(counts))
        values = [sorted(value for value, count in column.items() if count > 0) for column in counts]
        size = sum(map(len, values))
        if not size:
            return tuple({} for _ in counts)
        mechanism = GaussianSum(
            bound=math.sqrt(self.columns), noise_multiplier=self.noise_multiplier, size=size, whole=True
        )
        true = np.array([column[value] for column, listed in zip(counts, values, strict=True) for value in listed])
        noisy = (true + np.asarray(mechanism.noise(source), np.int64)).tolist()
        threshold = self.event.threshold
        shown, start = [], 0
        for listed in values:
            pairs = zip(listed, noisy[start : start + len(listed)], strict=True)
            shown.append({value: count for value, count in pairs if count > threshold})
            start += len(listed)
        return tuple(shown)
