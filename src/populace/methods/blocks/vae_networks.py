"""Conditional beta-VAEs under two vectors of parameters, one for the encoder and one for the decoder.

Pfitzner and Arnrich 2022, equations 1 to 3 and appendix C.1: the reconstruction is binary cross-entropy, averaged over what an
example has of it, plus beta times the divergence of the code from a standard normal. Encoder and decoder are two vectors
because only the second is shared. Four designs:

`small`   the paper's network for MNIST and CelebA: convolutions of stride 2
`large`   its network for Fashion-MNIST, with groups normalised instead of batches: a batch would couple the examples
`basis`   ours: dense, the image written in low-frequency cosines, for noise that counts every parameter
`rows`    dense, for tables: one-hot blocks in and out
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import scipy.fft

from populace.methods.base import ImageShape
from populace.methods.blocks.networks import (
    KERNEL_SIDE,
    Blocks,
    Shapes,
    convolve,
    count_parameters,
    doubled,
    glorot,
    pack,
    unpack,
)
from populace.tables.schema import Schema
from populace.types import Array, ArrayTree

Net = Literal["small", "large", "basis"]

LEAKY = 0.01
GROUPS = 8
TINY = 1e-5
MOST_LOG_VARIANCE = 10.0
LARGE_DEPTHS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vae(abc.ABC):
    """`shape` is that of an image, or (places,) of a table's rows; labels 0 to `classes` - 1 are given to both networks."""

    shape: tuple[int, ...]
    classes: int
    latent: int = 8
    width: int = 16
    beta: float = 0.01

    @property
    @abc.abstractmethod
    def encoder_shapes(self) -> Shapes: ...

    @property
    @abc.abstractmethod
    def decoder_shapes(self) -> Shapes: ...

    @abc.abstractmethod
    def encode(self, phi: Array, x: Array, y: Array) -> tuple[Array, Array]:
        """Mean and log-variance of the codes of examples [n, ..] with one-hot labels [n, classes]."""

    @abc.abstractmethod
    def decode(self, theta: Array, z: Array, y: Array) -> Array:
        """Logits of examples, [n, *shape]."""

    @property
    def encoder_size(self) -> int:
        return count_parameters(self.encoder_shapes)

    @property
    def decoder_size(self) -> int:
        return count_parameters(self.decoder_shapes)

    def start(self, key: Array) -> tuple[Array, Array]:
        """Encoder and decoder before training."""
        first, second = jax.random.split(key)
        return glorot(self.encoder_shapes, first), glorot(self.decoder_shapes, second)

    def decoder_arrays(self, theta: Array) -> dict[str, Array]:
        """The decoder's named arrays: gradients of single examples are taken by them."""
        return unpack(self.decoder_shapes, theta)

    def encoder_arrays(self, phi: Array) -> dict[str, Array]:
        """The encoder's named arrays."""
        return unpack(self.encoder_shapes, phi)

    def flatten(self, arrays: ArrayTree) -> Array:
        """The vector of the decoder's named arrays, or of a pair, the encoder's before the decoder's."""
        if isinstance(arrays, dict):
            return pack(self.decoder_shapes, arrays)
        return jnp.concatenate([pack(self.encoder_shapes, arrays[0]), pack(self.decoder_shapes, arrays[1])])

    def labels(self, y: Array) -> Array:
        return jax.nn.one_hot(y, self.classes, dtype=jnp.float32)

    def read(self, records: ArrayTree) -> tuple[Array, Array]:
        """Examples in [0, 1] and one-hot labels from what a client holds."""
        x = jnp.asarray(records["x"], jnp.float32) / 255
        return x.reshape(len(x), *self.shape), self.labels(records["y"])

    def reconstruction(self, logits: Array, x: Array) -> Array:
        """Binary cross-entropy of each example, averaged over its pixels."""
        each = jax.nn.softplus(logits) - x * logits
        return jnp.mean(each.reshape(len(x), -1), axis=1)

    def means(self, logits: Array) -> Array:
        """What is expected of each place."""
        return jax.nn.sigmoid(logits)

    def codes(self, phi: Array, x: Array, y: Array, noise: Array) -> tuple[Array, Array]:
        """A draw of each code, and its divergence from the prior."""
        mean, log_variance = self.encode(phi, x, y)
        z = mean + jnp.exp(0.5 * log_variance) * noise
        divergence = 0.5 * jnp.sum(jnp.exp(log_variance) + mean**2 - 1 - log_variance, axis=-1)
        return z, divergence

    def losses(self, phi: Array, theta: Array, x: Array, y: Array, noise: Array) -> Array:
        """The negative of equation 1 for each example; `noise` [n, latent] is standard normal."""
        z, divergence = self.codes(phi, x, y, noise)
        return self.reconstruction(self.decode(theta, z, y), x) + self.beta * divergence

    def code_losses(self, phi: Array, x: Array, y: Array, z: Array) -> Array:
        """-log q(z | x, y) of known codes: what the encoder learns from the decoder's own samples."""
        mean, log_variance = self.encode(phi, x, y)
        return 0.5 * jnp.sum((z - mean) ** 2 * jnp.exp(-log_variance) + log_variance, axis=-1)


