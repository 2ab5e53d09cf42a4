"""One joint distribution of all columns as tables over a tree of cliques: fitted, queried, sampled and saved.

`fit_potentials` and `tables_of` are Private-PGM (McKenna, Sheldon and Miklau 2019), through `mbi`: of the distributions that
fit the noisy tables best, each weighted with the inverse of its variance, the one of greatest entropy. `CliqueTree` needs NumPy
only: samples and marginals come from its tables directly, and they are saved as they are.
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
from populace.methods.blocks.frequency_estimation import NoisyTable
from populace.methods.blocks.generator import Generator
from populace.tables.schema import Schema
from populace.types import Array, NumpyArray

if TYPE_CHECKING:
    from mbi import MarkovRandomField

Columns = tuple[int, ...]
#: A table over some columns, one axis per column.
Message = tuple[tuple[int, ...], NumpyArray]

MOST_QUERIED = 2**24  # cells of one marginal
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

    def exact_conditions(self, conditions: Mapping[int, int]) -> Mapping[int, int]:
        return conditions

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


def junction_tree(sizes: Columns, cliques: Sequence[Columns]) -> list[tuple[Columns, int]]:
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


def fit_potentials(sizes: Columns, tables: Sequence[NoisyTable], iterations: int) -> MarkovRandomField | None:
    mbi = _mbi()
    domain = mbi.Domain(range(len(sizes)), sizes)
    linear = [
        mbi.LinearMeasurement(np.asarray(table, np.float32).reshape(-1), columns, stddev)
        for columns, table, stddev in tables
    ]
    if not linear:
        return None
    return mbi.estimation.MirrorDescent().estimate(domain, linear, known_total=1.0, iters=iterations, tol=TOLERANCE)


def tables_of(sizes: Columns, tree: list[tuple[Columns, int]], fitted: MarkovRandomField | None) -> CliqueTree:
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
