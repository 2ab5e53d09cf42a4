"""The one vector of `moments`: whole numbers, and exactly how much a record can change it.

Features of records are rounded to whole units and checked there, so that the bound holds whatever came in; counts, lengths,
sums and products are added up without any error of floats.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.moments.features import Features, Sums
from populace.privacy.gaussian import EXACT, WIDE
from populace.types import Array, ArrayTree

DIAGONAL, BESIDE = 5, 7  # whole weights of second moments, 7/5 for sqrt(2): all unit vectors weigh (nearly) the same
BITS = 9  # a feature vector of length 1 is 2^BITS units long
LARGEST = 10  # at least what a record adds to one number, in squares of the unit
#: Weights of counts, means, second moments and lengths in the one vector: by class, and with shared second moments.
BY_CLASS = (0.1, 0.4, 0.9, 0.1)
SHARED = (0.1, 0.85, 0.5, 0.15)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The one vector of whole numbers and its parts: counts, lengths, means, second moments.

    In units: a record adds `count` to its class, `length` times its length and its square (at most 2^bits each), `mean` times
    its features (at most 2^bits long together), and products of two features, times 5 on the diagonal and 7 beside it.
    """

    classes: int
    size: int
    shared: bool
    bits: int
    count: int
    length: int
    mean: int

    @property
    def unit(self) -> int:
        """The length of a feature vector of length 1."""
        return 1 << self.bits

    @property
    def sections(self) -> tuple[int, ...]:
        """Lengths of the parts."""
        pairs = self.size * (self.size + 1) // 2
        return self.classes, 2 * self.groups, self.size * self.classes, pairs * self.groups

    @property
    def groups(self) -> int:
        """The number of groups of classes with second moments and lengths of their own: one where all share them."""
        return 1 if self.shared else self.classes

    @property
    def numbers(self) -> int:
        return sum(self.sections)

    @functools.cached_property
    def pairs(self) -> tuple[Array, Array]:
        """Rows and columns of the upper triangle."""
        return np.triu_indices(self.size)

    @functools.cached_property
    def factors(self) -> Array:
        """Of second moments: 5 on the diagonal, 7 beside it."""
        return np.where(self.pairs[0] == self.pairs[1], DIAGONAL, BESIDE).astype(np.int32)

    @property
    def bound(self) -> float:
        """L2 norm, in units, of what one record adds at most.

        Second moments: 25 sum f_i^4 + 49 sum_{i<j} f_i^2 f_j^2 <= 25 (sum f_i^2)^2, since 49 <= 2 * 25.
        """
        unit = float(self.unit)
        return math.sqrt(
            self.count**2 + 2 * (self.length * unit) ** 2 + (self.mean * unit) ** 2 + (DIAGONAL * unit**2) ** 2
        )

    @property
    def reach(self) -> float:
        """The length that features are scaled to before rounding, so that they are at most `unit` long after it."""
        return self.unit - math.sqrt(self.size) / 2 - 0.01


def layout_of(features: Features, *, shared: bool, records: int) -> Layout:
    """Bits such that the sums of so many records cannot pass 31 bits, and whole weights nearest to those wanted.

    Edge cases: below so many bits that rounding would swallow the features, sums of very many like records may wrap around,
    which costs accuracy, never privacy, while all is modulo 2^32 (silo trust); a protocol that adds messages up without noise
    must refuse such clients.
    """
    room = (WIDE - math.log2(LARGEST * max(records, 1))) / 2
    least = math.ceil(math.log2(2 * math.sqrt(features.size)))
    bits = max(least, min(BITS, math.floor(room)))
    unit = float(1 << bits)
    counts, means, seconds, lengths = SHARED if shared else BY_CLASS
    whole = DIAGONAL * unit / seconds  # of weight 1 on a vector of `unit`
    return Layout(
        classes=features.classes, size=features.size, shared=shared, bits=bits,
        count=max(1, round(counts * whole * unit)), length=max(1, round(lengths * whole / math.sqrt(2))),
        mean=max(1, round(means * whole)),
    )  # fmt: skip


