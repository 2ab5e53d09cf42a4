"""The autoencoders of both methods, each under one vector of parameters (Jiang et al. 2022, sections 3 and 5.1).

`DenseAutoencoder`   for tables, as published: dense-relu encoder, Gaussian latent, dense-relu decoder, sigmoid out; binary
                     cross-entropy averaged over the outputs plus the MMD between a client's codes and the prior
`ConvAutoencoder`    for images. The paper says "convolution layers" and "mean squared error", and no sizes; these are ours: two
                     convolutions of 3 x 3 that halve the image, a dense Gaussian latent, and the same backwards
`ClassAutoencoder`   a latent of so many classes and a linear decoder. Its encoder is Bayes' rule, so that none is trained,
                     the per-record regulariser is exact (the loss is -log of the record's probability), and half the
                     parameters fall away

A sub-model of the last is some of the columns, sent instead of the whole model: federated dropout (Caldas et al. 2018). Given
the class the columns are independent, so that leaving some out leaves a smaller model of the same kind, whose gradient is that
of the likelihood of the columns that stay. Which they are follows from a public coin: nobody need be told.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import DataError
from populace.methods.blocks.networks import (
    KERNEL_SIDE,
    Blocks,
    Shapes,
    convolve,
    count_parameters,
    doubled,
    glorot,
    unpack,
)
from populace.types import Array

Layers = dict[str, Array]

HALVINGS = 2  # of an image, by convolutions
TIED = 15.0  # logit of the target's value a class stands for, and minus that of the others
LEAST_SHARE = 0.003  # of a binary column's rarer value; of each value of a larger column, its share of twice that
LEAST_VARIANCE = 1e-4
LEAST_CHANCE = 1e-6  # of a class to start from


class Training(NamedTuple):
    """What a client trains of a network on its records: layers, their gradient, and what all parameters change with them."""

    layers: Layers
    gradient: Callable[[Layers, Array, Array], Layers]  # by layers, mask of records and the latents of the prior
    changes: Callable[[Layers], Layers]


@dataclasses.dataclass(frozen=True)
class DenseAutoencoder:
    """As published: Input - Dense(hidden, relu) - Dense(latent) - Dense(hidden, relu) - Output(sigmoid)."""

    blocks: Blocks
    hidden: int
    latent: int

    @property
    def shapes(self) -> Shapes:
        w, h, z = self.blocks.width, self.hidden, self.latent
        return (
            ("out_bias", (w,)), ("out", (h, w)), ("up_bias", (h,)), ("up", (z, h)),
            ("code_bias", (z,)), ("code", (h, z)), ("in_bias", (h,)), ("in", (w, h)),
        )  # fmt: skip

    def start(self, key: Array) -> Array:
        return glorot(self.shapes, key)

    def draw(self, rows: int, key: Array) -> Array:
        """Rows drawn evenly from the public domain."""
        sizes = jnp.asarray(self.blocks.sizes)
        return self.blocks.encode(jax.random.randint(key, (rows, len(sizes)), 0, sizes))

    def logits(self, theta: Array | Layers, latent: Array) -> Array:
        parts = unpack(self.shapes, theta)
        return jax.nn.relu(latent @ parts["up"] + parts["up_bias"]) @ parts["out"] + parts["out_bias"]

    def sums(self, parts: Layers, x: Array) -> Array:
        """What the first layer gives, before its relu."""
        return x @ parts["in"] + parts["in_bias"]

    def loss(self, theta: Array | Layers, x: Array, mask: Array, prior: Array, sums: Array | None = None) -> Array:
        """The loss of equation 3 with lambda = 1, over the records that are there; `sums` if they are known already."""
        parts = unpack(self.shapes, theta)
        inner = jax.nn.relu(self.sums(parts, x) if sums is None else sums)
        codes = inner @ parts["code"] + parts["code_bias"]
        logits = self.logits(parts, codes)
        entropy = jnp.mean(jax.nn.softplus(logits) - x * logits, axis=-1)
        weights = mask / jnp.maximum(jnp.sum(mask), 1)
        return jnp.sum(weights * entropy) + discrepancy(prior, codes, mask)

    def training(self, parts: Layers, x: Array) -> Training:
        """Training on these records, of one row of the first layer for all the places that have the same values in them.

        The first layer's gradient is a sum over records of their zeros and ones times what comes back, so that such places
        have the same gradient in every epoch, and by Adam the same change. Two records have four kinds of places.
        """
        (kind, seen, sizes), before = kinds_of_places(x), self.sums(parts, x)
        trained = parts | {"in": jnp.zeros((len(sizes), self.hidden)), "in_bias": jnp.zeros(self.hidden)}

        def gradient(layers: Layers, mask: Array, prior: Array) -> Layers:
            def loss(layers: Layers) -> Array:
                return self.loss(layers, x, mask, prior, before + seen @ layers["in"] + layers["in_bias"])

            found: Layers = jax.grad(loss)(layers)
            return found | {
                "in": found["in"] / jnp.maximum(sizes, 1)[:, None]
            }  # of all places of a kind, hence of one of them

        return Training(trained, gradient, lambda change: change | {"in": change["in"][kind]})


def kinds_of_places(x: Array) -> tuple[Array, Array, Array]:
    """The kind of each place, shared by those equal in all records; the ones of each kind in each record; the kinds' sizes."""
    if 2 ** len(x) >= x.shape[1]:  # each is a kind of its own
        return jnp.arange(x.shape[1]), x, jnp.ones(x.shape[1])
    kind = (2 ** np.arange(len(x), dtype=np.int32)) @ x.astype(jnp.int32)
    here = (kind[:, None] == np.arange(2 ** len(x))).astype(jnp.float32)
    return kind, x @ here, jnp.sum(here, axis=0)


