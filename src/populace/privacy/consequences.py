"""What a guarantee means for one person, for a person with several units, and for everybody together.

All of it follows from the relation between neighbours. Zero-out bounds what can be told about *presence*: whether a slot was
filled or empty. Between two *contents* of a slot the loss is that of taking one out and putting another in, which is computed
for Gaussian releases (twice the sensitivity; with Poisson sampling, two steps) and doubled for pure ones. Replacement bounds
contents directly, and presence is public. A *group* of units held by one person loses more: a sum changes by up to k
clipping norms, and with Poisson sampling the number of the k that enter is binomial (Ganesh 2024, mixtures of Gaussians).
Where a person is the unit, all their rows at a silo are covered by the bound itself; at k silos they pay at each (`at_silos`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from populace.errors import SpecError, out_of_range
from populace.privacy import events
from populace.privacy.accounting import contains_non_private, epsilon_of
from populace.privacy.bisection import bisect
from populace.privacy.events import Event
from populace.privacy.guarantee import Guarantee, Trust, best_guess
from populace.privacy.ledger import composed

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

GROUPS = (2, 5)
SILOS = (2, 3, 5)  # at which one person may have rows, and all there are
MOST_EXPONENT = 700.0  # e to more than this is no float
INTERVAL = 1e-3  # of the privacy loss, for one unit replaced
GROUP_INTERVAL = 5e-3  # for groups; coarser is faster and never optimistic
STEPS_OF_BISECTION = 30
MOST_STEPS = 2_000  # of one event with the coarse interval: its errors add up over steps

OWN_NOISE = (
    "Each silo draws its own noise, so that what a person pays at k of them composes as k releases do: deltas add, and epsilon "
    "grows more slowly than k."
)
Change = Literal["replaced"] | int  # one unit replaced by another, or so many units zeroed out


@functools.lru_cache(maxsize=256)
def changed_epsilon(event: Event, *, delta: float, change: Change) -> float:
    """The least epsilon that is proved at `delta` if one unit is replaced by another, or if a group of units is zeroed out.

    Guarantee: an upper bound, for events whose own epsilon is that of zeroing out one unit.
    Edge cases: inf for what is not private, and at delta 0 for what is not pure; a group of 1 is the event itself.
    """
    if change != "replaced" and change < 1:
        raise out_of_range("a group", "of at least 1 unit", change)
    times = 2 if change == "replaced" else change
    if events.is_pure(event):
        return times * events.pure_epsilon(event)
    if contains_non_private(event) or delta == 0:
        return math.inf
    lost, added = events.failures(event, 1 if change == "replaced" else change)
    if lost:
        left, rest = delta - lost, events.without_failures(event)
        return added + changed_epsilon(rest, delta=left, change=change) if left > 0 else math.inf
    if change == "replaced" and _sampled(event):
        return _by_two_steps(_changed_loss(event, 1), delta)
    return float(_changed_loss(event, change).get_epsilon_for_delta(delta))


def _sampled(event: Event) -> bool:
    if isinstance(event, events.Composed):
        return any(_sampled(item) for item in event.events)
    if isinstance(event, events.Repeated):
        return _sampled(event.event)
    return isinstance(event, events.PoissonSampled) and event.probability < 1


def _by_two_steps(loss: PrivacyLossDistribution, delta: float) -> float:
    """Replacement as two steps, one content out and another in: 2 e at (1 + exp(e)) delta(e), for the least e that fits.

    Which pair of contents is the worst under Poisson sampling is not proved; two steps bound every pair.
    """

    def enough(epsilon: float) -> bool:
        return (1 + math.exp(epsilon)) * float(loss.get_delta_for_epsilon(epsilon)) <= delta

    low, high = 0.0, float(loss.get_epsilon_for_delta(delta))
    while not enough(high):
        low, high = high, high + 1.0
    return 2 * bisect(enough, low, high, steps=STEPS_OF_BISECTION)[1]


@functools.lru_cache(maxsize=256)
def best_test(event: Event, *, change: Change) -> float:
    """How often the best test between two equally likely neighbours is right, at most: (1 + delta(0)) / 2, computed from the
    privacy loss distribution; of what is pure, e^epsilon / (1 + e^epsilon)."""
    if events.is_pure(event):
        return best_guess(changed_epsilon(event, delta=0.0, change=change), 0.0)
    if contains_non_private(event):
        return 1.0
    lost, _ = events.failures(event, 1 if change == "replaced" else change)
    if lost:
        return min(1.0, best_test(events.without_failures(event), change=change) + lost)
    if change == "replaced" and _sampled(event):  # two steps: their distances add
        return min(1.0, 0.5 + float(_changed_loss(event, 1).get_delta_for_epsilon(0.0)))
    return min(1.0, (1 + float(_changed_loss(event, change).get_delta_for_epsilon(0.0))) / 2)


def _changed_loss(event: Event, change: Change, steps: int = 1) -> PrivacyLossDistribution:
    """The privacy loss distribution of an event under another change than zeroing out one unit."""
    from dp_accounting import privacy_accountant
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    coarse = INTERVAL if change == "replaced" else GROUP_INTERVAL
    grid: dict[str, float | bool] = {"value_discretization_interval": coarse * min(1.0, MOST_STEPS / steps)}
    if isinstance(event, events.Pure):
        times = 2 if change == "replaced" else change
        return pld.from_privacy_parameters(common.DifferentialPrivacyParameters(times * event.epsilon, 0.0), **grid)
    if isinstance(event, events.Repeated):
        return _changed_loss(event.event, change, steps * event.count).self_compose(event.count)
    if isinstance(event, events.Composed) and event.events:
        parts = [_changed_loss(item, change, steps) for item in event.events]
        return functools.reduce(lambda first, second: first.compose(second), parts)
    probability, inner = (event.probability, event.event) if isinstance(event, events.PoissonSampled) else (1.0, event)
    if isinstance(inner, events.Gaussian):
        if change == "replaced":
            relation = privacy_accountant.NeighboringRelation.REPLACE_ONE
            return pld.from_gaussian_mechanism(
                inner.noise_multiplier, sampling_prob=probability, neighboring_relation=relation, **grid
            )
        if probability == 1:
            return pld.from_gaussian_mechanism(inner.noise_multiplier / change, **grid)
        if change == 1:
            return pld.from_gaussian_mechanism(inner.noise_multiplier, sampling_prob=probability, **grid)
        entering = range(change + 1)
        chances = [math.comb(change, k) * probability**k * (1 - probability) ** (change - k) for k in entering]
        return pld.from_mixture_gaussian_mechanism(inner.noise_multiplier, list(entering), chances, **grid)
    raise SpecError(f"the accountant does not know the event {event} for groups")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paid:
    """(epsilon, delta), the part of delta owed to samplers, and the event behind them where one is known."""

    epsilon: float
    delta: float
    sampling_delta: float = 0.0
    event: Event | None = None

    @property
    def pair(self) -> tuple[float, float]:
        """Infinite where delta reaches 1: that bounds nothing."""
        return (self.epsilon, self.delta) if self.delta < 1 else (math.inf, 0.0)


def at_silos(once: Paid, silos: int, *, trust: Trust) -> Paid:
    """What one person with rows at so many silos of a run pays, if `once` is paid at one of them.

    Guarantee: an upper bound for data sets of which one has all rows of a person at all these silos replaced by nothing.
    Where every silo puts whole noise on its own message (trust `silo`), all that leaves the silos is a sequence of releases,
    each of one silo's records under noise of its own, asked for by what was released before: the messages of the k silos are
    the event k times, composed adaptively, while those of the other silos have the same law on both sides. Deltas add, and
    epsilon is that of the k-fold loss distribution at their sum (of Gaussian noise: the multiplier over the root of k), or k
    epsilon, whichever is less. Where the silos' messages are summed under one noise, that sum changes by up to k bounds: the
    loss of a group of k, by the event or, where that has no bound at this delta, by the general rule for groups.
    Edge cases: one silo pays `once`. What samplers add to delta grows with e^epsilon.
    """
    if silos <= 1 or math.isinf(once.epsilon):
        return once
    most = silos * once.epsilon
    if once.delta == 0:
        return Paid(epsilon=most, delta=0.0, event=events.Pure(most))
    accounted = once.delta - once.sampling_delta
    whole = None if once.event is None else composed([(once.event, silos)])
    if trust == "silo":
        tight = whole is not None and 0 < silos * accounted < 1
        epsilon = min(most, epsilon_of(whole, delta=silos * accounted)) if whole is not None and tight else most
        sampled = silos * once.sampling_delta * math.exp(min(max(epsilon - once.epsilon, 0.0), MOST_EXPONENT))
        return Paid(epsilon=epsilon, delta=silos * accounted + sampled, sampling_delta=sampled, event=whole)
    grown = once.delta * math.fsum(math.exp(min(i * once.epsilon, MOST_EXPONENT)) for i in range(silos))
    general = Paid(epsilon=most, delta=grown)
    if once.event is None or events.is_pure(once.event):
        return general
    epsilon = changed_epsilon(once.event, delta=accounted, change=silos)
    sampled = once.sampling_delta * math.exp(min(max(epsilon - once.epsilon, 0.0), MOST_EXPONENT))
    return general if math.isinf(epsilon) else Paid(epsilon=epsilon, delta=accounted + sampled, sampling_delta=sampled)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Consequences:
    """Bounds that follow from a guarantee: `presence` and `content` are the best test's chance to be right, at most, between
    two possibilities that are equally likely before anything is seen.

    `presence` is None where presence is public. `groups` lists (k, epsilon, delta) for a person with k units; where persons are
    protected, for one with rows at k silos, which one silo alone does not have.
    `groups_presence` is `presence` for a person with rows at k silos.
    `expected_failures` is units times delta, None where the number is unknown or delta is 0.
    """

    guarantee: Guarantee
    presence: float | None
    content: float
    content_epsilon: float
    content_delta: float
    groups: tuple[tuple[int, float, float], ...]
    expected_failures: float | None
    groups_presence: tuple[tuple[int, float], ...] = ()

    def sentences(self) -> tuple[str, ...]:
        """The sentences of a statement; every number is rounded against the statement."""
        unit, lines = self.guarantee.unit_in_words, []
        if self.presence is not None:
            lines.append(
                f"Presence: whoever sees all that was released, knows everything else, and held both for equally "
                f"likely before, tells correctly at most {share_in_words(self.presence)} of the time whether {unit} was "
                "used or left out."
            )
        else:
            lines.append("Presence: who took part, and how many did, is public and not protected.")
        content = (
            f"Content: between two contents of {unit}, held for equally likely before, they choose correctly at most "
            f"{share_in_words(self.content)} of the time"
        )
        if self.content_delta == 0:
            content += (
                f"; the odds between the two change by at most a factor of e^{round_up(self.content_epsilon)} = "
                f"{round_up(math.exp(min(self.content_epsilon, 700.0)))}"
            )
        else:
            content += f"; for replacement the bound is {self.pair(self.content_epsilon, self.content_delta)}"
        lines.append(content + ".")
        if self.groups:
            parts = [f"{k}: {self.pair(epsilon, delta)}" for k, epsilon, delta in self.groups]
            persons = self.guarantee.unit == "person"
            who = "with rows at k silos" if persons else "who is in the data k times"
            how = f" {OWN_NOISE}" if persons and self.guarantee.trust == "silo" else ""
            lines.append(
                f"Repeated persons: the bound is for {unit}. For a person {who} it is, by k, {'; '.join(parts)}.{how}"
            )
        if self.expected_failures is not None:
            lines.append(
                f"Delta: if the mechanism used up its delta in the worst way, by giving each unit away with that probability, "
                f"the expected number of units given away would be at most {round_up(self.expected_failures)} in all (at most "
                f"{self.guarantee.units:,} units times delta {self.guarantee.delta:.3g})."
            )
        return tuple(lines)

    @staticmethod
    def pair(epsilon: float, delta: float) -> str:
        if math.isinf(epsilon):
            return "no bound"
        return f"epsilon {round_up(epsilon)} (delta {round_up(delta)})" if delta else f"epsilon {round_up(epsilon)}"


def consequences(guarantee: Guarantee, event: Event | None = None, *, silos: int = 0) -> Consequences | None:
    """What follows from a guarantee and the event it was computed from; None where nothing is guaranteed.

    Without the event the general rules stand in: k units lose k epsilon, and delta grows with e^((k - 1) epsilon). `silos` is
    how many there are, 0 where that is not known: no person has rows at more.
    """
    if math.isinf(guarantee.epsilon):
        return None
    direct = guarantee.neighbours == "replace"
    content = (guarantee.epsilon, guarantee.delta) if direct else _changed(guarantee, event, "replaced")
    groups = tuple((k, *_changed(guarantee, event, k)) for k in _sizes(guarantee, silos))
    return Consequences(
        guarantee=guarantee,
        presence=None if direct else _right(guarantee, event, 1, (guarantee.epsilon, guarantee.delta)),
        content=best_guess(*content) if direct else _right(guarantee, event, "replaced", content),
        content_epsilon=content[0],
        content_delta=content[1],
        groups=groups,
        groups_presence=() if direct else _presence_at_silos(guarantee, event, groups),
        expected_failures=guarantee.units * guarantee.delta if guarantee.units and guarantee.delta else None,
    )


def silos_of(run: Mapping[str, Any] | None) -> int:
    """The number of silos of a run that protects persons, by the `run` of its privacy.json; 0 where nothing says."""
    return int((run or {}).get("clients") or 0)


def _sizes(guarantee: Guarantee, silos: int) -> tuple[int, ...]:
    """For how many units, or silos, of one person a bound is stated."""
    if guarantee.unit != "person":
        return GROUPS
    if guarantee.sole_holder:
        return ()
    return tuple(sorted({*(k for k in SILOS if k <= silos), silos} - {1})) if silos else GROUPS


def _right(guarantee: Guarantee, event: Event | None, change: Change, pair: tuple[float, float]) -> float:
    """The best test's chance: computed from the event where it is known, else what epsilon and delta allow.

    A sampler within t of its law in total variation adds at most t to it.
    """
    bound = best_guess(*pair)
    if event is None or guarantee.pure:
        return bound
    distance = guarantee.sampling_delta / (1 + math.exp(min(guarantee.epsilon, 700.0)))
    return min(bound, best_test(event, change=change) + distance)


def _presence_at_silos(
    guarantee: Guarantee, event: Event | None, groups: tuple[tuple[int, float, float], ...]
) -> tuple[tuple[int, float], ...]:
    """The best test's chance to tell whether a person with rows at k silos was used: by what `at_silos` composes."""
    if guarantee.unit != "person":
        return ()
    found = []
    for k, epsilon, delta in groups:
        own = guarantee.trust == "silo" and event is not None
        whole, change = (composed([(event, k)]), 1) if own and event is not None else (event, k)
        bound = 1.0 if math.isinf(epsilon) else best_guess(epsilon, delta)
        distance = k * guarantee.sampling_delta / (1 + math.exp(min(guarantee.epsilon, MOST_EXPONENT)))
        found.append((k, bound if whole is None else min(bound, best_test(whole, change=change) + distance)))
    return tuple(found)