def summed(features: Features, layout: Layout, records: ArrayTree, mask: Array) -> Array:
    """The one vector of a client, int32, in units; traceable.

    Guarantee: exact, so that one record changes it by at most `layout.bound` in L2: features are whole numbers, and as many
    records are multiplied at once as a float32 adds without error; the rest is added in 32 bits.
    """
    block = max(1, 1 << (EXACT - 2 * layout.bits))
    over = -len(mask) % block

    def cut(leaf: Array) -> Array:
        leaf = jnp.asarray(leaf)
        return jnp.pad(leaf, ((0, over), *[(0, 0)] * (leaf.ndim - 1))).reshape(-1, block, *leaf.shape[1:])

    def add(carry: tuple[jax.Array, ...], parts: tuple[ArrayTree, Array]) -> tuple[tuple[jax.Array, ...], None]:
        some, there = parts
        h, labels = features.read(some)
        whole, length, square = quantised(features, layout, h)
        member = (there[:, None] & (jnp.asarray(labels)[:, None] == jnp.arange(layout.classes))).astype(jnp.float32)
        lengths = jnp.stack([length, square], axis=1)
        inside = whole * member.sum(axis=1, keepdims=True)
        by_class = inside if layout.shared else (member[:, :, None] * whole[:, None]).reshape(block, -1)
        groups_of = member.sum(axis=1, keepdims=True) if layout.shared else member
        sums = (member.sum(axis=0), _product(groups_of, lengths), _product(member, whole), _product(by_class, inside))
        return tuple(old + new.astype(jnp.int32) for old, new in zip(carry, sums, strict=True)), None

    groups = layout.groups
    shapes = ((layout.classes,), (groups, 2), (layout.classes, layout.size), (groups * layout.size, layout.size))
    start = tuple(jnp.zeros(shape, jnp.int32) for shape in shapes)
    (counts, lengths, means, seconds), _ = jax.lax.scan(add, start, (jax.tree.map(cut, records), cut(mask)))
    upper = seconds.reshape(groups, layout.size, layout.size)[:, layout.pairs[0], layout.pairs[1]] * layout.factors
    parts = (layout.count * counts, layout.length * lengths, layout.mean * means, upper)
    return jnp.concatenate([part.reshape(-1) for part in parts])


def _product(first: Array, second: Array) -> Array:
    return jnp.matmul(first.T, second, precision="highest")


def quantised(features: Features, layout: Layout, h: Array) -> tuple[Array, Array, Array]:
    """Features of length at most 1, their length and its square, in whole units, as floats.

    Guarantee: squares of a row add up to at most unit^2, whatever came in: what does not is 0.
    """
    h = jnp.where(jnp.isfinite(h), h, 0.0)
    length = jnp.linalg.norm(h, axis=1)
    long = jnp.minimum(length / features.ceiling, 1.0)
    whole = jnp.round(h * (layout.reach / jnp.maximum(length, features.floor))[:, None])
    squares = jnp.sum(jnp.square(whole.astype(jnp.int32)), axis=1)
    fits = (squares <= layout.unit**2) & (jnp.abs(whole) <= layout.unit).all(axis=1)
    return (
        jnp.where(fits[:, None], whole, 0.0),
        jnp.round(jnp.where(fits, long, 0.0) * layout.unit),
        jnp.round(jnp.where(fits, jnp.square(long), 0.0) * layout.unit),
    )


def unpacked(layout: Layout, numbers: Array, noise: float) -> Sums:
    """The parts of the noisy vector in their own units, with the deviation of the noise in each."""
    ends = np.cumsum(layout.sections)
    counts, lengths, means, upper = np.split(np.asarray(numbers, np.float64), ends[:-1])
    groups = layout.groups
    seconds = np.zeros((groups, layout.size, layout.size))
    seconds[:, layout.pairs[0], layout.pairs[1]] = upper.reshape(groups, -1) / layout.factors
    seconds = seconds + np.triu(seconds, 1).swapaxes(1, 2)
    reach = layout.reach
    return Sums(
        counts=counts / layout.count, lengths=lengths.reshape(groups, 2) / (layout.length * layout.unit),
        means=means.reshape(layout.classes, layout.size) / (layout.mean * reach), seconds=seconds / reach**2,
        noise_counts=noise / layout.count, noise_lengths=noise / (layout.length * layout.unit),
        noise_means=noise / (layout.mean * reach), noise_seconds=noise / (DIAGONAL * reach**2),
    )  # fmt: skip
