"""What an interrupted simulation needs to go on as if nothing had happened: one file, replaced atomically.

It holds the root key and, for some methods, what clients keep at home: it is private, readable by its owner alone, and is
removed when the run is finished.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pydantic

from populace.border.arrays import read_arrays
from populace.border.documents import parse_json
from populace.border.models import Form, check_document, interpreting
from populace.engines import wire
from populace.engines.runtime import Traffic
from populace.errors import RunError
from populace.privacy.ledger import MemoryLedger
from populace.tables.files import replacing
from populace.types import Array, ArrayTree, JsonObject, NumpyArray

AGAIN = "remove the run folder and start again"


class _Document(Form):
    rounds: int = pydantic.Field(ge=0)
    ledger: JsonObject
    traffic: dict[str, float]


def _key(stored: NumpyArray) -> Array:
    key: Array = jax.random.wrap_key_data(jnp.asarray(stored))
    return key


def _like(template: Array, stored: NumpyArray) -> Array:
    if isinstance(template, jax.Array) and jnp.issubdtype(template.dtype, jax.dtypes.prng_key):
        return _key(stored)
    if stored.shape != np.shape(template):
        raise RunError(f"the checkpoint holds an array of shape {stored.shape} where {np.shape(template)} was expected")
    return stored if isinstance(template, np.ndarray) else jnp.asarray(stored)  # what was on the host stays there


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The file an unfinished run resumes from."""

    path: Path

    def exists(self) -> bool:
        return self.path.is_file()

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def save(
        self, *, root: Array, rounds: int, state: ArrayTree, memory: ArrayTree, ledger: MemoryLedger, traffic: Traffic
    ) -> None:
        arrays, ledger_document = ledger.snapshot()
        arrays = dict(arrays)
        arrays["root"] = wire.to_numpy(root)
        arrays |= {f"state_{i}": wire.to_numpy(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        arrays |= {f"memory_{i}": wire.to_numpy(leaf) for i, leaf in enumerate(jax.tree.leaves(memory))}
        document = {"format": 1, "rounds": rounds, "ledger": ledger_document, "traffic": dataclasses.asdict(traffic)}
        arrays["document"] = np.frombuffer(json.dumps(document).encode(), np.uint8)
        with replacing(self.path) as temporary:
            temporary.touch(mode=0o600)
            with temporary.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)  # type: ignore[arg-type]

    def load(
        self, *, state: ArrayTree, memory: ArrayTree, ledger: MemoryLedger
    ) -> tuple[ArrayTree, ArrayTree, int, Traffic]:
        """State, memory, rounds done and traffic, shaped like the templates; the ledger is restored in place."""
        with interpreting(f"cannot resume: {self.path}", advice=AGAIN):
            arrays = self._read()
            document = self._document(arrays)
            ledger.restore(arrays, document["ledger"])
            return (
                self._fill(state, arrays, "state"),
                self._fill(memory, arrays, "memory"),
                int(document["rounds"]),
                Traffic(**document["traffic"]),
            )

    def rounds(self) -> int:
        """The rounds that are in it."""
        with interpreting(f"cannot resume: {self.path}", advice=AGAIN):
            return int(self._document(self._read())["rounds"])

    def _document(self, arrays: dict[str, NumpyArray]) -> JsonObject:
        text, where = arrays["document"].tobytes(), f"cannot resume: {self.path}"
        return check_document(parse_json(text, where=str(self.path)), _Document, where=where, advice=AGAIN)

    def root(self) -> Array:
        """The root key of the interrupted run: its replies are reproduced, not drawn anew."""
        with interpreting(f"cannot resume: {self.path}", advice=AGAIN):
            return _key(self._read()["root"])

    def _read(self) -> dict[str, NumpyArray]:
        try:
            return read_arrays(self.path)
        except RunError as error:
            raise RunError(f"cannot resume: {error}; {AGAIN}") from error

    @staticmethod
    def _fill(template: ArrayTree, arrays: dict[str, NumpyArray], prefix: str) -> ArrayTree:
        leaves, tree = jax.tree.flatten(template)
        if sum(name.startswith(f"{prefix}_") for name in arrays) != len(leaves):
            raise RunError(
                "the checkpoint does not fit this method; it was written by another version or other settings"
            )
        return jax.tree.unflatten(tree, [_like(leaf, arrays[f"{prefix}_{i}"]) for i, leaf in enumerate(leaves)])
