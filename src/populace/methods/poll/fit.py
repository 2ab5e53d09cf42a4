"""Latent classes from randomised answers: the most likely ones, and draws from their posterior.

A class's logits are a shared base plus its own deviation, with normal priors on both: weak signal is drawn to independence. On
a scale the deviation has a trend, one number for all of a column's values: a shift along the scale is as likely as one in a
cell. Where classes are tied to the target's values there is also an effect of that value. The mode is found by Adam. The
posterior's mean has smaller errors than the mode; it is averaged over draws of underdamped Langevin dynamics, preconditioned by
the Fisher information, with clipped gradients, started at the mode.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.special

from populace.methods.blocks.latent_class import LatentClass, mixture_of
from populace.methods.poll.answer_counts import (
    AnswerCounts,
    Layout,
    fisher_informations,
    in_pairs,
    log_likelihoods,
    one_hot_cells,
    value_probabilities,
)
from populace.tables.schema import Schema
from populace.types import Array, NumpyArray

Parameters = dict[str, Array]
Scales = tuple[Array, Array, Array, Array, Array]

PER_CLASS = ("classes", "weights", "trends")  # parameters with one row for each class

DENSE = 2**26  # largest one-hot matrix of cells
WIDEST = 256  # positions up to which a product with that matrix is quicker than looking each value up
TIED = 10.0  # logit of the target's value a class belongs to
LEARNING_RATE = 0.08
STEP_SIZE = 0.12  # of the dynamics, in units of a parameter's own deviation
FRICTION = 0.5
GRADIENT_CLIP = 5.0
WIDER = 3.0  # how much more classes may differ in the target than in other columns
PROBES = 16
BURN_IN = 0.2
LEAST = 1e-30  # probability whose logarithm is taken
CHOICE_STEPS = 80
STEPS = 300  # to the mode
CLASS_BLOCK = 16  # classes are padded to multiples of it, so that one compiled fit serves all settings
MUCH_TOLD = 6.0  # epsilon from which on answers say enough for twice the classes; without a target, for wider ones
MARGIN = 2.0  # of held-out log likelihood, for leaving the richest setting
SMOOTH = (1.0, 9.0)  # precisions of steps along scales that are tried


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How to fit: all public, or chosen by the likelihood of held-out answers.

    `prior_scale`, `effect`, `base` are the prior's standard deviations of logits: of classes, of the target's effect, of the
    base about its mean over columns of one shape (or zero); `smooth` is how much narrower, as a precision, steps between
    neighbours on a scale are than logits themselves (0: not at all), `trend` the deviation of a class's (or the target's)
    shift along a scale. `tied`: each class belongs to one value of the target, which has an effect of its own on every
    column. `steps` to the mode, `langevin_steps` of the
    dynamics, `draws` kept.
    """

    classes: int = 12
    prior_scale: float = 1.0
    tied: bool = False
    effect: float = 1.2
    base: float = 3.0
    smooth: float = 0.0
    trend: float = 1.0
    steps: int = 150
    langevin_steps: int = 300
    draws: int = 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prior:
    """What a user may set of a fit: the number of classes and the prior's scale (0: chosen), and the length of a chain."""

    epsilon: float
    classes: int
    scale: float
    langevin_steps: int


def initial(layout: Layout, settings: Settings, key: Array) -> Parameters:
    """Random classes about an even base."""
    effect = layout.target is not None and settings.tied
    return _trimmed(_initial(key, layout=layout, classes=_padded_count(settings), effect=effect), settings)


@functools.partial(jax.jit, static_argnames=("layout", "classes", "effect"))
def _initial(key: Array, *, layout: Layout, classes: int, effect: bool) -> Parameters:
    parameters: Parameters = {
        "base": jnp.zeros(layout.values),
        "classes": 0.5 * jax.random.normal(key, (classes, layout.values)),
        "weights": jnp.zeros(classes),
    }
    if effect:
        parameters["effect"] = 0.01 * jax.random.normal(key, (layout.outcomes, layout.values))
    if layout.scales:
        shape = (classes, len(layout.scales))
        parameters["trends"] = 0.3 * jax.random.normal(jax.random.fold_in(key, len(shape)), shape)
        if effect:
            parameters["effect_trends"] = jnp.zeros((layout.outcomes, len(layout.scales)))
    return parameters


