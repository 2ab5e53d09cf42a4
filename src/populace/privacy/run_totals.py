"""What several runs on the same unit cost together.

Epsilons and deltas add (Dwork and Roth 2014, theorem 3.16), also where methods and budgets are chosen after looking at earlier
results, under a limit fixed beforehand (Rogers et al. 2016). Where every run says its event, the composed privacy loss
distribution gives a smaller epsilon at the same delta: proved for runs whose methods and budgets were fixed without looking at
earlier results. Totals are stated with both (`total_of`, `plain_sum`).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence

from populace.privacy import events
from populace.privacy.accounting import epsilon_of
from populace.privacy.consequences import MOST_EXPONENT, Paid, at_silos
from populace.privacy.events import Event
from populace.privacy.guarantee import Guarantee, Neighbours, Trust, Unit
from populace.privacy.ledger import composed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What one run costs one protected unit. `event` is None where only epsilon and delta are known.

    `records` is the most records that one unit holds: 1 of a unit that is a record. A person is paid for at each silo where
    they have rows: `silos` is the number of silos of a run that protects persons, `person` the column that names them.
    """

    epsilon: float
    delta: float = 0.0
    sampling_delta: float = 0.0
    event: Event | None = None
    unit: Unit
    neighbours: Neighbours
    trust: Trust
    seeded: bool = False
    records: int = 1
    silos: int = 1
    person: str = ""


def cost_of(guarantee: Guarantee, event: Event | None, *, records: int, silos: int = 1, person: str = "") -> Cost:
    """The cost of a run with this guarantee, which follows from `event` where that is known; `silos` and `person` count where
    persons are protected."""
    persons = guarantee.unit == "person"
    if event is None and guarantee.pure:
        event = events.Pure(guarantee.epsilon)
    return Cost(
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        sampling_delta=guarantee.sampling_delta,
        event=event if math.isfinite(guarantee.epsilon) else None,
        unit=guarantee.unit,
        neighbours=guarantee.neighbours,
        trust=guarantee.trust,
        seeded=guarantee.seeded,
        records=1 if guarantee.unit == "record" else records,
        silos=silos if persons else 1,
        person=person if persons else "",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Total:
    """(epsilon, delta) for one unit of `unit`, over several runs; epsilon 0 where there were none."""

    epsilon: float
    delta: float
    unit: Unit
    neighbours: Neighbours


def shared_relation(costs: Iterable[Cost]) -> Neighbours:
    """The relation a total over these runs is stated for: their own where they agree, replacement where they do not."""
    relations = {cost.neighbours for cost in costs}
    return relations.pop() if len(relations) == 1 else "replace"


def total_of(costs: Sequence[Cost], *, unit: Unit, neighbours: Neighbours) -> Total:
    """What these runs cost one unit together.

    Guarantee: an upper bound, by basic composition or by privacy loss distributions, whichever is less. A cost stated for
    zero-out (or add-remove) counts twice where the total is for replacement: one content is taken out, another put in. So does
    the cost of a client or person with several records where the total is for one record: its other records stay. What a person
    pays at one silo counts for all silos of a run where the total is for all of a person (`at_silos`).
    Edge cases: none gives epsilon 0; one run without a guarantee, or a delta that reaches 1, makes epsilon infinite. Costs of
    records do not bound what a client with several of them pays: the caller keeps them apart.
    """
    parts, plain = (
        [_stated_for(cost, unit, neighbours) for cost in costs],
        plain_sum(costs, unit=unit, neighbours=neighbours),
    )
    tighter = _by_loss_distribution(parts, plain.epsilon) if plain.delta and len(parts) > 1 else None
    if tighter is None or tighter[1] >= 1:
        return plain
    return dataclasses.replace(plain, epsilon=tighter[0], delta=tighter[1])


def plain_sum(costs: Sequence[Cost], *, unit: Unit, neighbours: Neighbours) -> Total:
    """Epsilons and deltas added, under the total's relation; infinite where delta reaches 1."""
    parts = [_stated_for(cost, unit, neighbours) for cost in costs]
    epsilon, delta = math.fsum(part.epsilon for part in parts), math.fsum(part.delta for part in parts)
    if delta >= 1 or math.isinf(epsilon):
        epsilon, delta = math.inf, 0.0
    return Total(epsilon=epsilon, delta=delta, unit=unit, neighbours=neighbours)


def _stated_for(cost: Cost, unit: Unit, neighbours: Neighbours) -> Cost:
    """The cost under the total's relation; by group privacy where that takes two changes. A person pays at every silo."""
    if cost.unit == "person" and unit != "record" and cost.silos > 1:
        once = Paid(epsilon=cost.epsilon, delta=cost.delta, sampling_delta=cost.sampling_delta, event=cost.event)
        paid = at_silos(once, cost.silos, trust=cost.trust)
        cost = dataclasses.replace(
            cost, epsilon=paid.epsilon, delta=paid.delta, sampling_delta=paid.sampling_delta, event=paid.event, silos=1
        )
    smaller = unit == "record" and cost.records > 1
    if cost.neighbours == "replace" or (cost.neighbours == neighbours and not smaller):
        return cost
    return _repeated(cost, 2)


def _repeated(cost: Cost, times: int) -> Cost:
    """The cost of so many changes of one unit, by group privacy: delta grows by 1 + e^epsilon + .. + e^((k - 1) epsilon)."""
    grown = cost.delta * math.fsum(math.exp(min(i * cost.epsilon, MOST_EXPONENT)) for i in range(times))
    pure = cost.delta == 0 and math.isfinite(cost.epsilon)
    return dataclasses.replace(
        cost, epsilon=times * cost.epsilon, delta=grown, sampling_delta=0.0, silos=1,
        event=events.Pure(times * cost.epsilon) if pure else None,
    )  # fmt: skip


def _by_loss_distribution(parts: Sequence[Cost], basic: float) -> tuple[float, float] | None:
    """Epsilon and delta of all events composed; None where an event is unknown or nothing is won.

    What samplers add to delta grows with the e^epsilon it is multiplied by.
    """
    known = [part.event for part in parts if part.event is not None]
    if len(known) < len(parts) or math.isinf(basic):
        return None
    accounted = math.fsum(part.delta - part.sampling_delta for part in parts)
    whole = composed(list(Counter(known).items()))
    if whole is None or accounted <= 0:
        return None
    epsilon = epsilon_of(whole, delta=accounted)
    if not epsilon < basic:
        return None
    growth = [math.exp(min(max(epsilon - part.epsilon, 0.0), MOST_EXPONENT)) for part in parts]
    added = math.fsum(part.sampling_delta * factor for part, factor in zip(parts, growth, strict=True))
    return epsilon, accounted + added
