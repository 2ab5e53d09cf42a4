"""A mixture of products fitted to noisy tables: P(x) = sum over z of w_z times the product over columns of p_zj(x_j).

Squares of what the tables leave over, each divided by the variance of its noise, and a pull of every component towards the
one-way tables. Several fits from other starts are averaged: each finds another way to explain the tables, and what they do not
agree on is mostly noise. Everything here is post-processing.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.census.tables import PairTables
from populace.types import Array, ArrayTree, NumpyArray

LEAST_SHARE = 1e-5  # of a cell, before its logarithm is taken
START_SPREAD = 0.5  # standard deviation of a component's logits around the one-way tables, at the start
WEIGHT_PULL = 0.1  # pull of the components' weights towards each other, relative to that of their logits
LEARNING_RATE = 0.1
WARMUP = 30  # steps
BETAS = (0.9, 0.99)


@dataclasses.dataclass(frozen=True)
class Observed:
    """Noisy shares of records in every cell, [outcomes, entries], and the standard deviation of their noise, [entries]."""

    shares: NumpyArray
    deviations: NumpyArray


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a mixture is fitted."""

    components: int
    members: int
    steps: int
    pull: float


def one_way_tables(tables: PairTables, observed: Observed) -> list[NumpyArray]:
    """Each column's table: the margins of all its pairs, those of smaller noise counting more; never quite 0."""
    margins: list[list[tuple[NumpyArray, float]]] = [[] for _ in tables.sizes]
    outcome = np.zeros(tables.outcomes)
    start = 0
    for (first, second), shape in zip(tables.pairs, tables.shapes, strict=True):
        end = start + shape[0] * shape[1]
        table = observed.shares[:, start:end].reshape(-1, *shape)
        variance = float(observed.deviations[start]) ** 2
        if first == second:
            margins[first].append((np.einsum("yaa->a", table), 1.0))
        else:
            margins[first].append((table.sum(axis=(0, 2)), variance * shape[1]))
            margins[second].append((table.sum(axis=(0, 1)), variance * shape[0]))
        outcome += table.sum(axis=(1, 2)) / (variance * shape[0] * shape[1])
        start = end
    if tables.target is not None:
        margins[tables.target].append((outcome, 1.0))
    return [_mean_table(parts) for parts in margins]


