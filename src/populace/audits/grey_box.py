"""Grey-box audits: a method run on neighbouring data sets under a recorder, and everything its guarantee rests on checked.

Checked for every pair of neighbours:

sensitivity   un-noised inputs of every Gaussian release differ by at most what its noise covers
leaks         with all releases the same, replies (local, silo) or the server's state (central) are the same, bit by bit
noise         every sum is released with noise its own mechanism drew for it, used once; its scale is the mechanism's
shares        of a sum that is opened under masks: it is the replies' with one share of noise each; the shares of the honest
              sites among the fewest survivors have the noise that was booked
charge        what was booked is what was released: epsilons of reports add up, squared sensitivities over noise add up,
              sampling rates are those booked, and none of it depends on the records
randomisers   values lie in the domain, and the worst ratio of their probabilities is within e^epsilon
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from scipy import stats

from populace.audits.gaussian_noise import Checked
from populace.audits.recorder import Call, Recorder, recording
from populace.audits.shares import check_opened, standard_parts
from populace.audits.watched import Watched
from populace.engines import debug
from populace.methods.base import Population, Protocol
from populace.privacy import events
from populace.privacy.events import Event
from populace.privacy.gaussian import GaussianSum
from populace.privacy.randomizers.base import Randomizer
from populace.privacy.randomizers.grr import GrrPanel
from populace.privacy.source import Keyed, Source, System
from populace.tables.partition import Clients
from populace.types import Array, JsonObject

FALSE_ALARM = 1e-6  # of a test of the noise's scale
DRAWS = 16  # more vectors of noise from every mechanism, from either source
CLOSE = 1e-6  # relative: sums of charges
MORE_TRIES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Two data sets of clients that differ in one unit, of the same public shape."""

    name: str
    first: Clients
    second: Clients


@dataclasses.dataclass(frozen=True, kw_only=True)
class GreyBox(Checked):
    """What the recorder observed. `largest` is the largest distance of un-noised inputs over the declared sensitivity;
    `noise` holds the numbers drawn in units of their deviation."""

    unit: str
    neighbours: str
    trust: str
    pairs: int
    sums: int
    reports: int
    largest: float
    noise: Array

    def row(self) -> JsonObject:
        return {
            "what": self.what, "unit": self.unit, "neighbours": self.neighbours, "trust": self.trust, "pairs": self.pairs,
            "gaussian_releases": self.sums, "reports": self.reports,
            "largest_difference_over_bound": None if math.isnan(self.largest) else self.largest,
            "noise_numbers": int(self.noise.size), "problems": list(self.problems), "flagged": self.flagged,
        }  # fmt: skip


def audit_grey_box(
    protocol: Protocol, pairs: Sequence[Neighbours], population: Population, *, key: Array, what: str = ""
) -> GreyBox:
    """Run every pair of neighbours under the recorder, by the debug engine, and check what it saw."""
    claim = protocol.guarantee(population)
    problems: list[str] = []
    distances: list[float] = []
    noise: list[Array] = []
    sums = reports = 0
    mechanisms: dict[GaussianSum, None] = {}
    seen: dict[GaussianSum, float] = {}
    for number, pair in _tries(pairs):
        if number >= len(pairs) and all(seen[mechanism] for mechanism in seen):
            break  # every mechanism has met the unit in which the neighbours differ
        first, second = record(protocol, pair, population, key=jax.random.fold_in(key, number))
        for distance, mechanism in second.recorder.distances:
            seen[mechanism] = max(seen.get(mechanism, 0.0), distance)
        found = [
            *first.recorder.problems,
            *second.recorder.problems,
            *check_charges(first),
            *check_reports(first.recorder),
        ]
        problems += [f"{pair.name}: {problem}" for problem in found]
        distances += [distance / mechanism.bound for distance, mechanism in second.recorder.distances]
        drawn = [call for call in first.recorder.calls if call.kind == "noise"]
        used = [call for call in first.recorder.calls if call.kind == "sum"]
        opened = [call for call in used if call.shares is not None]
        problems += [f"{pair.name}: {problem}" for problem in check_opened(opened)]
        sums += sum(len(call.returned) for call in (*drawn, *opened))
        reports += sum(call.kind == "report" for call in first.recorder.calls)
        mechanisms.update({call.mechanism: None for call in drawn})
        mechanisms.update({call.shares.share: None for call in opened if call.shares is not None})
        noise += [standard_parts(call) for call in opened]
        noise += [_standard(call.noise, call.mechanism) for call in used if call.shares is None]
        noise += [_standard(call.returned, call.mechanism) for call in drawn if not call.released]
    together = np.concatenate([part.reshape(-1) for part in noise]) if noise else np.zeros(0)
    problems += check_scale(together)
    for mechanism in mechanisms:
        problems += check_coordinates(mechanism, key)
    return GreyBox(
        what=what or f"{protocol.facts.name}, recorded", unit=claim.unit, neighbours=claim.neighbours, trust=claim.trust,
        pairs=len(pairs), sums=sums, reports=reports, largest=max(distances, default=math.nan), noise=together,
        problems=tuple(dict.fromkeys(problems)),
    )  # fmt: skip


