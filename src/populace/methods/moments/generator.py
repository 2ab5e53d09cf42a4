"""Class-conditional Gaussians in feature space that make labelled images or rows.

A Gaussian's draws are not what is made of them: pixels are clipped to their range, codes are rounded. So they are chosen
such that what is MADE has the moments measured (`fit`): everything here is post-processing of the noisy sums.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import DataError, SpecError
from populace.methods.base import on_processor
from populace.methods.blocks.generator import Generator, ImageGenerator, power_of
from populace.methods.moments.features import MOVES, TRIED, Estimates, Features, ImageFeatures, TableFeatures
from populace.tables.schema import Schema
from populace.types import Array, NumpyArray

DRAWS = 1_500  # of each class, that moments are matched on
ROUNDS = 8
STEP = 0.8
FLOOR = 1e-4  # of the largest: eigenvalues below it are not divided by
MOST_LONGER = 3.5  # times the length wanted: what clipped pixels cannot reach is not run after
MOST_MOVED = 4.0  # times the move tried
MOST_SPREAD = 10.0  # times as far, in one step: where all examples look alike no factor brings the variance wanted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gaussians:
    """Per class: `shares`, `centres` [classes, size], `factors` [classes, size, rank], `grain` [classes, size] the deviation of
    what no factor explains, and the mean and deviation of lengths, `lengths` [classes, 2]; `moves` [6] the deviations of
    deformations, which all classes share."""

    shares: Array
    centres: Array
    factors: Array
    grain: Array
    lengths: Array
    moves: Array

    def __post_init__(self) -> None:
        classes, size = np.shape(self.centres)
        shapes = (np.shape(self.shares), np.shape(self.factors)[:2], np.shape(self.grain), np.shape(self.lengths))
        if shapes != ((classes,), (classes, size), (classes, size), (classes, 2)):
            raise DataError(f"expected shares, factors, grain and lengths of {classes} classes, got shapes {shapes}")
        if not all(np.isfinite(leaf).all() for leaf in self.arrays().values()) or np.min(self.shares) < 0:
            raise DataError("the model holds numbers that are no shares or moments: its sums were not finite")

    def arrays(self) -> dict[str, Array]:
        return {field.name: np.asarray(getattr(self, field.name), np.float32) for field in dataclasses.fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Gaussians:
        return cls(**{field.name: arrays[field.name] for field in dataclasses.fields(cls)})


def fit(
    features: Features, estimates: Estimates, rng: np.random.Generator, *, moves: Collection[str] = (), explained: float = 0.5
) -> Gaussians:  # fmt: skip
    """Gaussians whose images or rows, deformed by the `moves` named, have the means, variances and lengths that were estimated.

    What a class's length leaves over after mean and spikes is spread evenly over the coordinates, as grain.
    """
    rank = max(1, *(len(variances) for variances in estimates.variances))
    far: Array = np.zeros(len(MOVES))
    if moves:
        far = move_sizes(features, estimates, explained) * np.array([name in moves for name in MOVES])
    parts = []
    for mean, variances, directions, lengths in zip(
        estimates.means, estimates.variances, estimates.directions, estimates.lengths, strict=True
    ):
        left = max(0.0, 1.0 - float(mean @ mean) - float(variances.sum())) if features.keeps_length else 0.0
        grain = np.full(features.size, np.sqrt(left / max(1, features.size - len(variances))))
        centre, factor, longer = _matched(features, mean, variances, directions, lengths, grain, far, rng)
        parts.append((centre, np.pad(factor, ((0, 0), (0, rank - factor.shape[1]))), grain, lengths * [longer, longer]))
    centres, factors, grain, lengths = (np.stack(part).astype(np.float32) for part in zip(*parts, strict=True))
    return Gaussians(
        shares=estimates.shares,
        centres=centres,
        factors=factors,
        grain=grain,
        lengths=lengths,
        moves=far.astype(np.float32),
    )


def move_sizes(features: Features, estimates: Estimates, explained: float) -> Array:
    """Deviations of the moves, [6]: those whose variance, along the direction a move changes a class's mean, is `explained` of
    what was measured there, over all classes. Noise in the covariances averages out; less than nothing is nothing."""
    measured, caused = np.zeros(len(MOVES)), np.zeros(len(MOVES))
    ways = np.concatenate([np.diag(TRIED), -np.diag(TRIED)]).astype(np.float32)
    for share, mean, covariance, lengths in zip(
        estimates.shares, estimates.means, estimates.covariances, estimates.lengths, strict=True
    ):
        same = np.tile(mean.astype(np.float32), (len(ways), 1))
        h = np.asarray(_again(features, same, np.full(len(ways), lengths[0], np.float32), ways))
        phi = h / np.maximum(np.linalg.norm(h, axis=1), features.floor)[:, None]
        tangents = (phi[: len(MOVES)] - phi[len(MOVES) :]) / 2
        squares = (tangents**2).sum(axis=1)
        measured += share * np.einsum("mi,ij,mj->m", tangents, covariance, tangents) / np.maximum(squares, 1e-12)
        caused += share * squares
    return TRIED * np.sqrt(explained * np.clip(measured / np.maximum(caused, 1e-12), 0, MOST_MOVED**2))


def _matched(
    features: Features, mean: Array, variances: Array, directions: Array, lengths: Array, grain: Array,
    far: Array, rng: np.random.Generator,
) -> tuple[Array, Array, float]:  # fmt: skip
    """Centre and factor of one class, and by how much lengths must be drawn longer: fixed draws, and steps that move the
    moments of what is made of them to those wanted (the covariance by the optimal-transport map between Gaussians)."""
    rank = len(variances)
    normal = rng.standard_normal((DRAWS, rank)).astype(np.float32)
    if rank:
        normal -= normal.mean(axis=0)
        normal = normal @ power_of(normal.T @ normal / DRAWS, -0.5, FLOOR)
    grains = (rng.standard_normal((DRAWS, features.size)) * grain).astype(np.float32)
    long = _lengths(lengths, rng.standard_normal(DRAWS)).astype(np.float32)
    moves = (rng.standard_normal((DRAWS, len(MOVES))) * far).astype(np.float32) if far.any() else None
    root = np.diag(np.sqrt(variances))
    centre, inner, longer = mean.copy(), root.copy(), 1.0
    for _ in range(ROUNDS):
        u = centre + normal @ (directions @ inner).T + grains
        h = np.asarray(_again(features, u.astype(np.float32), (long * longer).astype(np.float32), moves))
        length = np.linalg.norm(h, axis=1)
        phi = h / np.maximum(length, features.floor)[:, None]
        reached = phi.mean(axis=0)
        centre = centre + STEP * (mean - reached)
        if features.keeps_length:
            longer *= float(np.clip(lengths[0] / max((length / features.ceiling).mean(), 1e-6), 0.5, 2.0)) ** STEP
            longer = min(longer, MOST_LONGER)
        if rank:
            apart = (phi - reached) @ directions
            moved = _at_most(root @ power_of(root @ (apart.T @ apart / DRAWS) @ root, -0.5, FLOOR) @ root, MOST_SPREAD)
            inner = ((1 - STEP) * np.eye(rank) + STEP * moved) @ inner
    return centre, directions @ inner, longer


def _at_most(matrix: NumpyArray, most: float) -> NumpyArray:
    """A symmetric matrix with its eigenvalues cut off."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    capped: NumpyArray = (vectors * np.minimum(values, most)) @ vectors.T
    return capped


