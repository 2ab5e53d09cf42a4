"""Exact draws inside compiled code: the host makes them from the operating system while the program waits.

A draw is an effect, not a function of its arguments: JAX neither merges two of them, nor repeats one, nor moves it out of a
loop. The key that a caller would have drawn from says only how many draws there are: under `vmap` one for each key.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback

from populace.types import Array, Number

MOST_BYTES = 2**16  # of one argument of a callback


class Draw(Hashable, Protocol):
    """What is drawn: a small hashable object, equal to another that draws the same."""

    @property
    def release_rows(self) -> Callable[..., Array]:
        """A function of `count` and arrays with so many rows: as many exact draws, by NumPy alone, because JAX inside a
        callback may wait for itself."""


def drawn(what: Draw, key: Array, shape: tuple[int, ...], dtype: npt.DTypeLike, *given: Number) -> Array:
    """One draw of this shape; traceable, and vectorised by `vmap`.

    Guarantee: that of `what`, whatever the key, of which nothing is used. Each execution draws anew, and under `vmap` over keys
    each key has a draw of its own.
    Edge cases: what is mapped without its key shares its draws, as with a keyed draw. A program that is differentiated or
    recomputed (`jax.grad`, `jax.checkpoint`) through the draw is refused by JAX.
    """
    words = jax.random.key_data(key)
    return _drawer(what, shape, np.dtype(dtype))(words[None], *(jnp.asarray(one)[None] for one in given))[0]


@functools.lru_cache(maxsize=512)
def _drawer(what: Draw, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Callable[..., Array]:
    """Draws for each row of what is given, all rows of a batch in one call of the host."""

    def on_host(words: Array, given: list[_Pieces]) -> Array:
        rows = what.release_rows(len(words), *(one.whole() for one in given))
        return np.asarray(rows).astype(dtype).reshape(len(words), *shape)

    @custom_vmap
    def draws(words: Array, *given: Array) -> Array:
        wanted = jax.ShapeDtypeStruct((words.shape[0], *shape), dtype)  # type: ignore[no-untyped-call]
        rows: Array = io_callback(on_host, wanted, words, [_in_pieces(one) for one in given])
        return rows

    @draws.def_vmap  # type: ignore[untyped-decorator]
    def _(size: int, mapped: list[bool], *arguments: Array) -> tuple[Array, bool]:
        whole = [
            one if along else jnp.broadcast_to(one, (size, *one.shape))
            for one, along in zip(arguments, mapped, strict=True)
        ]
        together = draws(*(one.reshape(-1, *one.shape[2:]) for one in whole))
        return together.reshape(size, -1, *shape), True

    return draws


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Pieces:
    """An array on its way to the host. What is larger than some 100 KiB JAX copies in the background, by a thread that, on a
    machine with one processor, waits for the very callback that waits for the copy; small pieces are copied at once."""

    pieces: list[Array]
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    def whole(self) -> Array:
        return np.concatenate([np.asarray(piece) for piece in self.pieces]).reshape(self.shape)


def _in_pieces(array: Array) -> _Pieces:
    flat, step = array.reshape(-1), MOST_BYTES // array.dtype.itemsize
    return _Pieces([flat[start : start + step] for start in range(0, max(1, flat.size), step)], array.shape)
