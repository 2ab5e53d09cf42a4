"""What both methods share: every client sends one report a pass, and the passes share epsilon."""

from __future__ import annotations

import abc

import numpy as np

from populace.methods.base import Ask, Population, Protocol, State
from populace.methods.blocks.schedules import Passes
from populace.privacy.events import Event
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.shuffling import shuffled_statement
from populace.types import Array


class PassesOfReports(Protocol):
    """Methods that ask every client once a pass, `participations` passes; each report costs epsilon divided by their number."""

    epsilon: float
    participations: int

    @abc.abstractmethod
    def report_event(self, population: Population) -> Event:
        """The privacy event of one report, from the mechanism that makes it."""

    @abc.abstractmethod
    def clients_per_round(self, population: Population) -> int:
        """How many clients a round asks."""

    def schedule(self, population: Population) -> Passes:
        """Whom each round asks."""
        return Passes(
            clients=population.clients, cohort_size=self.clients_per_round(population), passes=self.participations
        )

    def round_count(self, population: Population) -> int:
        return self.schedule(population).exchanges

    def cohorts(self, population: Population, state: State, first: int, count: int) -> Array:
        return np.asarray(state.order)[first : first + count]

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=self.report_event(population), unit="client")

    def claim(self, population: Population, *, report: str, derivation: tuple[str, ...]) -> Guarantee:
        """The guarantee of every such method, marked where each client is asked once, for a central statement."""
        times = "once" if self.participations == 1 else f"{self.participations} times"
        return Guarantee(
            epsilon=float(self.epsilon),
            unit="client",
            units=population.clients,
            neighbours="replace",
            trust="local",
            mechanism=f"{report}, each client {times}",
            read_from_data=population.read_from_data,
            domain_sources=population.domain_sources,
            derivation=(
                *derivation,
                "reports of one client add up; its ledger refuses one more than it may send",
                "the server's steps and all sampling are post-processing",
            ),
            shuffles=self.participations == 1,
            assumptions=(
                "the number of clients and who takes part are public",
                "all of a person's records are held by one client; who is in several has the bound of the group line",
            ),
        )

    def shuffled(self, population: Population) -> tuple[str, ...]:
        """The central statement for a plan, where each client is asked once: if all of them answer."""
        if self.participations > 1:
            return ()
        return (f"if all answer, {shuffled_statement(local_epsilon=float(self.epsilon), answered=population.clients)}",)