def discrepancy(prior: Array, codes: Array, mask: Array) -> Array:
    """The MMD of equation 4: inverse multiquadric kernel, kappa = 2 d_z. With one record its within-terms are left out."""
    kappa = 2.0 * codes.shape[-1]
    number = jnp.sum(mask)
    both = jnp.outer(jnp.asarray(mask), jnp.asarray(mask))
    pairs = both * (1 - jnp.eye(len(codes)))

    def kernel(a: Array, b: Array) -> Array:
        return kappa / (kappa + jnp.sum((a[:, None, :] - b[None, :, :]) ** 2, axis=-1))

    within = jnp.sum(pairs * (kernel(prior, prior) + kernel(codes, codes))) / jnp.maximum(number * (number - 1), 1)
    return within - 2 * jnp.sum(both * kernel(prior, codes)) / jnp.maximum(number**2, 1)


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
        """The shape of the innermost layer: an image is padded up to four times its sides."""
        factor = 2**HALVINGS
        return -(-self.shape[0] // factor), -(-self.shape[1] // factor), 2 * self.channels

    @property
    def shapes(self) -> Shapes:
        c, z, k, inner = self.channels, self.latent, KERNEL_SIDE * KERNEL_SIDE, math.prod(self.grid)
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

    def loss(self, theta: Array, x: Array, mask: Array, prior: Array) -> Array:
        """Mean squared error plus the MMD of equation 4, lambda = 1, over the images that are there."""
        codes = self.encode(theta, x)
        error = jnp.mean((self.decode(unpack(self.shapes, theta), codes) - x) ** 2, axis=(1, 2, 3))
        weights = mask / jnp.maximum(jnp.sum(mask), 1)
        return jnp.sum(weights * error) + discrepancy(prior, codes, mask)

    def training(self, parts: Layers, x: Array) -> Training:
        """Training of all layers on these images."""
        return Training(parts, lambda layers, *given: jax.grad(self.loss)(layers, x, *given), lambda change: change)

    def draw(self, rows: int, key: Array) -> Array:
        """Images drawn evenly from the public domain: every pixel by itself."""
        return self.read(jax.random.randint(key, (rows, *self.shape), 0, 256))


@dataclasses.dataclass(frozen=True)
class ClassAutoencoder:
    """`classes` latent values, each with logits of its own beside those all share; a declared target, if there is one, adds an
    effect of its value to every class, and says how likely the classes are.

        P(record) = P(target) sum over classes of P(class | target) prod over other columns of P(value | class, target)
        logits(class, target) = base + class + effect of the target's value, centred

    `base`, learned first and then kept, holds the columns' own tables and P(target); `gradient` is by the rest.
    """

    blocks: Blocks
    classes: int
    target: int | None = None
    spread: float = 0.5  # of the classes' first logits: equal classes would stay equal

    @property
    def outcomes(self) -> int:
        return 1 if self.target is None else self.blocks.sizes[self.target]

    @property
    def shapes(self) -> Shapes:
        k, m, w = self.classes, self.outcomes, self.blocks.width
        return (("base", (w,)), ("classes", (k, w)), ("effect", (m - 1, w)), ("weights", (m, k)))

    @functools.cached_property
    def free(self) -> Array:
        """Which places are not the target's, as 0/1."""
        return np.asarray(self.blocks.owner != (-1 if self.target is None else self.target), np.float32)

    def start(self, key: Array) -> Array:
        """Even columns, classes at random, no effect, classes equally likely."""
        classes = self.spread * jax.random.normal(key, (self.classes, self.blocks.width)) * self.free
        rest = count_parameters(self.shapes[2:])
        return jnp.concatenate([jnp.zeros(self.blocks.width), classes.ravel(), jnp.zeros(rest)])

    def base_of(self, means: Array) -> Array:
        """Logits of estimated shares, which may be negative."""
        least = 2 * LEAST_SHARE / np.asarray(self.blocks.sizes)[self.blocks.owner]
        p = jnp.clip(means, least, 1 - least)
        return jnp.log(p) - jnp.where(self.blocks.alone, jnp.log1p(-p), 0.0)

    def outcome_shares(self, base: Array) -> Array:
        """P(target), [outcomes]."""
        if self.target is None:
            return jnp.ones(1)
        p = self.blocks.probabilities(base)[np.flatnonzero(self.free == 0)]
        return jnp.stack([1 - p[0], p[0]]) if self.outcomes == 2 else p

    def contrasts(self, base: Array) -> Array:
        """[outcomes, outcomes - 1]: which value the target has, the first left out, less the mean over people."""
        return jnp.eye(self.outcomes)[:, 1:] - self.outcome_shares(base)[1:]

    def logits(self, parts: Mapping[str, Array]) -> Array:
        """[outcomes, classes, width]."""
        effect = self.contrasts(parts["base"]) @ parts["effect"]
        return parts["base"] + parts["classes"] + effect[:, None, :]

    def scales(self, base: Array) -> Array:
        """What each place's gradient counts for: rare values more than their share of the gradient's length, and the target,
        which classes do not change, nothing."""
        return self.free * (4 * self._variances(base)) ** -0.25

    def _variances(self, base: Array) -> Array:
        p = self.blocks.probabilities(base)
        return jnp.maximum(p * (1 - p), LEAST_VARIANCE)

    def read(self, codes: Array) -> tuple[Array, Array]:
        """Rows of codes as zeros and ones, and the target's value of each."""
        codes = jnp.asarray(codes)
        value = jnp.zeros(len(codes), jnp.int32) if self.target is None else codes[:, self.target]
        return self.blocks.encode(codes), value

    def base_gradient(self, base: Array, x: Array, mask: Array) -> Array:
        """The gradient of log P(record) by `base` alone, averaged over the records that are there: observed minus expected."""
        each = x - self.blocks.probabilities(base)
        return jnp.sum(each * mask[:, None], axis=0) / jnp.maximum(jnp.sum(mask), 1)

    def gradient(self, theta: Array, x: Array, value: Array, mask: Array, kept: Array | float = 1.0) -> Array:
        """The gradient of log P(record) by all but `base`, averaged over the records that are there, places scaled by `scales`;
        of the columns `kept` alone, 0/1 for each place, if not all are. `x` and `value` are what `read` gives."""
        parts = unpack(self.shapes, theta)
        logits = self.logits(parts) * kept
        chances = jax.nn.log_softmax(parts["weights"])[value]
        given = jnp.einsum("rw,rkw->rk", x * self.free, logits[value]) - self.blocks.log_normaliser(logits)[value]
        posterior = jax.nn.softmax(given + chances)
        away = (x[:, None, :] - self.blocks.probabilities(logits)[value]) * self.scales(parts["base"]) * kept
        shares = mask / jnp.maximum(jnp.sum(mask), 1)
        classes = jnp.einsum("r,rk,rkw->kw", shares, posterior, away)
        effect = jnp.einsum("r,rk,rkw,rm->mw", shares, posterior, away, self.contrasts(parts["base"])[value])
        weights = jnp.einsum("r,rm,rk->mk", shares, jnp.eye(self.outcomes)[value], posterior - jnp.exp(chances))
        return jnp.concatenate([classes.ravel(), effect.ravel(), weights.ravel()])

    def base_gradient_norm(self, base: Array, records: int) -> Array:
        """The norm expected of `base_gradient` for so many records of independent columns."""
        return jnp.sqrt(jnp.sum(self._variances(base)) / records)

    def gradient_norm(self, base: Array, records: int) -> Array:
        """The norm expected of `gradient` for so many records of independent columns."""
        return jnp.sqrt(jnp.sum(self._variances(base) * self.scales(base) ** 2) / records)

    def information(self, theta: Array) -> Array:
        """The Fisher information of each parameter, other columns and classes left out."""
        parts = unpack(self.shapes, theta)
        outcomes = self.outcome_shares(parts["base"])
        chances = outcomes[:, None] * jax.nn.softmax(parts["weights"])
        places = jnp.where(self.free == 0, 1.0, self._variances(parts["base"]) * self.scales(parts["base"]))
        contrast = (outcomes * (1 - outcomes))[1:]
        parts_of = (jnp.outer(jnp.sum(chances, axis=0), places), jnp.outer(contrast, places), chances)
        return jnp.concatenate([part.ravel() for part in parts_of])

    def tables(self, theta: Array) -> dict[str, Array]:
        """The decoder's layers: logits of every class under every value of the target, and how likely each of them is."""
        parts = unpack(self.shapes, theta)
        logits = self.logits(parts)
        if self.target is not None:
            codes = np.zeros((self.outcomes, len(self.blocks.sizes)), np.int32)
            codes[:, self.target] = np.arange(self.outcomes)
            tied = TIED * (2 * self.blocks.encode(codes) - 1)
            logits = jnp.where(self.free == 0, tied[:, None, :], logits)
        chances = self.outcome_shares(parts["base"])[:, None] * jax.nn.softmax(parts["weights"])
        return {"classes": logits.reshape(-1, self.blocks.width), "chances": chances.ravel()}

    def parameters_of(self, layers: Mapping[str, Array]) -> Array:
        """The parameters whose `tables` these are, their base that of the columns' own tables."""
        logits, chances = (jnp.asarray(layers.get(name, np.zeros(0))) for name in ("classes", "chances"))
        if logits.shape != (self.outcomes * self.classes, self.blocks.width) or len(chances) != len(logits):
            raise DataError(f"expected a decoder of {self.outcomes * self.classes} classes to start from")
        base = self.base_of(chances @ self.blocks.probabilities(logits) / jnp.sum(chances))
        logits = logits.reshape(self.outcomes, self.classes, -1)
        effect = jnp.mean(logits[1:] - logits[0], axis=1) * self.free
        classes = (logits[0] - base - self.contrasts(base)[0] @ effect) * self.free
        weights = jnp.log(jnp.maximum(chances.reshape(self.outcomes, -1), LEAST_CHANCE))
        weights -= jnp.mean(weights, axis=-1, keepdims=True)
        return jnp.concatenate([part.ravel() for part in (base, classes, effect, weights)])


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
