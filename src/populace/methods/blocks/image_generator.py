"""Models that make labelled images, and the mosaics by which small ones see them."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import DataError, SpecError, out_of_range
from populace.methods.blocks.generator import Synthesizer
from populace.tables.images import Images
from populace.types import Array

LABEL = "label"  # what a condition on images is called
CHUNK = 4_096  # images drawn at once


class ImageGenerator(Synthesizer):
    """A model that makes images. `draw_pixels` draws; the rest is shared.

    Edge cases: a model without labels (`label_shares` None) gives every image the label 0 of one class, and refuses
    conditions.
    """

    shape: tuple[int, ...]
    classes: int

    @abc.abstractmethod
    def label_shares(self) -> Array | None:
        """How likely each label is, or None for a model without labels."""

    @abc.abstractmethod
    def draw_pixels(self, labels: Array, key: Array) -> Array:
        """One image for each label, [n, *shape], intensities in [0, 1]."""

    @classmethod
    @abc.abstractmethod
    def from_arrays(cls, shape: tuple[int, ...], classes: int, arrays: Mapping[str, Array]) -> ImageGenerator: ...

    def sample(self, count: int, key: Array, conditions: Mapping[str, str] | None = None) -> Images:
        """`count` images, with labels drawn by their shares, or all with the label that is asked for."""
        if count < 1:
            raise SpecError(f"expected rows of at least 1, got {count}")
        which, pixels = jax.random.split(key)
        labels = self._labels(count, which, dict(conditions or {}))
        x = np.empty((count, *self.shape), np.uint8)
        for start in range(0, count, CHUNK):
            some = labels[start : start + CHUNK]
            drawn = self.draw_pixels(some, jax.random.fold_in(pixels, start))
            x[start : start + CHUNK] = np.round(255 * np.clip(np.asarray(drawn), 0, 1)).astype(np.uint8)
        return Images(x=x, y=labels, classes=self.classes)

    def _labels(self, count: int, key: Array, conditions: dict[str, str]) -> Array:
        shares = self.label_shares()
        asked = conditions.pop(LABEL, None)
        if conditions:
            raise DataError(f"images have no column {next(iter(conditions))!r}; a condition on them is label=NUMBER")
        if asked is not None:
            if shares is None:
                raise DataError("this model makes images without labels, so none can be asked for; leave --where out")
            if not asked.isascii() or not asked.isdigit() or int(asked) >= self.classes:
                raise DataError(f"expected a label in 0 to {self.classes - 1}, got {asked!r}")
            return np.full(count, int(asked), np.int32)
        if shares is None:
            return np.zeros(count, np.int32)
        p = np.asarray(shares, np.float64)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        return rng.choice(len(p), count, p=p / p.sum()).astype(np.int32)

    def header(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "classes": self.classes}

    @classmethod
    def from_saved(cls, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> ImageGenerator:
        return cls.from_arrays(tuple(header["shape"]), header["classes"], arrays)


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
        return jnp.mean(tiled, axis=(2, 4)).reshape(-1, self.places)

    def enlarge(self, means: Array) -> Array:
        """Tiles, [n, places], to whole images, [n, *shape], shaded evenly from tile to tile."""
        high, wide, channels = self.grid
        coarse = jnp.asarray(means).reshape(-1, high, wide, channels)
        fine = jax.image.resize(coarse, (len(coarse), high * self.tile, wide * self.tile, channels), "linear")
        return fine[:, : self.shape[0], : self.shape[1]].reshape(-1, *self.shape)


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

    def label_shares(self) -> Array:
        found = np.asarray(self.chances, np.float64).sum(axis=1)
        return found / found.sum()

    def draw_pixels(self, labels: Array, key: Array) -> Array:
        pick, noise = jax.random.split(key)
        logits = jnp.log(jnp.maximum(jnp.asarray(self.chances, jnp.float32), 1e-30))
        inside = jax.random.categorical(pick, logits[labels])
        tiles = jnp.asarray(self.means, jnp.float32)[labels, inside]
        tiles = tiles + self.grain * jax.random.normal(noise, tiles.shape)
        return _enlarged(Mosaic(self.shape, self.tile), jnp.clip(tiles, 0, 1))

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
