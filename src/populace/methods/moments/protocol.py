"""`moments`: one noisy message per client, class-conditional Gaussians at the server; no training, no rounds.

Each client adds up, over its records, the counts, first and second moments of public features per class, in whole numbers, and
adds Gaussian noise to that one vector (`silo`), or leaves the noise to a trusted server, which adds it once to the total
(`central`). The server keeps the directions of variance that noise does not explain and makes labelled images or rows whose
moments are those told.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError, out_of_range
from populace.methods.base import Ask, Facts, ImageShape, Plan, Population, Protocol, Replies, Shard
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.whole_numbers import on_grid
from populace.methods.moments.deformation import MOVES
from populace.methods.moments.features import Features, ImageFeatures, TableFeatures, estimate
from populace.methods.moments.generator import ImageGaussians, RowGaussians, fit
from populace.methods.moments.sums import DIAGONAL, LARGEST, Layout, layout_of, summed, unpacked
from populace.privacy.accounting import epsilon_of, noise_multiplier_for, resolved_delta
from populace.privacy.events import Event
from populace.privacy.gaussian import GaussianSum
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.noised_steps import sampled_delta
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.source import Source
from populace.types import Array

NUMBER = 4  # bytes
#: Relative noise of a class's sums up to which so many frequencies a side are measured.
SIDES = ((3e-4, 14), (1e-3, 12), (5e-2, 10), (math.inf, 8))
SHARED_ABOVE = 5e-3  # the same, above which second moments and lengths are told for all classes together
MOST_FEATURES = 600  # of a record
MOST_SUM = 2**31 - 1  # of a message's numbers
AT_ONCE = 2**24  # numbers of a batch's replies
#: Of the variance measured along a move's direction, what the move is taken to cause.
EXPLAINED, SHARED_EXPLAINED = 0.5, 1.0
MOVED: dict[str, tuple[str, ...]] = {
    "none": (), "slant": ("turned", "sheared"), "rigid": ("down", "across", "turned", "sheared"), "all": MOVES
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Design:
    """What both sides derive from public facts."""

    features: Features
    layout: Layout
    mechanism: GaussianSum
    delta: float
    said: tuple[str, ...]
    moves: tuple[str, ...] = ()

    @property
    def shift(self) -> int:
        """Units of the sums are 2^-shift of the mechanism's grid."""
        return round(math.log2(self.mechanism.grid))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """Replies added up, in units of the grid, 64 bits wide, and how many there were. Under `central` trust the noise is in it
    from the first reply on."""

    round: Array
    total: Array
    heard: Array
    design: Design = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moments(Protocol):
    """Guarantee: (epsilon, delta)-DP for one record zeroed out: `silo`, each silo's message by itself, or `central`, the
    sum of all messages, for whoever does not see the messages. One release; its L2 sensitivity is `Layout.bound`, exactly: all
    sums are of whole numbers, and features longer than allowed after rounding count as 0.

    Edge cases: a client without records sends noise (`silo`) or zeros. `side` frequencies of an image in each direction, 0 by
    the noise (`SIDES`); `covariance` of each class or shared by all, by the noise too; `moves` are the small deformations the
    server's images get, as far as the measured variance allows (`slant`: rotation and shear, `rigid`: shifts too, `all`:
    stretches too). `delta` 0 is the house rule. A label outside the classes adds to no class.
    """

    epsilon: float
    delta: float = 0.0
    trust: Literal["silo", "central"] = "silo"
    side: int = 0
    tilt: float = 0.5
    covariance: Literal["by noise", "class", "shared"] = "by noise"
    moves: Literal["by noise", "none", "slant", "rigid", "all"] = "by noise"
    batch: int = 64

    facts: ClassVar[Facts] = Facts(
        name="moments",
        line="noisy class means and covariances",
        title="counts, means and covariances per class in one noisy message; Gaussians at the server",
        paper="populace",
        trust=("silo", "central"),
        unit="record",
        kinds=("table", "images"),
        traffic="one message of some hundred kilobytes per client, one round",
    )

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if self.trust == "local":  # type: ignore[comparison-overlap]
            object.__setattr__(self, "trust", "silo")  # the word of files written by version 0.1.0
        if self.trust not in self.facts.trust:
            raise SpecError(f"expected trust in silo, central, got {self.trust!r}")
        if self.covariance not in ("by noise", "class", "shared"):
            raise SpecError(f"expected covariance in by noise, class, shared, got {self.covariance!r}")
        if self.moves not in ("by noise", *MOVED):
            raise SpecError(f"expected moves in by noise, {', '.join(MOVED)}, got {self.moves!r}")
        if not 0 <= self.delta < 1:
            raise out_of_range("delta", "in [0, 1)", self.delta)
        if self.side < 0:
            raise out_of_range("side", "at least 0", self.side)
        if not 0 <= self.tilt <= 2:
            raise out_of_range("tilt", "in [0, 2]", self.tilt)
        if self.batch < 1:
            raise out_of_range("batch", "at least 1", self.batch)

    def design(self, population: Population) -> Design:
        return design_of(self, population)

    def round_count(self, population: Population) -> int:
        return -(-population.clients // self._cohort(population))

    def _cohort(self, population: Population) -> int:
        """Clients asked together: `batch`, fewer where their replies would not fit into memory."""
        fitting = max(1, AT_ONCE // self.design(population).layout.numbers)
        return min(self.batch, population.clients, fitting)

    def begin(self, population: Population, key: Array, warm: Any = None) -> State:
        del key, warm
        design = self.design(population)
        return State(
            round=np.zeros((), np.int32), total=np.zeros(design.layout.numbers, np.int64), heard=np.zeros((), np.int32),
            design=design,
        )  # fmt: skip

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        if int(state.round) >= self.round_count(population):
            return None
        size = self._cohort(population)
        slots = int(state.round) * size + np.arange(size, dtype=np.int32)
        cohort = jnp.asarray(np.where(slots < population.clients, slots, -1), jnp.int32)
        return Ask(round=jnp.int32(state.round), cohort=cohort, common=(), own=cohort)

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=self.design(population).mechanism.event, unit="record")

    def spends(self, population: Population) -> Event:
        return self.design(population).mechanism.event

    def calibrated_noise(self, population: Population) -> float:
        return self.design(population).mechanism.noise_multiplier

    def answer(self, common: Any, own: Any, shard: Shard, memory: Any, source: Source) -> tuple[Array, Any]:
        design = self.design(shard.population)
        units = on_grid(summed(design.features, design.layout, shard.records, shard.mask), design.shift)
        return (units + design.mechanism.noise(source) if self.trust == "silo" else units), memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        values = np.where(np.asarray(replies.present)[:, None], np.asarray(replies.values), 0)
        total = np.asarray(state.total) + values.sum(axis=0, dtype=np.int64)
        if self.trust == "central" and int(state.round) == 0:
            total = total + np.asarray(state.design.mechanism.noise(source), np.int64)
        heard = np.asarray(state.heard) + np.asarray(replies.present).sum(dtype=np.int32)
        return dataclasses.replace(state, round=np.asarray(state.round) + np.int32(1), total=total, heard=heard)

    def finish(self, state: State, population: Population, key: Array) -> Synthesizer:
        design = state.design
        times = int(state.heard) if self.trust == "silo" else 1
        sums = unpacked(design.layout, state.total * design.mechanism.grid, design.mechanism.scale * math.sqrt(times))
        found = estimate(sums, design.features.groups)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        explained = SHARED_EXPLAINED if design.layout.shared else EXPLAINED
        model = fit(design.features, found, rng, moves=design.moves, explained=explained)
        if isinstance(population.schema, ImageShape):
            shape = population.schema
            return ImageGaussians(
                shape=shape.shape, classes=shape.classes, side=design.features.side, tilt=self.tilt,  # type: ignore[attr-defined]
                model=model,
            )  # fmt: skip
        return RowGaussians(schema=population.schema, model=model)

    def guarantee(self, population: Population) -> Guarantee:
        design = self.design(population)
        layout, at_silo = design.layout, self.trust == "silo"
        epsilon = epsilon_of(design.mechanism.event, delta=design.delta)
        delta = sampled_delta(design.delta, epsilon, layout.numbers)
        who = "each client's own message" if at_silo else "the sum of all clients' messages, at the server"
        return Guarantee(
            epsilon=epsilon,
            delta=delta,
            sampling_delta=delta - design.delta,
            unit="record",
            units=population.clients * population.records,
            neighbours="zero-out",
            trust=self.trust,
            mechanism=f"one Gaussian release of counts, means and second moments per class; noise on {who}",
            read_from_data=population.read_from_data,
            domain_sources=population.domain_sources,
            derivation=(
                f"one release: {design.mechanism.event}; {layout.numbers:,} whole numbers, noise rounded to the same grid",
                f"a record changes them by at most {layout.bound:.6g} units in L2, of which counts {layout.count:,}, lengths "
                f"{math.sqrt(2) * layout.length * layout.unit:.6g}, means {layout.mean * layout.unit:,}, second moments "
                f"{DIAGONAL * layout.unit**2:,}; features are at most {layout.unit} units long, checked in whole numbers",
                "noise is calibrated to that and to the rounding of the sum to the grid, as a Gaussian release",
                "the server's estimates, the matching of moments and all sampling are post-processing",
            ),
            assumptions=(
                "the shape of the data, the classes, the number of clients and the most records of one are public",
                *(() if at_silo else ("the server adds the noise to the total and shows nobody a message without it",)),
                *design.said,
            ),
        )  # fmt: skip

    def plan(self, population: Population) -> Plan:
        design = self.design(population)
        layout = design.layout
        noise = _total_scale(self, population, design.mechanism.scale) / _per_class(population, layout.classes)
        mean = noise / (layout.mean * layout.unit)
        second = noise / (DIAGONAL * layout.unit**2)
        if layout.shared:
            second /= layout.classes
        edge = second * math.sqrt(2 * layout.size)
        down, up = self._bytes(population)
        told = "shared by all classes" if layout.shared else "by class"
        return Plan(
            guarantee=self.guarantee(population), rounds=1, bytes_up=up, bytes_down=down,
            errors={
                "noise on a class's mean, share of a feature vector's length": min(1.0, mean * math.sqrt(layout.size)),
                "least share of variance that noise does not hide, in one direction of a class": min(1.0, edge),
            },
            notes=(
                f"{layout.size} features, {layout.numbers:,} numbers of 32 bits in one message; noise multiplier "
                f"{design.mechanism.noise_multiplier:.4g}; second moments {told}",
            ),
        )  # fmt: skip

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return self._bytes(population)

    def _bytes(self, population: Population) -> tuple[float, float]:
        return 0.0, float(NUMBER * self.design(population).layout.numbers)


@functools.lru_cache(maxsize=64)
def design_of(protocol: Moments, population: Population) -> Design:
    """Features, layout and noise: from public facts alone."""
    delta, said = resolved_delta(protocol.delta, population.clients * population.records)
    multiplier = noise_multiplier_for(epsilon=protocol.epsilon, delta=delta)
    classes = _classes(population)
    noise = _total_scale(protocol, population, multiplier) / _per_class(population, classes)
    shared = classes == 1 or (
        protocol.covariance == "shared" if protocol.covariance != "by noise" else noise > SHARED_ABOVE
    )
    features: Features
    if isinstance(population.schema, ImageShape):
        side = protocol.side or next(side for most, side in SIDES if noise <= most)
        shape = population.schema.shape
        channels = shape[2] if len(shape) == 3 else 1
        side = min(side, max(shape[:2]), max(1, math.isqrt(MOST_FEATURES // channels)))
        features = ImageFeatures(shape, classes, side, protocol.tilt)
    else:
        features = TableFeatures(population.schema)
        if features.size > MOST_FEATURES:
            raise SpecError(
                f"the columns have {features.size:,} values and numbers in all, and second moments of more than "
                f"{MOST_FEATURES} do not fit into a message; merge rare categories in the schema, or use poll"
            )
    layout = layout_of(features, shared=shared, records=population.records)
    mechanism = GaussianSum(bound=layout.bound, noise_multiplier=multiplier, size=layout.numbers)
    design = Design(features, layout, mechanism, delta, said, _moves(protocol.moves, population, shared))
    if protocol.trust == "central":
        _check_room(design, population.records)
    return design


def _check_room(design: Design, records: int) -> None:
    """Refuse clients whose message could pass 32 bits: it would wrap, and a sum of wrapped messages has no sensitivity.

    (Under silo trust noise is added before anything wraps further, modulo 2^32 throughout: that costs accuracy alone.)
    """
    each = LARGEST * design.layout.unit**2 * 2 ** max(0, -design.shift)
    if each * records > MOST_SUM:
        raise SpecError(
            f"a client of up to {records:,} records does not fit into a message under central trust; split the records among "
            f"clients of at most {MOST_SUM // each:,}"
        )


def _moves(asked: str, population: Population, shared: bool) -> tuple[str, ...]:
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


def _total_scale(protocol: Moments, population: Population, scale: float) -> float:
    """The deviation of noise in the total, where one release has this."""
    return scale * (math.sqrt(population.clients) if protocol.trust == "silo" else 1.0)
