"""The noise of the Gaussian mechanism itself: its scale, its tails, which values it can take, and what follows for epsilon.

Noise is a Gaussian rounded to a grid, so every whole number is a possible value, far out too. Noise made of few random bits
(a 32-bit float, rounded) has gaps there: many grid points cannot occur, and one that cannot excludes an input with certainty.
Gaps are seen without knowing where they are: values that repeat are counted, and a law with gaps repeats itself more often.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import stats
from scipy.special import erfc

from populace.errors import SpecError
from populace.evaluation.audit import FLAG_CONFIDENCE, Bound, Finding
from populace.privacy.accounting import epsilon_of
from populace.privacy.events import Composed, Event, Gaussian, PoissonSampled, Pure, Repeated
from populace.privacy.gaussian import GaussianSum, calibrated
from populace.privacy.source import Keyed, System
from populace.types import Array, JsonObject, NumpyArray

DELTA = 1e-5
NUMBERS = 2**20  # drawn, and coordinates of the mechanism: its grid is then fine enough to show gaps
TAILS = (2.0, 3.0, 4.0)  # standard deviations beyond which numbers are counted
FAR = 3.0  # beyond which repeated values are counted by themselves
FACES = ("keyed", "exact")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """A check of `what`, with the problems that came to light."""

    what: str
    problems: tuple[str, ...]

    @property
    def flagged(self) -> bool:
        return bool(self.problems)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseCheck(Checked):
    """Statistical tests of one noise sampler; correct noise fails any of them with probability at most 1e-6."""

    numbers: int
    figures: dict[str, float]

    def row(self) -> JsonObject:
        return {
            "what": self.what, "noise_numbers": self.numbers, "figures": self.figures, "problems": list(self.problems),
            "flagged": self.flagged,
        }  # fmt: skip


def audit_gaussian(*, epsilon: float, face: str, confidence: float, key: Array) -> tuple[Finding, NoiseCheck]:
    """Audit `GaussianSum` at (epsilon, 1e-5): `keyed` noise, as in compiled and seeded runs, or `exact`, as deployed."""
    if face not in FACES:
        raise SpecError(f"expected a face in {', '.join(FACES)}, got {face!r}")
    mechanism = calibrated(epsilon=epsilon, delta=DELTA, bound=1.0, size=NUMBERS)
    draw = functools.partial(mechanism.noise, Keyed(key) if face == "keyed" else System())
    return audit_noise(mechanism, draw, what=f"gaussian, {face}", confidence=confidence)


def audit_noise(
    mechanism: GaussianSum, draw: Callable[[], Array], *, what: str, confidence: float
) -> tuple[Finding, NoiseCheck]:
    """Draw noise once for all coordinates of a mechanism and test it; also bound epsilon by its scale."""
    whole = np.asarray(draw()).astype(np.int64).reshape(-1)
    check = check_noise(whole, mechanism.deviation, what=f"{what}, values")
    numbers = whole / math.hypot(mechanism.deviation, math.sqrt(1 / 12))
    claimed = epsilon_of(mechanism.event, delta=DELTA)
    finding = scale_finding(
        numbers, mechanism.event, what=f"{what}, scale", claimed=claimed, delta=DELTA, confidence=confidence
    )
    return finding, check


def check_noise(whole: NumpyArray, deviation: float, *, what: str) -> NoiseCheck:
    """Whether whole numbers follow a rounded normal law of this deviation."""
    count = len(whole)
    numbers = whole / math.hypot(deviation, math.sqrt(1 / 12))
    square = float((numbers**2).sum())
    tail = stats.chi2(count)
    p_values = {
        "scale": 2 * min(tail.cdf(square), tail.sf(square)),
        "mean": 2 * stats.norm.sf(abs(float(numbers.sum())) / math.sqrt(count)),
        "neighbouring numbers": 2 * stats.norm.sf(abs(float((numbers[1:] * numbers[:-1]).sum())) / math.sqrt(count)),
    }
    figures = {"scale": math.sqrt(square / count)}
    for beyond in TAILS:
        seen = int((np.abs(numbers) > beyond).sum())
        law = stats.binom(count, float(erfc(beyond / math.sqrt(2))))
        p_values[f"numbers beyond {beyond:g} deviations"] = 2 * min(law.cdf(seen), law.sf(seen - 1))
    for name, least in (("values seen twice", 0.0), (f"values seen twice beyond {FAR:g} deviations", FAR)):
        pairs = _equal_pairs(whole[np.abs(numbers) > least] if least else whole)
        mean, spread = repeats(count, deviation, least)
        figures[f"{name}, over expected"] = pairs / mean
        p_values[name] = _two_sided(pairs, mean, spread)
    problems = [f"{name}: p = {p:.1e}" for name, p in p_values.items() if p * len(p_values) < 1 - FLAG_CONFIDENCE]
    return NoiseCheck(what=what, numbers=count, figures=figures, problems=tuple(problems))


def _equal_pairs(whole: NumpyArray) -> int:
    counts = np.unique(whole, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def repeats(count: int, deviation: float, least: float) -> tuple[float, float]:
    """Mean and deviation of the number of equal pairs among so many rounded normals, both beyond `least` deviations.

    With p_k the probability of a value: the mean is C(n, 2) sum p^2, the variance at most that plus
    n^3 (sum p^3 - (sum p^2)^2). Sums over the grid are integrals of the density's powers, which are narrower normals.
    """
    squares = float(erfc(least)) / (2 * math.sqrt(math.pi) * deviation)
    cubes = float(erfc(least * math.sqrt(1.5))) / (2 * math.pi * math.sqrt(3) * deviation**2)
    mean = count * (count - 1) / 2 * squares
    return mean, math.sqrt(mean + max(0.0, count**3 * (cubes - squares**2)))


def _two_sided(seen: int, mean: float, spread: float) -> float:
    """A two-sided p-value: Poisson where few are expected, normal where many are."""
    if mean < 1_000 and spread**2 < 1.1 * mean:
        law = stats.poisson(mean)
        return float(2 * min(law.cdf(seen), law.sf(seen - 1)))
    return float(2 * stats.norm.sf(abs(seen - mean) / spread))


def scale_finding(
    numbers: NumpyArray, event: Event, *, what: str, claimed: float, delta: float, confidence: float
) -> Finding:
    """A bound on epsilon from the scale of standardised noise: smaller noise would make the same event cost more.

    Sound for noise that is Gaussian and independent, of whatever scale: the chi-square bound on the scale from above.
    """
    square = float((np.asarray(numbers, np.float64) ** 2).sum())

    def bound(alpha: float, confidence: float) -> Bound:
        most = math.sqrt(square / float(stats.chi2(numbers.size).ppf(alpha)))
        found = epsilon_of(with_noise_times(event, most), delta=delta, interval=1e-3 if numbers.size < 2**16 else 1e-4)
        return Bound(
            epsilon=found, confidence=confidence, event=f"noise at most {most:.4f} times what was claimed, if it is Gaussian",
            hits=(0, 0), trials=int(numbers.size),
        )  # fmt: skip

    return Finding(
        what=what, claimed=claimed, delta=delta, measured=bound(1 - confidence, confidence),
        certain=bound(1 - FLAG_CONFIDENCE, FLAG_CONFIDENCE), pair="noise alone", samples=int(numbers.size),
    )  # fmt: skip


def with_noise_times(event: Event, factor: float) -> Event:
    """The same event with its Gaussian noise multiplied by this factor; pure events beside it stay as they are."""
    if isinstance(event, Gaussian):
        return Gaussian(event.noise_multiplier * factor)
    if isinstance(event, PoissonSampled):
        return PoissonSampled(event.probability, with_noise_times(event.event, factor))
    if isinstance(event, Repeated):
        return Repeated(with_noise_times(event.event, factor), event.count)
    if isinstance(event, Composed):
        return Composed(
            tuple(item if isinstance(item, Pure) else with_noise_times(item, factor) for item in event.events)
        )
    raise SpecError(f"{type(event).__name__} has no Gaussian noise")
