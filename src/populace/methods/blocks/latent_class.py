"""Latent classes: P(x) = sum over z of pi_z times the product over columns of theta_zj(x_j).

Any joint table of a few columns, any conditional and any density is a small sum over classes, exactly and without sampling.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax
import numpy as np

from populace.errors import DataError, out_of_range
from populace.methods.blocks.generator import Generator
from populace.tables.schema import Schema
from populace.types import Array, NumpyArray

MOST_CELLS = 2**22


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentClass(Generator):
    """`weights[z]` is pi_z; `tables[z]` holds theta_z of all columns end to end, in schema order.

    `draws` holds other models the answers allow (their weights and tables): how far their tables spread is how well the
    answers determine them.
    """

    kind: ClassVar[str] = "latent-class"
    schema: Schema
    weights: Array
    tables: Array
    draws: tuple[Array, Array] | None = None

    def __post_init__(self) -> None:
        weights, tables = np.asarray(self.weights), np.asarray(self.tables)
        if tables.shape != (len(weights), sum(self.schema.sizes)):
            raise DataError(f"expected tables of shape {(len(weights), sum(self.schema.sizes))}, got {tables.shape}")
        if np.min(weights) < 0 or not np.isclose(weights.sum(), 1, atol=1e-4):
            raise DataError("the class weights are not a distribution")
        totals = np.add.reduceat(tables, self._offsets, axis=1)
        if np.min(tables) < 0 or not np.allclose(totals, 1, atol=1e-3):
            raise DataError("a class's table of a column is not a distribution")

    @functools.cached_property
    def _offsets(self) -> NumpyArray:
        return np.concatenate([[0], np.cumsum(self.schema.sizes)[:-1]]).astype(np.int64)

    def _column(self, column: int) -> NumpyArray:
        """theta of one column, [classes, values]."""
        start = self._offsets[column]
        return np.asarray(np.asarray(self.tables)[:, start : start + self.schema.sizes[column]], np.float64)

    def marginal(self, columns: Sequence[int]) -> NumpyArray:
        """The joint table of some columns, exactly."""
        cells = math.prod(self.schema.sizes[column] for column in columns)
        if cells > MOST_CELLS:
            raise out_of_range("columns", f"with at most {MOST_CELLS} cells in all", cells)
        joint = np.asarray(self.weights, np.float64)[:, None]
        for column in columns:
            joint = (joint[:, :, None] * self._column(column)[:, None, :]).reshape(len(joint), -1)
        table: NumpyArray = joint.sum(axis=0).reshape([self.schema.sizes[column] for column in columns])
        return table

    def deviations(self, columns: Sequence[int]) -> NumpyArray | None:
        """Posterior standard deviation of each cell: of the answers' noise, not of what latent classes cannot express."""
        if self.draws is None:
            return None
        weights, tables = self.draws
        joint = np.asarray(weights, np.float64)[:, :, None]
        for column in columns:
            start = self._offsets[column]
            values = np.asarray(np.asarray(tables)[:, :, start : start + self.schema.sizes[column]], np.float64)
            joint = (joint[..., None] * values[:, :, None, :]).reshape(*joint.shape[:2], -1)
        shape = [self.schema.sizes[column] for column in columns]
        deviations: NumpyArray = np.std(joint.sum(axis=1), axis=0, ddof=1).reshape(shape)
        return deviations

    def conditional(self, columns: Sequence[int], conditions: Mapping[int, int]) -> NumpyArray:
        """The joint table of some columns given codes of others, exactly."""
        return dataclasses.replace(self, weights=self._posterior(conditions)).marginal(columns)

    def log_density(self, codes: Array) -> NumpyArray:
        """The log probability of whole rows."""
        positions = np.asarray(codes) + self._offsets
        logs = np.log(np.maximum(np.asarray(self.tables, np.float64), 1e-300))
        total = np.log(np.maximum(np.asarray(self.weights, np.float64), 1e-300))[:, None]
        total = total + sum(logs[:, positions[:, column]] for column in range(positions.shape[1]))
        top = total.max(axis=0)
        densities: NumpyArray = top + np.log(np.exp(total - top).sum(axis=0))
        return densities

    def entropy(self, columns: Sequence[int]) -> float:
        """The entropy of the joint table of some columns, in nats."""
        table = self.marginal(columns).ravel()
        return float(-(table[table > 0] * np.log(table[table > 0])).sum())

    def _posterior(self, conditions: Mapping[int, int]) -> NumpyArray:
        """Class weights given codes of some columns."""
        weights = np.asarray(self.weights, np.float64)
        for column, code in conditions.items():
            weights = weights * self._column(column)[:, code]
        if not weights.sum() > 0:
            raise DataError("the model gives the conditions no probability; drop one of them")
        posterior: NumpyArray = weights / weights.sum()
        return posterior

    def exact_conditions(self, conditions: Mapping[int, int]) -> Mapping[int, int]:
        return conditions

    def sample_codes(self, count: int, key: Array, conditions: Mapping[int, int]) -> NumpyArray:
        """Rows of codes by systematic sampling: each row has the model's law, and together they spread over it evenly.

        Classes get their share of rows up to one; within a class every column's values get theirs, in an order of their own.
        """
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        weights = self._posterior(conditions)
        points = (np.arange(count) + rng.random()) / count
        classes = np.minimum(np.searchsorted(np.cumsum(weights), points, side="right"), len(weights) - 1)
        sizes = np.bincount(classes, minlength=len(weights))
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        codes = np.empty((count, len(self.schema.columns)), np.int32)
        for column, size in enumerate(self.schema.sizes):
            if column in conditions:
                codes[:, column] = conditions[column]
                continue
            order = np.lexsort((rng.random(count), classes))
            rank = np.empty(count, np.int64)
            rank[order] = np.arange(count)
            spread = (rank - starts[classes] + rng.random(count)) / sizes[classes]
            laid = np.cumsum(self._column(column), axis=1)
            laid = laid / laid[:, -1:] + np.arange(len(weights))[:, None]
            drawn = np.searchsorted(laid.ravel(), classes + np.minimum(spread, 1 - 1e-9), side="right") - classes * size
            codes[:, column] = np.clip(drawn, 0, size - 1)
        return codes[rng.permutation(count)]

    def arrays(self) -> dict[str, Array]:
        arrays: dict[str, Array] = {
            "weights": np.asarray(self.weights, np.float64), "tables": np.asarray(self.tables, np.float32),
        }  # fmt: skip
        if self.draws is not None:
            arrays["draw_weights"] = np.asarray(self.draws[0], np.float64)
            arrays["draw_tables"] = np.asarray(self.draws[1], np.float32)
        return arrays

    @classmethod
    def from_arrays(cls, schema: Schema, arrays: Mapping[str, Array]) -> LatentClass:
        draws = (arrays["draw_weights"], arrays["draw_tables"]) if "draw_weights" in arrays else None
        return cls(schema=schema, weights=arrays["weights"], tables=arrays["tables"], draws=draws)


def mixture_of(models: Sequence[LatentClass]) -> LatentClass:
    """The average of several models: again latent classes, side by side."""
    return LatentClass(
        schema=models[0].schema,
        weights=np.concatenate([np.asarray(model.weights) / len(models) for model in models]),
        tables=np.concatenate([np.asarray(model.tables) for model in models]),
    )
