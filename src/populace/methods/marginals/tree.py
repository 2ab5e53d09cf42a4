"""A generator from tables over cliques of columns: graphical models and junction trees, saved as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from populace.methods.blocks.generator import Generator
from populace.methods.marginals.clique_tree import CliqueTree
from populace.tables.schema import Schema
from populace.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreeGenerator(Generator):
    """A tree of cliques under a schema; conditions are exact, marginals need no sampling."""

    kind: ClassVar[str] = "clique-tree"
    schema: Schema
    tree: CliqueTree

    def sample_codes(self, count: int, key: Array, conditions: Mapping[int, int]) -> Array:
        return self.tree.sample_codes(count, key, conditions)

    def arrays(self) -> dict[str, Array]:
        found: dict[str, Array] = {"parents": np.array(self.tree.parents, np.int32)}
        for number, (clique, table) in enumerate(zip(self.tree.cliques, self.tree.tables, strict=True)):
            found[f"clique_{number}"] = np.array(clique, np.int32)
            found[f"table_{number}"] = np.asarray(table)
        return found

    @classmethod
    def from_arrays(cls, schema: Schema, arrays: Mapping[str, Array]) -> TreeGenerator:
        parents = tuple(int(parent) for parent in arrays["parents"])
        tree = CliqueTree(
            sizes=schema.sizes,
            cliques=tuple(tuple(int(c) for c in arrays[f"clique_{i}"]) for i in range(len(parents))),
            parents=parents,
            tables=tuple(arrays[f"table_{i}"] for i in range(len(parents))),
        )
        return cls(schema=schema, tree=tree)
