"""A Gaussian copula: any one-way tables, tied together by correlations of normal scores (LoCop)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri

from populace.errors import DataError, SpecError
from populace.methods.blocks.generator import Generator, check_possible
from populace.tables.schema import Schema
from populace.types import Array, NumpyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianCopula(Generator):
    """One-way tables and a correlation matrix.

    One condition is met exactly: its column is drawn inside its normal interval, the others given it. Of several the rarest is
    met so, and rows that meet the others are kept.
    """

    kind: ClassVar[str] = "gaussian-copula"
    schema: Schema
    tables: tuple[Array, ...]
    correlation: Array

    def __post_init__(self) -> None:
        columns = len(self.schema.columns)
        if np.shape(self.correlation) != (columns, columns):
            raise DataError(f"expected a correlation matrix of {columns} columns, got {np.shape(self.correlation)}")

    def exact_conditions(self, conditions: Mapping[int, int]) -> Mapping[int, int]:
        """The rarest one."""
        rarest = sorted(conditions.items(), key=lambda one: float(self.tables[one[0]][one[1]]))
        return dict(rarest[:1])

    def sample_codes(self, count: int, key: Array, conditions: Mapping[int, int]) -> Array:
        if len(conditions) > 1:
            raise SpecError(f"expected at most one condition of a copula's codes, got {len(conditions)}; use sample")
        check_possible(self.schema, self.tables, conditions)
        normal_key, inside_key = jax.random.split(key)
        factor = np.linalg.cholesky(np.asarray(self.correlation) + 1e-9 * np.eye(len(self.tables)))
        scores = np.array(jax.random.normal(normal_key, (count, len(self.tables))) @ factor.T)
        for column, code in conditions.items():
            bounds = np.concatenate([[0.0], np.cumsum(self.tables[column])])
            uniform = jax.random.uniform(jax.random.fold_in(inside_key, 0), (count,))
            wanted = ndtri(jnp.clip(bounds[code] + uniform * (bounds[code + 1] - bounds[code]), 1e-7, 1 - 1e-7))
            scores += (np.asarray(wanted) - scores[:, column])[:, None] * np.asarray(self.correlation)[column]
        uniforms = np.asarray(ndtr(scores))
        codes = np.zeros((count, len(self.tables)), np.int32)
        for column, table in enumerate(self.tables):
            codes[:, column] = np.searchsorted(np.cumsum(table)[:-1], uniforms[:, column], side="right")
        for column, code in conditions.items():
            codes[:, column] = code
        return codes

    def arrays(self) -> dict[str, Array]:
        arrays: dict[str, Array] = {f"table_{i}": np.asarray(table) for i, table in enumerate(self.tables)}
        return arrays | {"correlation": np.asarray(self.correlation)}

    @classmethod
    def from_arrays(cls, schema: Schema, arrays: Mapping[str, Array]) -> GaussianCopula:
        tables = tuple(arrays[f"table_{i}"] for i in range(len(schema.columns)))
        return cls(schema=schema, tables=tables, correlation=arrays["correlation"])


def normal_scores(table: Array) -> NumpyArray:
    """The mean normal score of each value: the normal density between its cumulative bounds over its probability."""
    bounds = np.clip(np.concatenate([[0.0], np.cumsum(table)]), 0, 1)
    edges = np.asarray(ndtri(jnp.asarray(bounds)), np.float64)
    density = np.where(np.isfinite(edges), np.exp(-0.5 * np.where(np.isfinite(edges), edges, 0) ** 2), 0) / np.sqrt(
        2 * np.pi
    )
    scores: NumpyArray = (density[:-1] - density[1:]) / np.maximum(np.asarray(table, np.float64), 1e-12)
    return scores


def correlation_of(pair: Array) -> float:
    """Correlation of the normal scores of two columns with this joint table, scaled for their discreteness."""
    pair = np.asarray(pair, np.float64)
    first, second = pair.sum(axis=1), pair.sum(axis=0)
    a, b = normal_scores(first), normal_scores(second)
    spread = np.sqrt(max(first @ a**2, 1e-12) * max(second @ b**2, 1e-12))
    return float(np.clip((a @ pair @ b) / spread, -0.99, 0.99))


def nearest_correlation(matrix: Array, floor: float = 1e-4) -> NumpyArray:
    """A correlation matrix near this symmetric one: negative eigenvalues cut, the diagonal scaled back to 1."""
    values, vectors = np.linalg.eigh((np.asarray(matrix) + np.asarray(matrix).T) / 2)
    fixed = (vectors * np.maximum(values, floor)) @ vectors.T
    scale = np.sqrt(np.diag(fixed))
    correlation: NumpyArray = fixed / np.outer(scale, scale)
    return correlation