def _changed(guarantee: Guarantee, event: Event | None, change: Change) -> tuple[float, float]:
    """Epsilon and delta under another change; what samplers add to delta grows with epsilon."""
    epsilon, delta, times = guarantee.epsilon, guarantee.delta, 2 if change == "replaced" else change
    if guarantee.pure:
        return times * epsilon, 0.0
    if guarantee.unit == "person" and change != "replaced":
        once = Paid(epsilon=epsilon, delta=delta, sampling_delta=guarantee.sampling_delta, event=event)
        return at_silos(once, change, trust=guarantee.trust).pair
    if event is not None and not events.is_pure(event):
        changed = changed_epsilon(event, delta=guarantee.accounted_delta, change=change)
        added = guarantee.sampling_delta * math.exp(min(changed - epsilon, 700.0)) if guarantee.sampling_delta else 0.0
        return (changed, guarantee.accounted_delta + added) if added < 1 else (math.inf, 0.0)
    grown = delta * math.fsum(math.exp(min(i * epsilon, 700.0)) for i in range(times))
    return (times * epsilon, grown) if grown < 1 else (math.inf, 0.0)


def share_in_words(share: float) -> str:
    """A probability in per cent, rounded up, so that the words never promise more than the bound."""
    if share > 0.9999:
        return "practically 100 %" if share < 1 else "100 %"
    digits = 1 if share < 0.99 else 2
    scale = 10 ** (digits + 2)
    value = math.ceil(share * scale - 1e-9) / scale * 100
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") + " %"


def round_up(number: float) -> str:
    """Four digits, rounded up."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    scale = 10.0 ** (3 - math.floor(math.log10(abs(number))))
    return f"{math.ceil(number * scale * (1 - 1e-12)) / scale:.4g}"
