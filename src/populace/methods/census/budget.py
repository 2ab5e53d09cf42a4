"""How the budget is shared out: lists of categories that have to be found, one-way tables of long columns, tables of pairs.

Shares are of the sum of squares of 1/z, z the noise multiplier: what Gaussian releases add up to.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from populace.privacy.accounting import epsilon_of, noise_multiplier_for
from populace.privacy.events import Composed, Gaussian
from populace.privacy.partition import ValueLists

LISTS_SHARE = 0.1  # of the budget, for lists where categories have to be found
LISTS_DELTA = 0.1  # of delta, for lists that show what a single record has
MARGIN = 1.0005  # of noise, where rounding in the composition of stages would take it past the budget


@dataclasses.dataclass(frozen=True)
class Shares:
    """What each part of a run is given: lists of categories, what is paid for in vain, and the stages' noise multipliers."""

    lists: ValueLists | None
    spare: tuple[Gaussian, ...]
    stages: tuple[float, ...]

    @property
    def in_words(self) -> tuple[str, ...]:
        """The sentences about what comes before the first stage."""
        if self.lists is None:
            return ()
        event, columns = self.lists.event, self.lists.columns
        words = (
            f"lists of categories of {columns} columns, each silo's own, whole noise at each: "
            f"{Gaussian(event.noise_multiplier)}; a record adds 1 to one count of each column, {math.sqrt(columns):.6g} in L2; "
            f"values with noisy counts above {event.threshold:,} are listed, one that a single record has with probability at "
            f"most {event.failure():.3g}, which is taken off delta"
        )
        return (words, *(f"{one}, kept for long lists, was not needed and counts as spent" for one in self.spare))


@functools.lru_cache(maxsize=64)
def shared_out(
    *, epsilon: float, delta: float, stages: int, domain_share: float, lists_share: float = 0.0, listed: int = 0
) -> Shares:
    """The least noise of each part, such that all together stay within (epsilon, delta).

    `stages` is 2 with one-way tables of long columns, else 1; `listed` is the number of columns whose categories are found.
    With lists, which columns are long is known only after the run was paid for: one-way tables are paid for in any case.
    """
    lists_share = lists_share if listed else 0.0
    parts = (domain_share, 1 - domain_share) if lists_share or stages > 1 else (1.0,)
    whole = noise_multiplier_for(epsilon=epsilon, delta=delta)
    while True:
        noise = tuple(Gaussian(whole / math.sqrt(part * (1 - lists_share))) for part in parts)
        lists = None
        if lists_share:
            each = whole / math.sqrt(lists_share)
            lists = ValueLists(columns=listed, noise_multiplier=each, delta=LISTS_DELTA * delta)
        event = Composed((*(() if lists is None else (lists.event,)), *noise))
        if epsilon_of(event, delta=delta) <= epsilon:
            return Shares(lists, noise[:-stages], tuple(one.noise_multiplier for one in noise[-stages:]))
        whole *= MARGIN
