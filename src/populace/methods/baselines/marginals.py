"""Columns drawn one by one from their own tables, independent of each other."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import DataError
from populace.methods.blocks.frequency_estimation import project_to_simplex as project_to_simplex
from populace.methods.blocks.generator import Generator, check_possible
from populace.tables.schema import Schema
from populace.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Marginals(Generator):
    """One table per column, in schema order."""

    kind: ClassVar[str] = "marginals"
    schema: Schema
    tables: tuple[Array, ...]

    def __post_init__(self) -> None:
        for column, table in zip(self.schema.columns, self.tables, strict=True):
            table = np.asarray(table)
            if table.shape != (column.size,) or (table < 0).any() or not np.isclose(table.sum(), 1, atol=1e-6):
                raise DataError(f"the table of column {column.name!r} is not a distribution over {column.size} values")

    def exact_conditions(self, conditions: Mapping[int, int]) -> Mapping[int, int]:
        return conditions

    def sample_codes(self, count: int, key: Array, conditions: Mapping[int, int]) -> Array:
        check_possible(self.schema, self.tables, conditions)
        width = max(len(table) for table in self.tables)
        cumulative = np.ones((len(self.tables), width), np.float32)
        for row, table in zip(cumulative, self.tables, strict=True):
            row[: len(table)] = np.minimum(np.cumsum(table), 1.0)
            row[len(table) - 1 :] = 2.0  # the last value takes what rounding leaves
        codes = np.array(_draw(cumulative, key, count))
        for column, code in conditions.items():
            codes[:, column] = code
        return codes

    def arrays(self) -> dict[str, Array]:
        return {f"table_{i}": np.asarray(table) for i, table in enumerate(self.tables)}

    @classmethod
    def from_arrays(cls, schema: Schema, arrays: Mapping[str, Array]) -> Marginals:
        return cls(schema=schema, tables=tuple(arrays[f"table_{i}"] for i in range(len(schema.columns))))


@functools.partial(jax.jit, static_argnames="count")
def _draw(cumulative: Array, key: Array, count: int) -> Array:
    uniforms = jax.random.uniform(key, (len(cumulative), count))
    return jax.vmap(lambda row, u: jnp.searchsorted(row, u, side="right"))(cumulative, uniforms).T.astype(jnp.int32)