def _code(parts: dict[str, Array], inner: Array) -> tuple[Array, Array]:
    mean, log_variance = jnp.split(inner @ parts["code"] + parts["code_bias"], 2, axis=-1)
    return mean, MOST_LOG_VARIANCE * jnp.tanh(log_variance / MOST_LOG_VARIANCE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageVae(Vae):
    """What the designs for images share."""

    @property
    def colours(self) -> int:
        return self.shape[2] if len(self.shape) == 3 else 1

    def framed(self, x: Array, factor: int) -> Array:
        """[n, high, wide, colours], padded with black to a multiple of `factor`."""
        over = [(0, -side % factor) for side in self.shape[:2]]
        return jnp.pad(x.reshape(-1, *self.shape[:2], self.colours), ((0, 0), *over, (0, 0)))

    def cut(self, pixels: Array) -> Array:
        return pixels[:, : self.shape[0], : self.shape[1]].reshape(-1, *self.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallVae(ImageVae):
    """Conv(w) - Conv(2w) - Dense | Dense - Conv(w) after doubling - Conv(colours) after doubling (figure 9)."""

    @property
    def grid(self) -> tuple[int, int, int]:
        return -(-self.shape[0] // 4), -(-self.shape[1] // 4), 2 * self.width

    @property
    def encoder_shapes(self) -> Shapes:
        w, k, inner = self.width, KERNEL_SIDE * KERNEL_SIDE, math.prod(self.grid) + self.classes
        return (
            ("in", (k * self.colours, w)), ("in_bias", (w,)), ("half", (k * w, 2 * w)), ("half_bias", (2 * w,)),
            ("code", (inner, 2 * self.latent)), ("code_bias", (2 * self.latent,)),
        )  # fmt: skip

    @property
    def decoder_shapes(self) -> Shapes:
        w, k, inner = self.width, KERNEL_SIDE * KERNEL_SIDE, math.prod(self.grid)
        return (
            ("up", (self.latent + self.classes, inner)), ("up_bias", (inner,)), ("wide", (k * 2 * w, w)), ("wide_bias", (w,)),
            ("out", (k * w, self.colours)), ("out_bias", (self.colours,)),
        )  # fmt: skip

    def encode(self, phi: Array, x: Array, y: Array) -> tuple[Array, Array]:
        parts = unpack(self.encoder_shapes, phi)
        inner = jax.nn.relu(convolve(self.framed(x, 4), parts["in"], stride=2) + parts["in_bias"])
        inner = jax.nn.relu(convolve(inner, parts["half"], stride=2) + parts["half_bias"])
        return _code(parts, jnp.concatenate([inner.reshape(len(x), -1), y], axis=1))

    def decode(self, theta: Array, z: Array, y: Array) -> Array:
        parts = unpack(self.decoder_shapes, theta)
        inner = jax.nn.relu(jnp.concatenate([z, y], axis=1) @ parts["up"] + parts["up_bias"]).reshape(-1, *self.grid)
        inner = jax.nn.relu(convolve(doubled(inner), parts["wide"]) + parts["wide_bias"])
        return self.cut(convolve(doubled(inner), parts["out"]) + parts["out_bias"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class LargeVae(ImageVae):
    """Convolutions of w, 2w, .. 16w, the first of stride 1, and the same backwards, groups normalised (figure 10)."""

    width: int = 32

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(self.width * 2**i for i in range(LARGE_DEPTHS))

    @property
    def factor(self) -> int:
        return int(2 ** (LARGE_DEPTHS - 1))

    @property
    def grid(self) -> tuple[int, int, int]:
        return -(-self.shape[0] // self.factor), -(-self.shape[1] // self.factor), self.depths[-1]

    @property
    def encoder_shapes(self) -> Shapes:
        layers: list[tuple[str, tuple[int, ...]]] = []
        before = self.colours
        for number, depth in enumerate(self.depths):
            layers += _layer(f"conv{number}", before, depth)
            before = depth
        inner = math.prod(self.grid) + self.classes
        return (*layers, ("code", (inner, 2 * self.latent)), ("code_bias", (2 * self.latent,)))

    @property
    def decoder_shapes(self) -> Shapes:
        inner = math.prod(self.grid)
        layers: list[tuple[str, tuple[int, ...]]] = [("up", (self.latent + self.classes, inner)), ("up_bias", (inner,))]
        for number in range(LARGE_DEPTHS - 1, 0, -1):
            layers += _layer(f"conv{number}", self.depths[number], self.depths[number - 1])
        return (
            *layers,
            ("out", (KERNEL_SIDE * KERNEL_SIDE * self.depths[0], self.colours)),
            ("out_bias", (self.colours,)),
        )

    def encode(self, phi: Array, x: Array, y: Array) -> tuple[Array, Array]:
        parts = unpack(self.encoder_shapes, phi)
        inner = self.framed(x, self.factor)
        for number in range(LARGE_DEPTHS):
            inner = _normalised(parts, f"conv{number}", inner, stride=1 if number == 0 else 2)
        return _code(parts, jnp.concatenate([inner.reshape(len(x), -1), y], axis=1))

    def decode(self, theta: Array, z: Array, y: Array) -> Array:
        parts = unpack(self.decoder_shapes, theta)
        inner: Array = (jnp.concatenate([z, y], axis=1) @ parts["up"] + parts["up_bias"]).reshape(-1, *self.grid)
        for number in range(LARGE_DEPTHS - 1, 0, -1):
            inner = _normalised(parts, f"conv{number}", doubled(inner), stride=1)
        return self.cut(convolve(inner, parts["out"]) + parts["out_bias"])


def _layer(name: str, before: int, after: int) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (name, (KERNEL_SIDE * KERNEL_SIDE * before, after)),
        (f"{name}_gain_bias", (after,)),
        (f"{name}_bias", (after,)),
    ]


def _normalised(parts: dict[str, Array], name: str, x: Array, *, stride: int) -> Array:
    """Convolution, each example's groups of channels to mean 0 and variance 1, gain and shift, leaky ReLU."""
    x = convolve(x, parts[name], stride=stride)
    groups = math.gcd(GROUPS, x.shape[-1])
    split = x.reshape(len(x), -1, groups, x.shape[-1] // groups)
    centred = split - jnp.mean(split, axis=(1, 3), keepdims=True)
    split = centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=(1, 3), keepdims=True) + TINY)
    return jax.nn.leaky_relu(split.reshape(x.shape) * (1 + parts[f"{name}_gain_bias"]) + parts[f"{name}_bias"], LEAKY)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BasisVae(ImageVae):
    """Dense both ways; `waves` x `waves` cosines per colour, of which the image's logits are a sum."""

    width: int = 64
    waves: int = 12

    @functools.cached_property
    def cosines(self) -> tuple[Array, Array]:
        """Orthonormal low-frequency waves down and across, [side, waves]."""
        return tuple(  # type: ignore[return-value]
            scipy.fft.dct(np.eye(side), axis=0, norm="ortho").T[:, : min(self.waves, side)].astype(np.float32)
            for side in self.shape[:2]
        )

    @property
    def places(self) -> int:
        down, across = self.cosines
        return int(down.shape[1] * across.shape[1]) * self.colours

    @property
    def encoder_shapes(self) -> Shapes:
        w, z = self.width, 2 * self.latent
        return (
            ("in", (self.places + self.classes, w)), ("in_bias", (w,)), ("half", (w, w)), ("half_bias", (w,)),
            ("code", (w, z)), ("code_bias", (z,)),
        )  # fmt: skip

    @property
    def decoder_shapes(self) -> Shapes:
        w = self.width
        return (
            ("up", (self.latent + self.classes, w)), ("up_bias", (w,)),
            ("out", (w, self.places)), ("label", (self.classes, self.places)), ("out_bias", (self.places,)),
        )  # fmt: skip

    def seen(self, x: Array) -> Array:
        """The waves of images, [n, places]."""
        down, across = self.cosines
        return jnp.einsum("nhwc,hi,wj->nijc", self.framed(x, 1), down, across).reshape(len(x), -1)

    def encode(self, phi: Array, x: Array, y: Array) -> tuple[Array, Array]:
        parts = unpack(self.encoder_shapes, phi)
        inner = jax.nn.relu(jnp.concatenate([self.seen(x), y], axis=1) @ parts["in"] + parts["in_bias"])
        inner = jax.nn.relu(inner @ parts["half"] + parts["half_bias"])
        return _code(parts, inner)

    def decode(self, theta: Array, z: Array, y: Array) -> Array:
        parts = unpack(self.decoder_shapes, theta)
        down, across = self.cosines
        inner = jax.nn.relu(jnp.concatenate([z, y], axis=1) @ parts["up"] + parts["up_bias"])
        written = inner @ parts["out"] + y @ parts["label"] + parts["out_bias"]
        written = written.reshape(-1, down.shape[1], across.shape[1], self.colours)
        return jnp.einsum("nijc,hi,wj->nhwc", written, down, across).reshape(-1, *self.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsVae(Vae):
    """Dense with one hidden layer each way; an example is a row's one-hot blocks, and no label is given apart."""

    blocks: Blocks
    width: int = 64

    @property
    def encoder_shapes(self) -> Shapes:
        w, z = self.width, 2 * self.latent
        return (("in", (self.shape[0] + self.classes, w)), ("in_bias", (w,)), ("code", (w, z)), ("code_bias", (z,)))

    @property
    def decoder_shapes(self) -> Shapes:
        w = self.width
        inputs = self.latent + self.classes
        return (("up", (inputs, w)), ("up_bias", (w,)), ("out", (w, self.shape[0])), ("out_bias", (self.shape[0],)))

    def read(self, records: ArrayTree) -> tuple[Array, Array]:
        x = self.blocks.encode(records)
        return x, jnp.zeros((len(x), self.classes))

    def encode(self, phi: Array, x: Array, y: Array) -> tuple[Array, Array]:
        parts = unpack(self.encoder_shapes, phi)
        return _code(parts, jax.nn.relu(jnp.concatenate([x, y], axis=1) @ parts["in"] + parts["in_bias"]))

    def decode(self, theta: Array, z: Array, y: Array) -> Array:
        parts = unpack(self.decoder_shapes, theta)
        inner = jax.nn.relu(jnp.concatenate([z, y], axis=1) @ parts["up"] + parts["up_bias"])
        return inner @ parts["out"] + parts["out_bias"]

    def reconstruction(self, logits: Array, x: Array) -> Array:
        """-log of each row's probability, averaged over its columns."""
        return (self.blocks.log_normaliser(logits) - jnp.sum(x * logits, axis=-1)) / len(self.blocks.sizes)

    def means(self, logits: Array) -> Array:
        return self.blocks.probabilities(logits)


NETS: dict[Net, type[ImageVae]] = {"small": SmallVae, "large": LargeVae, "basis": BasisVae}


@functools.lru_cache(maxsize=64)
def design_vae(net: Net, width: int, latent: int, beta: float, waves: int, schema: Schema | ImageShape) -> Vae:
    """The network for data of this public shape; `width` 0 and `waves` 0 are the design's own."""
    chosen = {"width": width} if width else {}
    if waves and net == "basis" and isinstance(schema, ImageShape):
        chosen["waves"] = waves
    if isinstance(schema, ImageShape):
        return NETS[net](shape=schema.shape, classes=schema.classes, latent=latent, beta=beta, **chosen)
    blocks = Blocks(schema.sizes)
    return RowsVae(shape=(blocks.width,), classes=0, latent=latent, beta=beta, blocks=blocks, **chosen)
