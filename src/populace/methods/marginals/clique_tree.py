"""A joint distribution held as tables over cliques of columns that form a tree; samples and marginals come from it directly.

NumPy only: once fitted (see `graphical`), nothing but these tables is needed, so they can be saved as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from populace.errors import DataError, out_of_range
from populace.types import Array

MOST_QUERIED = 2**24  # cells of one marginal


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CliqueTree:
    """Tables over cliques, parents before children; a child shares its separator with its parent.

    Edge cases: columns in different components are independent; a condition that the model gives no probability is refused.
    """

    sizes: tuple[int, ...]
    cliques: tuple[tuple[int, ...], ...]
    parents: tuple[int, ...]
    tables: tuple[Array, ...]

    def __post_init__(self) -> None:
        for place, (clique, parent, table) in enumerate(zip(self.cliques, self.parents, self.tables, strict=True)):
            if not -1 <= parent < place:
                raise DataError(f"expected the parent of clique {place} before it, got {parent}")
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
    def conditionals(self) -> tuple[Array, ...]:
        """Each clique's table given its separator; where the separator has no probability, uniform."""
        found = []
        for clique, separator, table in zip(self.cliques, self.separators, self.tables, strict=True):
            new = tuple(axis for axis, column in enumerate(clique) if column not in separator)
            table = np.maximum(np.asarray(table, np.float64), 0)
            total = table.sum(axis=new, keepdims=True)
            even = 1 / math.prod(table.shape[axis] for axis in new)
            found.append(np.where(total > 0, table / np.where(total > 0, total, 1), even))
        return tuple(found)

    def marginal(self, columns: Sequence[int]) -> Array:
        """The joint distribution of any columns, axes in their order."""
        cells = math.prod(self.sizes[column] for column in columns)
        if cells > MOST_QUERIED:
            raise out_of_range("columns", f"with at most {MOST_QUERIED} cells in all", cells)
        _, roots = self._collect(frozenset(columns), {})
        operands: list[Any] = []
        local = {column: label for label, column in enumerate(columns)}
        for labels, message in roots:
            operands += [message, [local[column] for column in labels]]
        return np.einsum(*operands, list(range(len(columns))))

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

    def _collect(
        self, keep: frozenset[int], given: Mapping[int, int]
    ) -> tuple[list[Array], list[tuple[tuple[int, ...], Array]]]:
        """From the leaves up: each clique's conditional times what its children say, and what the roots say in the end.

        A child says to its parent how likely the evidence below it is, for each cell of the separator and of the kept columns.
        """
        factors: list[Array] = [None] * len(self.cliques)
        inbox: list[list[tuple[tuple[int, ...], Array]]] = [[] for _ in self.cliques]
        roots: list[tuple[tuple[int, ...], Array]] = []
        for place in reversed(range(len(self.cliques))):
            clique, separator = self.cliques[place], self.separators[place]
            factor = self.conditionals[place]
            for column in clique:
                if column in given:
                    shape = [self.sizes[column] if other == column else 1 for other in clique]
                    factor = factor * (np.arange(self.sizes[column]) == given[column]).reshape(shape)
            labels, factor = _multiply([(clique, factor), *inbox[place]])
            factors[place] = factor
            target = tuple(column for column in labels if column in separator or column in keep)
            message = _sum_to(labels, factor, target)
            if self.parents[place] < 0:
                roots.append((target, message))
            else:
                inbox[self.parents[place]].append((target, message))
        return factors, roots


def _multiply(parts: list[tuple[tuple[int, ...], Array]]) -> tuple[tuple[int, ...], Array]:
    """The product of tables over columns; the first one's columns lead."""
    labels = tuple(dict.fromkeys(itertools.chain(*(columns for columns, _ in parts))))
    local = {column: label for label, column in enumerate(labels)}
    operands: list[Any] = []
    for columns, table in parts:
        operands += [table, [local[column] for column in columns]]
    return labels, np.einsum(*operands, list(range(len(labels))))


def _sum_to(labels: tuple[int, ...], table: Array, target: tuple[int, ...]) -> Array:
    return np.einsum(table, list(range(len(labels))), [labels.index(column) for column in target])


def _ravel(codes: Array, columns: Sequence[int], sizes: Sequence[int]) -> Array:
    index = np.zeros(len(codes), np.int64)
    for column in columns:
        index = index * sizes[column] + codes[:, column]
    return index


def _draw(weights: Array, row: Array, uniforms: Array) -> Array:
    """One cell per draw from the given row of weights, by one search in all cumulative rows laid end to end."""
    cumulative = np.cumsum(weights, axis=1)
    total = cumulative[:, -1:]
    cumulative = np.divide(cumulative, total, out=np.ones_like(cumulative), where=total > 0)
    cells = weights.shape[1]
    laid = (cumulative + np.arange(len(weights))[:, None]).reshape(-1)
    # Kept clear of the next row: rounding row + uniform must not reach row + 1.
    found = np.searchsorted(laid, row + np.minimum(uniforms, 1 - 1e-9), side="right") - row * cells
    return np.clip(found, 0, cells - 1)