def _tries(pairs: Sequence[Neighbours]) -> Iterator[tuple[int, Neighbours]]:
    """Every pair, and the first one a few more times with other keys, because sampling may have skipped the unit."""
    yield from enumerate(pairs)
    yield from ((len(pairs) + number, pairs[0]) for number in range(MORE_TRIES))


def record(protocol: Protocol, pair: Neighbours, population: Population, *, key: Array) -> tuple[Watched, Watched]:
    """Record a run on the first data set, and replay it on the second."""
    first = Watched(protocol, population, Recorder())
    with recording(first.recorder):
        debug.run(first, pair.first, root=key)
    second = Watched(protocol, population, Recorder(first.recorder), first)
    with recording(second.recorder):
        debug.run(second, pair.second, root=key)
    second.recorder.close()
    for place, (charge, _) in first.charges.items():
        if second.charges.get(place, (None,))[0] != charge:
            second.recorder.problems.append(f"{place}: the charge depends on the records")
    return first, second


def check_charges(run: Watched) -> list[str]:
    """Whether what was booked for each reply, or round, is what the primitives did there."""
    found = []
    booked = {**run.charges, **run.others}
    booked_places = {place for _, places in booked.values() for place in places}
    for name, (charge, places) in booked.items():
        calls = [call for place in places for call in run.recorder.at(place)]
        found += [f"{name}: {problem}" for problem in compare_charge(charge.event, calls)]
    for call in run.recorder.calls:
        if call.place not in booked_places and call.kind in ("noise", "sum", "report"):
            found.append(f"{call.place}: a release for which nothing was booked")
    return found


def compare_charge(event: Event, calls: Sequence[Call]) -> list[str]:
    """Compare charges with recorded events: epsilons of reports, 1/z^2 of Gaussian releases, which adds up, and sampling."""
    if _holds_non_private(event):
        return []
    booked = parts_of(event)
    epsilon = math.fsum(part.value * part.count for part in booked if part.pure)
    reported = math.fsum(events.pure_epsilon(_cost(call)) for call in calls if call.kind == "report")
    found = []
    if not math.isclose(epsilon, reported, rel_tol=CLOSE, abs_tol=1e-12):
        found.append(f"epsilon {epsilon:.6g} was booked and {reported:.6g} was spent on reports")
    drawn, used = ([call for call in calls if call.kind == kind] for kind in ("noise", "sum"))
    rows = Counter({call.mechanism: 0 for call in (*drawn, *used)})
    for mechanism in rows:
        counts = [
            sum(len(call.returned) for call in drawn if call.mechanism == mechanism),
            sum(len(call.given) for call in used if call.mechanism == mechanism),
        ]
        rows[mechanism] = max(counts)
    spent = math.fsum(count / mechanism.noise_multiplier**2 for mechanism, count in rows.items())
    paid = math.fsum(part.count / part.value**2 for part in booked if not part.pure)
    if not math.isclose(spent, paid, rel_tol=CLOSE, abs_tol=1e-12):
        found.append(
            f"Gaussian releases: 1/z^2, z the noise multiplier, was booked as {paid:.6g} in all, and {spent:.6g} was released"
        )
    return [*found, *_compare_sampling(booked, calls)]


