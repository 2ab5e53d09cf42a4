"""Graphical models: one joint distribution fitted to many noisy marginals, held as tables over a tree of cliques.

`fit_graphical_model` is Private-PGM (McKenna, Sheldon and Miklau 2019), through `mbi`. Of the distributions that fit the tables
best, each table weighted with the inverse of its variance, it finds the one of greatest entropy. The tables that become cliques
are chosen so that the tree of cliques stays small, strongest dependence first; a table left out still counts through its single
columns. `CliqueTree` needs NumPy only: samples and marginals come from its tables directly, and they are saved as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import jax
import numpy as np

from populace.errors import DataError, out_of_range
from populace.methods.blocks.frequency_estimation import NoisyTable, marginal, project_to_simplex, with_marginal
from populace.methods.blocks.generator import Generator
from populace.tables.schema import Schema
from populace.types import Array, NumpyArray

if TYPE_CHECKING:
    from mbi import MarkovRandomField

Columns = tuple[int, ...]
#: A table over some columns, one axis per column.
Message = tuple[tuple[int, ...], NumpyArray]

MOST_QUERIED = 2**24  # cells of one marginal
LEAST_DEVIATION = 1e-5  # of a frequency; less would leave single precision no room
TRIALS = 100  # tables tried as further cliques once all columns are joined
TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CliqueTree:
    """Tables over cliques, parents before children; a child shares its separator with its parent.

    Edge cases: columns in different components are independent; a condition that the model gives no probability is refused.
    """

    sizes: tuple[int, ...]
    cliques: tuple[tuple[int, ...], ...]
    parents: tuple[int, ...]
    tables: tuple[NumpyArray, ...]

    def __post_init__(self) -> None:
        for number, (clique, parent, table) in enumerate(zip(self.cliques, self.parents, self.tables, strict=True)):
            if not -1 <= parent < number:
                raise DataError(f"expected the parent of clique {number} before it, got {parent}")
            if np.shape(table) != tuple(self.sizes[column] for column in clique):
                raise DataError(f"the table of clique {clique} does not have the shape of its columns")
        if set(itertools.chain(*self.cliques)) != set(range(len(self.sizes))):
            raise DataError("the cliques do not cover all columns")

    @functools.cached_property
    def separators(self) -> tuple[tuple[int, ...], ...]:
        """What each clique shares with its parent, in the clique's order."""
        return tuple(
            tuple(column for column in clique if parent >= 0 and column in self.cliques[parent])
            for clique, parent in zip(self.cliques, self.parents, strict=True)
        )

    @functools.cached_property
    def conditionals(self) -> tuple[NumpyArray, ...]:
        """Each clique's table given its separator; where the separator has no probability, uniform."""
        conditionals = []
        for clique, separator, table in zip(self.cliques, self.separators, self.tables, strict=True):
            new = tuple(axis for axis, column in enumerate(clique) if column not in separator)
            table = np.maximum(np.asarray(table, np.float64), 0)
            total = table.sum(axis=new, keepdims=True)
            even = 1 / math.prod(table.shape[axis] for axis in new)
            conditionals.append(np.where(total > 0, table / np.where(total > 0, total, 1), even))
        return tuple(conditionals)

    def marginal(self, columns: Sequence[int]) -> NumpyArray:
        """The joint distribution of any columns, axes in their order."""
        cells = math.prod(self.sizes[column] for column in columns)
        if cells > MOST_QUERIED:
            raise out_of_range("columns", f"with at most {MOST_QUERIED} cells in all", cells)
        _, roots = self._collect(frozenset(columns), {})
        operands: list[NumpyArray | list[int]] = []
        local = {column: label for label, column in enumerate(columns)}
        for labels, message in roots:
            operands += [message, [local[column] for column in labels]]
        joint: NumpyArray = np.einsum(*operands, list(range(len(columns))))  # type: ignore[call-overload]
        return joint

    def sample_codes(self, count: int, key: Array, conditions: Mapping[int, int] | None = None) -> Array:
        """`count` rows of codes, int32, given the codes of some columns."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        given = dict(conditions or {})
        factors, roots = self._collect(frozenset(), given)
        if any(not message > 0 for _, message in roots):
            raise DataError("the model gives the conditions no probability; drop one of them")
        codes = np.zeros((count, len(self.sizes)), np.int32)
        for clique, separator, factor in zip(self.cliques, self.separators, factors, strict=True):
            new = tuple(column for column in clique if column not in separator)
            if new:
                order = [clique.index(column) for column in separator + new]
                weights = factor.transpose(order).reshape(math.prod(self.sizes[c] for c in separator), -1)
                row = _ravel(codes, separator, self.sizes)
                drawn = _draw(weights, row, rng.random(count))
                codes[:, new] = np.stack(np.unravel_index(drawn, [self.sizes[c] for c in new]), axis=1)
        return codes

    def _collect(self, keep: frozenset[int], given: Mapping[int, int]) -> tuple[list[NumpyArray], list[Message]]:
        """Messages from the leaves up: each clique's conditional times its children's messages, and the messages of the roots.

        A message is how likely the evidence below a clique is, for each cell of its separator and of the kept columns.
        """
        factors = list(self.conditionals)
        inbox: list[list[Message]] = [[] for _ in self.cliques]
        roots: list[Message] = []
        for number in reversed(range(len(self.cliques))):
            clique, separator = self.cliques[number], self.separators[number]
            factor = self.conditionals[number]
            for column in clique:
                if column in given:
                    shape = [self.sizes[column] if other == column else 1 for other in clique]
                    factor = factor * (np.arange(self.sizes[column]) == given[column]).reshape(shape)
            labels, factor = _multiply([(clique, factor), *inbox[number]])
            factors[number] = factor
            target = tuple(column for column in labels if column in separator or column in keep)
            message = _sum_to(labels, factor, target)
            if self.parents[number] < 0:
                roots.append((target, message))
            else:
                inbox[self.parents[number]].append((target, message))
        return factors, roots


def _multiply(parts: list[Message]) -> Message:
    """The product of tables over columns; the first one's columns lead."""
    labels = tuple(dict.fromkeys(itertools.chain(*(columns for columns, _ in parts))))
    local = {column: label for label, column in enumerate(labels)}
    operands: list[NumpyArray | list[int]] = []
    for columns, table in parts:
        operands += [table, [local[column] for column in columns]]
    return labels, np.einsum(*operands, list(range(len(labels))))  # type: ignore[call-overload]


