"""Canaries in one run, placed where the release is.

A canary is a unit (record or client) whose clipped vector is as long as the bound and lies along a coordinate of its own: the
most telling one there can be, for what a sum with noise shows of it. Each of m canaries is in the data by a fair coin of its
own. A method runs once, by the debug engine; whenever it releases a noised sum, the canaries that are in, and that the method's
own sampling drew for the step, are in the sum. The auditor knows all other records, and scores a canary by the ratio of the
likelihoods of its coordinate with and without it, over all releases of the run. Of a sum that is opened with noise in shares
there are two claims, and a run for each: what is left of the noise to the world, and to a coalition that knows its shares.

Steinke, Nasr and Jagielski 2023 ("Privacy auditing with one (1) training run") bound epsilon by the number of right guesses,
whatever the mechanism. Their bound has a term in m delta: at the usual delta no run is ever sure to 1 - 1e-6. The same events
also claim a larger epsilon at a smaller delta; that claim is judged.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np

from populace.audits.gaussian_noise import scale_finding
from populace.audits.recorder import Recorder, recording
from populace.audits.shares import claimed_event, claimed_law, left_over, view_in_words, views_of
from populace.audits.watched import Watched
from populace.engines import debug
from populace.errors import SpecError
from populace.evaluation.audit import FLAG_CONFIDENCE, Bound, Finding
from populace.evaluation.canaries import CanaryBound, audit_scores
from populace.methods.base import Population, Protocol
from populace.privacy.accounting import epsilon_of
from populace.privacy.events import Composed, Event
from populace.privacy.gaussian import GaussianSum
from populace.privacy.noise_shares import NoiseShares
from populace.tables.partition import Clients
from populace.types import Array, NumpyArray

LEAST_SIZE = 64  # coordinates of a release that canaries are put into
MOST_CANARIES = 4_096
#: At which one run can refute a claim at 1 - 1e-6. (How far the sampler is from its law, 2^-50 a number, adds less than a
#: thousandth of that to the chance of a false alarm.)
SMALL_DELTA = 1e-12


@dataclasses.dataclass
class Canaries:
    """Which canaries are in, and what was seen of each: likelihood ratios, added up over the releases."""

    included: NumpyArray
    added_by_noise: frozenset[GaussianSum] = frozenset()
    known: int = 0  # shares of the noise of an opened sum that the auditor knows
    scores: NumpyArray = dataclasses.field(init=False)
    noise: list[NumpyArray] = dataclasses.field(init=False)
    waiting: list[tuple[float, NumpyArray]] = dataclasses.field(init=False)
    released: int = 0  # times
    places: int = 0  # canaries that had a coordinate anywhere
    _rate: float = 1.0

    def __post_init__(self) -> None:
        self.scores, self.noise, self.waiting = np.zeros(len(self.included)), [], []

    def by_noise(self, mechanism: GaussianSum) -> bool:
        """Whether the method adds this mechanism's noise to its sum by itself; canaries then go along with the noise."""
        return mechanism in self.added_by_noise

    def sampled(self, probability: float) -> int:
        """The number of further coins that the method draws for the canaries."""
        self._rate = float(probability)
        return len(self.included)

    def draw(self, coins: NumpyArray) -> None:
        """Note which canaries each of the next releases samples."""
        self.waiting += [(self._rate, row) for row in coins.reshape(-1, len(self.included))]

    def add_opened(self, shares: NoiseShares, parts: NumpyArray) -> NumpyArray:
        """What the canaries add to a sum that is opened with these shares of noise; they are units of one honest site.

        The auditor sees the sum of the fewest survivors, and takes off the shares that it knows.
        """
        del self.waiting[1:]  # coins of the first site; those of others are of other units
        rows = left_over(shares, parts, self.known)[None]
        added: NumpyArray = self.add(claimed_law(shares, self.known), rows, terms=shares.least_survivors - self.known)[
            0
        ]
        return added

    def add(self, mechanism: GaussianSum, noise: NumpyArray, *, terms: int = 1) -> NumpyArray:
        """What the canaries add to sums that are released with these rows of noise, in units of the grid; each is a sum of so
        many rounded normals."""
        found: NumpyArray = np.zeros(noise.shape, np.int64)
        if mechanism.size < LEAST_SIZE:
            return found
        unit = math.floor(mechanism.bound / mechanism.grid)
        count = min(len(self.included), mechanism.size)
        for row, drawn in zip(found, noise, strict=True):
            rate, coins = self.waiting.pop(0) if self.waiting else (1.0, np.ones(len(self.included), bool))
            row[:count] = unit * (self.included & coins)[:count]
            self.noise.append(drawn / math.hypot(mechanism.deviation, math.sqrt(terms / 12)))
            seen = (drawn[:count] + row[:count]).astype(np.float64)
            ratio = (unit * seen - unit**2 / 2) / mechanism.deviation**2
            self.scores[:count] += np.logaddexp(math.log1p(-rate) if rate < 1 else -math.inf, math.log(rate) + ratio)
            self.released += 1
        self.places = max(self.places, count)
        return found


