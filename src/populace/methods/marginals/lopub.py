"""`lopub`: Bloom filters on every attribute, a dependency graph, and a junction tree (Ren et al. 2018).

One- and two-way tables are estimated from the bits; pairs with enough mutual information become edges of a graph; the graph is
triangulated; the table of each clique is estimated and rows are drawn clique by clique.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import networkx
import numpy as np

from populace.errors import out_of_range
from populace.methods.base import Facts, Population
from populace.methods.blocks.clique_tree import CliqueTree, TreeGenerator
from populace.methods.blocks.frequency_estimation import maximise_likelihood, pair_likelihoods
from populace.methods.blocks.one_report import mutual_information
from populace.methods.marginals.bloom import Bits, BloomLearner, BloomMethod, Estimates, Filters
from populace.types import Array, NumpyArray

LEAST_START = 0.01  # even share of where expectation maximisation begins, so that no cell is ruled out


@dataclasses.dataclass(frozen=True)
class LoPubLearner(BloomLearner):
    """The estimated tables of the cliques of a dependency graph."""

    correlation_threshold: float
    max_clique_cells: int

    def finish(self, state: Bits, key: Array) -> TreeGenerator:
        estimates, sizes = self.estimates(state), self.filters.sizes
        pairs = {pair: estimates.two_way(*pair) for pair in itertools.combinations(range(len(sizes)), 2)}
        strength = {pair: mutual_information(table) for pair, table in pairs.items()}
        edges = [
            pair
            for pair in sorted(pairs, key=lambda pair: -strength[pair])
            # Ren et al., section 5: their phi is a correlation, turned into mutual information by the smaller domain.
            if strength[pair] >= 0.5 * self.correlation_threshold**2 * (min(sizes[pair[0]], sizes[pair[1]]) - 1)
        ]
        cliques, parents = clique_order(bounded_graph(sizes, edges, self.max_clique_cells))
        tables = tuple(self._table(clique, estimates, pairs) for clique in cliques)
        tree = CliqueTree(sizes=sizes, cliques=cliques, parents=parents, tables=tables)
        return TreeGenerator(schema=self.population.table_schema, tree=tree)

    def _table(
        self, clique: tuple[int, ...], estimates: Estimates, pairs: dict[tuple[int, int], NumpyArray]
    ) -> NumpyArray:
        if len(clique) == 1:
            return estimates.one_way(clique[0])
        if len(clique) == 2:
            return pairs[clique[0], clique[1]]
        likelihoods = functools.reduce(pair_likelihoods, [estimates.likelihoods[column] for column in clique])
        shape = [estimates.filters.sizes[column] for column in clique]
        # Ren et al., section 4.3: expectation maximisation starts from the regression's result; from an even table it
        # would stay there, because one report of a randomised filter says next to nothing.
        start: NumpyArray = functools.reduce(np.multiply.outer, [estimates.one_way(column) for column in clique])
        even = np.full(start.shape, 1 / start.size)
        start = (1 - LEAST_START) * start + LEAST_START * even
        table: NumpyArray = maximise_likelihood(likelihoods, start=start, iterations=20).reshape(shape)
        return table


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoPub(BloomMethod):
    """Guarantee: epsilon-LDP, pure, for everything a client holds: d filters of epsilon/d about one record.

    Edge cases: cliques of more than `max_clique_cells` lose their weakest edges, so that memory stays bounded.
    """

    epsilon: float
    bits: int = 64
    hashes: int = 4
    correlation_threshold: float = 0.4
    estimator: Literal["lasso", "em"] = "lasso"
    max_clique_cells: int = 1_500
    clients_per_batch: int = 16_384

    facts: ClassVar[Facts] = Facts(
        name="lopub",
        line="Bloom filters, junction tree",
        title="Bloom filters on every attribute, dependency graph, junction tree",
        paper="Ren et al. 2018; baseline of Chen et al. 2023 and Jiang et al. 2022",
        trust=("local",),
        unit="client",
        kinds=("table",),
        traffic="one Bloom filter per attribute and client, one round",
    )
    renamed: ClassVar[Mapping[str, str]] = {
        "batch": "clients_per_batch",
        "phi": "correlation_threshold",
        "estimate": "estimator",
        "cells": "max_clique_cells",
    }
    small: ClassVar[Mapping[str, object]] = {"clients_per_batch": 8}
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The privacy loss of one client, by pure local differential privacy.",
        "bits": "The length of each column's Bloom filter.",
        "hashes": "How many hash functions set bits of a filter.",
        "correlation_threshold": "The correlation from which on two columns are joined in the graph (the paper's phi).",
        "estimator": "How tables are estimated from bits: by sparse regression (lasso) or expectation maximisation (em).",
        "max_clique_cells": "The most cells a clique of the junction tree may have.",
        "clients_per_batch": "How many clients are asked in one round; the guarantee does not depend on it.",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.correlation_threshold <= 1:
            raise out_of_range("correlation_threshold", "in (0, 1]", self.correlation_threshold)

    def learner(self, population: Population, filters: Filters) -> LoPubLearner:
        return LoPubLearner(population, filters, self.estimator, self.correlation_threshold, self.max_clique_cells)


def bounded_graph(sizes: tuple[int, ...], edges: list[tuple[int, int]], cells: int) -> networkx.Graph:
    """A chordal graph with these edges, strongest first, as far as no clique gets more than so many cells."""
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(sizes)))
    for edge in edges:
        trial = graph.copy()
        trial.add_edge(*edge)
        chordal, _ = networkx.complete_to_chordal_graph(trial)
        if all(math.prod(sizes[c] for c in clique) <= cells for clique in networkx.find_cliques(chordal)):
            graph = trial
    return networkx.complete_to_chordal_graph(graph)[0]


def clique_order(graph: networkx.Graph) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """The cliques of a chordal graph, parents before children, by the largest overlap first (a junction tree)."""
    left = sorted(tuple(sorted(clique)) for clique in networkx.find_cliques(graph))
    ordered: list[tuple[int, ...]] = []
    parents: list[int] = []
    while left:
        overlaps = [
            max(((len(set(clique) & set(other)), -number) for number, other in enumerate(ordered)), default=(0, 1))
            for clique in left
        ]
        best = int(np.argmax([overlap for overlap, _ in overlaps]))
        overlap, parent = overlaps[best]
        parents.append(-parent if overlap else -1)
        ordered.append(left.pop(best))
    return tuple(ordered), tuple(parents)
