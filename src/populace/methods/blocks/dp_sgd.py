"""DP-SGD: the one place where gradients of records are clipped, added up and noised; and the train state that takes the step.

Each record enters a batch with a public probability (Poisson sampling). Its gradient is clipped in L2 over all parameters
together and rounded to whole units of the mechanism's grid; whole numbers are added up without error, and the release adds its
noise to them. Whoever uses the sum divides it by a fixed, public number: the batch size expected, never the one drawn.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from populace.errors import SpecError
from populace.methods.blocks.composed import Release
from populace.privacy.events import Event
from populace.privacy.gaussian import EXACT, WIDE, clip_tree, rescaled
from populace.privacy.noise_shares import NoiseShares
from populace.privacy.noised_steps import NoisedSteps
from populace.privacy.source import Source
from populace.types import Array, ArrayTree

Betas = tuple[float, float]

ADAM_BETAS: Betas = (0.9, 0.999)
SPREAD = 4.0  # deviations of a Poisson batch that are computed at once; what goes beyond is computed after
MOST_BITS, LEAST_BITS = 18, 12  # of a product of two factors
SPARE = 2  # units left for rounding, so that it seldom makes a row too long


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepsRelease(Release):
    """Many noised steps about the same units: DP-SGD at a silo, or clipped updates of clients noised at the server, or in
    shares of the clients (`sites`).

    `reply` is what one reply costs: its steps and what goes beside them, or, for a recipe whose proof fails, no guarantee.
    `run` is what all replies of a client cost together, where there are several.
    Of a sum in shares one step is opened in each exchange; `most` is what a coordinate of all clients together can be.
    """

    steps: NoisedSteps
    reply: Event
    run: Event | None = None
    most_replies: int = 1
    drawn_in_secret: bool = False
    most: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sites is not None and (self.steps.count is not None or self.steps.beside):
            raise SpecError("a secure sum has one noise for all its numbers: expected steps in one vector")

    @property
    def whole(self) -> Event:
        return self.reply if self.run is None else self.run

    def event(self, number: int) -> Event:
        return self.reply

    @property
    def draws(self) -> int:
        return self.steps.draws * (1 if self.sites is None else self.sites.clients)

    def shares(self, number: int) -> NoiseShares | None:
        return None if self.sites is None else self.sites.shares(self.steps.mechanism, most=self.most)

    def known(self, shares: int) -> Event:
        return super().known(shares) if self.sites is None else self.steps.known_to(self.sites, shares)

    @property
    def distance(self) -> float:
        return 0.0 if self.sites is None else self.steps.distance_in(self.sites)

    @property
    def noise_multiplier(self) -> float:
        return self.steps.noise_multiplier

    @property
    def replies(self) -> int:
        return self.most_replies

    @property
    def amplified(self) -> bool:
        return self.drawn_in_secret


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Examples:
    """What a client trains on: [n, ..] in [0, 1], one-hot labels, and which of the n are there."""

    x: Array
    y: Array
    mask: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The parameters of one network and the state of its optimizer, Adam."""

    parameters: Array
    optimizer_state: optax.OptState


def start_training(parameters: Array, learning_rate: float, betas: Betas = ADAM_BETAS) -> TrainState:
    """The train state before the first step."""
    return TrainState(parameters, optax.adam(learning_rate, *betas).init(parameters))


def adam_step(state: TrainState, gradient: Array, learning_rate: float, betas: Betas = ADAM_BETAS) -> TrainState:
    """The train state after one step of Adam."""
    change, optimizer_state = optax.adam(learning_rate, *betas).update(gradient, state.optimizer_state)
    return TrainState(state.parameters + change, optimizer_state)


def shorten_step(before: TrainState, after: TrainState, pace: Array) -> TrainState:
    """The train state after this share of a step; the optimizer's state is that after the whole."""
    return TrainState(before.parameters + pace * (after.parameters - before.parameters), after.optimizer_state)


def update_ema(mean: Array, parameters: Array, steps_done: Array | int, decay: float) -> Array:
    """An exponential moving average of the parameters that forgets its start."""
    weight = jnp.minimum(decay, (1 + steps_done) / (10 + steps_done))
    return weight * mean + (1 - weight) * parameters


class NoisedSum(NamedTuple):
    """The noised sum of clipped gradients, one vector in units of the clipping norm; and the noisy count of those that were
    shorter than it, each counted as 1/2 or -1/2: 0 where the release has no such count."""

    total: Array
    short: Array