def audit_canaries(
    protocol: Protocol, clients: Clients, population: Population, *, key: Array, confidence: float, what: str = ""
) -> list[Finding]:
    """One run with canaries at every Gaussian release: a bound by right guesses, and one by the scale of all noise added.

    `clients` is one silo where records are protected, so that all canaries are records of it. Of sums that are opened with
    noise in shares both are given for each claim.
    """
    views = views_of(protocol, population)
    name = what or protocol.facts.name
    if not views:
        return _audit_once(protocol, clients, population, key=key, confidence=confidence, name=name)
    found: list[Finding] = []
    colluders = int(getattr(protocol, "colluders", 0))
    for number, known in enumerate(views):
        found += _audit_once(
            protocol, clients, population, key=jax.random.fold_in(key, number), confidence=confidence,
            name=f"{name}, {view_in_words(known, colluders)}", known=known,
        )  # fmt: skip
    return found


def _audit_once(
    protocol: Protocol,
    clients: Clients,
    population: Population,
    *,
    key: Array,
    confidence: float,
    name: str,
    known: int = 0,
) -> list[Finding]:
    claim = protocol.guarantee(population)
    coins, runs = jax.random.split(key)
    included = np.asarray(jax.random.bernoulli(coins, 0.5, (MOST_CANARIES,)))
    canaries = Canaries(included, known=known)
    run = _run(protocol, clients, population, runs, canaries)
    calls = run.recorder.calls
    summed = {call.place for call in calls if call.kind == "sum"}
    apart = {call.mechanism for call in calls if call.kind == "noise" and call.place not in summed}
    if apart:  # noise the method adds itself: the canaries go along with it, in a run of their own
        canaries = Canaries(included, frozenset(apart))
        run = _run(protocol, clients, population, jax.random.fold_in(runs, 1), canaries)
    if not canaries.released:
        raise SpecError(
            f"{name}: no Gaussian release of at least {LEAST_SIZE} numbers; there is nowhere to put canaries"
        )
    opened = [call.shares for call in run.recorder.calls if call.shares is not None]
    event = claimed_event(charged(run), opened, known)
    claimed = claim.epsilon if event == charged(run) else epsilon_of(event, delta=claim.delta)
    scale = scale_finding(
        np.concatenate(canaries.noise), event, what=f"{name}, scale of the noise of {canaries.released} release(s)",
        claimed=claimed, delta=claim.delta, confidence=confidence,
    )  # fmt: skip
    return [_guessed(canaries, event, name, confidence), scale]


def _run(protocol: Protocol, clients: Clients, population: Population, key: Array, canaries: Canaries) -> Watched:
    watched = Watched(protocol, population, Recorder(canaries=canaries))
    with recording(watched.recorder):
        debug.run(watched, clients, root=key)
    return watched


def charged(run: Watched) -> Event:
    """All that was booked for the first client, which is asked in every round it can be."""
    booked = [
        charge.event for name, (charge, _) in run.charges.items() if run.trusts_server or name.endswith("client 0")
    ]
    return booked[0] if len(booked) == 1 else Composed(tuple(booked))


def _guessed(canaries: Canaries, event: Event, name: str, confidence: float) -> Finding:
    """The canaries that had a place in any release; which ones these are does not depend on their coins."""
    scores, included = canaries.scores[: canaries.places], canaries.included[: canaries.places]
    measured, certain = (
        _as_bound(audit_scores(scores, included, delta=SMALL_DELTA, confidence=level))
        for level in (confidence, FLAG_CONFIDENCE)
    )
    return Finding(
        what=f"{name}, {len(scores):,} canaries in one run, at delta {SMALL_DELTA:g}",
        claimed=epsilon_of(event, delta=SMALL_DELTA), delta=SMALL_DELTA, measured=measured, certain=certain,
        pair="a unit along a coordinate of its own, there or not", samples=len(scores),
    )  # fmt: skip


def _as_bound(found: CanaryBound) -> Bound:
    return Bound(
        epsilon=found.epsilon, confidence=found.confidence, event=f"{found.correct} of {found.guesses} guesses right",
        hits=(found.correct, found.guesses), trials=found.canaries,
    )  # fmt: skip