def _lengths(lengths: Array, normal: Array) -> Array:
    """Lengths as shares of the ceiling, drawn from a normal law cut off at a tenth of its mean and at 1."""
    return jnp.clip(
        lengths[..., 0] + lengths[..., 1] * normal, 0.1 * lengths[..., 0], jnp.maximum(1.0, lengths[..., 0])
    )


def _scaled(features: Features, u: Array, long: Array) -> Array:
    """Features of the direction u and so long; where lengths tell nothing, u times the public floor."""
    if not features.keeps_length:
        return u * np.float32(features.floor)
    return u * (long * np.float32(features.ceiling) / jnp.maximum(jnp.linalg.norm(u, axis=1), 1e-6))[:, None]


@functools.partial(jax.jit, static_argnums=0)
def _again(features: Features, u: Array, long: Array, moves: Array | None) -> Array:
    """The features of the examples generated from u, deformed."""
    examples = features.examples(_scaled(features, u, long))
    return features.measured(examples if moves is None else features.deformed(examples, moves))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _drawn(features: Features, moves: bool, arrays: dict[str, Array], labels: Array, key: Array) -> Array:
    """One image or row of codes for each label."""
    inner, beside, long, move = jax.random.split(key, 4)
    count, (_, size, rank) = len(labels), arrays["factors"].shape
    normal = jax.random.normal(inner, (count, rank))
    spread = jnp.einsum("nr,csr->ncs", normal, arrays["factors"])
    u = arrays["centres"][labels] + jnp.take_along_axis(spread, labels[:, None, None], axis=1)[:, 0]
    u = u + arrays["grain"][labels] * jax.random.normal(beside, (count, size))
    lengths = _lengths(arrays["lengths"][labels], jax.random.normal(long, (count,)))
    examples = features.examples(_scaled(features, u, lengths))
    if not moves:
        return examples
    return features.deformed(examples, arrays["moves"] * jax.random.normal(move, (count, len(MOVES))))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageGaussians(ImageGenerator):
    """Labelled images from Gaussians over cosine coefficients."""

    kind: ClassVar[str] = "image-gaussians"
    shape: tuple[int, ...]
    classes: int
    side: int
    tilt: float
    model: Gaussians

    @property
    def features(self) -> ImageFeatures:
        return ImageFeatures(self.shape, self.classes, self.side, self.tilt)

    def __post_init__(self) -> None:
        wanted = (self.classes, self.features.size)
        if np.shape(self.model.centres) != wanted:
            raise DataError(f"expected centres of shape {wanted}, got {np.shape(self.model.centres)}")

    def label_shares(self) -> Array:
        shares: NumpyArray = np.asarray(self.model.shares, np.float64)
        normalised: NumpyArray = shares / shares.sum()
        return normalised

    def draw_pixels(self, labels: Array, key: Array) -> Array:
        deforms = bool(np.any(np.asarray(self.model.moves)))
        with on_processor():
            pixels: Array = _drawn(self.features, deforms, self.model.arrays(), np.asarray(labels), key)
        return pixels

    def arrays(self) -> dict[str, Array]:
        return {**self.model.arrays(), "side": np.array(self.side), "tilt": np.array(self.tilt)}

    @classmethod
    def from_arrays(cls, shape: tuple[int, ...], classes: int, arrays: Mapping[str, Array]) -> ImageGaussians:
        return cls(
            shape=shape, classes=classes, side=int(arrays["side"]), tilt=float(arrays["tilt"]),
            model=Gaussians.from_arrays(arrays),
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowGaussians(Generator):
    """Rows from Gaussians over scaled and one-hot columns, one for each value of the target.

    Edge cases: rows are drawn exactly given the target's value; those that meet conditions on other columns are looked for.
    """

    kind: ClassVar[str] = "row-gaussians"
    schema: Schema
    model: Gaussians

    @property
    def features(self) -> TableFeatures:
        return TableFeatures(self.schema)

    def exact_conditions(self, conditions: Mapping[int, int]) -> Mapping[int, int]:
        """The target's: its classes have Gaussians of their own."""
        return {column: code for column, code in conditions.items() if column == self.features.target}

    def sample_codes(self, count: int, key: Array, conditions: Mapping[int, int]) -> Array:
        if len(self.exact_conditions(conditions)) < len(conditions):
            raise SpecError("expected a condition on the target alone of this model's codes; use sample")
        return self._rows(count, jax.random.fold_in(key, 0), next(iter(conditions.values()), None))

    def _rows(self, count: int, key: Array, label: int | None) -> Array:
        which, inside = jax.random.split(key)
        shares = np.asarray(self.model.shares, np.float64)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(which)))
        labels = rng.choice(len(shares), count, p=shares / shares.sum()) if label is None else np.full(count, label)
        drawn = np.array(
            _drawn(self.features, False, self.model.arrays(), jnp.asarray(labels, jnp.int32), inside), np.int32
        )
        if self.features.target is not None:
            drawn[:, self.features.target] = labels
        return drawn

    def arrays(self) -> dict[str, Array]:
        return self.model.arrays()

    @classmethod
    def from_arrays(cls, schema: Schema, arrays: Mapping[str, Array]) -> RowGaussians:
        return cls(schema=schema, model=Gaussians.from_arrays(arrays))
