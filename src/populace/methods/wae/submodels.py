"""Some of the columns, sent instead of the whole model: federated dropout (Caldas et al. 2018) for latent classes.

Given the class the columns are independent, so that leaving some out leaves a smaller model of the same kind, whose gradient is
that of the likelihood of the columns that stay. Which they are follows from a public coin: nobody need be told.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.blocks.dense_networks import ClassAutoencoder
from populace.methods.blocks.parameters import count_parameters, unpack
from populace.types import Array


def places_kept(net: ClassAutoencoder, share: float) -> int:
    """How many places a part of this share holds: at least the target's and those of one other column."""
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


def kept_mask(net: ClassAutoencoder, places: Array) -> Array:
    """1 for the places that stay, 0 for the others."""
    return jnp.zeros(net.blocks.width).at[places].set(1.0, mode="drop")


def packed(net: ClassAutoencoder, theta: Array, places: Array) -> Array:
    """The parameters of some places, and the classes' weights."""
    parts = unpack(net.shapes, theta)
    wide = [
        jnp.take(parts[name], places, axis=-1, mode="fill", fill_value=0.0) for name in ("base", "classes", "effect")
    ]
    return jnp.concatenate([part.ravel() for part in (*wide, parts["weights"])])


def unpacked(net: ClassAutoencoder, part: Array, places: Array) -> Array:
    """All parameters, those of other places zero."""
    small = tuple((name, (*shape[:-1], len(places)) if name != "weights" else shape) for name, shape in net.shapes)
    parts = unpack(small, part)
    whole = [
        jnp.zeros(shape).at[..., places].set(parts[name], mode="drop") if name != "weights" else parts[name]
        for name, shape in net.shapes
    ]
    return jnp.concatenate([one.ravel() for one in whole])


def packed_size(net: ClassAutoencoder, count: int) -> int:
    """Numbers that `packed` holds."""
    rest = net.outcomes * net.classes
    return (count_parameters(net.shapes) - rest) // net.blocks.width * count + rest


def told_mask(net: ClassAutoencoder, kept: Array) -> Array:
    """Which coordinates of the gradient a part tells of."""
    wide = jnp.tile(kept, net.classes + net.outcomes - 1)
    return jnp.concatenate([wide, jnp.ones(net.outcomes * net.classes)])


def whole(net: ClassAutoencoder) -> Array:
    """The mask of a model that is sent whole."""
    return np.ones(net.blocks.width, np.float32)
