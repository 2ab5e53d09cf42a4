"""A mixture of products fitted to noisy tables: P(x) = sum over z of w_z times the product over columns of p_zj(x_j).

Squares of what the tables (those of pairs, and of pairs of scales in groups of cells) leave over, each divided by the variance
of its noise, and a pull of every component towards the one-way tables, which along a scale lets neighbouring cells move
together rather than each by itself. Components have tables of their own for each value of the target, so that what depends on
it is learned whether or not it moves many records. Several fits from other starts are averaged: each finds another way to
explain the tables, and what they do not agree on is mostly noise. Everything here is post-processing.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.census.tables import PairTables
from populace.types import Array, ArrayTree, NumpyArray

LEAST_SHARE = 1e-5  # of a cell, before its logarithm is taken
START_SPREAD = 0.5  # standard deviation of a component's logits around the one-way tables, at the start
EFFECT_PULL = 1.0  # of the target's effects, towards none
OWN_PULL = 10.0  # of what a component has of its own for a value of the target
# The pull of components towards the one-way tables: the more noise, the more.
LEAST_PULL, MOST_PULL, PULL_BY_NOISE = 0.3, 2.0, 200.0
LEARNING_RATE = 0.3
WARMUP = 30  # steps
# Of logits along a scale: the variance that neighbours share, each cell's own, and how far it reaches.
SMOOTH, ROUGH, REACH = 1.0, 0.3, 0.2
CLEAR, MATCHES = 4.0, 5  # standard deviations above noise from which on one-way tables are kept to; passes
SHORTEST_SCALE = 4  # cells from which on a scale is smooth
BETAS = (0.9, 0.99)
MOST_WORK = 6e11  # multiplications of all fits together: below it settings are as they are asked for
LEAST_MEMBERS, LEAST_STEPS, LEAST_COMPONENTS = 3, 400, 16  # to which wide tables take them down, in this order


@dataclasses.dataclass(frozen=True)
class Grouped:
    """Noisy shares of records in every cell of tables of pairs of scales, seen in groups of cells, [entries], and the standard
    deviation of their noise; `membership` says which cells a group has, [positions, positions of the groups]."""

    tables: PairTables
    membership: NumpyArray
    shares: NumpyArray
    deviation: float


@dataclasses.dataclass(frozen=True)
class Observed:
    """Noisy shares of records in every cell of the tables of pairs, [outcomes, entries], and the standard deviation of their
    noise, [entries], infinite where a table was not counted; the same of single columns with the target, [outcomes, positions]
    and [positions], infinite where a column was not counted by itself; of the cells of columns counted without it; and of pairs
    of scales in groups, where they were counted."""

    shares: NumpyArray
    deviations: NumpyArray
    single_shares: NumpyArray
    single_deviations: NumpyArray
    cell_shares: Mapping[int, tuple[NumpyArray, NumpyArray]] = dataclasses.field(default_factory=dict)
    grouped: Grouped | None = None

    def one_way(self, tables: PairTables) -> list[tuple[NumpyArray, NumpyArray]]:
        """Each column's table, and the standard deviation of its noise: the margins of all its pairs and its own counts, those
        of smaller noise counting more."""
        margins: list[list[tuple[NumpyArray, NumpyArray | float]]] = [[] for _ in tables.sizes]
        ends = np.cumsum(tables.table_sizes)
        for number, ((first, second), shape) in enumerate(zip(tables.pairs, tables.shapes, strict=True)):
            table = self.shares[:, ends[number] - shape[0] * shape[1] : ends[number]].reshape(-1, *shape)
            precision = float(self.deviations[ends[number] - 1]) ** -2
            if first == second:
                margins[first].append((np.einsum("yaa->a", table), precision / len(table)))
            else:
                margins[first].append((table.sum(axis=(0, 2)), precision / (len(table) * shape[1])))
                margins[second].append((table.sum(axis=(0, 1)), precision / (len(table) * shape[0])))
            if tables.target is not None:
                margins[tables.target].append((table.sum(axis=(1, 2)), precision / (shape[0] * shape[1])))
        for column, start in tables.offsets.items():
            own = self.single_shares[:, start : start + tables.sizes[column]]
            margins[column].append((own.sum(axis=0), float(self.single_deviations[start]) ** -2 / len(own)))
        for column, (shares, deviations) in self.cell_shares.items():
            margins[column].append((shares, deviations**-2.0))
        return [_mean_table(parts) for parts in margins]


def _mean_table(parts: list[tuple[NumpyArray, NumpyArray | float]]) -> tuple[NumpyArray, NumpyArray]:
    tables = np.array([table for table, _ in parts])
    precisions = np.array([np.broadcast_to(precision, tables.shape[1:]) for _, precision in parts])
    total = precisions.sum(axis=0)
    if not total.all():  # nothing was counted: every value alike
        return np.full(tables.shape[1], 1 / tables.shape[1]), np.full(tables.shape[1], np.inf)
    return (precisions * tables).sum(axis=0) / total, total**-0.5


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a mixture is fitted. `components` are those for each value of the target."""

    components: int
    members: int
    steps: int
    pull: float