def draw_batches(
    release: NoisedSteps, *, batches: Source, noises: Source, mask: Array, steps: tuple[int, ...] = ()
) -> tuple[Array, Array]:
    """What protects people: the Poisson batches, [*steps, records], among the records that are there, and the noise of each."""
    drawn = poisson_batches(release, batches, mask, steps)
    return drawn, jnp.asarray(release.mechanism.noise(noises, (*steps, release.mechanism.size)))


def poisson_batches(release: NoisedSteps, source: Source, mask: Array, steps: tuple[int, ...] = ()) -> Array:
    """The batches alone, where the noise is drawn in shares."""
    drawn: Array = jnp.asarray(source.coins(release.probability, (*steps, len(mask)))) & mask
    return drawn


def noised_sum(
    gradient_of: Callable[[Array], ArrayTree],
    flatten: Callable[[ArrayTree], Array],
    *,
    release: NoisedSteps,
    clip_norm: Array | float,
    drawn: Array,
    noise: Array,
    count_noise: Array | None = None,
) -> NoisedSum:
    """The clipped gradients of the records drawn, added up, with noise.

    `gradient_of` gives the gradient of one record by its row number, as a tree; `flatten` makes one vector of a sum of them.

    Guarantee: a record that is not drawn is not in the sum; one that is drawn changes it by at most 1 in L2, apart from the
    rounding that the sensitivity of `release.mechanism` counts. What is counted without being paid for does not leave.
    """

    def contribution(row: Array) -> tuple[ArrayTree, Array]:
        scaled = jax.tree.map(lambda leaf: leaf / clip_norm, gradient_of(row))
        short = jnp.where(optax.tree.norm(scaled) <= 1, 0.5, -0.5) if release.count else jnp.zeros(())
        return jax.tree.map(release.mechanism.on_grid, clip_tree(scaled, 1.0)), short

    if (release.count is None) != (count_noise is None):
        raise AssertionError(
            "a count is released with noise of its own, and there is noise only where there is a count"
        )
    total, short = sum_over_batch(contribution, drawn, examples_at_once(len(drawn), release.probability))
    if release.count is not None and count_noise is not None:
        short = release.count.release(short, count_noise)
    return NoisedSum(release.mechanism.release(flatten(total), noise), short)


@dataclasses.dataclass(frozen=True)
class FactorBits:
    """How many bits the whole numbers have that stand for the two factors of a linear model's gradient."""

    features: int
    errors: int

    @property
    def both(self) -> int:
        """The bits of a product."""
        return self.features + self.errors

    @property
    def at_once(self) -> int:
        """How many products a float32 adds up without error."""
        return 1 << (EXACT - self.both)

    @property
    def correction(self) -> float:
        """What a sum of products of `whole_rows` is multiplied by, beyond their units, to be what it stands for."""
        return (1 << self.both) / (((1 << self.features) - SPARE) * ((1 << self.errors) - SPARE))


