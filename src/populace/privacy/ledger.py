"""Who has had how much released about them. Nothing else spends, and nothing is spent twice.

A ledger is append-only and refuses *before* the release what would overspend. `MemoryLedger` serves simulations (millions
of accounts, counts per event); `sqlite_ledger` has the one that lives with the records and survives a crash.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from populace.errors import BudgetError, RunError
from populace.privacy import events
from populace.privacy.accounting import epsilon_of
from populace.privacy.events import Event
from populace.privacy.guarantee import Unit
from populace.types import JsonObject, NumpyArray

MOST_AHEAD = 2**16  # charges looked ahead
COARSE = 1e-3  # discretisation of the privacy loss that is tried first
ROUNDING = 1e-12  # relative, of sums of epsilons
COMPOSITION_ROUNDING = (
    1e-9  # relative, of the Fourier transforms that compose losses: another order gives other last digits
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Charge:
    """What ONE reply costs ONE account: the mechanism's own event, and whom it protects."""

    event: Event
    unit: Unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that may be released about one unit. Infinite for runs that claim nothing."""

    epsilon: float
    delta: float = 0.0
    unit: Unit = "client"


def composed(spent: Sequence[tuple[Event, int]]) -> Event | None:
    """All events of an account as one, or None for an untouched account."""
    parts = tuple(_repeated(event, count) for event, count in spent if count > 0)
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else events.Composed(parts)


def _repeated(event: Event, count: int) -> Event:
    """`count` times; what is itself a repetition becomes one longer one, so that it is computed in one way only."""
    if isinstance(event, events.Repeated):
        return events.Repeated(event.event, event.count * count)
    return event if count == 1 else events.Repeated(event, count)


def check_affordable(event: Event | None, budget: Budget, *, who: str) -> None:
    """Raise BudgetError if this total would pass the budget."""
    if (sentence := overspending(event, budget)) is not None:
        raise BudgetError(f"{who} {sentence}")


def overspending(event: Event | None, budget: Budget) -> str | None:
    """By how much this total would pass the budget, in words; None if it would not. The comparison is exact up to rounding."""
    if event is None or math.isinf(budget.epsilon):
        return None
    pure = events.is_pure(event)
    if not pure and epsilon_of(event, delta=budget.delta, interval=COARSE) <= budget.epsilon:
        return None  # the coarse answer is never optimistic, and much faster
    total = epsilon_of(event, delta=budget.delta)
    if total <= budget.epsilon * (1 + (ROUNDING if pure else COMPOSITION_ROUNDING)):
        return None
    return (
        f"would have spent epsilon {total:.6g} of {budget.epsilon:g} (delta {budget.delta:g}, per {budget.unit}); the release "
        "is refused and nothing left"
    )


def check_unit(charge: Charge, budget: Budget) -> None:
    if charge.unit != budget.unit:
        raise BudgetError(
            f"a charge per {charge.unit} cannot be booked on a budget per {budget.unit}; keep two ledgers"
        )


class MemoryLedger:
    """Accounts of simulated clients: for each distinct event, how often each client was charged with it."""

    def __init__(self, budget: Budget, *, clients: int) -> None:
        self.budget = budget
        self.clients = clients
        self._kinds: list[Event] = []
        self._counts: list[NumpyArray] = []
        self._entries: list[tuple[int, int, int]] = []
        self._afforded: list[NumpyArray] = []  # counts of each kind that were found to be within the budget

    @property
    def entries(self) -> tuple[tuple[int, int, int], ...]:
        """What was booked, in order: (round, number of clients, which event)."""
        return tuple(self._entries)

    def book(self, cohort: NumpyArray, charge: Charge, *, round_id: int) -> None:
        """Charge every client of the cohort once, or none of them. Raises before anything is released."""
        check_unit(charge, self.budget)
        cohort = np.asarray(cohort)
        if len(np.unique(cohort)) != len(cohort):
            raise BudgetError(f"round {round_id} asks a client twice; a client is asked once a round")
        kind = self._kind(charge.event)
        after = np.stack([counts[cohort] for counts in self._counts])
        after[kind] += 1
        for spent in np.unique(after, axis=1).T:
            self._check(spent, kind, who=f"a client asked in round {round_id}")
        self._counts[kind][cohort] += 1
        self._entries.append((round_id, len(cohort), kind))

    def _check(self, spent: NumpyArray, kind: int, *, who: str) -> None:
        """Raise if these counts pass the budget. What is affordable is kept, as far ahead as it goes: accounting is slow."""
        if any((spent <= known).all() for known in self._afforded):
            return
        self._check_counts(spent, who)
        most = spent.copy()
        step = 1
        while most[kind] < MOST_AHEAD and self._affordable(most, kind, step):
            most[kind] += step
            step *= 2
        while step > 1:
            step //= 2
            if self._affordable(most, kind, step):
                most[kind] += step
        self._afforded.append(most)

    def _affordable(self, counts: NumpyArray, kind: int, more: int) -> bool:
        counts = counts.copy()
        counts[kind] += more
        try:
            self._check_counts(counts, "")
        except BudgetError:
            return False
        return True

    def _check_counts(self, counts: NumpyArray, who: str) -> None:
        check_affordable(composed(list(zip(self._kinds, counts.tolist(), strict=True))), self.budget, who=who)

    def _kind(self, event: Event) -> int:
        if event not in self._kinds:
            self._kinds.append(event)
            self._counts.append(np.zeros(self.clients, np.int32))
            self._afforded = [np.append(known, 0) for known in self._afforded]
        return self._kinds.index(event)

    def spent(self, clients: slice = slice(None)) -> JsonObject:
        """Epsilon of the account that spent most, and how many accounts were charged; of all clients, or of some."""
        if not self._kinds:
            return {"epsilon": 0.0, "delta": self.budget.delta, "accounts_charged": 0, "charges": 0}
        counts = np.stack(self._counts)[:, clients]
        return {
            "epsilon": max((epsilon for epsilon, _ in self._totals(counts)), default=0.0),
            "delta": self.budget.delta,
            "accounts_charged": int((counts.sum(axis=0) > 0).sum()),
            "charges": int(counts.sum()),
        }

    def worst_event(self) -> Event | None:
        """All that was released about the account that spent most, as one event; None where nothing was."""
        if not self._kinds:
            return None
        return max(self._totals(np.stack(self._counts)), key=lambda each: each[0], default=(0.0, None))[1]

    def _totals(self, counts: NumpyArray) -> list[tuple[float, Event]]:
        """Epsilon and event of every different account that was charged."""
        totals = (composed(list(zip(self._kinds, row.tolist(), strict=True))) for row in np.unique(counts, axis=1).T)
        return [(epsilon_of(total, delta=self.budget.delta), total) for total in totals if total is not None]

    def snapshot(self) -> tuple[dict[str, NumpyArray], JsonObject]:
        """Arrays and a JSON document from which `restore` makes the same ledger."""
        arrays = {f"ledger_counts_{i}": counts for i, counts in enumerate(self._counts)}
        return arrays, {"kinds": [events.to_json(kind) for kind in self._kinds], "entries": self._entries}

    def restore(self, arrays: dict[str, NumpyArray], document: JsonObject) -> None:
        self._kinds = [events.from_json(kind) for kind in document["kinds"]]
        self._counts = [np.array(arrays[f"ledger_counts_{i}"]) for i in range(len(self._kinds))]
        for counts in self._counts:
            if counts.shape != (self.clients,) or counts.dtype.kind not in "iu" or (counts < 0).any():
                raise RunError("the checkpoint's ledger is damaged: expected how often each client was charged")
        self._entries = [(int(a), int(b), int(c)) for a, b, c in document["entries"]]
        self._afforded = []