def multiplications(settings: Settings, tables: PairTables) -> float:
    """What all fits together take, about."""
    each = 6.0 * settings.components * tables.outcomes * tables.positions**2 * settings.steps
    return each * 1.5 * settings.members


def draw_members(settings: Settings) -> int:
    """How many fits are for the standard errors."""
    return max(2, settings.members // 2)


def affordable(settings: Settings, tables: PairTables) -> Settings:
    """The settings, with fewer fits, steps and components where tables are so wide that fitting them would take minutes."""

    def work(members: int, steps: int, components: int) -> float:
        return multiplications(Settings(components, members, steps, 0.0), tables)

    members, steps, number = settings.members, settings.steps, settings.components
    if work(members, steps, number) > MOST_WORK:
        members = max(min(members, LEAST_MEMBERS), int(MOST_WORK / work(1, steps, number)))
        steps = max(min(steps, LEAST_STEPS), min(steps, int(MOST_WORK / work(members, 1, number))))
        number = max(min(number, LEAST_COMPONENTS), min(number, int(MOST_WORK / work(members, steps, 1))))
    return dataclasses.replace(settings, members=members, steps=steps, components=number)


def pull_of(observed: Observed) -> float:
    """How strongly components are pulled towards the one-way tables, from the noise alone (chosen on public tables)."""
    counted = observed.deviations[np.isfinite(observed.deviations)]
    return float(np.clip(PULL_BY_NOISE * np.median(counted), LEAST_PULL, MOST_PULL)) if len(counted) else MOST_PULL


def one_way_tables(tables: PairTables, observed: Observed) -> list[NumpyArray]:
    """Each column's table, never quite 0."""
    found = []
    for mean, _ in observed.one_way(tables):
        positive = np.maximum(mean, LEAST_SHARE * max(mean.sum(), 1e-12))
        found.append(positive / positive.sum())
    return found


def smoothing(spikes: NumpyArray, *, nullable: bool) -> NumpyArray:
    """What turns independent numbers into logits of the cells of a scale, of which neighbours are alike: the root of their
    prior covariance. A cell that is a `spike`, one value that many records share, stands by itself, and so does "no value"."""
    scale = np.linspace(0, 1, len(spikes) - int(nullable))
    covariance = SMOOTH * np.exp(-0.5 * ((scale[:, None] - scale) / REACH) ** 2) + ROUGH * np.eye(len(scale))
    alone = np.flatnonzero(spikes[: len(scale)])
    covariance[alone, :] = covariance[:, alone] = 0.0
    covariance[alone, alone] = 1.0
    root = np.eye(len(spikes))
    root[: len(scale), : len(scale)] = np.linalg.cholesky(covariance)
    return root


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Fits from several starts, [members, components] and [members, components, cells of all columns]; and fits to tables with
    as much noise again, whose spread is the standard error of the first."""

    weights: NumpyArray
    tables: NumpyArray
    draw_weights: NumpyArray
    draw_tables: NumpyArray


def fit_mixture(
    tables: PairTables, observed: Observed, settings: Settings, key: Array, roots: Sequence[NumpyArray | None] = ()
) -> Mixture:
    """The mixture, from noisy tables alone. `roots` are the `smoothing` of each column in pairs, None where it has no scale."""
    starts, noise = jax.random.split(key)
    settings = affordable(settings, tables)
    # An argument of the compiled fit, not one of its settings: it follows from the noise, and other runs have another.
    pull = jnp.float32(settings.pull or pull_of(observed))
    settings = dataclasses.replace(settings, pull=0.0)
    base = jnp.log(jnp.asarray(np.concatenate(one_way_tables(tables, observed)), jnp.float32))
    counted = np.isfinite(observed.deviations)
    spread = np.where(counted, observed.deviations, 0.0)
    precisions = {
        "pairs": jnp.asarray(laid_out(tables, np.where(counted, observed.deviations, np.inf) ** -2.0)),
        "single": jnp.asarray(observed.single_deviations**-2.0, jnp.float32),
        "single_shares": jnp.asarray(observed.single_shares, jnp.float32),
        "pull": pull,
    }
    grouped = observed.grouped
    if grouped is not None:
        precision = np.full(grouped.tables.entries, grouped.deviation**-2.0)
        precisions |= {
            "membership": jnp.asarray(grouped.membership), "groups": jnp.asarray(laid_out(grouped.tables, precision)),
        }  # fmt: skip
    smooth = tuple(None if root is None else jnp.asarray(root.T, jnp.float32) for root in roots)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(noise)))
    fits, at_once = (
        [],
        draw_members(settings),
    )  # as many at once as the standard errors have, so that all compile as one
    for more, members in ((0.0, settings.members), (1.0, draw_members(settings))):
        again = rng.normal(size=(members, *observed.shares.shape)) if more else np.zeros((members, 1, 1))
        shares = {
            "pairs": laid_out(tables, observed.shares + spread * again)
        }  # on the host, where parts are no programs
        if grouped is not None:
            again = more * grouped.deviation * rng.normal(size=(members, grouped.tables.entries))
            shares["groups"] = laid_out(grouped.tables, grouped.shares + again)
        keys = jax.random.split(jax.random.fold_in(starts, int(more)), members)
        found = [
            fit_members(
                tables,
                settings,
                base,
                {name: each[some] for name, each in shares.items()},
                precisions,
                smooth,
                keys[some],
            )
            for some in np.split(np.arange(members), range(at_once, members, at_once))
        ]
        fits.append([np.concatenate([np.asarray(one) for one in parts]) for parts in zip(*found, strict=True)])
    (weights, values), (draw_weights, draw_values) = fits
    return Mixture(weights, values, draw_weights, draw_values)


def matched(tables: PairTables, observed: Observed, weights: NumpyArray, values: NumpyArray) -> NumpyArray:
    """Tables of components, [components, cells of all columns], in which the one-way tables of columns that were also counted
    by themselves are what was observed in all, where that is clear of its noise. Every component's shares are multiplied alike,
    so that what columns have to do with each other stays."""
    values = np.array(values, np.float64)
    starts = np.cumsum([0, *tables.sizes])
    one_way = observed.one_way(tables) if observed.cell_shares else []
    for column in observed.cell_shares:
        own, (mean, deviation) = values[:, starts[column] : starts[column + 1]], one_way[column]
        for _ in range(MATCHES):
            own /= np.maximum(own.sum(axis=1, keepdims=True), 1e-300)
            now = weights @ own
            clear = (mean > CLEAR * deviation) & (now > 0)
            rest = float(now[~clear].sum())
            left = max(1 - float(mean[clear].sum()), 0.0)  # for cells that noise hides, together
            ratio = np.where(clear, mean / np.maximum(now, 1e-12), left / max(rest, 1e-12))
            own *= np.maximum(ratio, LEAST_SHARE)
            own /= np.maximum(own.sum(axis=1, keepdims=True), 1e-300)
    return values


@functools.partial(jax.jit, static_argnums=(0, 1))
def fit_members(
    tables: PairTables,
    settings: Settings,
    base: Array,
    shares: ArrayTree,
    precisions: ArrayTree,
    smooth: ArrayTree,
    keys: Array,
) -> tuple[Array, Array]:
    """[members, components] and [members, components, all cells]: weights and tables of each fit."""
    return jax.vmap(lambda key, one: _fit(tables, settings, base, one, precisions, smooth, key))(keys, shares)


def _fit(
    tables: PairTables,
    settings: Settings,
    base: Array,
    shares: ArrayTree,
    precisions: ArrayTree,
    smooth: ArrayTree,
    key: Array,
) -> tuple[Array, Array]:
    def model(parameters: ArrayTree) -> tuple[Array, Array]:
        along = {name: _smoothed(tables, parameters[name], smooth) for name in ("logits", "effect", "own")}
        return components(tables, {**parameters, **along})

    def loss(parameters: ArrayTree) -> Array:
        weights, values = model(parameters)
        left = predicted(tables, weights, values) - shares["pairs"]
        alone = jnp.einsum("zy,zya->ya", weights, values) - precisions["single_shares"]
        pulled = sum(
            pull * jnp.sum(parameters[name] ** 2)
            for name, pull in (
                ("logits", precisions["pull"]),
                ("leaning", precisions["pull"]),
                ("effect", EFFECT_PULL),
                ("own", OWN_PULL),
            )
        )
        if "groups" in shares:
            inner = values @ precisions["membership"]
            between = jnp.einsum("zy,zya,zyb->ab", weights, inner, inner) - shares["groups"]
            pulled += jnp.sum(precisions["groups"] * between**2)
        return 0.5 * (jnp.sum(precisions["pairs"] * left**2) + jnp.sum(precisions["single"] * alone**2) + pulled)

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

    start = _start(tables, settings, base, key)
    zero = jax.tree.map(jnp.zeros_like, start)
    (end, _, _), _ = jax.lax.scan(step, (start, zero, zero), jnp.arange(settings.steps, dtype=jnp.float32))
    weights, values = model(end)
    return weights.reshape(-1), _with_target(tables, values)


def _smoothed(tables: PairTables, logits: Array, smooth: ArrayTree) -> Array:
    """Logits [.., positions] from independent numbers, by the roots of the columns that have one."""
    if all(root is None for root in smooth):
        return logits
    parts, plain = [], 0  # columns without a root in a row are one part
    for column, root in zip(tables.columns, smooth, strict=True):
        if root is not None:
            start = tables.offsets[column]
            parts += [logits[..., plain:start], logits[..., start : start + len(root)] @ root]
            plain = start + len(root)
    whole: Array = jnp.concatenate([*parts, logits[..., plain:]], axis=-1)
    return whole


def _start(tables: PairTables, settings: Settings, base: Array, key: Array) -> dict[str, Array]:
    """Components at random around the one-way tables; the target has no effect yet."""
    inner, outcome = _places(tables)
    first, second = jax.random.split(key)
    number, outcomes, values = settings.components, tables.outcomes, len(inner)
    several = number if outcomes > 1 else 0  # without a target no component has anything of its own for its values
    return {
        "base": base[inner], "outcome": base[outcome] if outcomes > 1 else jnp.zeros(1), "weights": jnp.zeros(number),
        "logits": START_SPREAD * jax.random.normal(first, (number, values)),
        "leaning": START_SPREAD * jax.random.normal(second, (several, outcomes)),
        "effect": jnp.zeros((outcomes if several else 0, values)), "own": jnp.zeros((several, outcomes, values)),
    }  # fmt: skip


def _places(tables: PairTables) -> tuple[NumpyArray, NumpyArray]:
    """Where the cells of the columns in pairs stand among those of all columns, and where those of the target do."""
    column = np.repeat(np.arange(len(tables.sizes)), tables.sizes)
    is_target = column == (-1 if tables.target is None else tables.target)
    return np.flatnonzero(~is_target), np.flatnonzero(is_target)


def components(tables: PairTables, parameters: ArrayTree) -> tuple[Array, Array]:
    """[components, outcomes] and [components, outcomes, positions]: every component has a weight and tables for each value of
    the target. Their logits add up: the one-way tables, the component's, the value's effect, and what is both's own."""
    logits = parameters["base"] + parameters["logits"][:, None, :]
    weights = parameters["weights"][:, None] + parameters["outcome"]
    if tables.outcomes > 1:
        logits = logits + parameters["effect"] + parameters["own"]
        weights = weights + parameters["leaning"]
    parts, end = [], 0
    for number, size in _equal_runs([tables.sizes[column] for column in tables.columns]):
        start, end = end, end + number * size
        several = logits[..., start:end].reshape(*logits.shape[:-1], number, size)
        parts.append(jax.nn.softmax(several, axis=-1).reshape(*logits.shape[:-1], -1))
    shares: Array = jax.nn.softmax(weights.reshape(-1)).reshape(weights.shape)
    return shares, jnp.concatenate(parts, axis=-1)


def _equal_runs(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Columns in a row with as many cells each, how many and how many: taken together, they compile as one."""
    return [(len(list(run)), size) for size, run in itertools.groupby(sizes)]


def _with_target(tables: PairTables, values: Array) -> Array:
    """[components times outcomes, cells of all columns]: each with its value of the target."""
    inner, outcome = _places(tables)
    number = values.shape[0] * values.shape[1]
    whole = jnp.zeros((number, sum(tables.sizes))).at[:, inner].set(values.reshape(number, -1))
    if tables.target is None:
        return whole
    own = jnp.broadcast_to(jnp.eye(tables.outcomes), (*values.shape[:2], tables.outcomes)).reshape(number, -1)
    return whole.at[:, outcome].set(own)


def predicted(tables: PairTables, weights: Array, values: Array) -> Array:
    """[outcomes, positions, positions]: the shares that a mixture gives every two cells, for each value of the target."""
    if len(tables.columns) == 1:
        single: Array = jnp.einsum("zy,zya->ya", weights, values)[:, :, None] * jnp.eye(values.shape[-1])
        return single
    products: Array = jnp.einsum("zy,zya,zyb->yab", weights, values, values)
    return products


def laid_out(tables: PairTables, entries: NumpyArray) -> NumpyArray:
    """Entries [..., entries] at their two positions, [..., positions, positions], 0 elsewhere."""
    first, second = tables.cells
    square = np.zeros((*entries.shape[:-1], tables.positions, tables.positions), np.float32)
    square[..., first, second] = entries
    return square
