"""The convolutional autoencoder for images under one vector of parameters (Jiang et al. 2022, section 5.1).

The paper says "convolution layers" and "mean squared error", and no sizes; these are ours: two convolutions of 3 x 3 that halve
the image, a dense Gaussian latent, and the same backwards. A convolution is nine shifted copies and one product: clients have
weights of their own, and so it stays one batched product under vmap and inside compiled loops.
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

from populace.errors import DataError
from populace.methods.blocks.dense_networks import discrepancy
from populace.methods.blocks.image_generator import ImageGenerator
from populace.methods.blocks.parameters import Shapes, glorot, unpack
from populace.types import Array

SIDE = 3  # of a kernel
HALVINGS = 2
DECODER = ("up", "up_bias", "wide", "wide_bias", "out", "out_bias")


@dataclasses.dataclass(frozen=True)
class ConvAutoencoder:
    """Conv(c) - Conv(2c) - Dense(latent) - Dense - Conv(c) after doubling - Conv(channels, sigmoid) after doubling."""

    shape: tuple[int, ...]
    channels: int
    latent: int

    @property
    def colours(self) -> int:
        return self.shape[2] if len(self.shape) == 3 else 1

    @property
    def grid(self) -> tuple[int, int, int]:
        """Of the innermost layer: an image is padded up to four times its sides."""
        factor = 2**HALVINGS
        return -(-self.shape[0] // factor), -(-self.shape[1] // factor), 2 * self.channels

    @property
    def shapes(self) -> Shapes:
        c, z, k, inner = self.channels, self.latent, SIDE * SIDE, math.prod(self.grid)
        return (
            ("out_bias", (self.colours,)), ("out", (k * c, self.colours)), ("wide_bias", (c,)), ("wide", (k * 2 * c, c)),
            ("up_bias", (inner,)), ("up", (z, inner)), ("code_bias", (z,)), ("code", (inner, z)),
            ("half_bias", (2 * c,)), ("half", (k * c, 2 * c)), ("in_bias", (c,)), ("in", (k * self.colours, c)),
        )  # fmt: skip

    def start(self, key: Array) -> Array:
        return glorot(self.shapes, key)

    def read(self, x: Array) -> Array:
        """Pixels as bytes to intensities [n, high, wide, colours], padded with black to a multiple of four."""
        high, wide, _ = self.grid
        pixels = jnp.asarray(x, jnp.float32).reshape(-1, *self.shape[:2], self.colours) / 255
        factor = 2**HALVINGS
        over = ((0, factor * high - self.shape[0]), (0, factor * wide - self.shape[1]))
        return jnp.pad(pixels, ((0, 0), *over, (0, 0)))

    def encode(self, theta: Array, x: Array) -> Array:
        parts = unpack(self.shapes, theta)
        inner = jax.nn.relu(convolve(x, parts["in"], stride=2) + parts["in_bias"])
        inner = jax.nn.relu(convolve(inner, parts["half"], stride=2) + parts["half_bias"])
        return inner.reshape(len(x), -1) @ parts["code"] + parts["code_bias"]

    def decode(self, parts: Mapping[str, Array], latent: Array) -> Array:
        """Intensities of padded images, from the decoder's layers alone."""
        inner = jax.nn.relu(latent @ parts["up"] + parts["up_bias"]).reshape(-1, *self.grid)
        inner = jax.nn.relu(convolve(doubled(inner), parts["wide"]) + parts["wide_bias"])
        return jax.nn.sigmoid(convolve(doubled(inner), parts["out"]) + parts["out_bias"])

    def loss(self, theta: Array, x: Array, mask: Array, key: Array) -> Array:
        """Mean squared error plus the MMD of equation 4, lambda = 1, over the images that are there."""
        codes = self.encode(theta, x)
        error = jnp.mean((self.decode(unpack(self.shapes, theta), codes) - x) ** 2, axis=(1, 2, 3))
        weights = mask / jnp.maximum(jnp.sum(mask), 1)
        return jnp.sum(weights * error) + discrepancy(jax.random.normal(key, codes.shape), codes, mask)

    def draw(self, rows: int, key: Array) -> Array:
        """Images drawn evenly from the public domain: every pixel by itself."""
        return self.read(jax.random.randint(key, (rows, *self.shape), 0, 256))


def convolve(x: Array, kernel: Array, *, stride: int = 1) -> Array:
    """[n, high, wide, c] with a kernel [SIDE * SIDE * c, out], black beyond the edges."""
    high, wide = x.shape[1:3]
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    near = [padded[:, i : i + high : stride, j : j + wide : stride] for i in range(SIDE) for j in range(SIDE)]
    return jnp.concatenate(near, axis=-1) @ kernel


def doubled(x: Array) -> Array:
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvDecoder(ImageGenerator):
    """Images from a trained decoder and a Gaussian latent. The published model knows no labels: all get the label 0."""

    kind: ClassVar[str] = "conv-decoder"
    shape: tuple[int, ...]
    classes: int
    layers: Mapping[str, Array]

    def __post_init__(self) -> None:
        wanted = dict(self.net.shapes) if set(self.layers) == set(DECODER) else {}
        if not wanted or any(np.shape(self.layers[name]) != wanted[name] for name in DECODER):
            raise DataError(f"expected the layers {', '.join(DECODER)} of a decoder of images of shape {self.shape}")
        if not all(np.isfinite(array).all() for array in self.layers.values()):
            raise DataError("the decoder holds numbers that are not finite: it did not train; choose smaller steps")

    @functools.cached_property
    def net(self) -> ConvAutoencoder:
        return ConvAutoencoder(self.shape, len(self.layers["wide_bias"]), len(self.layers["up"]))

    def label_shares(self) -> None:
        return None

    def draw_pixels(self, labels: Array, key: Array) -> Array:
        latent = jax.random.normal(key, (len(labels), self.net.latent))
        return _decoded(self.net, {name: jnp.asarray(self.layers[name]) for name in DECODER}, latent)

    def arrays(self) -> dict[str, Array]:
        return {name: np.asarray(self.layers[name]) for name in DECODER}

    @classmethod
    def from_arrays(cls, shape: tuple[int, ...], classes: int, arrays: Mapping[str, Array]) -> ConvDecoder:
        return cls(shape=shape, classes=classes, layers=dict(arrays))


@functools.partial(jax.jit, static_argnames="net")
def _decoded(net: ConvAutoencoder, layers: Mapping[str, Array], latent: Array) -> Array:
    pixels = net.decode(layers, latent)[:, : net.shape[0], : net.shape[1]]
    return pixels.reshape(len(latent), *net.shape)
