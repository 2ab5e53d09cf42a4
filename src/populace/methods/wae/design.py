"""What both sides of `dp-fed-wae` derive from public facts: network, mechanism, rotation, parts; and how images enter.

Latent classes see an image as tiles, the intensity of each the chance of a one, and its label as the target column.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.base import ImageShape
from populace.methods.blocks.conv_networks import ConvAutoencoder
from populace.methods.blocks.dense_networks import Blocks, ClassAutoencoder, DenseAutoencoder
from populace.methods.blocks.image_generator import ImageClasses, Mosaic
from populace.methods.blocks.parameters import count_parameters
from populace.methods.wae.submodels import choose_places, kept_mask, packed_size, whole
from populace.privacy.randomizers.several_signds import SeveralSignDS
from populace.privacy.randomizers.signds import SignDS
from populace.types import Array

Net = ClassAutoencoder | DenseAutoencoder | ConvAutoencoder

TURNS = 2  # of the rotation
PARTS = 2**31 - 1  # the stream of the public coin that chooses parts of the model; no round has this number
MOST_PLACES = 256  # of an image's tiles
GRAIN = 0.1  # deviation of a tile's intensity within its class


@dataclasses.dataclass(frozen=True)
class Design:
    """What both sides derive from the protocol's fields and the public facts of the population."""

    net: Net
    mechanism: SignDS | SeveralSignDS
    records: int
    places: int = 0  # of the part of the model that is sent; 0: all of it
    mosaic: Mosaic | None = None  # by which latent classes see images

    @property
    def parameters(self) -> int:
        return count_parameters(self.net.shapes)

    def signs(self, coin: Array, round_id: Array) -> Array:
        """The public random signs of a round's rotation."""
        key = jax.random.fold_in(jax.random.fold_in(coin, 0), round_id)
        words = jax.random.bits(key, (TURNS, self.mechanism.size))
        return jnp.where(words >> 31 == 1, 1.0, -1.0).astype(jnp.float32)

    def choose(self, net: ClassAutoencoder, coin: Array, round_id: Array) -> Array:
        """The places of the part of the model that a round's clients get."""
        return choose_places(net, self.places, jax.random.fold_in(jax.random.fold_in(coin, PARTS), round_id))

    def kept(self, net: ClassAutoencoder, coin: Array, round_id: Array) -> Array:
        """The same as 1 for the places that are sent."""
        return kept_mask(net, self.choose(net, coin, round_id)) if self.places else whole(net)

    @property
    def numbers_sent(self) -> int:
        """Of the model, to each client."""
        if self.places and isinstance(self.net, ClassAutoencoder):
            return packed_size(self.net, self.places)
        return self.parameters

    def read(self, records: Any) -> Any:
        """A client's records as the network takes them."""
        if isinstance(self.net, ConvAutoencoder):
            return self.net.read(records["x"])
        if isinstance(self.net, DenseAutoencoder):
            return self.net.blocks.encode(records)
        return self.net.read(records) if self.mosaic is None else read_tiles(self.net, self.mosaic, records)


def read_tiles(net: ClassAutoencoder, mosaic: Mosaic, images: Any) -> tuple[Array, Array]:
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
    return next(
        t for t in range(1, min(shape[:2]) + 1) if t == min(shape[:2]) or Mosaic(shape, t).places <= MOST_PLACES
    )


def image_classes(net: ClassAutoencoder, mosaic: Mosaic, theta: Array, image: ImageShape) -> ImageClasses:
    """The generator these parameters make."""
    tables = net.tables(theta)
    means = jax.nn.sigmoid(tables["classes"][:, : mosaic.places]).reshape(image.classes, net.classes, mosaic.places)
    return ImageClasses(
        shape=image.shape, classes=image.classes, tile=mosaic.tile, means=np.asarray(means), grain=GRAIN,
        chances=np.asarray(tables["chances"]).reshape(image.classes, net.classes),
    )  # fmt: skip
