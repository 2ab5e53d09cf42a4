"""Sums with Gaussian noise in stages: each stage has noise of its own, and a client pays for every stage it takes part in.

The budget is shared out between lists of categories that have to be found, one-way tables of long columns, and tables of pairs.
Shares are of the sum of squares of 1/z, z the noise multiplier: what Gaussian releases add up to.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from populace.errors import SpecError
from populace.methods.blocks.composed import Release
from populace.privacy.accounting import epsilon_of, noise_multiplier_for
from populace.privacy.events import Composed, Event, Gaussian, NoisyLists
from populace.privacy.gaussian import GaussianSum
from populace.privacy.guarantee import Unit
from populace.privacy.noise_shares import NoiseShares
from populace.privacy.partition import ValueLists
from populace.privacy.source import Source
from populace.types import Array

LISTS_SHARE = 0.1  # of the budget, for lists where categories have to be found
LISTS_DELTA = 0.1  # of delta, for lists that show what a single record has
MARGIN = 1.0005  # of noise, where rounding in the composition of stages would take it past the budget


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedRelease(Release):
    """One sum of whole numbers in each stage, with noise at each client (`silo`), or once on the sum of all: by the server
    (`central`), or in shares of the clients (`secure-sum`), which an engine adds."""

    mechanisms: tuple[GaussianSum, ...]
    blocks: int = 1  # exchanges of a stage
    lists: ValueLists | None = None  # what each silo released before the first stage, to find categories
    most: float = math.inf  # what a count of all silos can be: how wide the numbers of a secure sum are
    spare: tuple[Gaussian, ...] = ()  # what was paid for before it was known that it would not be released

    def __post_init__(self) -> None:
        if self.trust not in ("silo", "secure-sum", "central"):
            raise SpecError(f"expected the trust of sums in stages in silo, secure-sum, central, got {self.trust!r}")
        if (self.sites is not None) != (self.trust == "secure-sum"):
            raise SpecError("expected the sites of a sum where the trust is secure-sum, and only there")

    @property
    def _before(self) -> tuple[NoisyLists | Gaussian, ...]:
        """What a client pays beside its first stage."""
        return (*(() if self.lists is None else (self.lists.event,)), *self.spare)

    @property
    def whole(self) -> Event:
        events = (*self._before, *(mechanism.event for mechanism in self.mechanisms))
        return events[0] if len(events) == 1 else Composed(events)

    def event(self, number: int) -> Event:
        stage = number // self.blocks
        own = self.mechanisms[stage].event
        return Composed((*self._before, own)) if stage == 0 and self._before else own

    @property
    def draws(self) -> int:
        lists = 0 if self.lists is None else self.lists.columns
        each = 1 if self.sites is None else self.sites.clients
        return lists + each * sum(mechanism.size for mechanism in self.mechanisms)

    def shares(self, number: int) -> NoiseShares | None:
        if self.sites is None:
            return None
        return self.sites.shares(self.mechanisms[number // self.blocks], most=self.most)

    def known(self, shares: int) -> Event:
        if self.sites is None:
            return super().known(shares)
        events = (*self._before, *(self.sites.shares(each).known_event(shares) for each in self.mechanisms))
        return events[0] if len(events) == 1 else Composed(events)

    @property
    def distance(self) -> float:
        sites = self.sites
        return 0.0 if sites is None else math.fsum(each.size * sites.shares(each).distance for each in self.mechanisms)

    @property
    def noise_multiplier(self) -> float:
        """That of one release which costs as much as all stages together."""
        return 1 / math.sqrt(sum(one.noise_multiplier**-2 for one in (*self._before, *self.mechanisms)))

    @property
    def replies(self) -> int:
        return len(self.mechanisms)

    def at_client(self, stage: int, units: Array, source: Source) -> Array:
        """What a client sends of its whole numbers."""
        return units + self._noise(stage, units, source) if self.trust == "silo" else units

    def at_server(self, stage: int, units: Array, source: Source) -> Array:
        """The server's sum of a stage, with the noise that is its to add."""
        if self.trust == "central":
            return units + np.asarray(self._noise(stage, units, source), np.int64)
        return units

    def _noise(self, stage: int, units: Array, source: Source) -> Array:
        return self.mechanisms[stage].noise(source).reshape(units.shape)

    def deviation(self, stage: int, messages: int) -> float:
        """The standard deviation of noise in the sum of so many messages."""
        if self.sites is not None:
            return self.sites.shares(self.mechanisms[stage]).share.scale * math.sqrt(max(messages, 1))
        draws = max(messages, 1) if self.trust == "silo" else 1
        return self.mechanisms[stage].scale * math.sqrt(draws)


@dataclasses.dataclass(frozen=True)
class Shares:
    """What each part of a run is given: lists of categories, what is paid for in vain, and the stages' noise multipliers."""

    lists: ValueLists | None
    spare: tuple[Gaussian, ...]
    stages: tuple[float, ...]

    def in_words(self, unit: Unit = "record") -> tuple[str, ...]:
        """The sentences about what comes before the first stage."""
        if self.lists is None:
            return ()
        event, columns = self.lists.event, self.lists.columns
        chosen = " (of several rows one counts in a column, by the silo's private coin)" if unit == "person" else ""
        words = (
            f"lists of categories of {columns} columns, each silo's own, whole noise at each: "
            f"{Gaussian(event.noise_multiplier)}; a {unit} adds 1 to one count of each column{chosen}, "
            f"{math.sqrt(columns):.6g} in L2; "
            f"values with noisy counts above {event.threshold:,} are listed, one that a single {unit} has with probability at "
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
