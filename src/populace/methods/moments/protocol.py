"""`moments`: one noisy message per client, class-conditional Gaussians at the server; no training, no rounds.

Each client adds up, over its records, the counts, first and second moments of public features per class, in whole numbers, and
adds Gaussian noise to that one vector (`silo`), or leaves the noise to a trusted server, which adds it once to the total
(`central`). The server keeps the directions of variance that noise does not explain and makes labelled images or rows whose
moments are those released.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from populace.errors import SpecError, out_of_range
from populace.methods.base import Ask, Facts, ImageShape, Population, Replies, Shard
from populace.methods.blocks.composed import ComposedMethod, Composition, GaussianRelease, Learner, Wording
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.schedules import OneShot
from populace.methods.blocks.sum_settings import check_sum_settings, sum_assumptions, sum_sites
from populace.methods.moments.features import MOVES, Features, ImageFeatures, TableFeatures, estimate
from populace.methods.moments.generator import ImageGaussians, RowGaussians, fit
from populace.methods.moments.sums import DIAGONAL, LARGEST, Layout, layout_of, summed, unpacked
from populace.privacy.accounting import noise_multiplier_for, resolved_delta
from populace.privacy.events import Gaussian
from populace.privacy.gaussian import GaussianSum, rescaled
from populace.privacy.guarantee import check_epsilon
from populace.privacy.source import Source
from populace.types import Array, ArrayTree

NUMBER = 4  # bytes
#: Relative noise of a class's sums up to which so many frequencies a side are measured.
SIDES = ((3e-4, 14), (1e-3, 12), (5e-2, 10), (math.inf, 8))
SHARED_ABOVE = 5e-3  # the same, above which second moments and lengths are shared by all classes
MOST_FEATURES = 600  # of a record
MOST_SUM = 2**31 - 1  # of a message's numbers
AT_ONCE = 2**24  # numbers of a batch's replies
#: Of the variance measured along a move's direction, what the move is taken to cause.
EXPLAINED, SHARED_EXPLAINED = 0.5, 1.0
MOVED: dict[str, tuple[str, ...]] = {
    "none": (), "slant": ("turned", "sheared"), "rigid": ("down", "across", "turned", "sheared"), "all": MOVES
}  # fmt: skip


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Totals:
    """Messages added up, in units of the grid, 64 bits wide, and how many there were. Under `central` trust the noise is in it
    from the first message on."""

    total: Array
    messages: Array


@dataclasses.dataclass(frozen=True)
class MomentsLearner(Learner):
    """Sums of public features per class at the client, class-conditional Gaussians at the server."""

    population: Population
    features: Features
    layout: Layout
    release: GaussianRelease
    noise_in_total: float  # standard deviation, in units of the sums
    tilt: float
    deformations: tuple[str, ...]

    @property
    def mechanism(self) -> GaussianSum:
        return self.release.mechanism

    @property
    def shift(self) -> int:
        """Units of the sums are 2^-shift of the mechanism's grid."""
        return round(math.log2(self.mechanism.grid))

    def begin(self, key: Array, warm: Any = None) -> Totals:
        del key, warm
        return Totals(total=np.zeros(self.layout.numbers, np.int64), messages=np.zeros((), np.int32))

    def answer(self, question: ArrayTree, own: ArrayTree, shard: Shard, source: Source) -> Array:
        sums = summed(self.features, self.layout, shard.records, shard.mask)
        return self.release.at_client(rescaled(sums, self.shift), source)

    def absorb(self, state: Totals, ask: Ask, replies: Replies, source: Source) -> Totals:
        added, answered = self.release.total(replies)
        total = np.asarray(state.total) + added
        return Totals(
            total=self.release.at_server(total, int(ask.round), source),
            messages=np.asarray(state.messages) + np.int32(answered),
        )

    def finish(self, state: Totals, key: Array) -> Synthesizer:
        noise = self.release.deviation(int(state.messages))
        sums = unpacked(self.layout, state.total * self.mechanism.grid, noise)
        estimates = estimate(sums, self.features.groups)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        explained = SHARED_EXPLAINED if self.layout.shared else EXPLAINED
        model = fit(self.features, estimates, rng, moves=self.deformations, explained=explained)
        if isinstance(self.features, ImageFeatures) and isinstance(self.population.schema, ImageShape):
            shape = self.population.schema
            return ImageGaussians(
                shape=shape.shape, classes=shape.classes, side=self.features.side, tilt=self.tilt, model=model
            )
        return RowGaussians(schema=self.population.table_schema, model=model)

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        return 0.0, float(NUMBER * self.layout.numbers)

    def predicted_errors(self) -> dict[str, float]:
        layout = self.layout
        noise = self.noise_in_total / _per_class(self.population, layout.classes)
        mean = noise / (layout.mean * layout.unit)
        second = noise / (DIAGONAL * layout.unit**2)
        if layout.shared:
            second /= layout.classes
        edge = second * math.sqrt(2 * layout.size)
        return {
            "noise on a class's mean, share of a feature vector's length": min(1.0, mean * math.sqrt(layout.size)),
            "least share of variance that noise does not hide, in one direction of a class": min(1.0, edge),
        }

    def notes(self) -> tuple[str, ...]:
        of = "shared by all classes" if self.layout.shared else "by class"
        return (
            f"{self.layout.size} features, {self.layout.numbers:,} numbers of 32 bits in one message; noise multiplier "
            f"{self.mechanism.noise_multiplier:.4g}; second moments {of}",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moments(ComposedMethod):
    """Guarantee: (epsilon, delta)-DP for one record zeroed out: `silo`, each silo's message by itself; `secure-sum`, the opened
    sum, for the server with as many clients as may collude; or `central`, the sum of all messages, for whoever does not see the
    messages. One release; its L2 sensitivity is `Layout.bound`, exactly: all
    sums are of whole numbers, and features longer than allowed after rounding count as 0.

    Edge cases: a client without records sends noise (`silo`) or zeros. `side` frequencies of an image in each direction, 0 by
    the noise (`SIDES`); `covariance` of each class or shared by all, by the noise too; `deformations` are small ones that
    the server's images get, as far as the measured variance allows (`slant`: rotation and shear, `rigid`: shifts too, `all`:
    stretches too). `delta` 0 chooses one below 1 / records. A label outside the classes adds to no class.
    """

    epsilon: float
    delta: float = 0.0
    trust: Literal["silo", "secure-sum", "central"] = "silo"
    colluders: int = 0
    dropouts: int = 0
    side: int = 0
    tilt: float = 0.5
    covariance: Literal["by noise", "class", "shared"] = "by noise"
    deformations: Literal["by noise", "none", "slant", "rigid", "all"] = "by noise"
    clients_per_batch: int = 64

    accelerates: ClassVar[bool] = False
    facts: ClassVar[Facts] = Facts(
        name="moments",
        line="noisy class means and covariances",
        title="counts, means and covariances per class in one noisy message; Gaussians at the server",
        paper="populace",
        trust=("silo", "secure-sum", "central"),
        unit="record",
        kinds=("table", "images"),
        traffic="one message of some hundred kilobytes per client, one round",
    )

    renamed: ClassVar[Mapping[str, str]] = {"moves": "deformations", "batch": "clients_per_batch"}
    small: ClassVar[Mapping[str, Any]] = {"clients_per_batch": 8}
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "privacy loss of one record over the whole run",
        "delta": "probability with which epsilon may be exceeded; 0 chooses one below 1 / records",
        "trust": "silo: each client adds the noise; secure-sum: all in shares; central: a trusted server adds it once",
        "colluders": "Under secure-sum: how many clients may work together with the server.",
        "dropouts": "Under secure-sum: how many clients may be missing from the sum; every one costs noise.",
        "side": "frequencies of an image in each direction; 0 chooses by the noise",
        "tilt": "how much less high frequencies weigh",
        "covariance": "second moments of each class, or shared by all classes",
        "deformations": "small deformations that generated images get",
        "clients_per_batch": "clients whose messages are held in memory together",
    }

    @classmethod
    def settings_from_file(cls, settings: Mapping[str, object]) -> dict[str, object]:
        """Version 0.1.0 said "local" where each silo adds the noise."""
        present = super().settings_from_file(settings)
        return present | ({"trust": "silo"} if present.get("trust") == "local" else {})

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if self.trust not in self.facts.trust:
            raise SpecError(f"expected trust in {', '.join(self.facts.trust)}, got {self.trust!r}")
        check_sum_settings(self.trust, colluders=self.colluders, dropouts=self.dropouts)
        if self.covariance not in ("by noise", "class", "shared"):
            raise SpecError(f"expected covariance in by noise, class, shared, got {self.covariance!r}")
        if self.deformations not in ("by noise", *MOVED):
            raise SpecError(f"expected deformations in by noise, {', '.join(MOVED)}, got {self.deformations!r}")
        if not 0 <= self.delta < 1:
            raise out_of_range("delta", "in [0, 1)", self.delta)
        if self.side < 0:
            raise out_of_range("side", "at least 0", self.side)
        if not 0 <= self.tilt <= 2:
            raise out_of_range("tilt", "in [0, 2]", self.tilt)
        if self.clients_per_batch < 1:
            raise out_of_range("clients_per_batch", "at least 1", self.clients_per_batch)

    def compose(self, population: Population) -> Composition:
        delta, chosen_delta = resolved_delta(self.delta, population.clients * population.records)
        multiplier = noise_multiplier_for(epsilon=self.epsilon, delta=delta)
        classes = _classes(population)
        sites = sum_sites(self.trust, population.clients, colluders=self.colluders, dropouts=self.dropouts)
        noise = self._in_total(population, multiplier) / _per_class(population, classes)
        shared = classes == 1 or (
            self.covariance == "shared" if self.covariance != "by noise" else noise > SHARED_ABOVE
        )
        features = _features(self, population, classes, noise)
        layout = layout_of(features, shared=shared, records=population.records)
        release = GaussianRelease(
            unit="record", trust=self.trust, delta=delta, wording=self._wording(layout, multiplier, chosen_delta),
            mechanism=GaussianSum(bound=layout.bound, noise_multiplier=multiplier, size=layout.numbers), sites=sites,
        )  # fmt: skip
        learner = MomentsLearner(
            population=population, features=features, layout=layout, release=release, tilt=self.tilt,
            noise_in_total=self._in_total(population, release.mechanism.scale),
            deformations=_deformations(self.deformations, population, shared),
        )  # fmt: skip
        if self.trust != "silo":
            _check_room(learner, population.records)
        fitting = max(1, AT_ONCE // layout.numbers)  # messages that fit into memory
        schedule = OneShot(clients=population.clients, block=min(self.clients_per_batch, population.clients, fitting))
        return Composition(schedule, release, learner)

    def _in_total(self, population: Population, scale: float) -> float:
        """The standard deviation of noise in the total, where that of one release is `scale`."""
        if self.trust == "secure-sum":
            return scale * math.sqrt(population.clients / (population.clients - self.colluders - self.dropouts))
        return scale * (math.sqrt(population.clients) if self.trust == "silo" else 1.0)

    def _wording(self, layout: Layout, multiplier: float, chosen_delta: tuple[str, ...]) -> Wording:
        at_silo = self.trust == "silo"
        by = "in shares of all clients" if self.trust == "secure-sum" else "at the server"
        who = "each client's own message" if at_silo else f"the sum of all clients' messages, {by}"
        return Wording(
            mechanism=f"one Gaussian release of counts, means and second moments per class; noise on {who}",
            derivation=(
                f"one release: {Gaussian(multiplier)}; {layout.numbers:,} whole numbers, noise rounded to the same grid",
                f"a record changes them by at most {layout.bound:.6g} units in L2, of which counts {layout.count:,}, lengths "
                f"{math.sqrt(2) * layout.length * layout.unit:.6g}, means {layout.mean * layout.unit:,}, second moments "
                f"{DIAGONAL * layout.unit**2:,}; features are at most {layout.unit} units long, checked in whole numbers",
                "noise is calibrated to that and to the rounding of the sum to the grid, as a Gaussian release",
                "the server's estimates, the matching of moments and all sampling are post-processing",
            ),
            assumptions=(
                "the shape of the data, the classes, the number of clients and the most records of one are public",
                *sum_assumptions(self.trust, total="total"),
                *chosen_delta,
            ),
        )


def _features(method: Moments, population: Population, classes: int, noise: float) -> Features:
    if isinstance(population.schema, ImageShape):
        side = method.side or next(side for most, side in SIDES if noise <= most)
        shape = population.schema.shape
        channels = shape[2] if len(shape) == 3 else 1
        side = min(side, max(shape[:2]), max(1, math.isqrt(MOST_FEATURES // channels)))
        return ImageFeatures(shape, classes, side, method.tilt)
    features = TableFeatures(population.schema)
    if features.size > MOST_FEATURES:
        raise SpecError(
            f"the columns have {features.size:,} values and numbers in all, and second moments of more than "
            f"{MOST_FEATURES} do not fit into a message; merge rare categories in the schema, or use poll"
        )
    return features


def _check_room(learner: MomentsLearner, records: int) -> None:
    """Refuse clients whose message could pass 32 bits: it would wrap, and a sum of wrapped messages has no sensitivity.

    (Under silo trust noise is added before anything wraps further, modulo 2^32 throughout: that costs accuracy alone.)
    """
    each = LARGEST * learner.layout.unit**2 * 2 ** max(0, -learner.shift)
    if each * records > MOST_SUM:
        raise SpecError(
            f"a client of up to {records:,} records does not fit into a message without noise; split the records among "
            f"clients of at most {MOST_SUM // each:,}"
        )


def _deformations(asked: str, population: Population, shared: bool) -> tuple[str, ...]:
    """Which deformations the server's images are moved by: all where noise leaves covariances to be shared."""
    if not isinstance(population.schema, ImageShape):
        return ()
    return MOVED[("all" if shared else "slant") if asked == "by noise" else asked]


def _classes(population: Population) -> int:
    if isinstance(population.schema, ImageShape):
        return population.schema.classes
    return TableFeatures(population.schema).classes


def _per_class(population: Population, classes: int) -> float:
    """Records of a class if all clients hold the most they may and classes are even."""
    return population.clients * population.records / classes
