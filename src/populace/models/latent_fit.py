"""Fitting latent classes to randomised answers, by gradient ascent on their likelihood.

For subset selection and local hashing the likelihood of an answer S about a group g is proportional to
1 + (e^eps - 1) P_model(x_g in S): the same line for every oracle. Classes are pulled towards a shared base, that is, towards
independence, so that weak signal does not turn into noise.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from populace.errors import DataError

Array = Any

ROWS_AT_ONCE = 8_192
LIST_CELLS = 2**20  # cells gathered per step for answers that list several values


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """Randomised answers as the model reads them.

    A *cell* is one value of a group of columns, written as the places of its values among all columns' values laid end to
    end (`cells[i]`, padded with the total number of values). `counts[i]` answers told cell i alone; `single[i]` says whether it
    can be told alone. Each row of `lists` is one answer that told several cells (numbers of cells, padded with the number of
    cells) and counts `listed[i]` times. Held-out answers count 0, so shapes stay and one compilation serves.
    """

    sizes: tuple[int, ...]
    epsilon: float
    cells: Array
    counts: Array
    lists: Array
    listed: Array
    single: Array

    def __post_init__(self) -> None:
        if not self.total:
            raise DataError("expected at least one answer, got none")

    @property
    def total(self) -> int:
        return int(np.sum(self.counts)) + int(np.sum(self.listed))

    @property
    def told(self) -> Array:
        """Cells that somebody told alone; with a share held out, those of the rest may count nothing."""
        return np.flatnonzero(self.single)

    @property
    def lists_at_once(self) -> int:
        """How many listing answers a step takes."""
        if not len(self.lists):
            return 0
        return int(min(len(self.lists), max(256, LIST_CELLS // self.lists.shape[1])))

    def hold_out(self, share: float, rng: np.random.Generator) -> tuple[Answers, Answers]:
        """Answers to fit to, and a random share of them to judge by. Shapes stay, so that one compilation serves both."""
        told = rng.binomial(np.asarray(self.counts, np.int64), share)
        out = (rng.random(len(self.lists)) < share) & (np.asarray(self.listed) > 0)
        return (
            dataclasses.replace(self, counts=self.counts - told, listed=np.where(out, 0, self.listed)),
            dataclasses.replace(self, counts=told, listed=np.where(out, self.listed, 0)),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How to fit: all public, chosen by the likelihood of held-out answers.

    `pull` draws classes to the base, `flat` the base's logits to their mean over columns with the same domain (or zero), both
    as precisions of normal priors on logits; `steps` of Adam with a falling learning rate.
    """

    classes: int = 20
    pull: float = 1.0
    flat: float = 0.0
    steps: int = 300
    rate: float = 0.06
    spread: float = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """What of the schema the fit needs: which values belong to which column, and which columns share a domain."""

    sizes: tuple[int, ...]
    twins: tuple[int, ...]
    target: int | None = None

    @property
    def segments(self) -> Array:
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def free(self) -> Array:
        """1 where a class is pulled to the base, 0 for the values of the target: classes may be about it."""
        return np.where(self.segments == (-1 if self.target is None else self.target), 0.0, 1.0).astype(np.float32)

    @functools.cached_property
    def shared(self) -> Array:
        """For every value, the number of the shared mean its logit is drawn to; columns of one domain share theirs."""
        seen: dict[tuple[int, int], int] = {}
        numbers = []
        for column, size in enumerate(self.sizes):
            numbers += [seen.setdefault((self.twins[column], value), len(seen)) for value in range(size)]
        return np.array(numbers, np.int32)


def log_tables(parameters: dict[str, Array], layout: Layout) -> Array:
    """log theta, [classes, values]: a softmax over each column's values."""
    logits = parameters["base"][None, :] + parameters["classes"]
    segments = layout.segments
    columns = len(layout.sizes)
    top = jax.ops.segment_max(jax.lax.stop_gradient(logits).T, segments, num_segments=columns).T[:, segments]
    total = jax.ops.segment_sum(jnp.exp(logits - top).T, segments, num_segments=columns).T[:, segments]
    return logits - top - jnp.log(total)


def cell_probabilities(parameters: dict[str, Array], cells: Array, layout: Layout) -> Array:
    """P of each cell: a product over its columns, summed over classes."""
    values = sum(layout.sizes)
    rows = jnp.zeros((cells.shape[0], values + 1)).at[jnp.arange(cells.shape[0])[:, None], cells].add(1.0)[:, :values]
    joint = jnp.exp(rows @ log_tables(parameters, layout).T)
    return joint @ jax.nn.softmax(parameters["weights"])


def penalty(parameters: dict[str, Array], layout: Layout, pull: Array, flat: Array) -> Array:
    """Minus the log prior."""
    base = parameters["base"]
    shared = layout.shared
    number = int(shared.max()) + 1
    counts = np.bincount(shared, minlength=number)
    means = jax.ops.segment_sum(base, shared, num_segments=number) / counts
    centre = jnp.where(jnp.asarray(counts > 1), means, 0.0)[shared]
    return 0.5 * (
        pull * jnp.sum(layout.free * parameters["classes"] ** 2)
        + flat * jnp.sum((base - centre) ** 2)
        + 0.1 * jnp.sum(parameters["weights"] ** 2)
    )


