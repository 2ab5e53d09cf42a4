"""What was measured: the stored results of the benchmarks, the ones nearest to a situation, and how errors grow with noise.

`expectations.json` is made by `python tools/expectations.py` from docs/results. A figure is shown with its own guarantee: unit
and trust are never mixed. Beyond what was measured there is one rule: the error of a method on a data set depends on the noise
of a count relative to the number of rows (`noise_level`). Between measured levels it is read off the measured curve; beyond
them it lies between the curve's own slope and proportion to the noise. That is an extrapolation, and is called so.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from importlib import resources

from populace.methods.facts import Kind
from populace.privacy.guarantee import Trust, Unit
from populace.runs.advise.situation import Situation
from populace.types import JsonObject

FILE = "expectations.json"
#: Metrics of which more is better; their error is how far they stay below the figure of real rows.
SCORES = ("auc_boosting", "auc_logistic", "cnn", "mlp")
#: The metric by which methods are compared, the first that a result has.
MAIN = ("two_way", "auc_boosting", "cnn", "mlp")
#: The greatest that an error can be.
WORST = 1.0
#: How far beyond the measured levels of noise still counts as measured.
SLACK = 1.1
#: How much larger or smaller a stored situation may be and still count as near.
NEAR = {"rows": 3.0, "columns": 3.0, "epsilon": 4.0, "clients": 10.0}


@dataclasses.dataclass(frozen=True)
class Figure:
    """A metric: the mean over seeds and its deviation, None where there was one seed."""

    mean: float
    deviation: float | None
    seeds: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """A stored result: a method under a guarantee, on a data set of a size, at an epsilon."""

    method: str
    unit: Unit
    trust: Trust
    data: str
    about: str
    kind: Kind
    numbers: bool
    rows: int
    columns: int
    clients: int
    epsilon: float
    split: str
    metrics: dict[str, Figure]
    real: dict[str, float]
    shuffled: dict[str, float]
    command: str
    source: str

    @property
    def main(self) -> str:
        return next(metric for metric in MAIN if metric in self.metrics)

    def error(self, metric: str) -> float:
        """The metric as an error: what real rows reach less what was reached, or the distance itself."""
        mean = self.metrics[metric].mean
        return max(1e-6, self.real[metric] - mean if metric in SCORES else mean)


@functools.cache
def stored() -> tuple[Measured, ...]:
    """All stored results."""
    document: JsonObject = json.loads(resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8"))
    found = []
    for one in document["situations"]:
        data = document["data"][one["data"]]
        about = {name: data[name] for name in ("about", "kind", "numbers", "real", "shuffled")}
        fields = {name: value for name, value in one.items() if name not in ("metrics", "domains")}
        metrics = {name: Figure(**figure) for name, figure in one["metrics"].items()}
        found.append(Measured(**fields, **about, metrics=metrics))
    return tuple(found)


def noise_level(*, trust: Trust, clients: int, rows: int, epsilon: float) -> float:
    """The noise of a count relative to the number of rows, up to a constant of the method.

    Noise drawn once is of order 1 / epsilon; drawn by every silo, the root of their number times that; and of randomised
    answers, one per person, of the order of the root of the number of people over epsilon.
    """
    if trust == "local":
        return 1 / (math.sqrt(rows) * epsilon)
    return (math.sqrt(clients) if trust == "silo" else 1.0) / (rows * epsilon)


def level_of(one: Measured | Situation) -> float:
    trust = one.noise_of if isinstance(one, Situation) else one.trust
    return noise_level(trust=trust, clients=one.clients, rows=one.rows, epsilon=one.epsilon)


@dataclasses.dataclass(frozen=True)
class Predicted:
    """An error between two values; `measured` where the noise lies between levels that were measured."""

    low: float
    high: float
    measured: bool


@dataclasses.dataclass(frozen=True)
class Curve:
    """The error of one metric against the noise level, on one data set: (level, error), levels rising."""

    points: tuple[tuple[float, float], ...]

    def at(self, level: float) -> Predicted:
        """The error at a level: read off between points, extrapolated beyond them."""
        first, last = self.points[0], self.points[-1]
        if level < first[0]:
            low, high = first[1] * (level / first[0]) ** self.slope, first[1]
            return Predicted(min(WORST, low), min(WORST, high), measured=level * SLACK >= first[0])
        if level > last[0]:
            low, high = (last[1] * (level / last[0]) ** slope for slope in (self.slope, 1.0))
            return Predicted(min(WORST, low), min(WORST, high), measured=level <= SLACK * last[0])
        for (x, y), (further, worse) in itertools.pairwise(self.points):
            if level <= further:
                share = (math.log(level) - math.log(x)) / (math.log(further) - math.log(x))
                value = math.exp(math.log(y) + share * (math.log(worse) - math.log(y)))
                return Predicted(min(WORST, value), min(WORST, value), measured=True)
        return Predicted(last[1], last[1], measured=True)

    @property
    def slope(self) -> float:
        """How steeply the error grows over all that was measured: at least not at all, at most in proportion; a half where
        there is one point."""
        (x, y), (further, worse) = self.points[0], self.points[-1]
        if further <= x:
            return 0.5
        return min(1.0, max(0.0, (math.log(worse) - math.log(y)) / (math.log(further) - math.log(x))))


def curve_of(like: Measured, metric: str) -> Curve:
    """The curve of a method on a data set, from all its results there that protect the same unit.

    Trusts other than local share it: what differs between them is the noise, which is what the curve runs over.
    """
    levels: dict[float, list[float]] = {}
    for one in stored():
        same = (one.method, one.data, one.unit, one.trust == "local") == (
            like.method, like.data, like.unit, like.trust == "local",
        )  # fmt: skip
        if same and metric in one.metrics:
            levels.setdefault(round(level_of(one), 12), []).append(one.error(metric))
    return Curve(tuple((level, sum(errors) / len(errors)) for level, errors in sorted(levels.items())))


def nearest(situation: Situation) -> tuple[Measured, ...]:
    """The stored results of the chosen method under exactly the situation's guarantee, nearest first, one for each data set
    of which the same was measured as of the nearest."""
    asked = (situation.kind, situation.choice.method, situation.noise_of, situation.unit)
    found: dict[str, Measured] = {}
    for one in sorted(
        (one for one in stored() if (one.kind, one.method, one.trust, one.unit) == asked),
        key=lambda one: (_distance(situation, one), one.command),
    ):
        found.setdefault(one.data, one)
    return tuple(one for one in found.values() if one.main == next(iter(found.values())).main)


def other_guarantees(situation: Situation) -> tuple[tuple[Unit, Trust], ...]:
    """The other guarantees under which there are results of the chosen method."""
    method, kind = situation.choice.method, situation.kind
    found = dict.fromkeys((one.unit, one.trust) for one in stored() if (one.method, one.kind) == (method, kind))
    return tuple(one for one in found if one != (situation.unit, situation.noise_of))


def _distance(situation: Situation, one: Measured) -> float:
    far = 1.5 * abs(math.log(situation.epsilon / one.epsilon)) + 0.5 * abs(math.log(situation.rows / one.rows))
    if one.trust == "silo":
        far += 0.25 * abs(math.log(situation.clients / one.clients))
    if situation.kind == "table":
        far += 0.0 if situation.columns is None else 0.75 * abs(math.log(situation.columns / one.columns))
        far += 1.0 if situation.numbers is not None and situation.numbers != one.numbers else 0.0
    return far + 0.1 * (one.split != "even")


def far_in(situation: Situation, one: Measured) -> tuple[str, ...]:
    """In what a stored result is far from a situation: the names of sizes that differ by more than a factor."""
    sizes = {"rows": (situation.rows, one.rows), "epsilon": (situation.epsilon, one.epsilon)}
    if situation.kind == "table" and situation.columns is not None:
        sizes["columns"] = (situation.columns, one.columns)
    if one.trust == "silo":
        sizes["clients"] = (situation.clients, one.clients)
    return tuple(name for name, (mine, theirs) in sizes.items() if not 1 / NEAR[name] <= mine / theirs <= NEAR[name])


def times_worse(method: str, default: str, kind: Kind, trust: Trust, main: str = "") -> float | None:
    """How many times larger the main error of a method is than the default's, in the mean over what was stored of both at the
    same noise on the same data, and by the metric `main` where one is given; None where nothing was."""
    ratios = []
    for one in stored():
        if (one.method, one.kind, one.trust) != (method, kind, trust) or main not in ("", one.main):
            continue
        beside = _like(default, one)
        if beside is not None:
            expected = curve_of(beside, one.main).at(level_of(one))
            ratios.append(one.error(one.main) / math.sqrt(expected.low * expected.high))
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def side_by_side(situation: Situation, method: str) -> tuple[Measured, Measured] | None:
    """A result of another method, and one of the chosen method on the same data at the same epsilon under the same guarantee:
    the nearest such pair, with the nearest number of silos."""
    pairs = [
        (one, ours) for one in stored() for ours in stored()
        if (one.method, one.kind, ours.method) == (method, situation.kind, situation.choice.method)
        and (one.data, one.epsilon, one.rows) == (ours.data, ours.epsilon, ours.rows)
        and (one.trust, one.unit) == (ours.trust, ours.unit)
        and (one.trust == "local") == (situation.choice.trust == "local")
    ]  # fmt: skip
    return min(
        pairs, key=lambda pair: (_distance(situation, pair[0]), abs(pair[0].clients - pair[1].clients)), default=None
    )


def _like(method: str, other: Measured) -> Measured | None:
    """A result of a method on the data of another's, with the same unit."""
    return next(
        (
            one for one in stored()
            if (one.method, one.data, one.unit) == (method, other.data, other.unit) and other.main in one.metrics
        ), None,
    )  # fmt: skip
