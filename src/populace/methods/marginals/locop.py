"""`locop`: Bloom filters on every attribute, a Gaussian copula from estimated one- and two-way tables (Wang et al. 2019)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from populace.methods.base import Facts, Population
from populace.methods.marginals.bloom import Bits, BloomLearner, BloomMethod, Filters
from populace.methods.marginals.copula import GaussianCopula, correlation_of, nearest_correlation
from populace.types import Array


class LoCopLearner(BloomLearner):
    """The estimated tables of single columns, tied by the correlations of a Gaussian copula."""

    def finish(self, state: Bits, key: Array) -> GaussianCopula:
        estimates = self.estimates(state)
        columns = range(len(self.filters.sizes))
        correlation = np.eye(len(columns))
        for a, b in itertools.combinations(columns, 2):
            correlation[a, b] = correlation[b, a] = correlation_of(estimates.two_way(a, b))
        tables = tuple(estimates.one_way(column) for column in columns)
        return GaussianCopula(
            schema=self.population.table_schema, tables=tables, correlation=nearest_correlation(correlation)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoCop(BloomMethod):
    """Guarantee: epsilon-LDP, pure, for everything a client holds: d filters of epsilon/d about one record.

    Edge cases: the copula ties columns by rank: for a categorical column the order of its categories matters, and is the
    schema's.
    """

    epsilon: float
    bits: int = 64
    hashes: int = 4
    estimator: Literal["lasso", "em"] = "lasso"
    clients_per_batch: int = 16_384

    facts: ClassVar[Facts] = Facts(
        name="locop",
        line="Bloom filters, Gaussian copula",
        title="Bloom filters on every attribute, Gaussian copula",
        paper="Wang et al. 2019; baseline of Jiang et al. 2022",
        trust=("local",),
        unit="client",
        kinds=("table",),
        traffic="one Bloom filter per attribute and client, one round",
    )
    renamed: ClassVar[Mapping[str, str]] = {"batch": "clients_per_batch", "estimate": "estimator"}
    small: ClassVar[Mapping[str, object]] = {"clients_per_batch": 8}
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The privacy loss of one client, by pure local differential privacy.",
        "bits": "The length of each column's Bloom filter.",
        "hashes": "How many hash functions set bits of a filter.",
        "estimator": "How tables are estimated from bits: by sparse regression (lasso) or expectation maximisation (em).",
        "clients_per_batch": "How many clients are asked in one round; the guarantee does not depend on it.",
    }

    def learner(self, population: Population, filters: Filters) -> LoCopLearner:
        return LoCopLearner(population, filters, self.estimator)
