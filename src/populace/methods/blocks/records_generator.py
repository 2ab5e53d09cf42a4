"""A weighted list of rows: what methods leave that build a data set, or estimate a joint table over listed combinations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import numpy as np

from populace.errors import DataError
from populace.methods.blocks.generator import Generator
from populace.tables.schema import Schema
from populace.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records(Generator):
    """Rows of codes (synthetic ones, never a client's) and how likely each is."""

    kind: ClassVar[str] = "records"
    schema: Schema
    codes: Array
    weights: Array

    def __post_init__(self) -> None:
        if np.shape(self.codes) != (len(self.weights), len(self.schema.columns)) or not len(self.weights):
            raise DataError("expected one row of codes per weight, and at least one")
        if np.min(self.weights) < 0 or not np.sum(self.weights) > 0:
            raise DataError("expected weights that are not negative and not all zero")

    def sample_codes(self, count: int, key: Array, conditions: Mapping[int, int]) -> Array:
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        kept = np.ones(len(self.weights), bool)
        for column, code in conditions.items():
            kept &= np.asarray(self.codes)[:, column] == code
        if not (np.asarray(self.weights)[kept] > 0).any():
            raise DataError("no synthetic row meets these conditions; ask for something more frequent")
        weights = np.asarray(self.weights, np.float64)[kept]
        cumulative = np.cumsum(weights / weights.sum())
        place = np.minimum(np.searchsorted(cumulative, rng.random(count), side="right"), len(weights) - 1)
        return np.asarray(self.codes)[kept][place].astype(np.int32)

    def arrays(self) -> dict[str, Array]:
        return {"codes": np.asarray(self.codes, np.int32), "weights": np.asarray(self.weights)}

    @classmethod
    def from_arrays(cls, schema: Schema, arrays: Mapping[str, Array]) -> Records:
        return cls(schema=schema, codes=arrays["codes"], weights=arrays["weights"])
