"""What networks of several methods are made of: parameters in one vector, one-hot columns, convolutions, rows of a decoder.

What is clipped, noised and sent is the vector of parameters. A record of a table enters a network as one 0/1 per binary column
and a one-hot block per other column. A convolution is nine shifted copies and one product: clients have weights of their own,
and so it stays one batched product under vmap and inside compiled loops.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import DataError, SpecError, out_of_range
from populace.methods.blocks.generator import Generator
from populace.tables.schema import Schema
from populace.types import Array, NumpyArray

Shapes = tuple[tuple[str, tuple[int, ...]], ...]

KERNEL_SIDE = 3  # pixels


def count_parameters(shapes: Shapes) -> int:
    """How many numbers the named arrays hold."""
    return sum(math.prod(shape) for _, shape in shapes)


def unpack(shapes: Shapes, theta: Array | dict[str, Array]) -> dict[str, Array]:
    """The named arrays a flat vector of parameters holds; what is unpacked already stays.

    Gradients of single examples are taken by the arrays: by the flat vector they cost several times more.
    """
    if isinstance(theta, dict):
        return theta
    arrays, start = {}, 0
    for name, shape in shapes:
        arrays[name] = theta[start : start + math.prod(shape)].reshape(shape)
        start += math.prod(shape)
    return arrays


def pack(shapes: Shapes, parts: Mapping[str, Array]) -> Array:
    """The flat vector of named arrays."""
    return jnp.concatenate([parts[name].reshape(-1) for name, _ in shapes])


def glorot(shapes: Shapes, key: Array) -> Array:
    """A flat vector of parameters: Glorot's uniform weights, zero biases."""
    parts = []
    for (name, shape), k in zip(shapes, jax.random.split(key, len(shapes)), strict=True):
        bound = 0.0 if name.endswith("bias") else math.sqrt(6 / (shape[0] + shape[1]))
        parts.append(jax.random.uniform(k, (math.prod(shape),), minval=-bound, maxval=bound))
    return jnp.concatenate(parts)


def convolve(x: Array, kernel: Array, *, stride: int = 1) -> Array:
    """[n, high, wide, c] with a kernel [KERNEL_SIDE * KERNEL_SIDE * c, out], black beyond the edges."""
    high, wide = x.shape[1:3]
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    near = [
        padded[:, i : i + high : stride, j : j + wide : stride] for i in range(KERNEL_SIDE) for j in range(KERNEL_SIDE)
    ]
    return jnp.concatenate(near, axis=-1) @ kernel