def initial(layout: Layout, settings: Settings, key: Array) -> dict[str, Array]:
    """Random classes; with a target, each begins at one of the target's values, so that the classes are about it."""
    values = sum(layout.sizes)
    classes = settings.spread * jax.random.normal(key, (settings.classes, values))
    if layout.target is not None:
        start = int(np.sum(layout.sizes[: layout.target]))
        lean = jnp.arange(settings.classes) % layout.sizes[layout.target]
        classes = classes.at[jnp.arange(settings.classes), start + lean].add(4.0)
    return {"base": jnp.zeros(values), "classes": classes, "weights": jnp.zeros(settings.classes)}


def fit(answers: Answers, layout: Layout, settings: Settings, key: Array) -> dict[str, Array]:
    """Parameters that make the answers likely, from random classes, in a fixed number of steps."""
    told, at_once = answers.told, answers.lists_at_once
    passes = max(-(-len(told) // ROWS_AT_ONCE), -(-len(answers.lists) // max(at_once, 1)))
    start, loop = jax.random.split(key)
    found: dict[str, Array] = _ascend(
        initial(layout, settings, start),
        jnp.asarray(answers.cells[told]),
        jnp.asarray(answers.counts[told], jnp.float32),
        jnp.asarray(answers.cells if at_once else answers.cells[:0]),
        jnp.asarray(answers.lists),
        jnp.asarray(answers.listed, jnp.float32),
        jnp.float32(settings.pull),
        jnp.float32(settings.flat),
        loop,
        jnp.float32(answers.total),
        layout=layout,
        epsilon=answers.epsilon,
        steps=max(settings.steps, 15 * passes),
        rate=settings.rate,
        at_once=at_once,
    )
    return found


@functools.partial(jax.jit, static_argnames=("layout", "epsilon", "steps", "rate", "at_once"))
def _ascend(
    parameters: dict[str, Array], told: Array, counts: Array, cells: Array, lists: Array, listed: Array,
    pull: Array, flat: Array, key: Array, total: Array,
    *, layout: Layout, epsilon: float, steps: int, rate: float, at_once: int,
) -> dict[str, Array]:  # fmt: skip
    gain = math.expm1(epsilon)
    rows = min(ROWS_AT_ONCE, told.shape[0])
    optimiser = optax.adam(optax.cosine_decay_schedule(rate, steps), b2=0.99)

    def loss(parameters: dict[str, Array], key: Array) -> Array:
        one, many = jax.random.split(key)
        value = jnp.float32(0)
        if rows:
            place = jnp.arange(rows) if rows == told.shape[0] else jax.random.randint(one, (rows,), 0, told.shape[0])
            likely = jnp.log1p(gain * cell_probabilities(parameters, told[place], layout))
            value += jnp.sum(counts[place] * likely) * (told.shape[0] / rows)
        if at_once:
            place = (
                jnp.arange(at_once)
                if at_once == lists.shape[0]
                else jax.random.randint(many, (at_once,), 0, lists.shape[0])
            )
            every = jnp.concatenate([cell_probabilities(parameters, cells, layout), jnp.zeros(1)])
            likely = jnp.log1p(gain * every[lists[place]].sum(axis=1))
            value += jnp.sum(listed[place] * likely) * (lists.shape[0] / at_once)
        return (penalty(parameters, layout, pull, flat) - value) / total

    def step(index: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        parameters, state = carry
        slope = jax.grad(loss)(parameters, jax.random.fold_in(key, index))
        change, state = optimiser.update(slope, state)
        return optax.apply_updates(parameters, change), state

    end: tuple[Any, Any] = jax.lax.fori_loop(0, steps, step, (parameters, optimiser.init(parameters)))
    found: dict[str, Array] = end[0]
    return found


def log_likelihood(parameters: dict[str, Array], answers: Answers, layout: Layout) -> float:
    """Mean log likelihood of answers, up to a constant of the mechanism; for choosing settings on held-out answers."""
    gain = math.expm1(answers.epsilon)
    told = answers.told
    value = 0.0
    for start in range(0, len(told), ROWS_AT_ONCE):
        part = told[start : start + ROWS_AT_ONCE]
        found = np.asarray(_cells(parameters, jnp.asarray(answers.cells[part]), layout=layout))
        value += float(np.sum(answers.counts[part] * np.log1p(gain * found)))
    kept = np.flatnonzero(answers.listed)
    if len(kept):
        every = np.append(np.asarray(_cells(parameters, jnp.asarray(answers.cells), layout=layout)), 0.0)
        step = max(1, 2**22 // answers.lists.shape[1])
        for start in range(0, len(kept), step):
            part = kept[start : start + step]
            likely = np.log1p(gain * every[answers.lists[part]].sum(axis=1))
            value += float(np.sum(answers.listed[part] * likely))
    return value / answers.total


@functools.partial(jax.jit, static_argnames="layout")
def _cells(parameters: dict[str, Array], cells: Array, *, layout: Layout) -> Array:
    return cell_probabilities(parameters, cells, layout)
