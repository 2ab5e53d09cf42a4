"""Releases: what one client's participation costs, who adds the noise, and the sentences of the guarantee.

The object that draws the noise states its cost, so that noise cannot be forgotten and the ledger cannot disagree.
"""

from __future__ import annotations

import abc
import dataclasses
import math

import numpy as np

from populace.errors import SpecError
from populace.methods.base import Population, Replies, not_private
from populace.privacy.accounting import contains_non_private, epsilon_of
from populace.privacy.events import Event, NonPrivate, Repeated
from populace.privacy.gaussian import GaussianSum
from populace.privacy.guarantee import Guarantee, Trust, Unit
from populace.privacy.noise_shares import NoiseShares, SumSites, claims_of
from populace.privacy.noised_steps import accounted_delta, sampled_delta
from populace.privacy.source import Source
from populace.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wording:
    """The sentences of a guarantee that follow from a method's arithmetic."""

    mechanism: str
    derivation: tuple[str, ...]
    assumptions: tuple[str, ...]
    reason: str = ""  # why nothing is guaranteed, where nothing is


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release(abc.ABC):
    """What one client's participation costs, and what is guaranteed in the end. Neighbours differ in one unit zeroed out."""

    unit: Unit
    trust: Trust
    delta: float
    wording: Wording
    sites: SumSites | None = (
        None  # of whose replies only sums are opened: where the trust is secure-sum, and only there
    )

    def __post_init__(self) -> None:
        if (self.sites is not None) != (self.trust == "secure-sum"):
            raise SpecError("expected the sites of a sum where the trust is secure-sum, and only there")

    @property
    @abc.abstractmethod
    def whole(self) -> Event:
        """What the client that is asked most often pays over a whole run."""

    @abc.abstractmethod
    def event(self, number: int) -> Event:
        """What one reply in exchange `number` costs."""

    @property
    @abc.abstractmethod
    def draws(self) -> int:
        """Numbers drawn for noise about one unit: what their sampling adds to delta is counted."""

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier, where the release is Gaussian and has one."""
        raise SpecError("this release has no single noise multiplier, and its method cannot be the second of a chain")

    @property
    def replies(self) -> int:
        """How many replies of one client `whole` covers."""
        return 1

    @property
    def amplified(self) -> bool:
        """Whether `whole` is about clients that are drawn in secret."""
        return False

    def shares(self, number: int) -> NoiseShares | None:
        """The noise of exchange `number` in shares, where the server needs the sum of all replies alone; None elsewhere."""
        del number
        return None

    def known(self, shares: int) -> Event:
        """What a whole run costs to whoever knows so many sites' shares of the noise in opened sums."""
        raise SpecError(
            f"a release of which sums are opened tells what known shares cost, and {type(self).__name__} does not"
        )

    @property
    def distance(self) -> float:
        """Total variation distance of all noise about one unit from the law that is accounted, samplers apart."""
        return 0.0

    def total(self, replies: Replies) -> tuple[Array, int]:
        """The sum of the replies that came, 64 bits wide, and of how many; refuses single replies where none may be seen."""
        present = np.asarray(replies.present)
        if self.sites is None:
            return np.asarray(replies.values)[present].sum(axis=0, dtype=np.int64), int(present.sum())
        if not replies.opened:
            raise SpecError(
                "expected a sum that an engine opened (trust secure-sum), got the replies of single clients"
            )
        return np.asarray(replies.values, np.int64), int(present.sum())

    def guarantee(self, population: Population) -> Guarantee:
        """The statement: epsilon of the whole run at this delta, by privacy loss distributions, and the sentences."""
        private = not contains_non_private(self.whole)
        accounted = accounted_delta(self.delta, self.whole, self.draws, self.distance) if private else self.delta
        epsilon = epsilon_of(self.whole, delta=accounted)
        delta = sampled_delta(accounted, epsilon, self.draws, self.distance) if private else 0.0
        return Guarantee(
            epsilon=epsilon,
            delta=delta,
            sampling_delta=delta - accounted if private else 0.0,
            unit=self.unit,
            units=population.clients * (1 if self.unit == "client" else population.records),
            neighbours="zero-out",
            trust=self.trust,
            mechanism=self.wording.mechanism,
            read_from_data=population.read_from_data,
            domain_sources=population.domain_sources,
            derivation=self.wording.derivation,
            assumptions=self.wording.assumptions,
            reason=self.wording.reason,
            claims=() if self.sites is None else claims_of(self.sites, self.known, delta=accounted),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianRelease(Release):
    """One sum of whole numbers with Gaussian noise: each client's own sum (`silo`), or the sum of all, by the server
    (`central`) or in shares of the clients (`secure-sum`)."""

    mechanism: GaussianSum

    def __post_init__(self) -> None:
        if self.trust not in ("silo", "secure-sum", "central"):
            raise SpecError(
                f"expected the trust of a Gaussian release in silo, secure-sum, central, got {self.trust!r}"
            )
        super().__post_init__()

    @property
    def whole(self) -> Event:
        return self.mechanism.event

    def event(self, number: int) -> Event:
        return self.mechanism.event

    def shares(self, number: int) -> NoiseShares | None:
        return None if self.sites is None else self.sites.shares(self.mechanism)

    def known(self, shares: int) -> Event:
        return super().known(shares) if self.sites is None else self.sites.shares(self.mechanism).known_event(shares)

    @property
    def draws(self) -> int:
        return self.mechanism.size * (1 if self.sites is None else self.sites.clients)

    @property
    def distance(self) -> float:
        return 0.0 if self.sites is None else self.mechanism.size * self.sites.shares(self.mechanism).distance

    @property
    def noise_multiplier(self) -> float:
        return self.mechanism.noise_multiplier

    def deviation(self, messages: int) -> float:
        """The standard deviation of noise in the sum of so many messages."""
        if self.sites is not None:
            return self.sites.shares(self.mechanism).share.scale * math.sqrt(max(messages, 1))
        return self.mechanism.scale * math.sqrt(max(messages, 1) if self.trust == "silo" else 1)

    def at_client(self, units: Array, source: Source) -> Array:
        """What a client sends of its sum, in units of the grid; a share of noise is the engine's to add."""
        return units + self.mechanism.noise(source) if self.trust == "silo" else units

    def at_server(self, units: Array, number: int, source: Source) -> Array:
        """The server's total after an exchange; noise that is the server's to add is in it from the first exchange on."""
        if self.trust == "central" and number == 0:
            return units + np.asarray(self.mechanism.noise(source), np.int64)
        return units


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalRelease(Release):
    """Reports that are epsilon-LDP, pure, each by itself: `most_replies` of them share `epsilon`. Neighbours differ in
    everything one client holds."""

    unit: Unit = "client"
    trust: Trust = "local"
    delta: float = 0.0
    epsilon: float
    report: Event
    most_replies: int = 1
    shuffles: bool = False  # whether a central statement by shuffling may be made

    @property
    def whole(self) -> Event:
        return self.report if self.most_replies == 1 else Repeated(self.report, self.most_replies)

    def event(self, number: int) -> Event:
        return self.report

    @property
    def draws(self) -> int:
        return 0

    @property
    def replies(self) -> int:
        return self.most_replies

    def guarantee(self, population: Population) -> Guarantee:
        return Guarantee(
            epsilon=float(self.epsilon), unit=self.unit, units=population.clients, neighbours="replace", trust=self.trust,
            read_from_data=population.read_from_data, domain_sources=population.domain_sources, shuffles=self.shuffles,
            mechanism=self.wording.mechanism, derivation=self.wording.derivation, assumptions=self.wording.assumptions,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unprotected(Release):
    """What a baseline sends: nothing is guaranteed."""

    unit: Unit = "client"
    trust: Trust = "not-private"
    delta: float = 0.0
    wording: Wording = Wording(mechanism="none", derivation=(), assumptions=())
    reason: str

    @property
    def whole(self) -> Event:
        return NonPrivate(self.reason)

    def event(self, number: int) -> Event:
        return NonPrivate(self.reason)

    @property
    def draws(self) -> int:
        return 0

    def guarantee(self, population: Population) -> Guarantee:
        return not_private(population, self.reason)