def _compare_sampling(booked: Sequence[Part], calls: Sequence[Call]) -> list[str]:
    """Compare the sampling rates below 1 that were charged, and how often, with the coins that were drawn."""
    paid: Counter[float] = Counter()
    for part in booked:
        if part.probability < 1:
            paid[part.probability] += part.count
    thrown: Counter[float] = Counter()
    for call in calls:
        if call.kind == "coins" and call.given[0] < 1:
            near = next((rate for rate in paid if math.isclose(rate, call.given[0], rel_tol=CLOSE)), call.given[0])
            thrown[near] += math.prod(call.given[1][:-1])
    if paid == thrown:
        return []
    return [f"sampling was booked as {dict(paid)} (rate: times), and was {dict(thrown)}"]


@dataclasses.dataclass(frozen=True)
class Part:
    """An elementary event of a charge: its epsilon or noise multiplier, its sampling rate, and how often it occurs."""

    value: float
    probability: float
    count: int
    pure: bool


def parts_of(event: Event, probability: float = 1.0, count: int = 1) -> list[Part]:
    """The elementary events that an event is composed of."""
    if isinstance(event, events.Pure):
        return [Part(event.epsilon, probability, count, True)]
    if isinstance(event, events.Gaussian):
        return [Part(event.noise_multiplier, probability, count, False)]
    if isinstance(event, events.PoissonSampled):
        return parts_of(event.event, probability * event.probability, count)
    if isinstance(event, events.Repeated):
        return parts_of(event.event, probability, count * event.count)
    if isinstance(event, events.Composed):
        return [part for item in event.events for part in parts_of(item, probability, count)]
    return []


def _holds_non_private(event: Event) -> bool:
    from populace.privacy.accounting import contains_non_private

    return contains_non_private(event)


def _cost(call: Call) -> Event:
    """The cost of one report."""
    if isinstance(call.mechanism, GrrPanel):
        return call.mechanism.event(call.given[0].size)
    event: Event = call.mechanism.event
    return event


def check_reports(recorder: Recorder) -> list[str]:
    """Check that reports lie in the domain and that the exact sampler's probabilities differ by at most e^epsilon."""
    found = []
    for call in recorder.calls:
        if call.kind != "report":
            continue
        members = getattr(call.mechanism, "members", (call.mechanism,))
        for member in members:
            if math.log(member.worst_ratio()) > member.epsilon * (1 + 1e-12):
                found.append(f"{call.place}: {member} has probabilities {member.worst_ratio():.6g} apart")
        if isinstance(call.mechanism, Randomizer) and not 0 <= int(call.given[0]) < call.mechanism.size:
            found.append(f"{call.place}: a value outside the domain of {call.mechanism}")
    return list(dict.fromkeys(found))


def _standard(numbers: Array, mechanism: GaussianSum) -> Array:
    return np.asarray(numbers, np.float64) / math.hypot(mechanism.deviation, math.sqrt(1 / 12))


def check_scale(numbers: Array) -> list[str]:
    """Whether numbers that should be standard normal have the scale 1: two sides, one false alarm in a million."""
    if not numbers.size:
        return []
    tail = stats.chi2(numbers.size)
    square = float((numbers**2).sum())
    if 2 * min(tail.cdf(square), tail.sf(square)) >= FALSE_ALARM:
        return []
    return [f"noise is {math.sqrt(square / numbers.size):.4g} times as large as its mechanism says"]


def check_coordinates(mechanism: GaussianSum, key: Array) -> list[str]:
    """Draw more noise from the mechanism, keyed and exact, and check the scale of every coordinate."""
    found = []
    for name, source in _sources(key):
        rows = _standard(mechanism.noise(source, (DRAWS, mechanism.size)), mechanism)
        squares = (rows**2).sum(axis=0)
        tail = stats.chi2(DRAWS)
        p = 2 * np.minimum(tail.cdf(squares), tail.sf(squares)) * mechanism.size
        if p.min() < FALSE_ALARM:
            found.append(
                f"{name} noise of coordinate {int(p.argmin())} of {mechanism.size} is "
                f"{math.sqrt(squares[p.argmin()] / DRAWS):.3g} times as large as its mechanism says"
            )
        found += [f"{name}: {problem}" for problem in check_scale(rows)]
    return found


def _sources(key: Array) -> tuple[tuple[str, Source], ...]:
    return ("keyed", Keyed(jax.random.fold_in(key, 2**31 - 1))), ("exact", System())