def _sum_to(labels: tuple[int, ...], table: NumpyArray, target: tuple[int, ...]) -> NumpyArray:
    summed: NumpyArray = np.einsum(table, list(range(len(labels))), [labels.index(column) for column in target])
    return summed


def _ravel(codes: NumpyArray, columns: Sequence[int], sizes: Sequence[int]) -> NumpyArray:
    index = np.zeros(len(codes), np.int64)
    for column in columns:
        index = index * sizes[column] + codes[:, column]
    return index


def _draw(weights: NumpyArray, row: NumpyArray, uniforms: NumpyArray) -> NumpyArray:
    """One cell per draw from the given row of weights, by one search in all cumulative rows laid end to end."""
    cumulative = np.cumsum(weights, axis=1)
    total = cumulative[:, -1:]
    cumulative = np.divide(cumulative, total, out=np.ones_like(cumulative), where=total > 0)
    cells = weights.shape[1]
    laid = (cumulative + np.arange(len(weights))[:, None]).reshape(-1)
    # Kept clear of the next row: rounding row + uniform must not reach row + 1.
    drawn: NumpyArray = np.searchsorted(laid, row + np.minimum(uniforms, 1 - 1e-9), side="right") - row * cells
    return drawn.clip(0, cells - 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreeGenerator(Generator):
    """A tree of cliques under a schema; conditions are exact, marginals need no sampling."""

    kind: ClassVar[str] = "clique-tree"
    schema: Schema
    tree: CliqueTree

    def sample_codes(self, count: int, key: Array, conditions: Mapping[int, int]) -> Array:
        return self.tree.sample_codes(count, key, conditions)

    def arrays(self) -> dict[str, Array]:
        arrays: dict[str, Array] = {"parents": np.array(self.tree.parents, np.int32)}
        for number, (clique, table) in enumerate(zip(self.tree.cliques, self.tree.tables, strict=True)):
            arrays[f"clique_{number}"] = np.array(clique, np.int32)
            arrays[f"table_{number}"] = np.asarray(table)
        return arrays

    @classmethod
    def from_arrays(cls, schema: Schema, arrays: Mapping[str, Array]) -> TreeGenerator:
        parents = tuple(int(parent) for parent in arrays["parents"])
        tree = CliqueTree(
            sizes=schema.sizes,
            cliques=tuple(tuple(int(c) for c in arrays[f"clique_{i}"]) for i in range(len(parents))),
            parents=parents,
            tables=tuple(np.asarray(arrays[f"table_{i}"]) for i in range(len(parents))),
        )
        return cls(schema=schema, tree=tree)


def fit_graphical_model(
    sizes: Sequence[int],
    measurements: Sequence[tuple[Columns, Array, float]],
    total: float = 1.0,
    *,
    most_cells: int = 2**14,
    iterations: int = 2000,
) -> CliqueTree:
    """The model of all columns from measured tables: `(columns, table, standard deviation of a cell)`.

    Each table sums to about `total`. `most_cells` bounds the cells of all cliques together, and with them memory and time.
    Edge cases: a column nobody measured is uniform and independent; a table whose dependence does not stand out from its
    noise, or that would make the tree too large, enters through its single columns only. Compiling a new set of cliques
    takes about 0.2 s per clique.
    """
    sizes = tuple(int(size) for size in sizes)
    tables = [_checked(sizes, measurement, total) for measurement in measurements]
    singles = pool_singles(sizes, tables)
    wide = [table for table in tables if len(table.columns) > 1]
    kept, extras = choose_cliques(sizes, wide, singles, most_cells)
    tree = _junction_tree(sizes, [table.columns for table in (*kept, *extras)])
    while extras and sum(math.prod(sizes[c] for c in clique) for clique, _ in tree) > most_cells:
        extras.pop()  # mbi found a larger tree than `elimination_cells` did
        tree = _junction_tree(sizes, [table.columns for table in (*kept, *extras)])
    chosen = kept + extras
    left_out = [table for table in tables if not any(table is other for other in chosen)]
    fitted = _fit(sizes, chosen + _nontrivial(pool_singles(sizes, left_out)), iterations)
    return _as_tree(sizes, tree, fitted)


def _checked(sizes: Columns, measurement: tuple[Columns, Array, float], total: float) -> NoisyTable:
    columns, table, stddev = measurement
    columns = tuple(int(column) for column in columns)
    if not set(columns) <= set(range(len(sizes))):
        raise DataError(f"expected columns in [0, {len(sizes)}), got {columns}")
    shape = tuple(sizes[column] for column in columns)
    if len(set(columns)) != len(columns) or np.size(table) != math.prod(shape):
        raise DataError(f"the table of columns {columns} does not have {math.prod(shape)} cells")
    if not (total > 0 and stddev >= 0 and math.isfinite(stddev)):
        raise out_of_range("stddev and total", "at least 0 and above 0", (stddev, total))
    frequencies = np.asarray(table, np.float64).reshape(shape) / total
    return NoisyTable(columns, frequencies, max(stddev / total, LEAST_DEVIATION))


def pool_singles(sizes: Columns, tables: Sequence[NoisyTable]) -> list[NoisyTable]:
    """One table per column: the mean of what all tables say about it, weighted with the inverse of its variance.

    A column that none of them holds gets the uniform table and an infinite deviation.
    """
    pooled = []
    for column, size in enumerate(sizes):
        weights: list[float] = [0.0]
        views: list[NumpyArray] = [np.zeros(size)]
        for columns, table, stddev in tables:
            if column in columns:
                weights.append(size / (table.size * stddev**2))
                views.append(marginal(table, columns, (column,)))
        weight = math.fsum(weights)
        if weight == 0:
            pooled.append(NoisyTable((column,), np.full(size, 1 / size), math.inf))
        else:
            mean = np.average(views, axis=0, weights=weights)
            pooled.append(NoisyTable((column,), mean, 1 / math.sqrt(weight)))
    return pooled


def _nontrivial(tables: list[NoisyTable]) -> list[NoisyTable]:
    return [table for table in tables if math.isfinite(table.stddev)]


def dependence(table: NoisyTable, singles: Sequence[NoisyTable]) -> float:
    """How far a table is from independence beyond its noise: the squared L2 distance times the number of cells.

    That is about the square of an L1 distance, and may be negative. The plain distance grows with the noise and would rank the
    noisiest tables first, so what the noise alone would give on average is taken off.
    """
    independent: NumpyArray = np.ones(())
    cells = table.table
    for column in table.columns:
        single = project_to_simplex(singles[column].table)
        independent = np.multiply.outer(independent, single)
        cells = with_marginal(cells, table.columns, (column,), single)
    return float(cells.size * ((cells - independent) ** 2).sum()) - noise_alone(table)


def noise_alone(table: NoisyTable) -> float:
    """How far its noise takes an independent table from independence, on average, in the measure of `dependence`."""
    free = table.table.size - 1 - sum(size - 1 for size in table.table.shape)
    return float(table.table.size * free * table.stddev**2)


def choose_cliques(
    sizes: Columns, tables: Sequence[NoisyTable], singles: Sequence[NoisyTable], most_cells: int
) -> tuple[list[NoisyTable], list[NoisyTable]]:
    """The tables that become cliques: first those that join columns not joined before, then, as room allows, others.

    Strongest dependence first, in both; the second list in the order in which it was added. A table whose noise is larger
    than the dependence it shows would add more error than it takes away, and is left out.
    """
    scored = [(dependence(table, singles), i) for i, table in enumerate(tables)]
    ranked = [tables[i] for score, i in sorted(scored, reverse=True) if score > noise_alone(tables[i])]
    component = {column: {column} for column in range(len(sizes))}
    forest: list[NoisyTable] = []
    used = sum(sizes)
    for table in ranked:
        joined = [component[column] for column in table.columns]
        if len({id(part) for part in joined}) == len(joined) and used + table.table.size <= most_cells:
            forest.append(table)
            used += table.table.size
            whole = set().union(*joined)
            component.update(dict.fromkeys(whole, whole))
    extras: list[NoisyTable] = []
    others = [table for table in ranked if not any(table is other for other in forest)]
    for table in others[:TRIALS]:
        columns = [other.columns for other in (*forest, *extras, table)]
        if elimination_cells(sizes, columns) <= most_cells:
            extras.append(table)
    return forest, extras


def elimination_cells(sizes: Columns, cliques: Sequence[Columns]) -> int:
    """Cells of a tree of cliques that holds these, found by removing the column with the smallest clique each time."""
    near: dict[int, set[int]] = {column: {column} for column in range(len(sizes))}
    for clique in cliques:
        for column in clique:
            near[column].update(clique)
    cost = {column: math.prod(sizes[c] for c in group) for column, group in near.items()}
    cells = 0
    while near:
        column = min(cost, key=lambda c: (cost[c], c))
        cells += cost.pop(column)
        rest = near.pop(column) - {column}
        for other in rest:
            near[other] = (near[other] | rest) - {column}
            cost[other] = math.prod(sizes[c] for c in near[other])
    return cells


def _mbi() -> ModuleType:
    """mbi, without its remarks on import about precision and caches: the frequencies fitted here sum to 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("mbi")


def _junction_tree(sizes: Columns, cliques: Sequence[Columns]) -> list[tuple[Columns, int]]:
    """The cliques of a junction tree, parents before children, each with the place of its parent (-1: none)."""
    mbi = _mbi()
    graph, _ = mbi.junction_tree.make_junction_tree(mbi.Domain(range(len(sizes)), sizes), cliques)
    ordered: list[tuple[Columns, int]] = []
    number_of: dict[Columns, int] = {}
    for root in sorted(graph.nodes):
        stack = [] if root in number_of else [(root, -1)]
        while stack:
            clique, parent = stack.pop()
            number_of[clique] = len(ordered)
            ordered.append((clique, parent))
            stack += [(other, number_of[clique]) for other in sorted(graph.neighbors(clique)) if other not in number_of]
    return ordered


def _fit(sizes: Columns, tables: Sequence[NoisyTable], iterations: int) -> MarkovRandomField | None:
    mbi = _mbi()
    domain = mbi.Domain(range(len(sizes)), sizes)
    linear = [
        mbi.LinearMeasurement(np.asarray(table, np.float32).reshape(-1), columns, stddev)
        for columns, table, stddev in tables
    ]
    if not linear:
        return None
    return mbi.estimation.MirrorDescent().estimate(domain, linear, known_total=1.0, iters=iterations, tol=TOLERANCE)


def _as_tree(sizes: Columns, tree: list[tuple[Columns, int]], fitted: MarkovRandomField | None) -> CliqueTree:
    """The tree's tables, from the potentials that were fitted, by one pass of messages."""
    cliques = tuple(clique for clique, _ in tree)
    if fitted is None:
        tables = [np.full([sizes[c] for c in clique], 1 / math.prod(sizes[c] for c in clique)) for clique in cliques]
    else:
        oracle = _mbi().marginal_oracles.message_passing_stable
        # Compiled as one: step by step it takes longer than the fit.
        beliefs = jax.jit(lambda potentials: oracle(potentials.expand(list(cliques)), 1.0))(fitted.potentials)
        tables = [np.asarray(beliefs.project(clique).datavector(flatten=False), np.float64) for clique in cliques]
    return CliqueTree(sizes=sizes, cliques=cliques, parents=tuple(parent for _, parent in tree), tables=tuple(tables))
