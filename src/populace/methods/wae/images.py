"""How latent classes see images, and the images that both recipes of `dp-fed-wae` make.

Latent classes see an image as the tiles of a mosaic, the intensity of each the chance of a one, and its label as the target
column.
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

from populace.errors import DataError, out_of_range
from populace.methods.base import ImageShape
from populace.methods.blocks.generator import ImageGenerator
from populace.methods.blocks.networks import Blocks
from populace.methods.wae.autoencoders import ClassAutoencoder, ConvAutoencoder
from populace.types import Array, ArrayTree, NumpyArray

DECODER = ("up", "up_bias", "wide", "wide_bias", "out", "out_bias")
MOST_TILES = 256
GRAIN = 0.1  # deviation of a tile's intensity within its class


@dataclasses.dataclass(frozen=True)
class Mosaic:
    """Images of this shape seen as square tiles of one intensity each, `tile` pixels wide (fewer at the far edges)."""

    shape: tuple[int, ...]
    tile: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.tile <= min(self.shape[:2]):
            raise out_of_range("tile", f"in [1, {min(self.shape[:2])}]", self.tile)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Rows and columns of tiles, and channels."""
        return (-(-self.shape[0] // self.tile), -(-self.shape[1] // self.tile), *self._channels)

    @property
    def _channels(self) -> tuple[int]:
        return (self.shape[2] if len(self.shape) == 3 else 1,)

    @property
    def places(self) -> int:
        return math.prod(self.grid)

    def shrink(self, x: Array) -> Array:
        """Pixels as bytes, [n, *shape], to the mean intensity of each tile, [n, places]; traceable."""
        high, wide, channels = self.grid
        pixels = jnp.asarray(x, jnp.float32).reshape(-1, *self.shape[:2], channels) / 255
        over = ((0, 0), (0, high * self.tile - self.shape[0]), (0, wide * self.tile - self.shape[1]), (0, 0))
        tiled = jnp.pad(pixels, over, mode="edge").reshape(-1, high, self.tile, wide, self.tile, channels)
        tiles: Array = jnp.mean(tiled, axis=(2, 4)).reshape(-1, self.places)
        return tiles

    def enlarge(self, means: Array) -> Array:
        """Tiles, [n, places], to whole images, [n, *shape], shaded evenly from tile to tile."""
        high, wide, channels = self.grid
        coarse = jnp.asarray(means).reshape(-1, high, wide, channels)
        fine: Array = jax.image.resize(coarse, (len(coarse), high * self.tile, wide * self.tile, channels), "linear")
        return fine[:, : self.shape[0], : self.shape[1]].reshape(-1, *self.shape)


def read_tiles(net: ClassAutoencoder, mosaic: Mosaic, images: ArrayTree) -> tuple[Array, Array]:
    """Images as the intensities of their tiles, each the chance of a one, with their labels behind; and the labels."""
    tiles, labels = mosaic.shrink(images["x"]), jnp.asarray(images["y"], jnp.int32)
    if net.target is None:
        return tiles, jnp.zeros_like(labels)
    values = net.blocks.value[mosaic.places :]
    return jnp.concatenate([tiles, (labels[:, None] == values).astype(jnp.float32)], axis=1), labels


def image_net(image: ImageShape, tile: int, classes: int) -> tuple[ClassAutoencoder, Mosaic]:
    """Latent classes over the tiles of images, tied to the label where there are several."""
    mosaic = Mosaic(image.shape, tile or usual_tile(image.shape))
    if image.classes == 1:
        return ClassAutoencoder(Blocks((2,) * mosaic.places), classes), mosaic
    return ClassAutoencoder(Blocks((2,) * mosaic.places + (image.classes,)), classes, mosaic.places), mosaic


def usual_tile(shape: tuple[int, ...]) -> int:
    """The smallest at which few enough places are left for the reports to say something of each: a public rule."""
    return next(t for t in range(1, min(shape[:2]) + 1) if t == min(shape[:2]) or Mosaic(shape, t).places <= MOST_TILES)


def image_classes(net: ClassAutoencoder, mosaic: Mosaic, theta: Array, image: ImageShape) -> ImageClasses:
    """The generator these parameters make."""
    tables = net.tables(theta)
    means = jax.nn.sigmoid(tables["classes"][:, : mosaic.places]).reshape(image.classes, net.classes, mosaic.places)
    return ImageClasses(
        shape=image.shape, classes=image.classes, tile=mosaic.tile, means=np.asarray(means), grain=GRAIN,
        chances=np.asarray(tables["chances"]).reshape(image.classes, net.classes),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageClasses(ImageGenerator):
    """Latent classes within each label: `chances` [labels, k] how likely they are, `means` [labels, k, places] their tiles.

    An image is its class's tiles, shaded; `grain` is the deviation of noise added to each tile.
    """

    kind: ClassVar[str] = "image-classes"
    shape: tuple[int, ...]
    classes: int
    tile: int
    chances: Array
    means: Array
    grain: float = 0.0

    def __post_init__(self) -> None:
        chances, means = np.asarray(self.chances), np.asarray(self.means)
        wanted = (self.classes, chances.shape[-1], Mosaic(self.shape, self.tile).places)
        if chances.ndim != 2 or means.shape != wanted:
            raise DataError(f"expected tiles of shape {wanted}, got {means.shape}")
        if not np.isfinite(means).all() or not np.isfinite(chances).all() or chances.min() < 0 or chances.sum() <= 0:
            raise DataError("the model holds numbers that are no intensities or chances: it did not train")
        if not 0 <= self.grain < math.inf:
            raise out_of_range("grain", "at least 0", self.grain)

    def label_shares(self) -> NumpyArray:
        totals: NumpyArray = np.asarray(self.chances, np.float64).sum(axis=1)
        return np.asarray(totals / totals.sum())

    def draw_pixels(self, labels: Array, key: Array) -> Array:
        pick, noise = jax.random.split(key)
        logits = jnp.log(jnp.maximum(jnp.asarray(self.chances, jnp.float32), 1e-30))
        inside = jax.random.categorical(pick, logits[labels])
        tiles = jnp.asarray(self.means, jnp.float32)[labels, inside]
        tiles = tiles + self.grain * jax.random.normal(noise, tiles.shape)
        pixels: Array = _enlarged(Mosaic(self.shape, self.tile), jnp.clip(tiles, 0, 1))
        return pixels

    def arrays(self) -> dict[str, Array]:
        return {
            "chances": np.asarray(self.chances, np.float32), "means": np.asarray(self.means, np.float32),
            "tile": np.array(self.tile), "grain": np.array(self.grain),
        }  # fmt: skip

    @classmethod
    def from_arrays(cls, shape: tuple[int, ...], classes: int, arrays: Mapping[str, Array]) -> ImageClasses:
        return cls(
            shape=shape, classes=classes, tile=int(arrays["tile"]), chances=arrays["chances"], means=arrays["means"],
            grain=float(arrays["grain"]),
        )  # fmt: skip


@functools.partial(jax.jit, static_argnames="mosaic")
def _enlarged(mosaic: Mosaic, tiles: Array) -> Array:
    return mosaic.enlarge(tiles)


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
        pixels: Array = _decoded(self.net, {name: jnp.asarray(self.layers[name]) for name in DECODER}, latent)
        return pixels

    def arrays(self) -> dict[str, Array]:
        return {name: np.asarray(self.layers[name]) for name in DECODER}

    @classmethod
    def from_arrays(cls, shape: tuple[int, ...], classes: int, arrays: Mapping[str, Array]) -> ConvDecoder:
        return cls(shape=shape, classes=classes, layers=dict(arrays))


@functools.partial(jax.jit, static_argnames="net")
def _decoded(net: ConvAutoencoder, layers: Mapping[str, Array], latent: Array) -> Array:
    pixels = net.decode(layers, latent)[:, : net.shape[0], : net.shape[1]]
    return pixels.reshape(len(latent), *net.shape)
