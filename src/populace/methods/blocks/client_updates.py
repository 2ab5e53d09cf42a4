"""What methods share whose server adds up clipped updates of clients, with noise (DP-FedAvg; McMahan et al. 2018).

Each round every client is drawn with probability `sampling_rate`; a drawn one sends an update, clipped to length 1 in units of
the clipping norm and rounded to the mechanism's grid, the others send zeros. The server adds noise to the sum and divides it by
the number of clients expected. Rounds that draw nobody release noise alone.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError
from populace.methods.base import NO_ERROR, Ask, Plan, Population, Protocol, Replies, check_not_negative, check_rates
from populace.methods.blocks.schedules import Sampled
from populace.privacy.accounting import epsilon_of, resolved_delta
from populace.privacy.events import Event
from populace.privacy.gaussian import GaussianSum
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.noised_steps import NoisedSteps, noised_steps, sampled_delta
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.source import Source
from populace.types import Array, ArrayTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Updates:
    """What both sides derive from public facts. Sums are in units of the clipping norm, so that it may change."""

    delta: float
    chosen_delta: tuple[str, ...]
    release: NoisedSteps

    @property
    def rounds(self) -> int:
        return self.release.steps

    @property
    def mechanism(self) -> GaussianSum:
        return self.release.mechanism

    @property
    def count(self) -> GaussianSum | None:
        return self.release.count

    @property
    def step(self) -> Event:
        """One round, for every client, drawn or not."""
        return self.release.event(1)


class ClientUpdates(Protocol):
    """The fields every such method has, and what follows from them. The unit is everything one client holds."""

    epsilon: float
    delta: float
    rounds: int
    sampling_rate: float
    noise_multiplier: float

    def check_updates(self) -> None:
        check_epsilon(self.epsilon)
        check_rates(sampling_rate=self.sampling_rate)
        check_not_negative(noise_multiplier=self.noise_multiplier)

    @abc.abstractmethod
    def design(self, population: Population) -> Updates:
        """What both sides derive from public facts."""

    def calibrated(self, population: Population, size: int, counting: float = 0.0) -> dict[str, Any]:
        """The fields of `Updates` for updates of so many numbers."""
        delta, chosen_delta = resolved_delta(self.delta, population.clients)
        release = noised_steps(
            epsilon=self.epsilon, delta=delta, probability=self.sampling_rate, wanted=self.rounds, each=1,
            noise=self.noise_multiplier, size=size, counting=counting,
        )  # fmt: skip
        if population.clients * 2 > np.iinfo(np.int32).max * release.mechanism.grid:
            raise SpecError(
                f"{population.clients:,} updates of {size:,} numbers do not add up in 32 bits; choose a smaller net"
            )
        return {"delta": delta, "chosen_delta": chosen_delta, "release": release}

    def round_count(self, population: Population) -> int:
        return self.design(population).rounds

    def ask_drawn(self, round_id: Array, population: Population, source: Source, common: ArrayTree) -> Ask:
        """Everybody is asked, so that who is drawn does not show; `own` says it to each."""
        cohort = self.schedule(population).cohort((), round_id, source)
        return Ask(round=round_id, cohort=cohort.clients, common=common, own=cohort.own)

    def schedule(self, population: Population) -> Sampled:
        """Every client in every round, drawn with the sampling rate."""
        rounds = self.design(population).rounds
        return Sampled(clients=population.clients, wanted=rounds, sampling_rate=self.sampling_rate)

    def secret_cohorts(self, population: Population) -> bool:
        return self.schedule(population).secret

    def working(self, ask: Ask) -> Array:
        drawn: Array = ask.own
        return drawn

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=self.design(population).step, unit="client")

    def spends(self, population: Population) -> Event:
        return self.design(population).release.whole

    def mean_change(self, design: Updates, ask: Ask, replies: Replies, source: Source) -> Array:
        """The noised sum of what was sent, over the number of clients expected; in units of the clipping norm."""
        total = jnp.sum(jnp.where(replies.present[:, None], replies.values["change"], 0), axis=0, dtype=jnp.int32)
        return design.mechanism.apply(total, source) / (self.sampling_rate * len(ask.cohort))

    def claim(self, population: Population, what: str, how: str) -> Guarantee:
        """The statement: `what` is learned from the updates, and `how` the rest follows."""
        design = self.design(population)
        epsilon = epsilon_of(design.release.whole, delta=design.delta)
        delta = sampled_delta(design.delta, epsilon, design.release.draws)
        counted = "" if design.count is None else ", with the noisy count that moves the bound"
        return Guarantee(
            epsilon=epsilon,
            delta=delta,
            sampling_delta=delta - design.delta,
            unit="client",
            units=population.clients,
            neighbours="zero-out",
            trust="central",
            mechanism=f"{design.rounds} sums of clipped client updates with Gaussian noise (DP-FedAvg of a {what})",
            read_from_data=population.read_from_data,
            domain_sources=population.domain_sources,
            derivation=(
                f"each round: {design.step}{counted}; {design.mechanism.size:,} numbers clipped together",
                f"composed over {design.rounds} rounds by privacy loss distributions; every client pays for every round",
                how,
                "the sum is divided by the expected number of clients, which is public; rounding is in the sensitivity",
            ),
            assumptions=(
                "the number of clients and the most records one holds are public",
                *(("whom a round draws is kept secret by the server",) if self.sampling_rate < 1 else ()),
                "all of a person's records are held by one client; who is in several has the bound of the group line",
                *design.chosen_delta,
            ),
        )

    def plan(self, population: Population) -> Plan:
        design = self.design(population)
        down, up = self.traffic(population)
        noise = design.mechanism.scale * math.sqrt(design.mechanism.size) / (self.sampling_rate * population.clients)
        return Plan(
            guarantee=self.guarantee(population), rounds=design.rounds, bytes_up=up, bytes_down=down, errors={},
            notes=(
                f"noise multiplier {design.release.noise_multiplier:.3g}; noise on the mean update is {noise:.2g} clipping "
                f"norms long in all {design.mechanism.size:,} parameters",
                NO_ERROR,
            ),
        )  # fmt: skip

    @abc.abstractmethod
    def traffic(self, population: Population) -> tuple[float, float]:
        """Bytes to and from one client in a round."""

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return self.traffic(population)
