"""What both sides of `dp-fed-wae` derive from public facts: the network, the mechanism, the rotation, and sub-models.

A sub-model is some of the columns, sent instead of the whole model: federated dropout (Caldas et al. 2018) for latent classes.
Given the class the columns are independent, so that leaving some out leaves a smaller model of the same kind, whose gradient is
that of the likelihood of the columns that stay. Which they are follows from a public coin: nobody need be told.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.blocks.networks import count_parameters, unpack
from populace.methods.wae.autoencoders import ClassAutoencoder, ConvAutoencoder, DenseAutoencoder
from populace.methods.wae.images import Mosaic, read_tiles
from populace.privacy.randomizers.several_signds import SeveralSignDS
from populace.privacy.randomizers.signds import SignDS
from populace.types import Array, ArrayTree

Net = ClassAutoencoder | DenseAutoencoder | ConvAutoencoder

TURNS = 2  # of the rotation
SUBMODELS = 2**31 - 1  # the stream of the public coin that chooses sub-models; no round has this number


@dataclasses.dataclass(frozen=True)
class Design:
    """What both sides derive from the settings and the public facts of the population."""

    net: Net
    mechanism: SignDS | SeveralSignDS
    records: int
    places: int = 0  # of the sub-model that is sent; 0: the whole model
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
        """The places of the sub-model that a round's clients get."""
        return choose_places(net, self.places, jax.random.fold_in(jax.random.fold_in(coin, SUBMODELS), round_id))

    def kept(self, net: ClassAutoencoder, coin: Array, round_id: Array) -> Array:
        """The same places as a mask: 1 for those that are sent."""
        if not self.places:
            return np.ones(net.blocks.width, np.float32)
        return mask_of_places(net, self.choose(net, coin, round_id))

    @property
    def numbers_sent(self) -> int:
        """How many numbers of the model each client is sent."""
        if self.places and isinstance(self.net, ClassAutoencoder):
            return submodel_size(self.net, self.places)
        return self.parameters

    def read(self, records: ArrayTree) -> ArrayTree:
        """A client's records as the network takes them."""
        if isinstance(self.net, ConvAutoencoder):
            return self.net.read(records["x"])
        if isinstance(self.net, DenseAutoencoder):
            return self.net.blocks.encode(records)
        return self.net.read(records) if self.mosaic is None else read_tiles(self.net, self.mosaic, records)


def submodel_places(net: ClassAutoencoder, share: float) -> int:
    """How many places a sub-model of this share holds: at least the target's and those of one other column."""
    widths = net.blocks.widths
    least = max(widths) + (0 if net.target is None else widths[net.target])
    return min(net.blocks.width, max(least, round(share * net.blocks.width)))


def choose_places(net: ClassAutoencoder, count: int, key: Array) -> Array:
    """The places of whole columns, the target's and others in a random order as long as they fit; padded with the width."""
    columns = len(net.blocks.sizes)
    rank = jax.random.permutation(key, columns)
    if net.target is not None:
        rank = rank.at[net.target].set(-1)
    order = jnp.argsort(rank)
    fits = jnp.cumsum(jnp.asarray(net.blocks.widths)[order]) <= count
    kept = jnp.zeros(columns, bool).at[order].set(fits)
    return jnp.flatnonzero(kept[net.blocks.owner], size=count, fill_value=net.blocks.width)


def mask_of_places(net: ClassAutoencoder, places: Array) -> Array:
    """A mask of all places: 1 for these, 0 for the others."""
    return jnp.zeros(net.blocks.width).at[places].set(1.0, mode="drop")


def take_submodel(net: ClassAutoencoder, theta: Array, places: Array) -> Array:
    """The parameters of some places, and the classes' weights, as one vector."""
    parts = unpack(net.shapes, theta)
    wide = [
        jnp.take(parts[name], places, axis=-1, mode="fill", fill_value=0.0) for name in ("base", "classes", "effect")
    ]
    return jnp.concatenate([part.ravel() for part in (*wide, parts["weights"])])


def extend_submodel(net: ClassAutoencoder, submodel: Array, places: Array) -> Array:
    """All parameters, where only those of some places are known; the others are zero."""
    small = tuple((name, (*shape[:-1], len(places)) if name != "weights" else shape) for name, shape in net.shapes)
    parts = unpack(small, submodel)
    wide = [
        jnp.zeros(shape).at[..., places].set(parts[name], mode="drop") if name != "weights" else parts[name]
        for name, shape in net.shapes
    ]
    return jnp.concatenate([part.ravel() for part in wide])


def submodel_size(net: ClassAutoencoder, places: int) -> int:
    """How many numbers a sub-model of so many places holds."""
    rest = net.outcomes * net.classes
    return (count_parameters(net.shapes) - rest) // net.blocks.width * places + rest


def gradient_mask(net: ClassAutoencoder, kept: Array) -> Array:
    """Which coordinates of the gradient a sub-model has, from the mask of its places."""
    wide = jnp.tile(kept, net.classes + net.outcomes - 1)
    return jnp.concatenate([wide, jnp.ones(net.outcomes * net.classes)])