def doubled(x: Array) -> Array:
    """Images of twice the height and width, each pixel four times."""
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Where each column sits among a network's inputs and outputs: one place if binary, `size` places otherwise."""

    sizes: tuple[int, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(1 if size == 2 else size for size in self.sizes)

    @property
    def width(self) -> int:
        return sum(self.widths)

    @functools.cached_property
    def owner(self) -> NumpyArray:
        """The column of each place."""
        return np.repeat(np.arange(len(self.sizes)), self.widths)

    @functools.cached_property
    def value(self) -> NumpyArray:
        """The code each place stands for."""
        return np.concatenate(
            [np.arange(w) if w > 1 or s == 1 else [1] for w, s in zip(self.widths, self.sizes, strict=True)]
        )

    @functools.cached_property
    def alone(self) -> NumpyArray:
        """Which places are binary columns."""
        return np.asarray(np.asarray(self.sizes)[self.owner] == 2)

    def encode(self, codes: Array) -> Array:
        """Rows of zeros and ones; traceable."""
        places: Array = jnp.asarray(codes)[..., self.owner] == jnp.asarray(self.value)
        return places.astype(jnp.float32)

    def log_normaliser(self, logits: Array) -> Array:
        """log of the sum over all records of exp(record . logits): binary columns by softplus, blocks by logsumexp."""
        binary = jnp.sum(jax.nn.softplus(logits) * self.alone, axis=-1)
        if self.alone.all():
            return binary
        return binary + jnp.sum(self._block_sums(logits), axis=-1)

    def _block_sums(self, logits: Array) -> Array:
        """logsumexp of each block of more than two values, [.., columns]; 0 for binary columns."""
        mine = (self.owner[:, None] == np.arange(len(self.sizes))) & ~self.alone[:, None]
        binary = np.asarray(self.sizes) == 2
        # The largest of each block: others may be far above it.
        tops = jnp.max(jnp.where(mine, logits[..., None], -jnp.inf), axis=-2)
        tops = jax.lax.stop_gradient(jnp.where(binary, 0.0, tops))
        sums = jnp.exp(jnp.where(self.alone, -jnp.inf, logits - tops[..., self.owner])) @ mine.astype(np.float32)
        return jnp.where(binary, 0.0, jnp.log(jnp.where(binary, 1.0, sums)) + tops)

    def probabilities(self, logits: Array) -> Array:
        """The probability of each place: sigmoid for binary columns, softmax within blocks."""
        if self.alone.all():
            return jax.nn.sigmoid(logits)
        within = jnp.where(self.alone, 0.0, logits - self._block_sums(logits)[..., self.owner])
        return jnp.where(self.alone, jax.nn.sigmoid(logits), jnp.exp(within))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder(Generator):
    """Rows from a trained decoder.

    With `classes`, [classes, width] logits, and `chances`: a class is drawn per row. Otherwise the dense decoder's four
    arrays, fed with a Gaussian latent. Values are drawn from the decoder's probabilities, or, `arg_max`, the likeliest taken.
    Edge cases: classes are weighted by how likely they make conditions, which is exact; of latents there are too many, and rows
    that meet conditions are looked for.
    """

    kind: ClassVar[str] = "decoder"
    schema: Schema
    layers: Mapping[str, Array]
    arg_max: bool = False

    def __post_init__(self) -> None:
        width = Blocks(self.schema.sizes).width
        last = self.layers.get("classes", self.layers.get("out"))
        if last is None or np.ndim(last) != 2 or np.shape(last)[1] != width:
            raise DataError(f"expected a decoder of {width} outputs for this schema")
        if not self._fits(width):
            raise DataError("the decoder's layers do not fit each other; its file is damaged")
        if not all(np.isfinite(array).all() for array in self.layers.values()):
            raise DataError("the decoder holds numbers that are not finite: it did not train; choose smaller steps")

    def _fits(self, width: int) -> bool:
        """Whether each layer takes what the one before it gives."""
        shapes = {name: np.shape(array) for name, array in self.layers.items()}
        if "classes" in shapes:
            return shapes.get("chances", (1,)) in ((1,), shapes["classes"][:1])
        up = shapes.get("up", ())
        wanted = {"up_bias": up[1:], "out": (*up[1:], width), "out_bias": (width,)}
        return len(up) == 2 and all(shapes.get(name) == shape for name, shape in wanted.items())

    def exact_conditions(self, conditions: Mapping[int, int]) -> Mapping[int, int]:
        """All of them with classes, none with latents."""
        return conditions if "classes" in self.layers else {}

    def sample_codes(self, count: int, key: Array, conditions: Mapping[int, int]) -> Array:
        if count < 1:
            raise out_of_range("count", "at least 1", count)
        if len(self.exact_conditions(conditions)) < len(conditions):
            raise SpecError("expected no conditions on the codes of a decoder of latents; use sample")
        blocks = Blocks(self.schema.sizes)
        latent, values = jax.random.split(key)
        logits = self._logits(count, latent, conditions, blocks)
        codes = np.array(_draw(blocks, logits, values, arg_max=self.arg_max))
        for column, code in conditions.items():
            codes[:, column] = code
        return codes

    def _logits(self, count: int, key: Array, conditions: Mapping[int, int], blocks: Blocks) -> Array:
        draw, pick = jax.random.split(key)
        if "classes" not in self.layers:
            layers = {name: jnp.asarray(array) for name, array in self.layers.items()}
            z = jax.random.normal(draw, (count, layers["up"].shape[0]))
            return jax.nn.relu(z @ layers["up"] + layers["up_bias"]) @ layers["out"] + layers["out_bias"]
        logits = jnp.asarray(self.layers["classes"])
        weights = np.exp(self._log_likelihood(logits, conditions, blocks)) * self.layers.get("chances", np.ones(1))
        if not weights.sum() > 0:
            raise DataError("no row the decoder made meets these conditions; ask for something more frequent")
        return logits[jax.random.choice(pick, len(weights), (count,), p=jnp.asarray(weights / weights.sum()))]

    def _log_likelihood(self, logits: Array, conditions: Mapping[int, int], blocks: Blocks) -> NumpyArray:
        """log P(conditions) under each row of logits."""
        total: NumpyArray = np.zeros(len(logits))
        if not conditions:
            return total
        if self.arg_max:
            codes = np.asarray(_draw(blocks, logits, jax.random.key(0), arg_max=True))
            met = np.all([codes[:, column] == code for column, code in conditions.items()], axis=0)
            return np.where(met, 0.0, -np.inf)
        p = np.asarray(blocks.probabilities(logits), np.float64)
        for column, code in conditions.items():
            places = np.flatnonzero(blocks.owner == column)
            share = p[:, places[0]] if len(places) == 1 else p[:, places[code]]
            if blocks.sizes[column] == 2 and code == 0:
                share = 1 - share
            with np.errstate(divide="ignore"):
                total += np.log(share) if blocks.sizes[column] > 1 else 0.0
        return np.asarray(total - total.max()) if np.isfinite(total.max()) else total

    def arrays(self) -> dict[str, Array]:
        return {"arg_max": np.array(self.arg_max), **{name: np.asarray(value) for name, value in self.layers.items()}}

    @classmethod
    def from_arrays(cls, schema: Schema, arrays: Mapping[str, Array]) -> Decoder:
        layers = {name: value for name, value in arrays.items() if name != "arg_max"}
        return cls(schema=schema, layers=layers, arg_max=bool(arrays["arg_max"]))


@functools.partial(jax.jit, static_argnames=("blocks", "arg_max"))
def _draw(blocks: Blocks, logits: Array, key: Array, *, arg_max: bool) -> Array:
    """One code per column and row: a coin for each binary column, a Gumbel draw in each block; or the likeliest value."""
    binary, block = jax.random.split(key)
    chances = jax.nn.sigmoid(logits[:, blocks.alone])
    coins = 0.5 if arg_max else jax.random.uniform(binary, chances.shape)
    codes = jnp.zeros((len(logits), len(blocks.sizes)), jnp.int32)
    codes = codes.at[:, np.flatnonzero(np.asarray(blocks.sizes) == 2)].set((chances > coins).astype(jnp.int32))
    if blocks.alone.all():
        return codes
    noisy = logits if arg_max else logits + jax.random.gumbel(block, logits.shape)
    for column in np.flatnonzero(np.asarray(blocks.sizes) != 2):
        codes = codes.at[:, column].set(jnp.argmax(noisy[:, blocks.owner == column], axis=1).astype(jnp.int32))
    return codes