def _padded_count(settings: Settings) -> int:
    return -(-settings.classes // CLASS_BLOCK) * CLASS_BLOCK


def _padded(parameters: Parameters, settings: Settings) -> Parameters:
    """Parameters with classes added that have no weight."""
    added = _padded_count(settings) - settings.classes
    padding = {
        name: ((0, added), *((0, 0),) * (np.ndim(parameters[name]) - 1)) for name in PER_CLASS if name in parameters
    }
    return {
        name: np.pad(np.asarray(value), padding[name]) if name in padding else np.asarray(value)
        for name, value in parameters.items()
    }


def _trimmed(parameters: Parameters, settings: Settings) -> Parameters:
    """Parameters of the classes that have a weight."""
    return {
        name: np.asarray(value)[: settings.classes] if name in PER_CLASS else np.asarray(value)
        for name, value in parameters.items()
    }


def class_weights(parameters: Parameters, classes: Array) -> Array:
    """The weights of the classes; those from number `classes` on are padding, and have none."""
    weights = parameters["weights"]
    return jax.nn.softmax(jnp.where(jnp.arange(len(weights)) < classes, weights, -jnp.inf))


def log_tables(parameters: Parameters, layout: Layout) -> Array:
    """log theta, [classes, values]: a softmax over each column's values; a tied class belongs to one value of the target."""
    logits = parameters["base"][None, :] + parameters["classes"]
    if layout.scales:
        logits = logits + parameters["trends"] @ layout.scores
    if layout.target is not None and "effect" in parameters:
        outcome = jnp.arange(len(logits)) % layout.outcomes
        effect = parameters["effect"] + (parameters["effect_trends"] @ layout.scores if layout.scales else 0.0)
        positions = int(layout.offsets[layout.target]) + outcome
        tied = jnp.zeros_like(logits).at[jnp.arange(len(logits)), positions].set(TIED)
        logits = jnp.where(jnp.asarray(layout.is_target), tied, logits + effect[outcome])
    segments, columns = layout.segments, len(layout.sizes)
    top = jax.ops.segment_max(jax.lax.stop_gradient(logits).T, segments, num_segments=columns).T[:, segments]
    total = jax.ops.segment_sum(jnp.exp(logits - top).T, segments, num_segments=columns).T[:, segments]
    return logits - top - jnp.log(total)


def precisions(parameters: Parameters, layout: Layout, scales: Scales) -> Parameters:
    """The priors' precisions, one number per parameter. Classes may differ much in the target."""
    prior_scale, effect, base, _, trend = scales
    wider = jnp.where(jnp.asarray(layout.is_target), WIDER, 1.0)
    each = {
        "base": base, "classes": prior_scale * wider, "effect": effect, "weights": jnp.float32(1),
        "trends": trend, "effect_trends": trend,
    }  # fmt: skip
    return {name: jnp.broadcast_to(each[name] ** -2, value.shape) for name, value in parameters.items()}


def log_prior(parameters: Parameters, layout: Layout, scales: Scales) -> Array:
    """Independent normals; ordered columns also have small steps between neighbouring bins."""
    base = parameters["base"]
    counts = np.bincount(layout.shared)
    means = jax.ops.segment_sum(base, layout.shared, num_segments=len(counts)) / counts
    centred = {**parameters, "base": base - jnp.where(jnp.asarray(counts > 1), means, 0.0)[layout.shared]}
    precision = precisions(parameters, layout, scales)
    terms = [jnp.sum(precision[name] * centred[name] ** 2) for name in parameters]
    value: Array = -0.5 * functools.reduce(operator.add, terms)
    if layout.neighbours:
        low, high = np.array(layout.neighbours).T
        for name in ("base", "classes", "effect"):
            if name in parameters:
                steps = parameters[name][..., high] - parameters[name][..., low]
                value -= 0.5 * jnp.sum(scales[3] * precision[name][..., low] * steps**2)
    return value


def _probabilities(
    parameters: Parameters, classes: Array, arrays: tuple[Array, ...], layout: Layout, one_hot: Array | None
) -> Array:
    logs = log_tables(parameters, layout)
    if layout.views:
        groups = layout.with_views(jnp.exp(logs))[:, layout.values :]
        logs = jnp.concatenate([logs, jnp.log(jnp.maximum(groups, LEAST))], axis=1)
    return value_probabilities(logs, class_weights(parameters, classes), arrays, one_hot)


def _one_hot(arrays: tuple[Array, ...], layout: Layout) -> Array | None:
    cells = arrays[0]
    small = layout.positions <= WIDEST and cells.shape[0] * layout.positions <= DENSE
    return one_hot_cells(cells, layout.positions) if small and not in_pairs(cells, layout.positions) else None


def _scales(settings: Settings) -> Scales:
    return tuple(
        jnp.float32(x) for x in (settings.prior_scale, settings.effect, settings.base, settings.smooth, settings.trend)
    )  # type: ignore[return-value]


def fit(
    answers: AnswerCounts, layout: Layout, settings: Settings, key: Array, start: Parameters | None = None
) -> Parameters:
    """Parameters of the posterior's mode, in a fixed number of steps from random classes (or from `start`)."""
    begin = initial(layout, settings, key) if start is None else start
    mode = _find_mode(
        _padded(begin, settings), jnp.int32(settings.classes), answers.arrays, _scales(settings), jnp.float32(answers.total),
        layout=layout, epsilon=jnp.float32(answers.epsilon), steps=jnp.int32(settings.steps),
    )  # fmt: skip
    return _trimmed(mode, settings)


@functools.partial(jax.jit, static_argnames="layout")
def _find_mode(
    parameters: Parameters, classes: Array, arrays: tuple[Array, ...], scales: Scales, total: Array,
    *, layout: Layout, epsilon: Array, steps: Array,
) -> Parameters:  # fmt: skip
    one_hot = _one_hot(arrays, layout)
    optimiser = optax.scale_by_adam(b2=0.99)

    def loss(parameters: Parameters) -> Array:
        probabilities = _probabilities(parameters, classes, arrays, layout, one_hot)
        likely = jnp.sum(log_likelihoods(probabilities, arrays, epsilon))
        return -(likely + log_prior(parameters, layout, scales)) / total

    def step(number: Array, carry: tuple[Parameters, optax.OptState]) -> tuple[Parameters, optax.OptState]:
        change, state = optimiser.update(jax.grad(loss)(carry[0]), carry[1])
        rate = LEARNING_RATE * (0.1 + 0.45 * (1 + jnp.cos(jnp.pi * number / steps)))  # to a tenth, on a cosine
        return jax.tree.map(lambda value, by: value - rate * by, carry[0], change), state

    mode: Parameters
    mode, _ = jax.lax.fori_loop(0, steps, step, (parameters, optimiser.init(parameters)))
    return mode


def posterior_draws(
    answers: AnswerCounts, layout: Layout, settings: Settings, mode: Parameters, key: Array
) -> tuple[Array, Array]:
    """Draws about the mode: class weights [draws, classes] and tables [draws, classes, values]."""
    drawn: tuple[Array, Array] = _sample_posterior(
        _padded(mode, settings), jnp.int32(settings.classes), answers.arrays, _scales(settings), key,
        layout=layout, epsilon=jnp.float32(answers.epsilon), steps=settings.langevin_steps, draws=settings.draws,
    )  # fmt: skip
    weights, tables = (np.asarray(each, np.float64)[:, : settings.classes] for each in drawn)
    return weights / weights.sum(axis=1, keepdims=True), np.exp(tables)


@functools.partial(jax.jit, static_argnames=("layout", "steps", "draws"))
def _sample_posterior(
    mode: Parameters, classes: Array, arrays: tuple[Array, ...], scales: Scales, key: Array,
    *, layout: Layout, epsilon: Array, steps: int, draws: int,
) -> tuple[Array, Array]:  # fmt: skip
    one_hot = _one_hot(arrays, layout)
    probabilities = functools.partial(_probabilities, classes=classes, arrays=arrays, layout=layout, one_hot=one_hot)

    def log_posterior(parameters: Parameters) -> Array:
        likely = jnp.sum(log_likelihoods(probabilities(parameters), arrays, epsilon))
        return likely + log_prior(parameters, layout, scales)

    probe_key, start_key, step_key = jax.random.split(key, 3)
    at_mode, pull_back = jax.vjp(probabilities, mode)
    roots = jnp.sqrt(fisher_informations(at_mode, arrays, epsilon))

    def probe(total: Parameters, key: Array) -> tuple[Parameters, None]:
        (gradient,) = pull_back(roots * jax.random.rademacher(key, roots.shape, jnp.float32))
        return jax.tree.map(lambda a, b: a + b**2 / PROBES, total, gradient), None

    none = jax.tree.map(jnp.zeros_like, mode)
    information, _ = jax.lax.scan(probe, none, jax.random.split(probe_key, PROBES))
    deviation = jax.tree.map(lambda a, b: 1 / jnp.sqrt(a + b), precisions(mode, layout, scales), information)
    keep = math.exp(-FRICTION * STEP_SIZE)

    def noise(key: Array) -> Parameters:
        keys = jax.random.split(key, len(mode))
        return {n: jax.random.normal(k, mode[n].shape) for k, n in zip(keys, sorted(mode), strict=True)}

    def half_step(parameters: Parameters, velocity: Parameters) -> Parameters:
        return {n: x + 0.5 * STEP_SIZE * deviation[n] * velocity[n] for n, x in parameters.items()}

    def langevin_step(number: Array, carry: tuple[Parameters, Parameters]) -> tuple[Parameters, Parameters]:
        parameters, velocity = carry
        velocity = jax.tree.map(lambda v, e: keep * v + math.sqrt(1 - keep**2) * e, velocity, noise(keys[number]))
        parameters = half_step(parameters, velocity)
        gradient = jax.grad(log_posterior)(parameters)
        velocity = jax.tree.map(
            lambda v, d, g: v + STEP_SIZE * jnp.clip(d * g, -GRADIENT_CLIP, GRADIENT_CLIP),
            velocity,
            deviation,
            gradient,
        )
        return half_step(parameters, velocity), velocity

    def next_draw(
        carry: tuple[Parameters, Parameters], until: tuple[Array, Array]
    ) -> tuple[tuple[Parameters, Parameters], tuple[Array, Array]]:
        carry = jax.lax.fori_loop(*until, langevin_step, carry)
        return carry, (class_weights(carry[0], classes), log_tables(carry[0], layout))

    first, rest = jax.random.split(step_key)
    burn_in, between = max(1, round(BURN_IN * steps)), max(1, round(steps * (1 - BURN_IN) / draws))
    later = jax.vmap(lambda key: jax.random.split(key, between))(jax.random.split(rest, draws))
    keys = jnp.concatenate([jax.random.split(first, burn_in), later.reshape(-1)])
    ends = burn_in + between * np.arange(1, draws + 1, dtype=np.int32)
    begins = np.concatenate([[0], ends[:-1]]).astype(np.int32)  # the steps before the first draw are part of its way
    _, drawn = jax.lax.scan(next_draw, (mode, noise(start_key)), (jnp.asarray(begins), jnp.asarray(ends)))
    return drawn


def log_likelihood(parameters: Parameters, answers: AnswerCounts, layout: Layout) -> float:
    """Mean log likelihood of answers, up to a constant of the mechanism; for choosing settings on held-out answers."""
    settings = Settings(classes=len(parameters["weights"]))
    score = _score(
        _padded(parameters, settings), jnp.int32(settings.classes), answers.arrays,
        layout=layout, epsilon=jnp.float32(answers.epsilon),
    )  # fmt: skip
    return float(score) / answers.total


@functools.partial(jax.jit, static_argnames="layout")
def _score(
    parameters: Parameters, classes: Array, arrays: tuple[Array, ...], *, layout: Layout, epsilon: Array
) -> Array:
    probabilities = _probabilities(parameters, classes, arrays, layout, _one_hot(arrays, layout))
    return jnp.sum(log_likelihoods(probabilities, arrays, epsilon))


def rake(weights: Array, tables: Array, singles: Array, layout: Layout, rounds: int = 100) -> Array:
    """Tables scaled column by column until the model's one-way tables are `singles`; dependence stays."""
    starts, segments = layout.offsets, layout.segments
    for _ in range(rounds):
        tables = tables * (singles / np.maximum(weights @ tables, 1e-300))
        tables = tables / np.add.reduceat(tables, starts, axis=1)[:, segments]
    return tables


def fit_posterior(
    answers: AnswerCounts, layout: Layout, chosen: Sequence[Settings], key: Array, schema: Schema
) -> LatentClass:
    """The posterior's mean as latent classes, with the draws it was made of; one chain for each of the settings.

    Without a target: draws side by side, an average of models. With one, averages blur who has which value of it: the modes'
    dependence, with the draws' mean one-way tables, side by side.
    """
    modes, weights, tables = [], [], []
    for chain, settings in enumerate(chosen):
        chain_key = jax.random.fold_in(key, chain)
        mode = fit(answers, layout, settings, chain_key)
        drawn = posterior_draws(answers, layout, settings, mode, chain_key)
        modes.append(mode)
        weights.append(drawn[0])
        tables.append(drawn[1])
    most = max(len(mode["weights"]) for mode in modes)
    draws = (
        np.concatenate([np.pad(w, ((0, 0), (0, most - w.shape[1]))) for w in weights]),
        np.concatenate([np.pad(t, ((0, 0), (0, most - t.shape[1]), (0, 0)), mode="edge") for t in tables]),
    )
    if layout.target is None:
        joined = (draws[0].ravel() / len(draws[0]), draws[1].reshape(-1, draws[1].shape[-1]))
        return LatentClass(schema=schema, weights=joined[0], tables=joined[1], draws=draws)
    singles = np.einsum("dz,dzv->v", draws[0], draws[1]) / len(draws[0])
    owns = [scipy.special.softmax(np.asarray(mode["weights"], np.float64)) for mode in modes]
    raked = [
        rake(own, np.exp(_mode_tables(mode, layout, settings)), singles, layout)
        for own, mode, settings in zip(owns, modes, chosen, strict=True)
    ]
    models = [LatentClass(schema=schema, weights=own, tables=table) for own, table in zip(owns, raked, strict=True)]
    return dataclasses.replace(mixture_of(models), draws=draws)


_compiled_log_tables = jax.jit(log_tables, static_argnames="layout")


def _mode_tables(mode: Parameters, layout: Layout, settings: Settings) -> NumpyArray:
    """log theta at a mode, [classes, values]."""
    tables = _compiled_log_tables(_padded(mode, settings), layout=layout)
    return np.asarray(tables, np.float64)[: settings.classes]


def choose_settings(
    prior: Prior, kept: AnswerCounts, held_out: AnswerCounts | None, layout: Layout, key: Array, *, tied: bool
) -> Settings:
    """Number of classes, the prior's scale, smoothing along scales: rich, unless held-out answers are likelier otherwise."""

    @functools.cache
    def score(settings: Settings) -> float:
        """The log likelihood of held-out answers after a short fit; nothing where none were held out."""
        if held_out is None:
            return 0.0
        tried = settings if layout.scales else dataclasses.replace(settings, steps=CHOICE_STEPS)
        return held_out.total * log_likelihood(fit(kept, layout, tried, key), held_out, layout)

    grid = _candidates(prior, layout, tied=tied)
    best = max(grid, key=score) if len(grid) > 1 else grid[0]
    margin = MARGIN / 2 if layout.scales else MARGIN
    best = best if len(grid) > 1 and score(best) > score(grid[0]) + margin else grid[0]
    smoother = [dataclasses.replace(best, smooth=smooth) for smooth in SMOOTH] if layout.neighbours else []
    return max((best, *smoother), key=score) if smoother and held_out is not None else best


def _candidates(prior: Prior, layout: Layout, *, tied: bool) -> list[Settings]:
    """The settings to choose among, the richest first: classes, and the scales of classes, effects and trends."""
    one = layout.outcomes if tied else 1
    much = prior.epsilon >= MUCH_TOLD
    rich, few = (one * max(2, round(number / one)) for number in (32 if much else 16, 6))
    widest = 2.0 if much and layout.target is None else 1.0 if tied else 1.3
    choices = [
        (rich, widest, 1.2, 1.0),
        (rich, 0.6, 1.2, 1.0),
        (few, 0.6, 1.2, 1.0),
        (one, 0.3, 1.2, 1.0),
    ]
    if layout.scales:
        choices = [
            (rich, 0.5, 0.5, 1.0),
            (rich, 1.0, 1.2, 1.0),
            (rich, 0.3, 0.3, 0.6),
            (rich, 0.15, 0.2, 0.5),
            (one, 0.3, 0.3, 1.0),
        ]
    grid = [
        Settings(
            classes=max(prior.classes, one) if prior.classes else classes,
            prior_scale=prior.scale or scale,
            effect=effect,
            trend=trend,
            steps=STEPS,
            langevin_steps=prior.langevin_steps,
            tied=tied,
        )
        for classes, scale, effect, trend in choices
    ]
    return list(dict.fromkeys(grid))