def _mean_table(parts: list[tuple[NumpyArray, float]]) -> NumpyArray:
    mean = np.average([table for table, _ in parts], axis=0, weights=[1 / variance for _, variance in parts])
    positive = np.maximum(mean, LEAST_SHARE * max(mean.sum(), 1e-12))
    return np.asarray(positive / positive.sum())


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Fits from several starts, [members, components] and [members, components, cells of all columns]; and fits to tables with
    as much noise again, whose spread is the standard error of the first."""

    weights: NumpyArray
    tables: NumpyArray
    draw_weights: NumpyArray
    draw_tables: NumpyArray


def fit_mixture(tables: PairTables, observed: Observed, settings: Settings, key: Array) -> Mixture:
    """The mixture, from noisy tables alone."""
    starts, noise = jax.random.split(key)
    base = jnp.log(jnp.asarray(np.concatenate(one_way_tables(tables, observed)), jnp.float32))
    precisions = jnp.asarray(laid_out(tables, observed.deviations**-2.0))
    again = np.random.default_rng(np.asarray(jax.random.key_data(noise))).normal(
        size=(settings.members, *observed.shares.shape)
    )
    fits = []
    for spread in (0.0, 1.0):
        shares = observed.shares + spread * observed.deviations * again
        squares = jnp.asarray(laid_out(tables, shares))
        keys = jax.random.split(jax.random.fold_in(starts, int(spread)), settings.members)
        fits.append([np.asarray(one) for one in fit_members(tables, settings, base, squares, precisions, keys)])
    (weights, values), (draw_weights, draw_values) = fits
    return Mixture(weights, values, draw_weights, draw_values)


@functools.partial(jax.jit, static_argnums=(0, 1))
def fit_members(
    tables: PairTables, settings: Settings, base: Array, shares: Array, precisions: Array, keys: Array
) -> tuple[Array, Array]:
    """[members, components] and [members, components, all cells]: weights and tables of each fit."""
    return jax.vmap(lambda key, one: _fit(tables, settings, base, one, precisions, key))(keys, shares)


def _fit(
    tables: PairTables, settings: Settings, base: Array, shares: Array, precisions: Array, key: Array
) -> tuple[Array, Array]:
    def loss(parameters: ArrayTree) -> Array:
        weights, values = probabilities(tables.sizes, parameters)
        left = predicted(tables, weights, values) - shares
        pulled = jnp.sum(parameters["logits"] ** 2) + WEIGHT_PULL * jnp.var(parameters["weights"]) * settings.components
        return 0.5 * (jnp.sum(precisions * left**2) + settings.pull * pulled)

    def step(carry: ArrayTree, number: Array) -> tuple[ArrayTree, None]:
        now, mean, square = carry
        gradient = jax.grad(loss)(now)
        b1, b2 = BETAS
        mean = jax.tree.map(lambda old, new: b1 * old + (1 - b1) * new, mean, gradient)
        square = jax.tree.map(lambda old, new: b2 * old + (1 - b2) * new**2, square, gradient)
        t = number + 1.0
        rate = LEARNING_RATE * jnp.minimum(1.0, t / WARMUP) * (0.5 + 0.5 * jnp.cos(jnp.pi * t / settings.steps))

        def moved(old: Array, first: Array, second: Array) -> Array:
            return old - rate * first / (1 - b1**t) / (jnp.sqrt(second / (1 - b2**t)) + 1e-12)

        return (jax.tree.map(moved, now, mean, square), mean, square), None

    start = {
        "weights": jnp.zeros(settings.components), "base": base,
        "logits": START_SPREAD * jax.random.normal(key, (settings.components, len(base))),
    }  # fmt: skip
    zero = jax.tree.map(jnp.zeros_like, start)
    (end, _, _), _ = jax.lax.scan(step, (start, zero, zero), jnp.arange(settings.steps, dtype=jnp.float32))
    return probabilities(tables.sizes, end)


def probabilities(sizes: tuple[int, ...], parameters: ArrayTree) -> tuple[Array, Array]:
    """The components' weights, and their tables of all columns end to end."""
    logits = parameters["base"] + parameters["logits"]
    ends = np.cumsum(sizes)
    parts = [
        jax.nn.softmax(logits[:, end - size : end], axis=1) for end, size in zip(ends.tolist(), sizes, strict=True)
    ]
    return jax.nn.softmax(parameters["weights"]), jnp.concatenate(parts, axis=1)


def predicted(tables: PairTables, weights: Array, values: Array) -> Array:
    """[outcomes, positions, positions]: the shares that a mixture gives every two cells, for each value of the target."""
    column = np.repeat(np.arange(len(tables.sizes)), tables.sizes)
    inner = values[:, np.flatnonzero(column != (-1 if tables.target is None else tables.target))]
    outcome = (
        jnp.ones((len(weights), 1)) if tables.target is None else values[:, np.flatnonzero(column == tables.target)]
    )
    by_outcome = jnp.swapaxes(weights[:, None] * outcome, 0, 1)
    if len(tables.columns) == 1:
        single: Array = jnp.einsum("yz,za->ya", by_outcome, inner)[:, :, None] * jnp.eye(inner.shape[1])
        return single
    products: Array = jnp.einsum("yz,za,zb->yab", by_outcome, inner, inner)
    return products


def laid_out(tables: PairTables, entries: NumpyArray) -> NumpyArray:
    """Entries [..., entries] at their two positions, [..., positions, positions], 0 elsewhere."""
    first, second = tables.cells
    square = np.zeros((*entries.shape[:-1], tables.positions, tables.positions), np.float32)
    square[..., first, second] = entries
    return square
