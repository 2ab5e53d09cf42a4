"""Autoencoders for tables under one vector of parameters, and the rows their decoders make (Jiang et al. 2022, section 3).

A record enters as one 0/1 per binary column and a one-hot block per other column. Two designs:

`DenseAutoencoder`   as published: dense-relu encoder, Gaussian latent, dense-relu decoder, sigmoid out; binary cross-entropy
                     averaged over the outputs plus the MMD between a client's codes and the prior
`ClassAutoencoder`   a latent of so many classes and a linear decoder. Its encoder is Bayes' rule, so that none is trained,
                     the per-record regulariser is exact (the loss is -log of the record's probability), and half the
                     parameters fall away
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import DataError, out_of_range
from populace.methods.blocks.generator import Generator
from populace.methods.blocks.parameters import Shapes, count_parameters, glorot, unpack
from populace.tables.schema import Schema
from populace.types import Array

LATENTS_PER_ROW = 16  # drawn for a row that must meet conditions
TIED = 15.0  # logit of the target's value a class stands for, and minus that of the others
LEAST_SHARE = 0.003  # of a binary column's rarer value; of each value of a larger column, its share of twice that
LEAST_VARIANCE = 1e-4
LEAST_CHANCE = 1e-6  # of a class to start from


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
    def owner(self) -> Array:
        """The column of each place."""
        return np.repeat(np.arange(len(self.sizes)), self.widths)

    @functools.cached_property
    def value(self) -> Array:
        """The code each place stands for."""
        return np.concatenate(
            [np.arange(w) if w > 1 or s == 1 else [1] for w, s in zip(self.widths, self.sizes, strict=True)]
        )

    @functools.cached_property
    def alone(self) -> Array:
        """Which places are binary columns."""
        return np.asarray(self.sizes)[self.owner] == 2

    def encode(self, codes: Array) -> Array:
        """Rows of zeros and ones; traceable."""
        return (jnp.asarray(codes)[..., self.owner] == jnp.asarray(self.value)).astype(jnp.float32)

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
        tops = jnp.max(
            jnp.where(mine, logits[..., None], -jnp.inf), axis=-2
        )  # of each block: others may be far above it
        tops = jax.lax.stop_gradient(jnp.where(binary, 0.0, tops))
        sums = jnp.exp(jnp.where(self.alone, -jnp.inf, logits - tops[..., self.owner])) @ mine.astype(np.float32)
        return jnp.where(binary, 0.0, jnp.log(jnp.where(binary, 1.0, sums)) + tops)

    def probabilities(self, logits: Array) -> Array:
        """Of each place: sigmoid for binary columns, softmax within blocks."""
        if self.alone.all():
            return jax.nn.sigmoid(logits)
        within = jnp.where(self.alone, 0.0, logits - self._block_sums(logits)[..., self.owner])
        return jnp.where(self.alone, jax.nn.sigmoid(logits), jnp.exp(within))


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

    def logits(self, theta: Array, latent: Array) -> Array:
        parts = unpack(self.shapes, theta)
        return jax.nn.relu(latent @ parts["up"] + parts["up_bias"]) @ parts["out"] + parts["out_bias"]

    def encode(self, theta: Array, x: Array) -> Array:
        parts = unpack(self.shapes, theta)
        return jax.nn.relu(x @ parts["in"] + parts["in_bias"]) @ parts["code"] + parts["code_bias"]

    def loss(self, theta: Array, x: Array, mask: Array, key: Array) -> Array:
        """Equation 3 with lambda = 1, over the records that are there."""
        codes = self.encode(theta, x)
        logits = self.logits(theta, codes)
        entropy = jnp.mean(jax.nn.softplus(logits) - x * logits, axis=-1)
        weights = mask / jnp.maximum(jnp.sum(mask), 1)
        prior = jax.random.normal(key, codes.shape)
        return jnp.sum(weights * entropy) + discrepancy(prior, codes, mask)


def discrepancy(prior: Array, codes: Array, mask: Array) -> Array:
    """The MMD of equation 4: inverse multiquadric kernel, kappa = 2 d_z. With one record its within-terms are left out."""
    kappa = 2.0 * codes.shape[-1]
    number = jnp.sum(mask)
    both = jnp.outer(mask, mask)
    pairs = both * (1 - jnp.eye(len(codes)))

    def kernel(a: Array, b: Array) -> Array:
        return kappa / (kappa + jnp.sum((a[:, None, :] - b[None, :, :]) ** 2, axis=-1))

    within = jnp.sum(pairs * (kernel(prior, prior) + kernel(codes, codes))) / jnp.maximum(number * (number - 1), 1)
    return within - 2 * jnp.sum(both * kernel(prior, codes)) / jnp.maximum(number**2, 1)


@dataclasses.dataclass(frozen=True)
class ClassAutoencoder:
    """`classes` latent values, each with logits of its own beside those all share; a declared target, if there is one, adds an
    effect of its value to every class, and says how likely the classes are.

        P(record) = P(target) sum over classes of P(class | target) prod over other columns of P(value | class, target)
        logits(class, target) = base + class + effect of the target's value, centred

    `base`, learned first and then kept, holds the columns' own tables and P(target); `slope` tells of the rest.
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
        return (self.blocks.owner != (-1 if self.target is None else self.target)).astype(np.float32)

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

    def first_slope(self, base: Array, x: Array, mask: Array) -> Array:
        """Of log P(record) by `base` alone, meaned over the records that are there: observed minus expected, [width]."""
        each = x - self.blocks.probabilities(base)
        return jnp.sum(each * mask[:, None], axis=0) / jnp.maximum(jnp.sum(mask), 1)

    def slope(self, theta: Array, x: Array, value: Array, mask: Array, kept: Array | float = 1.0) -> Array:
        """Of log P(record) by all but `base`, meaned over the records that are there, places scaled by `scales`; of the
        columns `kept` alone, 0/1 for each place, if not all are. `x` and `value` as `read` gives them."""
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

    def first_length(self, base: Array, records: int) -> Array:
        """How long `first_slope` is expected to be for so many records of independent columns."""
        return jnp.sqrt(jnp.sum(self._variances(base)) / records)

    def length(self, base: Array, records: int) -> Array:
        """The same for `slope`."""
        return jnp.sqrt(jnp.sum(self._variances(base) * self.scales(base) ** 2) / records)

    def information(self, theta: Array) -> Array:
        """How fast each coordinate of the mean `slope` falls as its parameter rises, other columns and classes left out."""
        parts = unpack(self.shapes, theta)
        outcomes = self.outcome_shares(parts["base"])
        chances = outcomes[:, None] * jax.nn.softmax(parts["weights"])
        places = jnp.where(self.free == 0, 1.0, self._variances(parts["base"]) * self.scales(parts["base"]))
        contrast = (outcomes * (1 - outcomes))[1:]
        found = (jnp.outer(jnp.sum(chances, axis=0), places), jnp.outer(contrast, places), chances)
        return jnp.concatenate([part.ravel() for part in found])

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder(Generator):
    """Rows from a trained decoder.

    With `classes`, [classes, width] logits, and `chances`: a class is drawn per row. Otherwise the dense decoder's four
    arrays, fed with a Gaussian latent. Values are drawn from the decoder's probabilities, or, `arg_max`, the likeliest taken.
    Edge cases: conditions are met exactly (classes, or latents, are weighted by how likely they make them).
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
        if not all(np.isfinite(array).all() for array in self.layers.values()):
            raise DataError("the decoder holds numbers that are not finite: it did not train; choose smaller steps")

    def sample_codes(self, count: int, key: Array, conditions: Mapping[int, int]) -> Array:
        if count < 1:
            raise out_of_range("count", "at least 1", count)
        blocks = Blocks(self.schema.sizes)
        latent, values = jax.random.split(key)
        logits = self._logits(count, latent, conditions, blocks)
        codes = np.array(_draw(blocks, logits, values, arg_max=self.arg_max))
        for column, code in conditions.items():
            codes[:, column] = code
        return codes

    def _logits(self, count: int, key: Array, conditions: Mapping[int, int], blocks: Blocks) -> Array:
        draw, pick = jax.random.split(key)
        if "classes" in self.layers:
            found = jnp.asarray(self.layers["classes"])
        else:
            number = LATENTS_PER_ROW * count if conditions else count
            layers = {name: jnp.asarray(array) for name, array in self.layers.items()}
            z = jax.random.normal(draw, (number, layers["up"].shape[0]))
            found = jax.nn.relu(z @ layers["up"] + layers["up_bias"]) @ layers["out"] + layers["out_bias"]
            if not conditions:
                return found
        weights = np.exp(self._log_likelihood(found, conditions, blocks)) * self.layers.get("chances", np.ones(1))
        if not weights.sum() > 0:
            raise DataError("no row the decoder made meets these conditions; ask for something more frequent")
        return found[jax.random.choice(pick, len(weights), (count,), p=jnp.asarray(weights / weights.sum()))]

    def _log_likelihood(self, logits: Array, conditions: Mapping[int, int], blocks: Blocks) -> Array:
        """log P(conditions) under each row of logits."""
        total = np.zeros(len(logits))
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
            total += np.log(np.maximum(share, 1e-300)) if blocks.sizes[column] > 1 else 0.0
        return total - total.max()

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