def factor_bits(size: int, records: int) -> FactorBits:
    """As many as fit: the sum over so many records has 31 bits at most, and so have the squares of a row of so many numbers."""
    room = min(MOST_BITS, WIDE - records.bit_length())
    features = min((room + 2) // 2, (WIDE - size.bit_length()) // 2)
    if room < LEAST_BITS or features < LEAST_BITS // 2:
        raise SpecError(f"gradients of {records:,} records of {size:,} numbers do not add up in {WIDE} bits")
    return FactorBits(features, room - features)


def exact_linear_sum(
    factors_of: Callable[[Array], tuple[Array, Array]],
    flatten: Callable[[Array], Array],
    *,
    release: NoisedSteps,
    clip_norm: Array | float,
    drawn: Array,
    noise: Array,
    bits: FactorBits,
) -> NoisedSum:
    """`noised_sum` for linear models, whose gradients are outer products: no gradient of a record is written out.

    `factors_of` gives the two factors of a record's gradient by its row number, [1, features] of length 1 and [1, outputs].

    Guarantee: that of `noised_sum`: a record adds the product of two vectors of whole numbers, each at most 1 long, and
    products are added without error, `bits.at_once` of them in float32 and all in 32 bits.
    """
    units = exact_linear_units(factors_of, flatten, release=release, clip_norm=clip_norm, drawn=drawn, bits=bits)
    return NoisedSum(release.mechanism.release(units, noise) * bits.correction, jnp.zeros(()))


def exact_linear_units(
    factors_of: Callable[[Array], tuple[Array, Array]],
    flatten: Callable[[Array], Array],
    *,
    release: NoisedSteps,
    clip_norm: Array | float,
    drawn: Array,
    bits: FactorBits,
) -> Array:
    """That sum before its noise, in whole units of the mechanism's grid: for whoever draws the noise in shares."""

    def whole_factors(row: Array) -> tuple[Array, Array]:
        features, errors = factors_of(row)
        return whole_rows(features, bits.features)[0], whole_rows(clip_rows(errors, clip_norm), bits.errors)[0]

    def block(rows: Array, there: Array) -> Array:
        # One record after the other, by the same code: its floats do not depend on who else is in the batch.
        features, errors = jax.lax.map(whole_factors, rows)
        return jnp.matmul(features.T, errors * there[:, None], precision="highest").astype(jnp.int32)

    total = flatten(sum_over_blocks(block, drawn, bits.at_once))
    return rescaled(total, round(math.log2(release.mechanism.grid)) + bits.both)


def clip_rows(rows: Array, clip_norm: Array | float) -> Array:
    """Each row in units of the clipping norm, scaled down to length 1 where it is longer; `whole_rows` makes that exact."""
    scaled = rows / clip_norm
    return scaled / jnp.maximum(jnp.linalg.norm(scaled, axis=1, keepdims=True), 1)


def whole_rows(rows: Array, bits: int) -> Array:
    """Rows of length at most 1 in units of 2^-bits, float32 whole numbers.

    Guarantee: squares of a row add up to at most 4^bits, whatever came in: a row that rounding made longer is cut off towards
    zero instead, and one that is still longer, or not finite, counts as 0.
    """
    unit = 1 << bits
    scaled = jnp.clip(jnp.where(jnp.isfinite(rows), rows, 0.0) * (unit - SPARE), -unit, unit)

    def fits(whole: Array) -> Array:
        return jnp.sum(jnp.square(whole.astype(jnp.int32)), axis=1, keepdims=True) <= unit * unit

    near, shorter = jnp.round(scaled), jnp.trunc(scaled)
    return jnp.where(fits(near), near, jnp.where(fits(shorter), shorter, 0.0))


def examples_at_once(rows: int, probability: float) -> int:
    """How many examples of a Poisson batch are computed together."""
    expected = rows * probability
    return min(rows, math.ceil(expected + SPREAD * math.sqrt(expected * (1 - probability)) + 1))


def sum_over_batch(contribution: Callable[[Array], ArrayTree], drawn: Array, at_once: int) -> ArrayTree:
    """The sum of `contribution(row)` over the rows drawn, however many they are, `at_once` at a time."""

    def block(rows: Array, there: Array) -> ArrayTree:
        def added(leaf: Array) -> Array:
            kept = jnp.where(there.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, jnp.zeros_like(leaf))
            return jnp.sum(kept, axis=0, dtype=leaf.dtype)

        return jax.tree.map(added, jax.vmap(contribution)(rows))

    return sum_over_blocks(block, drawn, at_once)


def sum_over_blocks(block: Callable[[Array, Array], ArrayTree], drawn: Array, at_once: int) -> ArrayTree:
    """The same where `block(rows, there)` adds up `at_once` of them itself; those not `there` must not count."""
    rows = len(drawn)
    order = jnp.argsort(~drawn, stable=True)
    order = jnp.concatenate([order, jnp.zeros(-rows % at_once, order.dtype)])
    count = jnp.sum(drawn)
    shapes = jax.eval_shape(block, order[:at_once], drawn[jnp.zeros(at_once, order.dtype)])
    start = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)

    def add_block(carry: tuple[jax.Array, ArrayTree]) -> tuple[jax.Array, ArrayTree]:
        at, total = carry
        some = jax.lax.dynamic_slice_in_dim(order, at, at_once)
        more = block(some, at + jnp.arange(at_once) < count)
        return at + at_once, jax.tree.map(jnp.add, total, more)

    return jax.lax.while_loop(lambda carry: carry[0] < count, add_block, (jnp.zeros((), count.dtype), start))[1]


def training_key(source: Source) -> Array:
    """A key for orders of batches, codes and labels: nothing that protects anybody."""
    words = [jnp.asarray(part.below(2**31 - 1), jnp.uint32) for part in source.split(2)]
    key: Array = jax.random.wrap_key_data(jnp.stack(words))
    return key
